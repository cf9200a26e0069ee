# SPDX-License-Identifier: Apache-2.0
"""What topics have carried."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from meridian_broker.topics.topic import Topic


class Traffic(NamedTuple):
    """Totals since a topic was opened."""

    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int


def traffic(topic: Topic) -> Traffic:
    """Of clients and of other regions, as Pulsar counts them."""
    registry, subscriptions = topic.subscription_registry, topic.subscriptions.values()
    return Traffic(
        *topic.received_totals(),
        registry.messages_out_before + sum(one.messages_out for one in subscriptions),
        registry.bytes_out_before + sum(one.bytes_out for one in subscriptions),
    )
