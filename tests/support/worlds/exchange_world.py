# SPDX-License-Identifier: Apache-2.0
"""Regions and links in memory, on which the real progress exchange runs.

A region has topics (entries with their origins), subscriptions (``Progress``, record) and one exchange. A link carries
the frames of the wire protocol, so every message is encoded and decoded. Time advances only on command, and the seed
alone determines the order of events.

``WorldRegion`` is the seam: a region made of the real ledger, topic and replicator cores can replace it.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from meridian_broker.ledgers.store import Done, LedgerError
from meridian_broker.positions.clock import ZERO, HybridClock, Stamp
from meridian_broker.positions.position import EARLIEST, Origin, Position
from meridian_broker.positions.progress import Progress
from meridian_broker.replication.progress import codec
from meridian_broker.replication.progress.exchange import ProgressExchange
from meridian_broker.replication.progress.messages import (
    Barrier,
    BarrierDone,
    Delta,
    ExchangeLimits,
    PeerMessage,
    State,
)
from meridian_broker.wire.pulsar.frames import Command, FrameDecoder

Key = tuple[str, str]


@dataclass(frozen=True)
class Entry:
    """One message, wherever it is stored."""

    origin: Origin
    prev: Position
    publish_time_ms: int


@dataclass
class Subscription:
    progress: Progress
    record: bytes
    held: dict[Origin, Stamp] = field(default_factory=dict)
    """Origin of an entry dispatched to a consumer here and not acked yet -> the epoch of its dispatch (R13)."""


@dataclass
class Topic:
    incarnation: str
    entries: list[Entry] = field(default_factory=list)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)


@dataclass
class Disk:
    """State after a crash: progress and records as of the last completed write."""

    progress: dict[Key, Progress] = field(default_factory=dict)
    records: dict[Key, bytes] = field(default_factory=dict)
    own: dict[Key, Progress] = field(default_factory=dict)
    """The part of ``progress`` that clients here caused."""

    def write(self, key: Key, delta: Progress, record: bytes) -> None:
        self.progress.setdefault(key, Progress()).join(delta)
        self.records[key] = record

    def check(self, key: Key, progress: bytes, record: bytes | None) -> None:
        """What is reported would survive a power cut now (R10, R60)."""
        if progress:
            have = self.progress.get(key, Progress()).copy()
            assert not have.join(Progress.decode(progress)), f"{key}: reported progress is not on disk"
        is_kept = record is None or (key in self.records and min(record, self.records[key]) == self.records[key])
        assert is_kept, f"{key}: a reported record is not on disk"


class WorldRegion:
    """One region: the exchange's host, and its clients' actions."""

    def __init__(self, name: str, world: ExchangeWorld) -> None:
        self.region = name
        self.world = world
        self.topics: dict[str, Topic] = {}
        self.disk = Disk()
        self.clock = HybridClock(lambda: world.now_ms, name)
        self.refuses = ""
        """If not empty, every merge is refused with this reason."""
        self.disk_ms = 0
        self._log: deque[tuple[bool, Callable[[], None]]] = deque()
        """Writes under way (True), and callbacks that wait for the writes before them."""
        self._written = 0
        """Number of finished writes whose callbacks have not run yet."""
        self.joins_when_durable = False
        """Whether a merge becomes visible only once it is on disk."""
        self.life = 0
        self.merges = 0
        self.exchange = self._new_exchange()

    def _new_exchange(self) -> ProgressExchange:
        exchange = ProgressExchange(self, limits=self.world.limits, **self.world.options)
        for other in self.world.names:
            exchange.add_peer(other)
        return exchange

    # -- the exchange's host

    def subscription(self, topic: str, name: str) -> Subscription | None:
        found = self.topics.get(topic)
        return None if found is None else found.subscriptions.get(name)

    def is_served(self, topic: str) -> bool:
        return True

    def owns(self, topic: str) -> bool:
        return True

    def open_soon(self, topic: str) -> None:
        raise AssertionError(f"{topic} is open already, like all topics of this world")

    def progress(self, topic: str, subscription: str) -> Progress | None:
        found = self.subscription(topic, subscription)
        return None if found is None else found.progress

    def record(self, topic: str, subscription: str) -> bytes | None:
        found = self.subscription(topic, subscription)
        return None if found is None else found.record

    def incarnation(self, topic: str) -> str:
        return self.topics[topic].incarnation if topic in self.topics else ""

    def open_topics(self) -> Collection[str]:
        return self.topics.keys()

    def is_replicated(self, topic: str) -> bool:
        return topic in self.topics and bool(self.topics[topic].subscriptions)

    def replicated_in(self, topic: str) -> Iterable[str]:
        return list(self.topics[topic].subscriptions) if topic in self.topics else []

    def regions_of(self, topic: str) -> frozenset[str]:
        return self.world.regions_of.get(topic, frozenset(self.world.names))

    def when_durable(self, topic: str, done: Done) -> None:
        """All topics share the disk, so there is one log."""
        del topic
        self._log.append((False, lambda: done(LedgerError(self.refuses) if self.refuses else None)))
        self._go_on()

    def merge(
        self,
        topic: str,
        subscription: str,
        incarnation: str,
        delta: Progress,
        record: bytes | None,
        done: Callable[[str | None], None],
    ) -> None:
        if self.refuses:
            done(self.refuses)
            return
        self.merges += 1
        found = self.topics.setdefault(topic, Topic(incarnation)).subscriptions.get(subscription)
        if found is None:
            assert record is not None, "the exchange must ask for the record first"
            found = self.topics[topic].subscriptions[subscription] = Subscription(Progress(), record)
        if record is not None:
            # Records merge too, the same way in all regions; here, the smaller text wins.
            found.record = min(found.record, record)
        known = found

        def join() -> None:
            epoch = known.progress.epoch
            known.progress.join(delta)
            if known.progress.epoch != epoch:
                known.held.clear()

        def durable() -> None:
            if self.joins_when_durable:
                join()
            done(None)

        if not self.joins_when_durable:
            join()
        self._persist((topic, subscription), delta, durable)

    def _persist(self, key: Key, delta: Progress, done: Callable[[], None] = lambda: None) -> None:
        record = self.topics[key[0]].subscriptions[key[1]].record
        delta, life = delta.copy(), self.life

        def write() -> None:
            if not self.refuses:
                self.disk.write(key, delta, record)
                done()

        def written() -> None:
            if life == self.life:
                self._written += 1
                self._go_on()

        self._log.append((True, write))
        if self.disk_ms:
            self.world.later(self.disk_ms, written)
        else:
            written()

    def _go_on(self) -> None:
        """Run what is due, in the order of the log."""
        while self._log and (self._written or not self._log[0][0]):
            is_write, act = self._log.popleft()
            self._written -= is_write
            act()

    # -- what clients do

    def _change(self, key: Key, delta: Progress, entries: int = 0, on_disk: Callable[[], None] = lambda: None) -> None:
        """Like a topic: join in memory, write, and report once it is on disk."""
        subscription = self.topics[key[0]].subscriptions[key[1]]
        subscription.progress.join(delta)
        self.world.facts.setdefault((self.region, *key), Progress()).join(delta)

        def written() -> None:
            self.disk.own.setdefault(key, Progress()).join(delta)
            on_disk()

        self._persist(key, delta, written)
        durable = partial(self.when_durable, key[0])
        self.exchange.local_ack(*key, delta, self.world.now_ms, durable, entries=entries)

    def subscribe(self, topic: str, name: str) -> None:
        found = self.topics.setdefault(topic, Topic(""))
        found.subscriptions[name] = Subscription(Progress(), f"{name} made in {self.region}".encode())
        self._change((topic, name), Progress())

    def ack(self, topic: str, name: str, entries: Iterable[Entry], on_disk: Callable[[], None] = lambda: None) -> None:
        """Ack all ids of one ACK command in one delta (R18), in the epoch of their dispatch (R13)."""
        subscription = self.topics[topic].subscriptions[name]
        changed = subscription.progress.copy()
        entries = list(entries)
        for entry in entries:
            epoch = subscription.held.pop(entry.origin, subscription.progress.epoch)
            changed.ack(epoch, entry.origin.region, entry.prev, entry.origin.position, entry.publish_time_ms)
        self._change((topic, name), changed.minus(subscription.progress), len(entries), on_disk)

    def know(self, topic: str, name: str, entry: Entry) -> None:
        """Acknowledged and on disk, but unknown to others, as in a restored region."""
        delta = Progress()
        delta.ack(ZERO, entry.origin.region, entry.prev, entry.origin.position)
        subscription = self.topics[topic].subscriptions[name]
        subscription.progress.join(delta)
        self.disk.write((topic, name), delta, subscription.record)

    def take(self, topic: str, name: str, count: int) -> list[Entry]:
        """Dispatch to a consumer here."""
        subscription = self.topics[topic].subscriptions[name]
        entries = [e for e in self.unacked(topic, name) if e.origin not in subscription.held][:count]
        subscription.held.update({entry.origin: subscription.progress.epoch for entry in entries})
        return entries

    def rewind(self, topic: str, name: str, entry: Entry) -> None:
        """Seek back so that this entry and its origin's later ones are unacked again."""
        progress = self.topics[topic].subscriptions[name].progress
        last = max(e.origin.position for e in self.topics[topic].entries if e.origin.region == entry.origin.region)
        delta = Progress()
        delta.rewind(self.clock.next(progress.epoch), {entry.origin.region: (entry.prev, last)})
        self.topics[topic].subscriptions[name].held.clear()
        self._change((topic, name), delta)

    def unacked(self, topic: str, name: str) -> list[Entry]:
        """Entries that a consumer here would get, in order."""
        found = self.topics[topic]
        progress = found.subscriptions[name].progress
        return [
            entry
            for entry in found.entries
            if not progress.is_acked(entry.origin.region, entry.origin.position, entry.publish_time_ms)
        ]

    def delete_topic(self, topic: str) -> None:
        self.topics[topic] = Topic(str(self.clock.next()))
        self.disk.progress = {key: value for key, value in self.disk.progress.items() if key[0] != topic}
        self.disk.records = {key: value for key, value in self.disk.records.items() if key[0] != topic}

    def learn_deletion(self, topic: str, incarnation: str) -> None:
        self.delete_topic(topic)
        self.topics[topic].incarnation = incarnation

    def crash(self) -> None:
        """Only what is on disk survives, and a new exchange starts."""
        self.life += 1
        self._log.clear()
        self._written = 0
        for region, topic, name in self.world.facts:
            if region == self.region:
                self.world.facts[region, topic, name] = self.disk.own.get((topic, name), Progress()).copy()
        for found in self.topics.values():
            found.subscriptions.clear()
        for (topic, name), progress in self.disk.progress.items():
            self.topics[topic].subscriptions[name] = Subscription(progress.copy(), self.disk.records[topic, name])
        self.exchange = self._new_exchange()


@dataclass
class Link:
    """A link from ``owner``, which dialled, to ``remote``."""

    owner: str
    remote: str
    up: bool = False
    life: int = 0
    """Frames of an earlier run are lost."""


@dataclass
class Network:
    """How messages travel. By default: in order, each after ``latency_ms``, none lost."""

    latency_ms: int = 1
    jitter_ms: int = 0
    """Maximum of the random extra delay of each message, which lets messages overtake each other."""
    loss: float = 0.0
    duplication: float = 0.0
    deaf: set[tuple[str, str]] = field(default_factory=set)
    """``(from, to)``: nothing arrives although links stay up."""


class ExchangeWorld:
    """Regions, links and time."""

    def __init__(
        self,
        names: Iterable[str],
        *,
        seed: int = 0,
        limits: ExchangeLimits | None = None,
        make_region: Callable[[str, ExchangeWorld], WorldRegion] = WorldRegion,
        **options: Any,
    ) -> None:
        self.names = list(names)
        self.now_ms = 1_000_000
        self.random = Random(seed)
        self.network = Network()
        self.limits = limits
        self.options = options
        self.regions_of: dict[str, frozenset[str]] = {}
        self.sent: Counter[str] = Counter()
        """Messages put on a link, by kind."""
        self.sent_bytes: Counter[str] = Counter()
        self.on_message: Callable[[str, str, PeerMessage], None] | None = None
        """Called for every message that arrives: from, to, message."""
        self._asked: dict[tuple[str, str, int], Key] = {}
        """Subscription that a barrier asks about, by asking region, asked region and number."""
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self.facts: dict[tuple[str, str, str], Progress] = {}
        """Region, topic, subscription -> all that its clients did there, except what crashes destroyed."""
        self.links = {(a, b): Link(a, b) for a in self.names for b in self.names if a != b}
        self.regions = {name: make_region(name, self) for name in self.names}

    # -- time

    def later(self, after_ms: int, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._queue, (self.now_ms + after_ms, self._number, action))

    def run(self, for_ms: int) -> None:
        """Advance time and run everything that is due."""
        end = self.now_ms + for_ms
        self.settle()
        while True:
            times = [region.exchange.next_deadline() for region in self.regions.values()]
            times.append(self._queue[0][0] if self._queue else None)
            due = min((time for time in times if time is not None), default=end + 1)
            if due > end:
                break
            self.now_ms = max(self.now_ms, due)
            while self._queue and self._queue[0][0] <= self.now_ms:
                heapq.heappop(self._queue)[2]()
                self.settle()
            self.settle()
        self.now_ms = end

    def settle(self) -> None:
        """Does what the shell does at the end of an event loop's turn."""
        for region in self.regions.values():
            due = region.exchange.next_deadline()
            if due is not None and due <= self.now_ms:
                region.exchange.tick(self.now_ms)
                left = region.exchange.next_deadline()
                assert left is None or left > self.now_ms, f"{region.region}: something is still due after tick"

    # -- links

    def connect(self, owner: str, remote: str) -> None:
        link = self.links[owner, remote]
        if link.up:
            return
        link.up, link.life = True, link.life + 1
        life = link.life

        def send(message: PeerMessage) -> None:
            self._put(link, life, message, owner, remote, answer)

        def answer(message: PeerMessage) -> None:
            self._put(link, life, message, remote, owner, send)

        self.regions[owner].exchange.connected(remote, send, self.now_ms)

    def connect_all(self) -> None:
        for owner, remote in self.links:
            self.connect(owner, remote)

    def disconnect(self, owner: str, remote: str) -> None:
        link = self.links[owner, remote]
        if link.up:
            link.up = False
            self.regions[owner].exchange.disconnected(remote, self.now_ms)

    def listen(self) -> list[tuple[int, str, str, PeerMessage]]:
        """Record every message that arrives from now on: time, from, to, message."""
        heard: list[tuple[int, str, str, PeerMessage]] = []

        def note(source: str, target: str, message: PeerMessage) -> None:
            heard.append((self.now_ms, source, target, message))

        self.on_message = note
        return heard

    def cut(self, one: str, two: str) -> None:
        self.disconnect(one, two)
        self.disconnect(two, one)

    def crash(self, name: str) -> None:
        for other in self.names:
            if other != name:
                self.links[name, other].up = False
        self.regions[name].crash()
        for other in self.names:
            if other != name:
                self.disconnect(other, name)

    def _put(
        self,
        link: Link,
        life: int,
        message: PeerMessage,
        source: str,
        target: str,
        reply: Callable[[PeerMessage], None],
    ) -> None:
        if not link.up or link.life != life:
            return
        self._check(source, target, message)
        frame = codec.encode(message)
        self.sent[type(message).__name__] += 1
        self.sent_bytes[type(message).__name__] += len(frame)
        network = self.network
        if (source, target) in network.deaf or (network.loss and self.random.random() < network.loss):
            return

        def deliver() -> None:
            if link.up and link.life == life:
                (command,) = FrameDecoder().feed(frame)
                assert isinstance(command, Command)
                received = codec.decode(command.type, command.message)
                assert received == message, "the decoded message differs from the encoded one"
                if self.on_message is not None:
                    self.on_message(source, target, received)
                self.regions[target].exchange.received(source, received, reply, self.now_ms)

        copies = 2 if network.duplication and self.random.random() < network.duplication else 1
        for _ in range(copies):
            delay = network.latency_ms + (self.random.randint(0, network.jitter_ms) if network.jitter_ms else 0)
            self.later(delay, deliver)

    def _check(self, source: str, target: str, message: PeerMessage) -> None:
        """No message reports more than its sender has on disk."""
        region = self.regions[source]
        match message:
            case Delta(items=items) | State(items=items):
                for item in items:
                    if item.incarnation == region.incarnation(item.topic):
                        region.disk.check((item.topic, item.subscription), item.progress, item.record)
            case Barrier():
                self._asked[target, source, message.number] = message.topic, message.subscription
            case BarrierDone():
                region.disk.check(self._asked[source, target, message.number], message.progress, message.record)

    # -- entries

    def produce(self, region: str, topic: str, count: int, *, ledger: int = 1) -> list[Entry]:
        """Publish in a region; ``replicate`` sends the entries to the others."""
        found = self.regions[region].topics.setdefault(topic, Topic(""))
        own = [entry for entry in found.entries if entry.origin.region == region]
        made = []
        for _ in range(count):
            prev = own[-1].origin.position if own else EARLIEST
            number = prev.entry + 1 if prev.ledger == ledger else 0
            entry = Entry(Origin(region, ledger, number), prev, self.now_ms)
            own.append(entry)
            made.append(entry)
        found.entries.extend(made)
        return made

    def replicate(self, source: str, target: str, topic: str) -> None:
        """Bring the target's log of a topic up to date with the source's own entries."""
        here = self.regions[source].topics.get(topic, Topic(""))
        there = self.regions[target].topics.setdefault(topic, Topic(here.incarnation))
        stored = {entry.origin for entry in there.entries}
        there.entries += [e for e in here.entries if e.origin.region == source and e.origin not in stored]

    def replicate_all(self, topic: str) -> None:
        for source, target in self.links:
            self.replicate(source, target, topic)


T, S = "t", "sub"
"""The topic and the subscription of ``connected``."""


def connected(
    names: Sequence[str], *, limits: ExchangeLimits | None = None, entries: int = 10, ledgers: Sequence[int] = (1,)
) -> ExchangeWorld:
    """Connected regions, messages of the first one, a subscription known everywhere; nothing is under way.

    :param entries: number of messages in each of the ledgers.
    """
    world = ExchangeWorld(names, limits=limits)
    world.connect_all()
    for ledger in ledgers:
        world.produce(names[0], T, entries, ledger=ledger)
    world.replicate_all(T)
    world.regions[names[0]].subscribe(T, S)
    world.run(12_000)
    world.sent.clear()
    world.sent_bytes.clear()
    return world
