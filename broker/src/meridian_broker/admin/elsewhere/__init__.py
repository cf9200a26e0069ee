# SPDX-License-Identifier: Apache-2.0
"""Requests to other regions that this one makes before it answers."""
