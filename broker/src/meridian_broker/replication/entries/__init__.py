# SPDX-License-Identifier: Apache-2.0
"""Carrying a topic's own entries to other regions."""
