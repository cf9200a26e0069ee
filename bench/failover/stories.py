# SPDX-License-Identifier: Apache-2.0
"""What is measured: the other region's cursor behind an acknowledgement, and what comes again after a move.

Messages are published in A and are all in B before the consumer moves, so that nothing but the subscription's place is
judged. The consumer takes them at a steady rate, acknowledges each at once, or holds some back; then it moves.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pulsar
from clusters import Cluster, wait

SUBSCRIPTION = "s"
RATE = 1000
"""Messages a second that the consumer takes."""
HELD_SHARE = 100
"""One of so many is held back."""
IN_CLIENT_SECONDS = 0.3
"""Client libraries gather acknowledgements for a tenth of a second: what was acknowledged so shortly before a SIGKILL
may never have left the client. It is counted apart."""
QUIET_MS = 3000


@dataclass(frozen=True)
class Lag:
    """Milliseconds from an acknowledgement in A until B's admin API counts it; the polling's own time is in it."""

    p50: float
    p99: float
    largest: float


@dataclass(frozen=True)
class Moved:
    """After a move from A to B."""

    acked: int
    """Acknowledged in A, long enough ago to have left the client."""
    again: int
    """Of these, delivered in B."""
    again_in_client: int
    """Acknowledged right before the kill and delivered in B."""
    lost: int
    first_message_ms: int

    @property
    def again_percent(self) -> float:
        return 100.0 * self.again / max(self.acked, 1)


class Stories:
    """On two clusters, each story on a topic of its own."""

    def __init__(self, a: Cluster, b: Cluster, namespace: str) -> None:
        self.a = a
        self.b = b
        self._namespace = namespace
        self._topics = itertools.count(time.time_ns() // 1_000_000)

    def lag(self, messages: int, rate: int) -> Lag:
        """Acknowledge at a steady rate in A while B is asked for its backlog as fast as it answers."""
        with self._clients() as (a, b):
            topic = self._published(a, b, messages)
            consumer = self._subscribed(a, topic)
            acked: list[float] = []
            seen: list[tuple[float, int]] = []
            done = threading.Event()

            def look() -> None:
                while not done.is_set():
                    backlog = self.b.backlog(topic, SUBSCRIPTION)
                    if backlog is not None:
                        seen.append((time.monotonic(), messages - backlog))

            watcher = threading.Thread(target=look)
            watcher.start()
            try:
                for _ in _paced(messages, rate):
                    message = consumer.receive(30_000)
                    consumer.acknowledge(message)
                    acked.append(time.monotonic())
                wait(lambda: seen and seen[-1][1] >= messages, "the other region's cursor", 120)
            finally:
                done.set()
                watcher.join()
            consumer.close()
        waits, at = [], 0
        for number, moment in enumerate(acked, 1):
            while seen[at][1] < number or seen[at][0] < moment:
                at += 1
            waits.append((seen[at][0] - moment) * 1000)
        waits.sort()
        return Lag(waits[len(waits) // 2], waits[len(waits) * 99 // 100], waits[-1])

    def move(self, *, hold_seconds: float | None, planned: bool, work: int, backlog: int = 0) -> Moved:
        """Take ``work`` messages in A, then go on in B.

        :param hold_seconds: one message in a hundred is acknowledged so much later; None: all at once; infinity: never.
        :param planned: the consumer is closed before it moves; otherwise A's broker is killed.
        :param backlog: messages behind those that are worked off.
        """
        with self._clients() as (a, b):
            topic = self._published(a, b, work + backlog)
            consumer = self._subscribed(a, topic)
            acked: dict[bytes, float] = {}
            held: list[tuple[float, pulsar.Message]] = []

            def acknowledge(message: pulsar.Message) -> None:
                consumer.acknowledge(message)
                acked[message.data()] = time.monotonic()

            for number in _paced(work, RATE):
                message = consumer.receive(30_000)
                if hold_seconds is not None and number % HELD_SHARE == 0:
                    held.append((time.monotonic() + hold_seconds, message))
                else:
                    acknowledge(message)
                while held and held[0][0] <= time.monotonic():
                    acknowledge(held.pop(0)[1])
            if planned:
                consumer.close()
            else:
                assert self.a.kill is not None
                self.a.kill()
            moved = time.monotonic()
            after = self._subscribed(b, topic)
            came: set[bytes] = set()
            first = 0.0
            while True:
                try:
                    message = after.receive(QUIET_MS if came or not backlog else 30_000)
                except pulsar.Timeout:
                    break
                first = first or time.monotonic()
                came.add(message.data())
                after.acknowledge(message)
            after.close()
        certain = moved if planned else moved - IN_CLIENT_SECONDS
        sure = {data for data, moment in acked.items() if moment <= certain}
        everything = {b"%d" % number for number in range(work + backlog)}
        if not planned:
            self.a.bring_back()
        return Moved(
            acked=len(sure),
            again=len(sure & came),
            again_in_client=len((acked.keys() - sure) & came),
            lost=len(everything - acked.keys() - came),
            first_message_ms=round((first - moved) * 1000) if first else -1,
        )

    @contextmanager
    def _clients(self) -> Iterator[tuple[pulsar.Client, pulsar.Client]]:
        a, b = self.a.client(), self.b.client()
        try:
            yield a, b
        finally:
            # A client of a broker that was killed would wait for it.
            for client in (a, b):
                client.shutdown()

    def _published(self, a: pulsar.Client, b: pulsar.Client, messages: int) -> str:
        """A topic with the subscription in both regions, and messages that both regions have."""
        topic = f"persistent://{self._namespace}/failover-{next(self._topics)}"
        for client in (a, b):
            self._subscribed(client, topic).close()
        producer = a.create_producer(topic, batching_enabled=False, block_if_queue_full=True, max_pending_messages=5000)
        for number in range(messages):
            producer.send_async(b"%d" % number, lambda *_: None)
        producer.flush()
        producer.close()
        wait(lambda: self.b.backlog(topic, SUBSCRIPTION) == messages, f"{messages} messages in {self.b.name}", 300)
        return topic

    def _subscribed(self, client: pulsar.Client, topic: str) -> pulsar.Consumer:
        return client.subscribe(
            topic,
            SUBSCRIPTION,
            consumer_type=pulsar.ConsumerType.Shared,
            receiver_queue_size=200,
            initial_position=pulsar.InitialPosition.Earliest,
            replicate_subscription_state_enabled=True,
        )


def _paced(count: int, rate: int) -> Iterator[int]:
    began = time.monotonic()
    for number in range(count):
        ahead = began + number / rate - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
        yield number
