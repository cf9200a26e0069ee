# SPDX-License-Identifier: Apache-2.0
"""Compaction: views that hold the newest message of each key."""
