# SPDX-License-Identifier: Apache-2.0
"""Names that clients cannot use for subscriptions, because the broker uses them itself."""

from __future__ import annotations

from typing import Final

REPLICATION_PREFIX: Final = "pulsar.repl"
"""Producer and subscription names that begin so belong to replicators."""
COMPACTION_SUBSCRIPTION: Final = "__compaction"
"""The name under which Pulsar's tools see that a topic is compacted: what the view does not cover yet stays."""


def is_free(subscription: str) -> bool:
    """Whether a subscription may have this name."""
    is_reserved = subscription.startswith(REPLICATION_PREFIX) or subscription == COMPACTION_SUBSCRIPTION
    return bool(subscription) and not is_reserved
