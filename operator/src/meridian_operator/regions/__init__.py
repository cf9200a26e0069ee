# SPDX-License-Identifier: Apache-2.0
"""The regions, and their brokers' admin REST API."""
