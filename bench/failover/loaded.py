# SPDX-License-Identifier: Apache-2.0
"""A consumer that moves under load, with the official client: messages are published in both clusters all the time.

The application acknowledges in the cluster that it leaves, closes its consumer (or loses the cluster) and continues in
the other one until it has everything. Several topics take part at once, because redelivery depends on the age of the
last snapshot, which is chance.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pulsar
from clusters import Cluster, wait
from stories import LOST_MS, QUIET_MS, SUBSCRIPTION, subscribed

FORWARD_SECONDS = 60.0
HELD_SHARE = 100
"""One message of this many is held back."""
GROUPED_SECONDS = 0.3
"""The client collects acknowledgements for a tenth of a second: the fate of those made just before its broker was
killed is unknown."""
SHOWN_SECONDS = 3.0
"""Lag is measured for acknowledgements at least this much older than the move; one that never showed counts with the
time until the move."""
POLL_SECONDS = 0.02
TURN_SECONDS = 0.01
AFTER_SECONDS = 2.0
"""Publishing continues this long after the move."""
RECEIVE_MS = 50
OPENED_TOGETHER = 8
LEFT, GONE_TO = "left", "gone to"


@dataclass(frozen=True)
class Case:
    """One kind of move."""

    name: str
    topics: int
    rate: int
    """Messages per second on each topic, published in both clusters together."""
    seconds: float
    hold_seconds: float = 0.0
    """One message in a hundred is acknowledged this much later; infinity: never."""
    killed: str | None = None
    """``LEFT``: instead of closing the consumer, the cluster that it leaves is killed, and restarted later.
    ``GONE_TO``: the other one is killed and restarted while the consumer works."""


@dataclass
class Topic:
    """What happened on one topic, by message number."""

    name: str
    case: Case
    published: set[int] = field(default_factory=set)
    """Messages with a receipt."""
    acknowledged: dict[int, float] = field(default_factory=dict)
    """When the application acknowledged each."""
    after: list[int] = field(default_factory=list)
    """Messages that came after the move."""
    asked: int = 0
    """Messages handed to the producers."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case, all its topics together."""

    published: int
    acknowledged: int
    again: int
    again_seconds: float
    """Seconds of traffic redelivered, averaged over the topics."""
    lost: int
    lag_ms: list[float]
    """Sorted; empty if not measured."""

    def lag(self, percent: float) -> float:
        return self.lag_ms[min(len(self.lag_ms) - 1, int(len(self.lag_ms) * percent / 100))]


class Publisher(threading.Thread):
    """Publishes on all topics, every second message in each cluster, until told to stop."""

    def __init__(self, clusters: Sequence[Cluster], topics: Sequence[Topic]) -> None:
        super().__init__(name="publisher", daemon=True)
        self._clusters = clusters
        self._topics = topics
        self._ended = threading.Event()
        self._producers: dict[tuple[int, str], Any] = {}
        self._clients: list[pulsar.Client | None] = [None, None]
        self._guard = threading.Lock()
        for side in (0, 1):
            self.reconnect(side)

    def reconnect(self, side: int) -> None:
        """The cluster is up (again): by itself the client would wait for up to a minute."""
        client = self._clusters[side].client()
        found = {}
        for topic in self._topics:
            found[side, topic.name] = client.create_producer(
                topic.name, batching_enabled=True, batching_max_publish_delay_ms=5, send_timeout_millis=0,
                max_pending_messages=100_000,
            )  # fmt: skip
        with self._guard:
            self._clients[side] = client
            self._producers |= found

    def disconnect(self, side: int) -> None:
        """The cluster is killed: nothing is published there, and messages without receipt count as not published."""
        with self._guard:
            client, self._clients[side] = self._clients[side], None
        if client is not None:
            client.shutdown()

    def run(self) -> None:
        began = time.monotonic()
        while not self._ended.wait(TURN_SECONDS):
            elapsed = time.monotonic() - began
            with self._guard:
                for topic in self._topics:
                    for number in range(topic.asked, int(elapsed * topic.case.rate)):
                        if self._clients[number % 2] is not None:
                            self._send(topic, number)
                    topic.asked = max(topic.asked, int(elapsed * topic.case.rate))

    def _send(self, topic: Topic, number: int) -> None:
        def told(result: Any, _: Any) -> None:
            if result == pulsar.Result.Ok:
                topic.published.add(number)

        producer = self._producers[number % 2, topic.name]
        producer.send_async(b"%d," % number + b"." * 100, told)

    def stop(self) -> None:
        """Wait for all receipts."""
        self._ended.set()
        self.join()
        for (side, _), producer in self._producers.items():
            if self._clients[side] is not None:
                producer.flush()

    def close(self) -> None:
        for side in (0, 1):
            self.disconnect(side)


class Consumer(threading.Thread):
    """The application before the move, on one topic."""

    def __init__(self, client: pulsar.Client, topic: Topic) -> None:
        super().__init__(name=f"consumer of {topic.name}", daemon=True)
        self._consumer = subscribed(client, topic.name, SUBSCRIPTION)
        self._topic = topic
        self._ended = threading.Event()
        self._held: deque[tuple[float, pulsar.Message]] = deque()
        self._count = 0

    def run(self) -> None:
        with suppress(pulsar.PulsarException):  # its cluster was killed
            while not self._ended.is_set():
                with suppress(pulsar.Timeout):
                    self._take(self._consumer.receive(RECEIVE_MS))
                while self._held and self._held[0][0] <= time.monotonic():
                    self._acknowledge(self._held.popleft()[1])

    def _take(self, message: pulsar.Message) -> None:
        self._count += 1
        if self._topic.case.hold_seconds and self._count % HELD_SHARE == 0:
            self._held.append((time.monotonic() + self._topic.case.hold_seconds, message))
        else:
            self._acknowledge(message)

    def _acknowledge(self, message: pulsar.Message) -> None:
        self._consumer.acknowledge(message)
        self._topic.acknowledged.setdefault(number_of(message), time.monotonic())

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def close(self) -> None:
        """Sends the acknowledgements that the library still holds back."""
        self._consumer.close()


class After(threading.Thread):
    """The application after the move, on one topic: runs until it has what is owed and nothing more comes."""

    def __init__(self, client: pulsar.Client, topic: Topic) -> None:
        super().__init__(name=f"consumer of {topic.name}, moved", daemon=True)
        self._consumer = subscribed(client, topic.name, SUBSCRIPTION)
        self._topic = topic
        self.all_published = threading.Event()
        """Whether every receipt is in and every cluster runs."""

    def run(self) -> None:
        came: set[int] = set()
        last = time.monotonic()
        while True:
            try:
                message = self._consumer.receive(RECEIVE_MS)
            except pulsar.Timeout:
                if not self.all_published.is_set():
                    last = time.monotonic()
                    continue
                has_all = self._topic.published <= came | self._topic.acknowledged.keys()
                if time.monotonic() - last > (QUIET_MS if has_all else LOST_MS) / 1000:
                    return
                continue
            self._consumer.acknowledge(message)
            last = time.monotonic()
            number = number_of(message)
            came.add(number)
            self._topic.after.append(number)


class Watcher(threading.Thread):
    """Asks the other cluster for the position of one topic's subscription."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        super().__init__(name=f"watcher of {topic}", daemon=True)
        self.seen: list[tuple[tuple[int, int], float]] = []
        self._cluster = cluster
        self._topic = topic
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            place = self._cluster.mark_delete(self._topic, SUBSCRIPTION)
            if place is not None and (not self.seen or place > self.seen[-1][0]):
                self.seen.append((place, time.monotonic()))

    def stop(self) -> None:
        self._ended.set()
        self.join()


def number_of(message: pulsar.Message) -> int:
    return int(message.data().partition(b",")[0])


class Moves:
    """Moves of consumers from one cluster to the other."""

    def __init__(self, source: Cluster, target: Cluster, namespace: str) -> None:
        self._clusters = source, target
        self._namespace = namespace

    def run(self, cases: Sequence[Case]) -> dict[str, Outcome]:
        """Run these cases at once. A case that kills a cluster must run alone."""
        assert len(cases) == 1 or not any(case.killed for case in cases)
        source, target = self._clusters
        topics = [
            Topic(f"persistent://{self._namespace}/{case.name}-{number}-{time.time_ns() // 1_000_000}", case)
            for case in cases
            for number in range(case.topics)
        ]
        self._open([topic.name for topic in topics])
        client = source.client()
        consumers = [Consumer(client, topic) for topic in topics]
        publisher = Publisher(self._clusters, topics)
        watched = [topic for topic in topics if not (topic.case.hold_seconds or topic.case.killed)][:1]
        watchers = [Watcher(target, topic.name) for topic in watched]
        try:
            for thread in (*consumers, *watchers, publisher):
                thread.start()
            moved = self._work(cases[0], publisher, consumers)
            for watcher in watchers:
                watcher.stop()
            moved_client = target.client()
            after = [After(moved_client, topic) for topic in topics]
            for one in after:
                one.start()
            if cases[0].killed == LEFT:
                source.bring_back()
                publisher.reconnect(0)
            time.sleep(AFTER_SECONDS)
            publisher.stop()
            for one in after:
                one.all_published.set()
            for one in after:
                one.join()
            places = [_places(moved_client, topic) for topic in watched]
            moved_client.close()
        finally:
            publisher.close()
            client.shutdown()
        lags = {
            topic.case.name: _lags(topic, there, watcher.seen, moved)
            for topic, there, watcher in zip(watched, places, watchers, strict=True)
        }
        before = moved - (GROUPED_SECONDS if cases[0].killed == LEFT else 0)
        return {
            case.name: _judged([topic for topic in topics if topic.case is case], before, lags.get(case.name, []))
            for case in cases
        }

    def _work(self, case: Case, publisher: Publisher, consumers: Sequence[Consumer]) -> float:
        """Run until the move; returns its time."""
        source, target = self._clusters
        time.sleep(case.seconds)
        if case.killed == GONE_TO:
            assert target.kill is not None
            target.kill()
            publisher.disconnect(1)
            target.bring_back()
            publisher.reconnect(1)
            time.sleep(case.seconds)
        moved = time.monotonic()
        if case.killed == LEFT:
            assert source.kill is not None
            source.kill()
            publisher.disconnect(0)
        for consumer in consumers:
            consumer.stop()
        if case.killed != LEFT:
            for consumer in consumers:
                consumer.close()
            moved = time.monotonic()
        return moved

    def _open(self, topics: Sequence[str]) -> None:
        """Wait until both clusters have one message of each: replication runs."""
        clients = [cluster.client() for cluster in self._clusters]

        def begin(topic: str) -> None:
            for client in clients:
                producer = client.create_producer(topic)
                producer.send(b"-1,")
                producer.close()

        with ThreadPoolExecutor(max_workers=OPENED_TOGETHER) as pool:
            list(pool.map(begin, topics))
        for cluster, client in zip(self._clusters, clients, strict=True):
            client.close()
            for topic in topics:
                wait(lambda: cluster.entries(topic) >= 2, f"{cluster.name} to have messages of both", FORWARD_SECONDS)  # noqa: B023


def _places(client: pulsar.Client, topic: Topic) -> dict[int, tuple[int, int]]:
    """Where each message is stored."""
    reader = client.create_reader(topic.name, pulsar.MessageId.earliest)
    found: dict[int, tuple[int, int]] = {}
    while reader.has_message_available():
        message = reader.read_next(RECEIVE_MS * 100)
        found.setdefault(number_of(message), (message.message_id().ledger_id(), message.message_id().entry_id()))
    reader.close()
    return found


def _lags(
    topic: Topic, places: dict[int, tuple[int, int]], seen: Sequence[tuple[tuple[int, int], float]], moved: float
) -> list[float]:
    found = []
    for number, moment in topic.acknowledged.items():
        if number >= 0 and moment <= moved - SHOWN_SECONDS:
            at = bisect_left(seen, (places[number], 0.0))
            found.append(max(0.0, (seen[at][1] if at < len(seen) else moved) - moment) * 1000)
    return sorted(found)


def _judged(topics: Sequence[Topic], before: float, lags: list[float]) -> Outcome:
    """:param before: acknowledgements from before this moment count."""
    acknowledged = again = 0
    for topic in topics:
        after = set(topic.after)
        for number, moment in topic.acknowledged.items():
            if number >= 0 and moment <= before:
                acknowledged += 1
                again += number in after
    return Outcome(
        published=sum(len(topic.published) for topic in topics),
        acknowledged=acknowledged,
        again=again,
        again_seconds=again / sum(topic.case.rate for topic in topics),
        lost=sum(len(topic.published - topic.acknowledged.keys() - set(topic.after)) for topic in topics),
        lag_ms=lags,
    )
