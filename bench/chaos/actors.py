# SPDX-License-Identifier: Apache-2.0
"""The users of the regions: producers in each, and consumers that move, acknowledge in every way, and seek.

All use the ordinary client from PyPI. Each has its own random number generator.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pulsar
from journal import Journal, Visit
from world import REGIONS, World

SHARED = pulsar.ConsumerType.Shared
KEY_SHARED = pulsar.ConsumerType.KeyShared
FAILOVER = pulsar.ConsumerType.Failover
EXCLUSIVE = pulsar.ConsumerType.Exclusive
NACK_MS = 300
OFFER_SECONDS = 15.0


@dataclass(frozen=True)
class Subscription:
    """One replicated subscription, and how it is used."""

    topic: str
    name: str
    kind: pulsar.ConsumerType
    partitions: int = 0
    origin_scope: bool = False
    rewound: bool = False
    """The workload seeks, skips and clears: less is certain about it."""


def client(world: World, region: str) -> pulsar.Client:
    """An ordinary client, with little logging, that gives up early."""
    return pulsar.Client(
        world.url(region),
        io_threads=1,
        message_listener_threads=1,
        operation_timeout_seconds=5,
        connection_timeout_ms=3000,
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
    )


def subscribe(to: pulsar.Client, used: Subscription, kind: pulsar.ConsumerType, **options: Any) -> pulsar.Consumer:
    return to.subscribe(
        used.topic,
        used.name,
        consumer_type=kind,
        initial_position=pulsar.InitialPosition.Earliest,
        replicate_subscription_state_enabled=True,
        batch_index_ack_enabled=True,
        negative_ack_redelivery_delay_ms=NACK_MS,
        **options,
    )


def place(message: pulsar.Message) -> tuple[int, int, int]:
    found = message.message_id()
    return found.ledger_id(), found.entry_id(), max(found.batch_index(), 0)


class Producer(threading.Thread):
    """Publishes to all topics in one region until told to stop; then waits for receipts."""

    def __init__(self, world: World, journal: Journal, region: str, topics: list[str], seed: str) -> None:
        super().__init__(daemon=True)
        self._world, self._journal, self._region, self._topics = world, journal, region, topics
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._pending = 0
        self._lock = threading.Lock()
        self._prefix = f"{region}-{seed.rpartition(':')[2]}"

    def finish(self) -> None:
        """Publish no new messages."""
        self._over.set()

    def run(self) -> None:
        made = client(self._world, self._region)
        try:
            producers: dict[tuple[str, bool], pulsar.Producer] = {}
            number = 0
            while not self._over.wait(self._random.uniform(0.02, 0.12)):
                topic, batching = self._random.choice(self._topics), self._random.random() < 0.5
                try:
                    if (topic, batching) not in producers:
                        producers[topic, batching] = made.create_producer(
                            topic,
                            batching_enabled=batching,
                            batching_max_publish_delay_ms=5,
                            send_timeout_millis=25_000,
                        )
                except pulsar.PulsarException:
                    continue
                for _ in range(self._random.randint(1, 6)):
                    number += 1
                    self._send(producers[topic, batching], topic, f"{self._prefix}-{number}")
            until = time.monotonic() + 30
            while self._pending and time.monotonic() < until:
                time.sleep(0.02)
        finally:
            with contextlib.suppress(pulsar.PulsarException):
                made.close()

    def _send(self, producer: pulsar.Producer, topic: str, body: str) -> None:
        def answered(result: pulsar.Result, _: pulsar.MessageId) -> None:
            kind = "receipt" if result == pulsar.Result.Ok else "refused"
            self._journal.write(
                kind, self._region, topic=topic, body=body, note="" if kind == "receipt" else str(result)
            )
            with self._lock:
                self._pending -= 1

        later = timedelta(seconds=self._random.uniform(0.3, 1.5)) if self._random.random() < 0.04 else None
        with self._lock:
            self._pending += 1
        self._journal.write("published", self._region, topic=topic, body=body, note="delayed" if later else "")
        key = f"key-{self._random.randrange(8)}"
        try:
            producer.send_async(body.encode(), answered, partition_key=key, deliver_after=later)
        except pulsar.PulsarException as refused:
            self._journal.write("refused", self._region, topic=topic, body=body, note=str(refused))
            with self._lock:
                self._pending -= 1


class Wanderer(threading.Thread):
    """Consumers of one subscription that stay in a region for a while and continue in another."""

    def __init__(self, world: World, journal: Journal, used: Subscription, seed: str, home: str = "") -> None:
        """:param home: the region where it stays; empty: it moves."""
        super().__init__(daemon=True)
        self._world, self._journal, self._used, self._home = world, journal, used, home
        self._random = random.Random(seed)
        self._over = threading.Event()
        self.problem: BaseException | None = None

    def finish(self) -> None:
        self._over.set()

    def run(self) -> None:
        try:
            while not self._over.is_set():
                region = self._home or self._random.choice(REGIONS)
                if self._world.lives(region):
                    self._stay(region)
                self._over.wait(self._random.uniform(0, 0.3))
        except BaseException as problem:
            self.problem = problem
            raise

    def _stay(self, region: str) -> None:
        made = client(self._world, region)
        visit = self._journal.visit(region)
        try:
            consumer = subscribe(
                made, self._used, self._used.kind, receiver_queue_size=self._random.choice((1, 5, 20, 100))
            )
        except pulsar.PulsarException:
            with contextlib.suppress(pulsar.PulsarException):
                made.close()
            return
        self._note(visit, "subscribed")
        held: list[pulsar.Message] = []
        try:
            self._work(consumer, visit, held)
            for message in held:
                if self._random.random() < 0.5:
                    self._acknowledge(consumer, visit, message)
            if self._random.random() < 0.75:
                consumer.close()
                visit.closed = True
                self._note(visit, "closed")
        except pulsar.PulsarException as problem:
            self._note(visit, f"gone: {problem}")
        finally:
            visit.ended = time.monotonic()
            with contextlib.suppress(pulsar.PulsarException):
                made.shutdown() if not visit.closed else made.close()

    def _work(self, consumer: pulsar.Consumer, visit: Visit, held: list[pulsar.Message]) -> None:
        style = self._random.choice(("single", "single", "cumulative", "careless"))
        if style == "cumulative" and (self._used.kind not in (FAILOVER, EXCLUSIVE) or self._used.partitions):
            style = "single"
        until = time.monotonic() + self._random.uniform(0.4, 4)
        while time.monotonic() < until and not self._over.is_set():
            if self._used.rewound and self._random.random() < 0.02:
                self._seek(visit, held)
            try:
                message = consumer.receive(150)
            except pulsar.Timeout:
                continue
            self._note(visit, "delivered", message)
            chance = self._random.random()
            if style == "cumulative":
                if chance < 0.2:
                    consumer.acknowledge_cumulative(message)
                    self._note(visit, "up to", message)
                    held.clear()
            elif chance < (0.5 if style == "careless" else 0.8):
                self._acknowledge(consumer, visit, message)
            elif chance < 0.9:
                held.append(message)
                if len(held) > 15:
                    self._acknowledge(consumer, visit, held.pop(self._random.randrange(len(held))))
            elif chance < 0.95:
                consumer.negative_acknowledge(message)
                self._note(visit, "again please", message)

    def _acknowledge(self, consumer: pulsar.Consumer, visit: Visit, message: pulsar.Message) -> None:
        self._note(visit, "acknowledged", message)
        consumer.acknowledge(message)

    def _seek(self, visit: Visit, held: list[pulsar.Message]) -> None:
        """Seek through the admin API: the client library aborts the process if its own seek loses the connection."""
        back = self._random.uniform(0, 4)
        by_message = bool(held) and not self._used.partitions and self._random.random() < 0.4
        kind, since = ("message", 0.0) if by_message else ("time", time.monotonic() - back)
        asked = self._journal.rewind(visit.region, self._used.topic, self._used.name, kind, since)
        where = f"{self._world.subscription(self._used.topic, self._used.name)}/resetcursor"
        if by_message:
            ledger, entry, _ = place(self._random.choice(held))
            status, said = self._world.http(visit.region, "POST", where, {"ledgerId": ledger, "entryId": entry})
        else:
            status, said = self._world.http(visit.region, "POST", f"{where}/{int((time.time() - back) * 1000)}")
        held.clear()
        self._journal.done(asked, 200 <= status < 300, str(said))

    def _note(self, visit: Visit, kind: str, message: pulsar.Message | None = None) -> None:
        about = {} if message is None else {"body": message.data().decode(), "place": place(message)}
        self._journal.write(
            kind, visit.region, topic=self._used.topic, subscription=self._used.name, visit=visit.number, **about
        )


def publish_once(world: World, region: str, topic: str) -> None:
    """One message, with its receipt."""
    made = client(world, region)
    try:
        made.create_producer(topic).send(b"once")
    finally:
        made.close()


def read_all(world: World, region: str, topic: str, partitions: int) -> Iterator[str]:
    """Everything a region stores of a topic, in its order, partition by partition."""
    made = client(world, region)
    try:
        names = [f"{topic}-partition-{number}" for number in range(partitions)] if partitions else [topic]
        for name in names:
            reader = made.create_reader(name, pulsar.MessageId.earliest, receiver_queue_size=500)
            while reader.has_message_available():
                yield reader.read_next(10_000).data().decode()
            reader.close()
    finally:
        made.close()


def offered(world: World, region: str, used: Subscription, expected: set[str], quiet_ms: int) -> list[str]:
    """Bodies that a region delivers to a new consumer that acknowledges nothing, until all expected ones came and it is
    quiet."""
    found: list[str] = []
    made = client(world, region)
    try:
        consumer = subscribe(made, used, SHARED, receiver_queue_size=500)
        missing, until = set(expected), time.monotonic() + OFFER_SECONDS
        while True:
            try:
                message = consumer.receive(quiet_ms)
            except pulsar.Timeout:
                if not missing or time.monotonic() > until:
                    break
                continue
            found.append(message.data().decode())
            missing.discard(found[-1])
        consumer.close()
    finally:
        made.close()
    return found
