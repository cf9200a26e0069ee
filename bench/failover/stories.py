# SPDX-License-Identifier: Apache-2.0
"""Measurements on any two clusters: how far the other cluster's cursor lags behind an acknowledgement, and which
messages are repeated after a move.

One process publishes in A at a steady rate, another one takes the messages there at the same rate and acknowledges each
individually, with a receipt, at once or, for some, later or never. Then the consumer moves to B, where the official
client continues. Publishing begins a moment earlier, so it ends before the move: only the subscription's position is
judged.
"""

from __future__ import annotations

import itertools
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pulsar
from clusters import Cluster, wait
from work import Notes, Worker

SUBSCRIPTION = "s"
RATE = 1000
"""Messages per second published and taken."""
LEAD_SECONDS = 0.3
"""How much earlier publishing begins."""
QUIET_MS = 1500
"""Silence after which no repeated message is expected, once all owed messages have arrived."""
LOST_MS = 30_000
"""Silence after which a message that is still owed counts as lost."""
POLL_SECONDS = 0.001


@dataclass(frozen=True)
class Lag:
    """Milliseconds from sending an ACK in A until B's admin API shows it, including the time of the query."""

    samples: list[tuple[float, float]]
    """(seconds since the first ACK, milliseconds)."""
    sorted_ms: list[float] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sorted_ms", sorted(ms for _, ms in self.samples))

    def percentile(self, percent: float) -> float:
        return self.sorted_ms[min(len(self.sorted_ms) - 1, int(len(self.sorted_ms) * percent / 100))]


@dataclass(frozen=True)
class Moved:
    """What came after a move."""

    confirmed: int
    """Acknowledged before the move, with the broker's receipt."""
    again: int
    """Of these, redelivered after the move."""
    unconfirmed: int
    """Acknowledgements in flight when the broker was killed."""
    unconfirmed_again: int
    lost: int
    first_message_ms: int
    """-1: nothing came, nothing was owed."""

    @property
    def again_percent(self) -> float:
        return 100.0 * self.again / max(self.confirmed, 1)


class Stories:
    """Stories on two clusters, each on its own topic."""

    def __init__(self, a: Cluster, b: Cluster, namespace: str, directory: Path) -> None:
        self.a = a
        self.b = b
        self._namespace = namespace
        for cluster in (a, b):
            cluster.keep_everything(namespace)
        self._directory = directory
        self._topics = itertools.count(time.time_ns() // 1_000_000)

    # -- the cursor's lag ---------------------------------------------------------------------------------------------

    def lag(self, messages: int, rate: int) -> Lag:
        """Acknowledge in A at a steady rate while B is asked for its cursor."""
        with self.clients() as (a, b):
            topic = self.topic(a, b)
            b.subscribe(topic, "places", initial_position=pulsar.InitialPosition.Earliest).close()
        seen: list[tuple[tuple[int, int], float]] = []
        done = threading.Event()

        def look() -> None:
            while not done.is_set():
                place = self.b.mark_delete(topic, SUBSCRIPTION)
                if place is not None and (not seen or place > seen[-1][0]):
                    seen.append((place, time.monotonic()))
                done.wait(POLL_SECONDS)

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            consumer = self.consumer(self.a, topic, messages, rate=rate)
            publisher = self.publisher(self.a, topic, 0, messages, rate=rate).go()
            time.sleep(LEAD_SECONDS)
            consumer.go().line("worked")
            publisher.result()
            map_ = Worker("places", **self.b.place, topic=topic, subscription="places", last=messages - 1).go()
            places = {number: (ledger, entry) for number, ledger, entry in map_.result()["places"]}
            # Another cluster's cursor may stay where it was last updated: exclude what was not seen by then.
            until = time.monotonic() + 5
            while time.monotonic() < until and (not seen or seen[-1][0] < places[messages - 1]):
                time.sleep(0.05)
        finally:
            done.set()
            watcher.join()
        consumer.say("close")
        consumer.result()
        sent = Notes(self.notes(topic, "consumer")).sent
        first = min(sent.values())
        samples = []
        for number, moment in sorted(sent.items()):
            at = bisect_left(seen, (places[number], 0.0))
            if at < len(seen):
                samples.append((moment - first, max(0.0, seen[at][1] - moment) * 1000))
        if len(samples) < messages * 0.5:
            raise SystemExit(f"bench: of {messages} acknowledgements {self.b.name} showed {len(samples)}")
        return Lag(samples)

    # -- moves --------------------------------------------------------------------------------------------------------

    def move(self, *, hold_seconds: float, planned: bool, work: int, backlog: int = 0) -> Moved:
        """Take ``work`` messages in A, then continue in B.

        :param hold_seconds: one message in a hundred is acknowledged this much later; 0: none; infinity: never.
        :param planned: the consumer is closed before it moves; otherwise A's broker is killed while it works.
        :param backlog: messages published before; the consumer always lags this far behind.
        """
        with self.clients() as (a, b):
            topic = self.topic(a, b)
            if backlog:
                self.publisher(self.a, topic, 0, backlog, rate=0).go().result()
                wait(lambda: self.b.entries(topic) >= backlog, f"{self.b.name} to have {backlog} messages", 300)
            consumer = self.consumer(self.a, topic, work, hold=hold_seconds)
            publisher = self.publisher(self.a, topic, backlog, work).go()
            time.sleep(LEAD_SECONDS)
            consumer.go().line("worked")
            publisher.result()
            if planned:
                consumer.say("close")
            else:
                assert self.a.kill is not None
                self.a.kill()
            consumer.result()
            moved = time.monotonic()
            after = Taking(b, topic, SUBSCRIPTION)
            notes = Notes(self.notes(topic, "consumer"))
            owed = set(range(work + backlog)) - notes.sent.keys()
            if not planned:
                # Messages that only A had arrive when A is back.
                after.until(owed, QUIET_MS)
                after.until_quiet()
                self.a.bring_back()
            after.until(owed, LOST_MS)
            after.until_quiet()
            after.close()
        return judged(notes, after, owed, moved)

    # -- the parts ----------------------------------------------------------------------------------------------------

    @contextmanager
    def clients(self) -> Iterator[tuple[pulsar.Client, pulsar.Client]]:
        """The official client in both clusters."""
        a, b = self.a.client(), self.b.client()
        try:
            yield a, b
        finally:
            # A client of a killed broker would wait for it.
            for client in (a, b):
                client.shutdown()

    def topic(self, *clients: pulsar.Client) -> str:
        """A new topic, with the subscription in both regions."""
        topic = f"persistent://{self._namespace}/failover-{next(self._topics)}"
        for client in clients:
            subscribed(client, topic, SUBSCRIPTION).close()
        return topic

    def notes(self, topic: str, who: str) -> Path:
        return self._directory / f"{topic.rpartition('/')[2]}-{who}"

    def consumer(self, where: Cluster, topic: str, count: int, *, rate: float = RATE, hold: float = 0) -> Worker:
        return Worker(
            "consume", **where.place, topic=topic, subscription=SUBSCRIPTION, count=count, rate=rate, hold=hold,
            out=self.notes(topic, "consumer"),
        )  # fmt: skip

    def publisher(self, where: Cluster, topic: str, first: int, count: int, *, rate: float = RATE) -> Worker:
        """:param rate: 0: as fast as receipts allow."""
        return Worker(
            "publish", **where.place, topic=topic, first=first, count=count, rate=rate,
            out=self.notes(topic, f"publisher-{first}"),
        )  # fmt: skip


class Taking:
    """The consumer after the move: takes everything and acknowledges it, with the official client."""

    def __init__(self, client: pulsar.Client, topic: str, subscription: str) -> None:
        self.came: set[int] = set()
        self.first: float | None = None
        self._consumer = subscribed(client, topic, subscription)

    def until(self, owed: set[int], quiet_ms: int) -> None:
        """Receive until all of these came, or nothing came for ``quiet_ms``."""
        left = len(owed - self.came)
        while left and (number := self._take(quiet_ms)) is not None:
            left -= number in owed and number not in self.came
            self.came.add(number)

    def until_quiet(self) -> None:
        while (number := self._take(QUIET_MS)) is not None:
            self.came.add(number)

    def _take(self, wait_ms: int) -> int | None:
        try:
            message = self._consumer.receive(wait_ms)
        except pulsar.Timeout:
            return None
        self.first = self.first or time.monotonic()
        self._consumer.acknowledge(message)
        return int(message.data().partition(b",")[0])

    def close(self) -> None:
        self._consumer.close()


def judged(notes: Notes, after: Taking, owed: set[int], moved: float) -> Moved:
    """:param owed: everything published and not acknowledged before."""
    under_way = notes.sent.keys() - notes.confirmed.keys()
    return Moved(
        confirmed=len(notes.confirmed),
        again=len(notes.confirmed.keys() & after.came),
        unconfirmed=len(under_way),
        unconfirmed_again=len(under_way & after.came),
        lost=len(owed - after.came),
        first_message_ms=-1 if after.first is None else round((after.first - moved) * 1000),
    )


def subscribed(client: pulsar.Client, topic: str, subscription: str) -> pulsar.Consumer:
    return client.subscribe(
        topic,
        subscription,
        consumer_type=pulsar.ConsumerType.Shared,
        receiver_queue_size=200,
        initial_position=pulsar.InitialPosition.Earliest,
        replicate_subscription_state_enabled=True,
    )
