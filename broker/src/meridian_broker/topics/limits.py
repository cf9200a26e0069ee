# SPDX-License-Identifier: Apache-2.0
"""Limits of one topic, from the broker's settings."""

from __future__ import annotations

from dataclasses import dataclass

from meridian_broker.bounds.clients import MESSAGE_BYTES


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Bounds of one topic."""

    message_bytes: int = MESSAGE_BYTES
    failover_delay_seconds: float = 1.0
    shadow_reset_backlog: int = 0
    """If more entries than this are left of a ledger that was sealed meanwhile, none is read ahead for shadows; 0: all
    are.
    """
    producers: int = 10_000
    subscriptions: int = 1_000_000
    entries_held_minutes: int = 1440
    """How long entries are kept that another region lacks (R6)."""
    closed_seconds: float = 30.0
    """How long clients cannot recreate a subscription that was deleted by force (R16)."""
    schema_bytes: int = 16 << 20
    """All schemas of a topic; 0: no limit."""
    schema_bytes_in_namespace: int = 64 << 20
    """The same for all topics of a namespace."""
    new_schemas_per_minute: int = 600
    """Per client role; 0: no limit."""
    dedup_producers: int = 10_000
    """Producer names whose last sequence id is remembered."""
    dedup_idle_minutes: int = 360
    """Minutes for which a name is remembered after its last message."""
    dedup_entries: int = 1000
    """Entries after which sequence ids are written."""
