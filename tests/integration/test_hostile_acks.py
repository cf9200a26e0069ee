# SPDX-License-Identifier: Apache-2.0
"""A client that acknowledges what it was never sent loses at most its own messages."""

from __future__ import annotations

from typing import Any

import pytest
from meridian_broker.bounds.clients import ACK_IDS, ACK_SET_WORDS
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from meridian_broker.wire.pulsar.commands import Message
from meridian_broker.wire.pulsar.errors import ServerError
from support.protocol.raw_connection import RawConnection, T

TOPIC = "persistent://public/default/acks"


class Consumer:
    """A Shared consumer of one subscription."""

    def __init__(self, wire: RawConnection, consumer_id: int) -> None:
        self.wire = wire
        self.consumer_id = consumer_id

    @classmethod
    async def of(cls, broker: BrokerProcess, consumer_id: int = 1) -> Consumer:
        wire = await RawConnection.open(broker.settings.network.broker_service_port)
        wire.say(
            T.SUBSCRIBE,
            pb.CommandSubscribe(
                topic=TOPIC,
                subscription="s",
                subType=pb.CommandSubscribe.Shared,
                consumer_id=consumer_id,
                request_id=1,
                initialPosition=pb.CommandSubscribe.Earliest,
            ),
        )
        await wire.hear(T.SUCCESS)
        return cls(wire, consumer_id)

    async def take(self, count: int) -> list[pb.MessageIdData]:
        self.wire.write(encode.flow(self.consumer_id, count))
        heard = [await self.wire.hear_any() for _ in range(count)]
        return [message.command.message_id for message in heard if isinstance(message, Message)]

    def acknowledge(self, ids: list[pb.MessageIdData], request_id: int | None = 9) -> None:
        ack = pb.CommandAck(consumer_id=self.consumer_id, ack_type=pb.CommandAck.Individual, message_id=ids)
        if request_id is not None:
            ack.request_id = request_id
        self.wire.say(T.ACK, ack)

    async def acknowledged(self, ids: list[pb.MessageIdData]) -> pb.CommandAckResponse:
        self.acknowledge(ids)
        answer: pb.CommandAckResponse = await self.wire.hear(T.ACK_RESPONSE)
        return answer


async def publish(broker: BrokerProcess, count: int, messages: int = 1) -> None:
    wire = await RawConnection.open(broker.settings.network.broker_service_port)
    await wire.producer(TOPIC, producer_name="p")
    for number in range(count):
        wire.send("p", number, b"%d" % number, messages=messages)
    for _ in range(count):
        await wire.hear(T.SEND_RECEIPT)
    await wire.close()


def held(broker: BrokerProcess) -> list[int]:
    """Unacknowledged messages of each consumer."""
    return [one.unacked_messages for one in broker.service.topics[TOPIC].subscriptions["s"].consumers]


async def test_an_ack_set_larger_than_any_batch_is_refused_and_extra_bits_are_ignored(
    inside: BrokerProcess,
) -> None:
    await publish(inside, 1, messages=10)
    consumer = await Consumer.of(inside)
    (one,) = await consumer.take(1)
    one.ack_set[:] = [1] * (ACK_SET_WORDS + 1)
    refused = await consumer.acknowledged([one])
    assert refused.error == ServerError.NOT_ALLOWED and "for one batch" in refused.message
    assert held(inside) == [10]
    one.ack_set[:] = [0b1111100000] + [1] * (ACK_SET_WORDS - 1)
    assert not (await consumer.acknowledged([one])).HasField("error")
    one.ack_set[:] = [0b0000011111]
    assert not (await consumer.acknowledged([one])).HasField("error")
    assert held(inside) == [0]
    one.ack_set[:] = [1] * (ACK_SET_WORDS + 1)
    consumer.acknowledge([one], None)
    assert await consumer.wire.ended()


async def test_more_ids_than_an_ack_may_have_end_the_connection_and_its_messages_go_to_others(
    inside: BrokerProcess,
) -> None:
    await publish(inside, 3)
    hostile, honest = await Consumer.of(inside), await Consumer.of(inside, 2)
    ids = await hostile.take(3)
    hostile.acknowledge(ids * (ACK_IDS // 3 + 1))
    assert await hostile.wire.ended()
    assert len(await honest.take(3)) == 3
    assert not (await honest.acknowledged(ids)).HasField("error")
    assert held(inside) == [0]
    await honest.wire.close()


async def test_acknowledging_what_another_consumer_holds_frees_that_consumer(inside: BrokerProcess) -> None:
    await publish(inside, 6)
    first, second = await Consumer.of(inside), await Consumer.of(inside, 2)
    ids = [*await first.take(4), *await second.take(2)]
    assert held(inside) == [4, 2]
    assert not (await second.acknowledged(ids[:3] + ids[4:5])).HasField("error")
    assert held(inside) == [1, 1]
    wild = [pb.MessageIdData(ledgerId=ledger, entryId=(1 << 64) - 1) for ledger in (0, 1 << 62, 1 << 63, (1 << 64) - 1)]
    assert not (await second.acknowledged(wild)).HasField("error")
    assert held(inside) == [1, 1]
    await first.wire.close()
    assert [one.entryId for one in await second.take(1)] == [3]
    await second.wire.close()


async def test_a_client_may_give_back_all_its_messages_at_once(
    inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more ids than one turn of the event loop should handle: they are handled in slices."""
    slices: list[int] = []
    send_again = Subscription.send_again

    def counted(subscription: Subscription, consumer: Any, positions: list[Any], *rest: Any) -> None:
        slices.append(len(positions))
        send_again(subscription, consumer, positions, *rest)

    monkeypatch.setattr(Subscription, "send_again", counted)
    await publish(inside, 3)
    consumer = await Consumer.of(inside)
    ids = await consumer.take(3)
    wanted = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids[:1] * ACK_IDS + ids[1:])
    consumer.wire.say(T.REDELIVER_UNACKNOWLEDGED_MESSAGES, wanted)
    assert sorted(one.entryId for one in await consumer.take(3)) == [0, 1, 2]
    assert slices == [ACK_IDS, 2]
    await consumer.wire.close()
