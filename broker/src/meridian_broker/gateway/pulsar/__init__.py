# SPDX-License-Identifier: Apache-2.0
"""The Pulsar protocol on sockets, the broker's side."""
