# SPDX-License-Identifier: Apache-2.0
"""Compaction: the newest message of each key, in a view of its own."""
