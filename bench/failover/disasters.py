# SPDX-License-Identifier: Apache-2.0
"""Disasters of regions: a cut link, an old disk; and a hundred thousand idle subscriptions.

These control the regions themselves (see ``wired``), so they are measured with Meridian only.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

import pulsar
from clusters import Cluster, wait
from stories import LEAD_SECONDS, LOST_MS, RATE, SUBSCRIPTION, Moved, Stories, Taking, judged
from wired import Wired
from work import Notes, Worker

NAMES = ("one", "two", "three")
IDLE_TOPICS = 100
ROUND_SECONDS = 5
"""Interval at which regions compare."""
SETTLED_SECONDS = 60.0
NAMESPACE = "public/default"


@dataclass(frozen=True)
class Healed:
    """After a cut."""

    moved: Moved
    caught_up_ms: int
    """From the healing until the other region's cursor was where this one's was at that time."""


@dataclass(frozen=True)
class Idle:
    """Regions where nothing happens."""

    subscriptions: int
    topics: int
    made_seconds: float
    settled_seconds: float
    bytes_per_second: float
    cpu_percent: float
    """Percent of one processor, all brokers together."""


FETCHED_MS = 120_000
"""A region that comes back with an old disk fetches everything it lacks, in order, before the first message that is
owed: 300,000 entries for 5 minutes. After this time without any message, it counts as lost."""


class Disasters:
    """Disasters on our own three regions."""

    def __init__(self, wired: Wired, directory: Path) -> None:
        self._wired = wired
        self._clusters = {name: _cluster(wired, name) for name in NAMES}
        self._directory = directory

    def _stories(self, a: str, b: str) -> Stories:
        return Stories(self._clusters[a], self._clusters[b], NAMESPACE, self._directory)

    def cut_and_healed(self, seconds: float) -> Healed:
        """A region is cut off from both others while its consumer works on, and moves when it has healed."""
        work = int((seconds + 2) * RATE)
        stories = self._stories("one", "two")
        with stories.clients() as (a, b):
            topic = stories.topic(a, b)
            consumer = stories.consumer(stories.a, topic, work)
            publisher = stories.publisher(stories.a, topic, 0, work).go()
            time.sleep(LEAD_SECONDS)
            consumer.go()
            time.sleep(1)
            for other in ("two", "three"):
                self._wired.cut("one", other)
            time.sleep(seconds)
            place = Place(stories, topic)
            for other in ("two", "three"):
                self._wired.heal("one", other)
            healed = time.monotonic()
            wait(place.is_reached, "the other region to catch up after the healing", 120)
            caught_up = time.monotonic() - healed
            consumer.line("worked")
            publisher.result()
            moved = _move(stories, consumer, b, topic, work)
        return Healed(moved, round(caught_up * 1000))

    def around_a_cut(self, seconds: float) -> Moved:
        """The link between two regions is cut; the consumer moves between them meanwhile, past the third region."""
        work = int(seconds * RATE)
        stories = self._stories("one", "two")
        with stories.clients() as (a, b):
            topic = stories.topic(a, b)
            stories.publisher(stories.a, topic, 0, work, rate=0).go().result()
            wait(lambda: stories.b.entries(topic) >= work, "the other cluster to have the messages")
            consumer = stories.consumer(stories.a, topic, work)
            self._wired.cut("one", "two")
            try:
                consumer.go().line("worked")
                moved = _move(stories, consumer, b, topic, work)
            finally:
                self._wired.heal("one", "two")
        return moved

    def restored(self, seconds: float) -> Moved:
        """A region is killed and returns with an earlier copy of its disk; its consumer continues there at once.

        The copy is made in the middle of the work. It lacks later acknowledgements and messages, but none of them may
        be lost or redelivered: the other regions know them.
        """
        before, work = 2000, int(seconds * RATE)
        stories = self._stories("two", "one")
        with stories.clients() as (a, b):
            topic = stories.topic(a, b)
            for first, count in ((0, before), (before, work)):
                if first:
                    copy = self._wired.keep_copy("two")
                consumer = stories.consumer(stories.a, topic, count // 2)
                publisher = stories.publisher(stories.a, topic, first, count).go()
                time.sleep(LEAD_SECONDS)
                consumer.go().line("worked")
                consumer.say("close")
                consumer.result()
                publisher.result()
                wait(lambda: stories.b.entries(topic) >= first + count, "the other cluster to have the messages")  # noqa: B023
            self._wired.put_back("two", copy)
            moved = time.monotonic()
            back = stories.a.client()
            after = Taking(back, topic, SUBSCRIPTION)
            notes = Notes(stories.notes(topic, "consumer"))
            owed = set(range(before + work)) - notes.sent.keys()
            after.until(owed, FETCHED_MS)
            after.until_quiet()
            back.shutdown()
        return judged(notes, after, owed, moved)

    def idle(self, count: int, seconds: float) -> Idle:
        """Many replicated subscriptions, with nothing to do."""
        began = time.monotonic()
        topics = [f"persistent://{NAMESPACE}/idle-{number}" for number in range(IDLE_TOPICS)]
        each = count // IDLE_TOPICS
        Worker("subscriptions", **self._clusters["one"].place, topics=",".join(topics), count=each).go().result()
        made = time.monotonic() - began
        wait(
            lambda: all(self._has(name, topics, each) for name in NAMES), "all clusters to have the subscriptions", 300
        )
        # The aftermath of creating them, and the first comparisons, are not idle time.
        until = time.monotonic() + SETTLED_SECONDS
        before, rates = self._wired.bytes_passed(), [math.inf, math.inf]
        while not abs(rates[-1] - rates[-2]) < 0.2 * rates[-2] and time.monotonic() < until:
            time.sleep(ROUND_SECONDS)
            now = self._wired.bytes_passed()
            rates.append((now - before) / ROUND_SECONDS)
            before = now
        settled = time.monotonic() - began - made
        before, cpu, start = self._wired.bytes_passed(), self._wired.cpu_seconds(), time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - start
        passed, used = self._wired.bytes_passed() - before, self._wired.cpu_seconds() - cpu
        return Idle(each * IDLE_TOPICS, IDLE_TOPICS, made, settled, passed / took, 100 * used / took)

    def _has(self, name: str, topics: list[str], each: int) -> bool:
        cluster = self._clusters[name]
        return all(len(cluster.subscriptions(topic)) >= each for topic in (topics[-1], topics[0]))


class Place:
    """The position that a subscription has in A now: has B reached it?"""

    def __init__(self, stories: Stories, topic: str) -> None:
        self._stories = stories
        self._topic = topic
        self._sent = len(Notes(stories.notes(topic, "consumer")).sent)

    def is_reached(self) -> bool:
        known = self._stories.b.acknowledged(self._topic, SUBSCRIPTION)
        return known is not None and known >= self._sent


def _move(stories: Stories, consumer: Worker, client: pulsar.Client, topic: str, work: int) -> Moved:
    """The consumer is closed and continues in B."""
    consumer.say("close")
    consumer.result()
    moved = time.monotonic()
    after = Taking(client, topic, SUBSCRIPTION)
    notes = Notes(stories.notes(topic, "consumer"))
    owed = set(range(work)) - notes.sent.keys()
    after.until(owed, LOST_MS)
    after.until_quiet()
    after.close()
    return judged(notes, after, owed, moved)


def _cluster(wired: Wired, name: str) -> Cluster:
    broker = wired.brokers[name]
    return Cluster(name, f"pulsar://127.0.0.1:{broker.port}", f"http://127.0.0.1:{broker.admin_port}")
