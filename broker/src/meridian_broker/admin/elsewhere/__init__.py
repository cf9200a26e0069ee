# SPDX-License-Identifier: Apache-2.0
"""Requests to other regions, and to other brokers of this one, that a broker makes before it answers."""
