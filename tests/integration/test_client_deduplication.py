# SPDX-License-Identifier: Apache-2.0
"""Deduplication through the unmodified client, and over the wire where the client sends nothing twice by itself."""

from __future__ import annotations

import itertools
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

T = pb.BaseCommand
ON = {"brokerDeduplicationEnabled": "true"}
SETTINGS = {**ON, "brokerDeduplicationEntriesInterval": "10"}
_numbers = itertools.count()


@pytest.fixture
async def wire(broker: BrokerProcess) -> AsyncIterator[RawConnection]:
    made = await RawConnection.open(broker.port)
    yield made
    await made.close()


def stored(broker: BrokerProcess, topic: str) -> list[bytes]:
    """Everything that is stored, read by a separate client."""
    client = connect(broker.service_url)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(PATIENCE_MS).data())
    client.close()
    return found


def named(client: pulsar.Client, topic: str, name: str = "p", **options: Any) -> pulsar.Producer:
    return client.create_producer(topic, name, **options)


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


def heard(results: list[pulsar.Result], count: int) -> None:
    """Wait for all receipts: the client may end a flush before it reports the last one."""
    wait_until(lambda: len(results) >= count, "the last receipt to be reported")
    assert results == [pulsar.Result.Ok] * count


def publish(producer: pulsar.Producer, first: int, last: int) -> None:
    """Publish messages with these sequence ids; the client takes 0 for "none given"."""
    assert first > 0
    results = []
    for number in range(first, last + 1):
        body = b"%d" % number
        producer.send_async(body, lambda result, _place: results.append(result), sequence_id=number)
    producer.flush()
    heard(results, last - first + 1)


def test_the_same_ids_again_are_stored_once(client: pulsar.Client, broker: BrokerProcess, topic: str) -> None:
    first = named(client, topic)
    publish(first, 1, 24)
    publish(first, 10, 30)
    assert first.last_sequence_id() == 30
    first.close()
    again = named(client, topic)
    assert again.last_sequence_id() == 30
    publish(again, 5, 40)
    assert stored(broker, topic) == numbers(1, 40)


def test_batches_again_are_stored_once(client: pulsar.Client, broker: BrokerProcess, topic: str) -> None:
    options: dict[str, Any] = {
        "batching_enabled": True,
        "batching_max_messages": 10,
        "batching_max_publish_delay_ms": 1000,
    }
    for _ in range(2):
        producer = named(client, topic, **options)
        publish(producer, 1, 50)
        producer.close()
    assert named(client, topic).last_sequence_id() == 50
    assert stored(broker, topic) == numbers(1, 50)


def test_two_producers_count_separately(client: pulsar.Client, broker: BrokerProcess, topic: str) -> None:
    for name in ("a", "b"):
        producer = named(client, topic, name)
        publish(producer, 1, 4)
        publish(producer, 1, 4)
        producer.close()
    assert stored(broker, topic) == numbers(1, 4) * 2


@pytest.mark.parametrize("entries", [3, 10, 25])
def test_ids_survive_a_kill(client: pulsar.Client, broker: BrokerProcess, topic: str, entries: int) -> None:
    """With none, one and several records written, and entries after them."""
    publish(named(client, topic, "other"), 1, 1)
    before = named(client, topic)
    publish(before, 1, entries)
    broker.kill()
    broker.start()
    again = connect(broker.service_url)
    producer = named(again, topic, "q")
    publish(producer, 1, 2)
    before.close()
    after = named(again, topic)
    assert after.last_sequence_id() == entries
    publish(after, 1, entries + 1)
    assert stored(broker, topic) == [b"1", *numbers(1, entries), b"1", b"2", b"%d" % (entries + 1)]
    again.close()


def test_ids_survive_a_clean_stop(tmp_path: Path, topic: str) -> None:
    with BrokerProcess("one", tmp_path, settings=ON) as broker:
        client = connect(broker.service_url)
        publish(named(client, topic), 1, 5)
        client.close()
        for _ in range(2):
            assert broker.stop() == 0
            broker.start()
        client = connect(broker.service_url)
        publish(named(client, topic), 3, 8)
        assert stored(broker, topic) == numbers(1, 8)
        client.close()


class Sender:
    """Sends numbers without a pause, through every restart."""

    def __init__(self, client: pulsar.Client, topic: str, *, batching: bool) -> None:
        self.received: list[pulsar.Result] = []
        self.sent = 0
        self._stop = threading.Event()
        self._producer = client.create_producer(
            topic, "p", batching_enabled=batching, block_if_queue_full=True, max_pending_messages=200
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._producer.send_async(b"%d" % self.sent, lambda result, _place: self.received.append(result))
            self.sent += 1

    def finish(self) -> None:
        """Stop, and wait for the last receipt."""
        self._stop.set()
        self._thread.join()
        self._producer.flush()


def test_what_is_sent_through_kills_is_stored_once_and_in_order(tmp_path: Path, topic: str) -> None:
    """The client sends again whatever had no receipt; part of it was stored before the kill."""
    with BrokerProcess("one", tmp_path, settings={**ON, "brokerDeduplicationEntriesInterval": "50"}) as broker:
        client = connect(broker.service_url)
        sending = {
            f"{topic}-batches": Sender(client, f"{topic}-batches", batching=True),
            f"{topic}-singles": Sender(client, f"{topic}-singles", batching=False),
        }
        for kill in range(6):
            goals = {name: len(one.received) + 150 + 37 * kill for name, one in sending.items()}
            for name, goal in goals.items():
                wait_until(
                    lambda name=name, goal=goal: len(sending[name].received) >= goal, f"{name} to get {goal} receipts"
                )
            broker.kill()
            broker.start()
        for name, one in sending.items():
            one.finish()
            heard(one.received, one.sent)
            assert stored(broker, name) == numbers(0, one.sent - 1)
        client.close()


def test_an_initial_sequence_id_takes_precedence_over_what_the_broker_knows(client: pulsar.Client, topic: str) -> None:
    named(client, topic).close()
    producer = named(client, topic, initial_sequence_id=100)
    assert producer.last_sequence_id() == 100
    producer.send(b"x")
    assert producer.last_sequence_id() == 101


def test_generated_names_carry_the_region_and_are_unique(client: pulsar.Client, topic: str) -> None:
    names = [client.create_producer(topic).producer_name() for _ in range(5)]
    assert len(set(names)) == 5
    for name in names:
        region, start, number = name.rsplit("-", 2)
        assert (region, start.isdecimal(), number.isdecimal()) == ("solo", True, True)


def test_the_namespace_switches_it_on_and_off(tmp_path: Path, topic: str) -> None:
    with BrokerProcess("one", tmp_path) as broker:
        client = connect(broker.service_url)
        producer = named(client, topic)
        publish(producer, 1, 2)
        publish(producer, 1, 2)
        path = "/admin/v2/namespaces/public/default/deduplication"
        assert broker.http("POST", path, True).status == 204
        wait_until(lambda: status(broker, topic) == "Enabled", "deduplication to be on")
        publish(producer, 5, 6)
        publish(producer, 5, 6)
        broker.kill()
        broker.start()
        assert status(broker, topic) == "Enabled"
        publish(producer, 4, 7)
        assert broker.http("POST", path, False).status == 204
        wait_until(lambda: status(broker, topic) == "Disabled", "deduplication to be off")
        publish(producer, 2, 2)
        assert broker.http("POST", path, True).status == 204
        wait_until(lambda: status(broker, topic) == "Enabled", "deduplication to be on again")
        # Earlier ids are forgotten: producers may have started over while it was off.
        publish(producer, 3, 3)
        broker.kill()
        broker.start()
        publish(producer, 3, 4)
        assert stored(broker, topic) == [b"1", b"2", b"1", b"2", b"5", b"6", b"7", b"2", b"3", b"4"]
        client.close()


def status(broker: BrokerProcess, topic: str) -> str:
    stats = broker.http("GET", f"/admin/v2/persistent/public/default/{topic}/stats").json
    return str(stats["deduplicationStatus"])


def test_space_is_given_back_while_ids_stay_known(tmp_path: Path, topic: str) -> None:
    settings = {**ON, "managedLedgerMaxEntriesPerLedger": "5", "retentionCheckIntervalInSeconds": "1"}
    with BrokerProcess("one", tmp_path, settings=settings) as broker:
        client = connect(broker.service_url)
        publish(named(client, topic), 1, 29)

        def ledgers() -> int:
            path = f"/admin/v2/persistent/public/default/{topic}/internalStats"
            return len(broker.http("GET", path).json["ledgers"])

        wait_until(lambda: ledgers() <= 1, "old ledgers to be deleted")
        client.close()
        broker.kill()
        broker.start()
        client = connect(broker.service_url)
        producer = named(client, topic)
        assert producer.last_sequence_id() == 29
        publish(producer, 1, 30)
        assert stored(broker, topic)[-1:] == [b"30"]
        assert stored(broker, topic).count(b"29") <= 1
        client.close()


def test_a_topic_has_a_bounded_number_of_producers(client: pulsar.Client, broker: BrokerProcess) -> None:
    namespace = f"public/few-{next(_numbers)}"
    assert broker.http("PUT", f"/admin/v2/namespaces/{namespace}", {"max_producers_per_topic": 2}).status == 204
    topic = f"persistent://{namespace}/t"
    first, _ = (client.create_producer(topic) for _ in range(2))
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    first.close()
    client.create_producer(topic)


# -- the wire --------------------------------------------------------------------------------------------------------


async def test_a_repeat_gets_a_receipt_without_a_position_in_its_turn(
    wire: RawConnection, topic: str, broker: BrokerProcess
) -> None:
    assert (await wire.producer(topic, producer_name="p")).last_sequence_id == -1
    for number in (3, 4):
        wire.send("p", number, b"%d" % number)
    assert [await wire.receipt() for _ in range(2)] == [(3, True), (4, True)]
    for number in (3, 5, 4, 6, 2, 1):
        wire.send("p", number, b"%d" % number)
    assert [await wire.receipt() for _ in range(6)] == [
        (3, False),
        (5, True),
        (4, False),
        (6, True),
        (2, False),
        (1, False),
    ]
    assert stored(broker, topic) == numbers(3, 6)


async def test_a_repeat_of_a_message_that_is_not_durable_yet_is_refused(
    wire: RawConnection, topic: str, broker: BrokerProcess
) -> None:
    await wire.producer(topic, producer_name="p")
    wire.send("p", 0, b"0")
    wire.send("p", 0, b"0")
    error = await wire.hear(T.SEND_ERROR)
    assert (error.sequence_id, error.error) == (0, ServerError.UNKNOWN)
    assert await wire.receipt() == (0, True)
    wire.send("p", 0, b"0")
    assert await wire.receipt() == (0, False)
    assert stored(broker, topic) == [b"0"]


async def test_a_refused_message_does_not_count(wire: RawConnection, topic: str, broker: BrokerProcess) -> None:
    await wire.producer(topic, producer_name="p")
    wire.send("someone", 7, b"spoilt")
    assert (await wire.hear(T.SEND_ERROR)).error == ServerError.NOT_ALLOWED
    wire.send("p", 7, b"7")
    assert await wire.receipt() == (7, True)
    assert stored(broker, topic) == [b"7"]


async def test_a_batch_counts_by_its_last_message(wire: RawConnection, topic: str) -> None:
    await wire.producer(topic, producer_name="p")
    wire.send("p", 0, b"", messages=10)
    assert await wire.receipt() == (0, True)
    wire.send("p", 10, b"", messages=2, highest=19)
    assert await wire.receipt() == (10, True)
    for first, count, is_new in ((0, 10, False), (10, 10, False), (15, 5, False), (15, 6, True)):
        wire.send("p", first, b"", messages=count)
        assert await wire.receipt() == (first, is_new)
    wire.close_producer()
    await wire.hear(T.SUCCESS)
    assert (await wire.producer(topic, producer_name="p")).last_sequence_id == 20


async def test_a_chunked_message_counts_by_its_last_chunk(
    wire: RawConnection, topic: str, broker: BrokerProcess
) -> None:
    await wire.producer(topic, producer_name="p")
    for chunk in range(2):
        wire.send("p", 0, b"c", chunk=(chunk, 3))
    assert [await wire.receipt() for _ in range(2)] == [(0, True)] * 2
    broker.kill()
    broker.start()
    again = await RawConnection.open(broker.port)
    # The message was incomplete: all of it comes again, and it is complete now.
    assert (await again.producer(topic, producer_name="p")).last_sequence_id == -1
    for is_new in (True, False):
        for chunk in range(3):
            again.send("p", 0, b"c", chunk=(chunk, 3))
            assert await again.receipt() == (0, is_new)
    again.send("p", 1, b"1")
    assert await again.receipt() == (1, True)
    await again.close()


async def test_a_returning_producer_learns_what_became_durable_meanwhile(
    wire: RawConnection, topic: str, broker: BrokerProcess
) -> None:
    await wire.producer(topic, producer_name="p", user_provided_producer_name=False)
    for number in range(200):
        wire.send("p", number, b"%d" % number)
    await wire.receipt()
    again = await RawConnection.open(broker.port)
    answer = await again.producer(topic, producer_name="p", user_provided_producer_name=False, epoch=1)
    for number in range(200, 210):
        again.send("p", number, b"%d" % number)
        assert await again.receipt() == (number, True)
    await again.close()
    found = stored(broker, topic)
    assert found[: answer.last_sequence_id + 1] == numbers(0, answer.last_sequence_id)
    assert found[answer.last_sequence_id + 1 :] == numbers(200, 209)


@pytest.mark.parametrize("number", [2**63 - 1, 2**64 - 1])
async def test_the_largest_ids_do_no_harm(wire: RawConnection, topic: str, number: int) -> None:
    await wire.producer(topic, producer_name="p")
    wire.send("p", number, b"x", messages=100)
    assert await wire.receipt() == (number, True)
    wire.close_producer()
    await wire.hear(T.SUCCESS)
    assert (await wire.producer(topic, producer_name="p")).last_sequence_id == 2**63 - 1
