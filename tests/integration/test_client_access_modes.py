# SPDX-License-Identifier: Apache-2.0
"""Exclusive producers: through the unmodified client, and over the wire where that shows more."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.errors import ServerError
from support.brokers.broker_process import BrokerProcess, wait_until
from support.brokers.region_clients import PATIENCE_MS, connect
from support.protocol.raw_connection import RawConnection

Mode = pulsar.ProducerAccessMode
T = pb.BaseCommand
Shared, Exclusive, WaitForExclusive, ExclusiveWithFencing = pb.ProducerAccessMode.values()


def producer_names(broker: BrokerProcess, topic: str) -> list[str]:
    stats = broker.http("GET", f"/admin/v2/persistent/public/default/{topic}/stats").json
    return [one["producerName"] for one in stats["publishers"]]


class Waiter:
    """A producer that is created in a thread, because the client blocks until it is let in."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self.outcome: Any = None
        self._thread = threading.Thread(target=self._make, args=(client, topic))
        self._thread.start()

    def _make(self, client: pulsar.Client, topic: str) -> None:
        try:
            self.outcome = client.create_producer(topic, access_mode=Mode.WaitForExclusive)
        except pulsar.PulsarException as error:
            self.outcome = error

    def is_waiting(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> Any:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.outcome


def test_an_exclusive_producer_is_alone(client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, access_mode=Mode.Exclusive)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=Mode.Exclusive)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    first.send(b"x")
    first.close()
    client.create_producer(topic).close()


def test_no_producer_is_exclusive_beside_shared_ones(client: pulsar.Client, topic: str) -> None:
    shared = client.create_producer(topic)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=Mode.Exclusive)
    shared.send(b"x")


def test_a_waiting_producer_is_let_in_when_the_others_are_gone(client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, access_mode=Mode.Exclusive)
    waiter = Waiter(client, topic)
    wait_until(lambda: _is_busy(client, topic), "the waiting producer to reach the broker")
    assert waiter.is_waiting()
    first.close()
    made = waiter.join()
    made.send(b"x")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)


def _is_busy(client: pulsar.Client, topic: str) -> bool:
    try:
        client.create_producer(topic).close()
    except pulsar.ProducerBusy:
        return True
    return False


def test_fencing_sends_the_others_away_for_good(client: pulsar.Client, broker: BrokerProcess, topic: str) -> None:
    alone = client.create_producer(topic, "first", access_mode=Mode.Exclusive)
    alone.send(b"before")
    second = client.create_producer(topic, "second", access_mode=Mode.ExclusiveWithFencing)
    assert producer_names(broker, topic) == ["second"]
    with pytest.raises(pulsar.PulsarException):
        alone.send(b"fenced")
    second.send(b"after")
    second.close()
    # The topic has no producer now, and yet the first one does not come back: its epoch is over.
    with pytest.raises(pulsar.PulsarException):
        alone.send(b"fenced")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(PATIENCE_MS).data() for _ in range(2)] == [b"before", b"after"]
    assert not reader.has_message_available()


def test_an_exclusive_producer_goes_on_after_a_restart_of_the_broker(tmp_path: Path, topic: str) -> None:
    with BrokerProcess("one", tmp_path) as broker:
        client = connect(broker.service_url)
        producer = client.create_producer(topic, access_mode=Mode.Exclusive)
        producer.send(b"0")
        broker.kill()
        broker.start()
        producer.send(b"1")
        with pytest.raises(pulsar.ProducerFenced):
            client.create_producer(topic, access_mode=Mode.Exclusive)
        client.close()


# -- the wire --------------------------------------------------------------------------------------------------------


@pytest.fixture
async def wire(broker: BrokerProcess) -> AsyncIterator[RawConnection]:
    made = await RawConnection.open(broker.port)
    yield made
    await made.close()


async def admitted(wire: RawConnection) -> tuple[int, bool, int | None]:
    """Request, ready flag and epoch of the next PRODUCER_SUCCESS."""
    answer = await wire.hear(T.PRODUCER_SUCCESS)
    return answer.request_id, answer.producer_ready, answer.topic_epoch if answer.HasField("topic_epoch") else None


async def test_epochs_are_counted_announced_and_stored(wire: RawConnection, topic: str, broker: BrokerProcess) -> None:
    assert not (await wire.producer(topic)).HasField("topic_epoch")
    wire.close_producer()
    await wire.hear(T.SUCCESS)
    for epoch in (0, 1):
        assert (await wire.producer(topic, producer_access_mode=Exclusive)).topic_epoch == epoch
        wire.close_producer()
        await wire.hear(T.SUCCESS)
    broker.kill()
    broker.start()
    again = await RawConnection.open(broker.port)
    again.ask_producer(topic, producer_access_mode=Exclusive, topic_epoch=0)
    assert (await again.hear(T.ERROR)).error == ServerError.PRODUCER_FENCED
    assert (await again.producer(topic, producer_access_mode=Exclusive, topic_epoch=1)).topic_epoch == 1
    again.close_producer()
    await again.hear(T.SUCCESS)
    assert (await again.producer(topic)).topic_epoch == 1
    await again.close()


async def test_a_waiting_producer_is_answered_twice(wire: RawConnection, topic: str) -> None:
    await wire.producer(topic, 1)
    first = wire.ask_producer(topic, 2, producer_access_mode=WaitForExclusive)
    assert await admitted(wire) == (first, False, None)
    second = wire.ask_producer(topic, 3, producer_access_mode=WaitForExclusive)
    assert await admitted(wire) == (second, False, None)
    wire.ask_producer(topic, 4)
    assert (await wire.hear(T.ERROR)).error == ServerError.PRODUCER_BUSY
    wire.close_producer(1)
    await wire.hear(T.SUCCESS)
    assert await admitted(wire) == (first, True, 0)
    wire.close_producer(2)
    await wire.hear(T.SUCCESS)
    assert await admitted(wire) == (second, True, 1)


async def test_a_producer_that_stops_waiting_stays_out(wire: RawConnection, topic: str, broker: BrokerProcess) -> None:
    await wire.producer(topic, 1)
    wire.ask_producer(topic, 2, producer_access_mode=WaitForExclusive)
    await admitted(wire)
    other = await RawConnection.open(broker.port)
    other.ask_producer(topic, 1, producer_access_mode=WaitForExclusive)
    await admitted(other)
    last = wire.ask_producer(topic, 3, producer_access_mode=WaitForExclusive)
    await admitted(wire)
    wire.close_producer(2)
    await wire.hear(T.SUCCESS)
    await other.close()
    wire.close_producer(1)
    await wire.hear(T.SUCCESS)
    request, ready, _ = await admitted(wire)
    assert (request, ready) == (last, True)


async def test_fencing_notifies_connected_and_waiting_producers(wire: RawConnection, topic: str) -> None:
    await wire.producer(topic, 1, producer_access_mode=Exclusive)
    waiting = wire.ask_producer(topic, 2, producer_access_mode=WaitForExclusive)
    await admitted(wire)
    fencing = wire.ask_producer(topic, 3, producer_access_mode=ExclusiveWithFencing)
    assert (await wire.hear(T.CLOSE_PRODUCER)).producer_id == 1
    refused = await wire.hear(T.ERROR)
    assert (refused.request_id, refused.error) == (waiting, ServerError.PRODUCER_FENCED)
    assert await admitted(wire) == (fencing, True, 1)


async def test_a_broken_connection_frees_the_place(wire: RawConnection, topic: str, broker: BrokerProcess) -> None:
    other = await RawConnection.open(broker.port)
    await other.producer(topic, producer_access_mode=Exclusive)
    waiting = wire.ask_producer(topic, producer_access_mode=WaitForExclusive)
    assert await admitted(wire) == (waiting, False, None)
    await other.close()
    assert await admitted(wire) == (waiting, True, 1)


@pytest.mark.parametrize("given", [True, False])
async def test_an_exclusive_producer_replaces_its_own_dead_connection(
    wire: RawConnection, topic: str, broker: BrokerProcess, given: bool
) -> None:
    """The broker has not noticed yet that the old connection is dead; other producers are waiting."""
    named = {"producer_name": "p", "user_provided_producer_name": given, "producer_access_mode": Exclusive}
    before = await wire.producer(topic, 1, **named)
    waiter = await RawConnection.open(broker.port)
    waiter.ask_producer(topic, 1, producer_access_mode=WaitForExclusive)
    await admitted(waiter)
    again = await RawConnection.open(broker.port)
    answer = await again.producer(topic, 1, epoch=1, topic_epoch=before.topic_epoch, **named)
    assert (answer.topic_epoch, answer.producer_ready) == (before.topic_epoch, True)
    await wire.hear(T.CLOSE_PRODUCER)
    again.ask_producer(topic, 2, producer_access_mode=Exclusive)
    assert (await again.hear(T.ERROR)).error == ServerError.PRODUCER_FENCED
    await again.close()
    assert (await admitted(waiter))[1:] == (True, 1)
    await waiter.close()


async def test_of_two_producers_that_fence_at_once_one_is_let_in(wire: RawConnection, topic: str) -> None:
    wire.ask_producer(topic, 1, producer_access_mode=ExclusiveWithFencing)
    second = wire.ask_producer(topic, 2, producer_access_mode=ExclusiveWithFencing)
    heard = await wire.hear_any()
    if heard[0] == T.ERROR:
        assert heard[1].error == ServerError.PRODUCER_FENCED
    else:
        assert (await wire.hear(T.CLOSE_PRODUCER)).producer_id == 1
    request, ready, epoch = await admitted(wire)
    assert (request, ready, epoch) == (second, True, 1)
