# SPDX-License-Identifier: Apache-2.0
"""What one topic may hold and ask for, as the broker's settings have it."""

from __future__ import annotations

from dataclasses import dataclass

from meridian_broker.bounds.clients import MESSAGE_BYTES


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Bounds of one topic."""

    message_bytes: int = MESSAGE_BYTES
    failover_delay_seconds: float = 1.0
    producers: int = 10_000
    subscriptions: int = 1_000_000
    entries_held_minutes: int = 1440
    """How long entries are held back that another region lacks (R6)."""
    closed_seconds: float = 30.0
    """How long clients cannot make a subscription again that was deleted by force (R16)."""
    schema_bytes: int = 16 << 20
    """Of all schemas of a topic; 0: any number."""
    schema_bytes_in_namespace: int = 64 << 20
    """The same for all topics of a namespace."""
    new_schemas_per_minute: int = 600
    """Of one client role; 0: any number."""
    dedup_producers: int = 10_000
    """Names whose last sequence id is remembered."""
    dedup_idle_minutes: int = 360
    """Minutes for which a name is remembered after its last message."""
    dedup_entries: int = 1000
    """Entries after which sequence ids are written."""
