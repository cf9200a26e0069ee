# SPDX-License-Identifier: Apache-2.0
"""``kill -9`` at any moment loses no message whose receipt was sent, and no acknowledgement that was confirmed."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pulsar
import pytest
from support.brokers.broker_process import BrokerProcess
from support.brokers.region_clients import PATIENCE_MS, connect

KILLS = 20
TOPICS = ("batched", "single")


class Publisher:
    """Publishes to one topic without pause, through every restart, and records each receipt."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self.receipts: dict[tuple[int, int, int], bytes] = {}
        self.stop = threading.Event()
        self._producer = client.create_producer(
            topic,
            batching_enabled=topic == "batched",
            block_if_queue_full=True,
            max_pending_messages=200,
            send_timeout_millis=0,
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self.stop.is_set():
            body = b"%d:%s" % (number, b"x" * (number % 300))
            self._producer.send_async(body, lambda result, place, body=body: self._sent(result, place, body))
            number += 1

    def _sent(self, result: pulsar.Result, place: pulsar.MessageId, body: bytes) -> None:
        if result == pulsar.Result.Ok:
            self.receipts[place.ledger_id(), place.entry_id(), place.batch_index()] = body

    def finish(self) -> None:
        self.stop.set()
        self._thread.join()
        self._producer.flush()


@pytest.mark.slow
def test_no_message_with_a_receipt_is_lost(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    chance = random.Random(seed)
    with BrokerProcess("one", tmp_path) as broker:
        client = connect(broker.service_url)
        publishers = {topic: Publisher(client, topic) for topic in TOPICS}
        for _ in range(KILLS):
            goal = sum(len(p.receipts) for p in publishers.values()) + chance.randrange(1, 800)
            until = time.monotonic() + 60
            while sum(len(p.receipts) for p in publishers.values()) < goal:
                assert time.monotonic() < until, f"publishing stalled (seed {seed})"
                threading.Event().wait(chance.random() / 100)
            broker.kill()
            broker.start()
        for publisher in publishers.values():
            publisher.finish()
        broker.kill()
        broker.start()
        for topic, publisher in publishers.items():
            assert len(publisher.receipts) > KILLS
            stored: dict[tuple[int, int, int], bytes] = {}
            reader = client.create_reader(topic, pulsar.MessageId.earliest)
            while reader.has_message_available():
                message = reader.read_next(PATIENCE_MS)
                place = message.message_id()
                stored[place.ledger_id(), place.entry_id(), place.batch_index()] = message.data()
            lost = {place for place, body in publisher.receipts.items() if stored.get(place) != body}
            assert not lost, f"{len(lost)} of {len(publisher.receipts)} receipts of {topic} are lost (seed {seed})"
        client.close()


@pytest.mark.slow
def test_acknowledgements_survive_kills(tmp_path: Path) -> None:
    """Ack, close, kill: nothing acknowledged is delivered again, everything else is."""
    with BrokerProcess("one", tmp_path) as broker:
        client = connect(broker.service_url)
        producer = client.create_producer("t", batching_enabled=False, block_if_queue_full=True)
        options = {
            "consumer_type": pulsar.ConsumerType.Shared,
            "initial_position": pulsar.InitialPosition.Earliest,
        }
        client.subscribe("t", "s", **options).close()
        for number in range(600):
            producer.send_async(b"%d" % number, lambda _result, _place: None)
        producer.flush()
        expected = {b"%d" % number for number in range(600)}
        for _ in range(5):
            consumer = client.subscribe("t", "s", **options)
            seen = [consumer.receive(PATIENCE_MS) for _ in range(len(expected))]
            assert {message.data() for message in seen} == expected
            for message in seen[::2]:
                consumer.acknowledge(message)
                expected.discard(message.data())
            consumer.close()
            broker.kill()
            broker.start()
        client.close()
