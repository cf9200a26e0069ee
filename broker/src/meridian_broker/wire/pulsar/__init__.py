# SPDX-License-Identifier: Apache-2.0
"""Pulsar's binary protocol without sockets: bytes in, commands out, and back."""
