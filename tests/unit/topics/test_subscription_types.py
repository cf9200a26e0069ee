# SPDX-License-Identifier: Apache-2.0
"""The table of subscription types: it agrees with the wire, and a new type takes only another row."""

from __future__ import annotations

from typing import Any

import pytest
from meridian_broker.metadata.policy_values import SUBSCRIPTION_TYPES
from meridian_broker.metadata.rules import Rules
from meridian_broker.positions.position import Position
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.selection import Selection
from meridian_broker.topics.dispatch.shared import SharedDispatcher
from meridian_broker.topics.dispatch.types import SHARED, TYPES, SubscriptionType
from meridian_broker.topics.errors import NotAllowed
from meridian_broker.topics.limits import TopicLimits
from meridian_broker.topics.nonpersistent.topic import NonPersistentTopic
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.metadata import MetadataView
from support.worlds.topic_of_one_region import region


class Port:
    def __init__(self) -> None:
        self.got: list[Position] = []

    def writable(self) -> bool:
        return True

    def deliver(self, _consumer: Consumer, position: Position, *_: Any) -> None:
        self.got.append(position)

    def disconnect_consumer(self, consumer: Consumer) -> None:
        """Called when the topic closes."""

    def active_consumer_changed(self, consumer: Consumer, active: bool) -> None:
        raise NotImplementedError

    def reached_end(self, consumer: Consumer) -> None:
        raise NotImplementedError


class RichestDispatcher(SharedDispatcher):
    """A type that only this test has: the consumer with the most permits gets the next entry."""

    __slots__ = ()

    def _next_ready(self) -> Consumer | None:
        ready = [consumer for consumer in self.consumers if consumer.ready]
        return max(ready, key=lambda consumer: consumer.permits, default=None)


class RichestSelection(Selection):
    def pick(self, _view: MetadataView) -> Consumer | None:
        return max(self.consumers, key=lambda consumer: consumer.permits, default=None)


RICHEST = SubscriptionType(4, "Richest", RichestDispatcher, RichestSelection)
RULES = Rules(subscription_types=frozenset({"Richest"}))


def test_the_table_agrees_with_the_wire() -> None:
    assert {row.name: row.number for row in TYPES.values()} == dict(pb.CommandSubscribe.SubType.items())
    assert [row.name for row in TYPES.values()] == list(SUBSCRIPTION_TYPES)


async def test_a_type_that_is_only_a_row_is_served() -> None:
    one = await region(sub=False)
    one.topic.follow(RULES)
    subscription = one.topic.subscriptions["sub"]
    poor, rich = Port(), Port()
    for number, (port, permits) in enumerate(((poor, 2), (rich, 10))):
        consumer = one.topic.subscribing.add_consumer(subscription, port, number, str(number), RICHEST, 0, None)
        consumer.flow(permits)
    await one.settle()
    assert sorted(poor.got + rich.got) == one.stored
    assert rich.got[:8] == one.stored[:8]
    assert subscription.unacked_messages == 12
    [first, second] = subscription.consumers
    subscription.send_again(second, None, 0)
    subscription.leave(second)
    first.flow(20)
    await one.settle()
    assert sorted(poor.got) == one.stored
    subscription.acknowledge(first, one.stored)
    await one.settle()
    assert subscription.unacked_messages == 0
    assert subscription.cursor.mark_delete == one.stored[-1]
    await one.topic.close("test")


async def test_policies_switch_it_on_and_off_by_its_name() -> None:
    one = await region(sub=False)
    one.topic.follow(RULES)
    subscription = one.topic.subscriptions["sub"]
    with pytest.raises(NotAllowed, match="does not accept Shared subscriptions"):
        one.topic.subscribing.add_consumer(subscription, Port(), 1, "a", SHARED, 0, None)
    await one.topic.close("test")


async def test_a_non_persistent_topic_serves_it_too() -> None:
    one = await region()
    topic = NonPersistentTopic("n", -1, one.scheduler, TopicLimits())
    topic.follow(RULES)
    poor, rich = Port(), Port()
    for number, (port, permits) in enumerate(((poor, 1), (rich, 9))):
        topic.subscribe("sub", port, number, str(number), RICHEST, 0, None, None).flow(permits)
    assert (
        topic.subscriptions["sub"].offer(b"", 1, MetadataView("p", 0, 0, 1, False, 0, None, False, None, None, 0)) == 0
    )
    assert (len(poor.got), len(rich.got)) == (0, 1)
    await one.topic.close("test")
