# SPDX-License-Identifier: Apache-2.0
"""Pulsar's admin REST."""
