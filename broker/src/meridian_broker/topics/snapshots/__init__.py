# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a topic's replicated subscriptions (PIP-33): the topic as ``replication.snapshots`` needs it."""
