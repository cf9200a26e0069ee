# SPDX-License-Identifier: Apache-2.0
"""A topic's rules as numbers ready for the hot path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from meridian_broker.metadata.rules import Rules

if TYPE_CHECKING:
    from meridian_broker.topics.limits import TopicLimits

METADATA_BYTES: Final = 4096
"""What a message's metadata may add to the largest message, in bytes."""
UNLIMITED: Final = 1 << 70
"""Larger than any number on the wire."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Numbers that each message is compared with."""

    body_bytes: int
    """Metadata and payload of one message."""
    producers: int
    unacked_per_consumer: int
    unacked_per_subscription: int
    delay_ms: int
    """From the publish time of a message to the delivery time it asks for."""


def bounds(limits: TopicLimits, rules: Rules) -> Bounds:
    """The bounds that ``rules`` set, within the broker's own limits."""
    largest = limits.message_bytes + METADATA_BYTES
    return Bounds(
        min(largest, rules.max_message_bytes or largest),
        min(limits.producers, rules.max_producers or limits.producers),
        rules.max_unacked_per_consumer or UNLIMITED,
        rules.max_unacked_per_subscription or UNLIMITED,
        rules.delayed_delivery.max_delay_ms or UNLIMITED,
    )
