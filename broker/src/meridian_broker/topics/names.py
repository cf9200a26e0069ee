# SPDX-License-Identifier: Apache-2.0
"""Names that clients cannot use for subscriptions, because the broker uses them itself."""

from __future__ import annotations

from typing import Final

REPLICATION_PREFIX: Final = "pulsar.repl"
"""Prefix of producer and subscription names that belong to replicators."""
COMPACTION_SUBSCRIPTION: Final = "__compaction"
"""The subscription by which Pulsar's tools see that a topic is compacted; what the view does not cover is kept."""


def is_free(subscription: str) -> bool:
    """Whether a subscription may have this name."""
    is_reserved = subscription.startswith(REPLICATION_PREFIX) or subscription == COMPACTION_SUBSCRIPTION
    return bool(subscription) and not is_reserved
