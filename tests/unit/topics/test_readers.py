# SPDX-License-Identifier: Apache-2.0
"""Non-durable subscriptions: a seek disconnects their readers, and some never return."""

from __future__ import annotations

from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.cursors import seeking
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.types import EXCLUSIVE
from meridian_broker.topics.retention import trimming
from meridian_broker.topics.subscriptions.subscription import Subscription
from support.worlds.topic_world import TopicWorld


class Reading:
    """A reader's connection."""

    def __init__(self) -> None:
        self.sent: list[Position] = []
        self.sent_away = 0

    def deliver(
        self, consumer: Consumer, position: Position, entry: bytes, redeliveries: int, remaining: int | None
    ) -> None:
        self.sent.append(position)

    def writable(self) -> bool:
        return True

    def disconnect_consumer(self, consumer: Consumer) -> None:
        self.sent_away += 1

    def active_consumer_changed(self, consumer: Consumer, active: bool) -> None:
        pass

    def reached_end(self, consumer: Consumer) -> None:
        pass


async def reading(world: TopicWorld) -> tuple[Subscription, Reading]:
    subscription = world.topic.subscribing.create_subscription("reader", EARLIEST, durable=False)
    port = Reading()
    consumer = world.topic.subscribing.add_consumer(subscription, port, 1, "r", EXCLUSIVE, 0, None)
    consumer.flow(100)
    await world.settle()
    return subscription, port


async def test_a_reader_that_never_returns_after_its_seek_is_forgotten() -> None:
    world = TopicWorld()
    await world.open()
    for number in range(3):
        await world.own(number)
    await world.settle()
    subscription, port = await reading(world)
    assert len(port.sent) == 3
    await seeking.seek(subscription.cursor, port.sent[1])
    assert port.sent_away == 1
    world.scheduler.ms += trimming.READER_BACK_MS
    await trimming.trim(world.topic)
    assert "reader" in world.topic.subscriptions, "its client may be reconnecting"
    again = Reading()
    consumer = world.topic.subscribing.add_consumer(subscription, again, 1, "r", EXCLUSIVE, 0, None)
    consumer.flow(100)
    await world.settle()
    assert again.sent == port.sent[1:]
    world.scheduler.ms += 10 * trimming.READER_BACK_MS
    await trimming.trim(world.topic)
    assert "reader" in world.topic.subscriptions, "it reads"
    await seeking.seek(subscription.cursor, port.sent[0])
    world.scheduler.ms += trimming.READER_BACK_MS + 1
    await trimming.trim(world.topic)
    assert "reader" not in world.topic.subscriptions
    assert world.topic.subscription_registry.messages_out_before == subscription.messages_out
    assert set(world.topic.subscriptions) == {"one", "two"}, "others are no readers"
