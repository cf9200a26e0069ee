# SPDX-License-Identifier: Apache-2.0
"""Regions whose subscriptions follow each other by snapshots alone (PIP-33), in one process and with one clock.

Everything of ``replication/snapshots`` is real; a region may run a model of Apache Pulsar instead
(``pulsar_controller.py``). Simulated are the logs, which are durable; consumers; and replication, in order and at least
once, where repeated messages are recognised by their origin, but repeated markers are not.

At each update that a region applies, the world checks that it acknowledges only what some consumer has acknowledged
(``Broken``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from meridian_broker.positions.position import Position
from meridian_broker.replication.snapshots.controller import SnapshotController
from meridian_broker.replication.snapshots.ports import SnapshotRules, could_have_had
from meridian_broker.wire.pulsar.markers import Marker, Snapshot
from support.worlds.pulsar_controller import PulsarController

LEDGER = 1


class Broken(AssertionError):
    """A promise is broken."""


class Message(NamedTuple):
    """Message ``number`` of those published in ``origin``, from 0 on."""

    origin: str
    number: int

    def __str__(self) -> str:
        return f"{self.origin}/{self.number}"


class Stored(NamedTuple):
    """An entry of a log."""

    content: Message | Marker
    replicate_to: tuple[str, ...] | None
    replicated_from: str | None


@dataclass
class Subscription:
    """A subscription in one region."""

    acked: set[int] = field(default_factory=set)
    """Numbers of acknowledged entries."""
    mark_delete: int = -1
    """All messages up to this entry are acknowledged."""


@dataclass
class Link:
    """Replication from one region to another."""

    is_up: bool = True
    delay_ms: int = 20
    next: int = 0
    """The first unsent entry."""
    confirmed: int = 0
    """The first entry that is not known to be stored at the target."""
    arrives_ms: int = 0
    """When the last sent entry arrives."""
    life: int = 0
    """Incremented by a cut: entries sent before it do not arrive."""
    lose: int = 0
    """Number of next markers that are lost."""


class SnapshotRegion:
    """A region: its durable state, and a run of its broker."""

    def __init__(self, world: SnapshotWorld, name: str) -> None:
        self._world = world
        self.region = name
        self.log: list[Stored] = []
        self.messages: set[Message] = set()
        self.subscriptions: dict[str, Subscription] = {}
        self.lost: set[str] = set()
        """Regions that its operator has given up."""
        self.is_pulsar = False
        """Whether it applies updates as Pulsar does: to every entry, even if the sender could not have had it."""
        self.speaks_pulsar = False
        """Whether it runs Apache Pulsar."""
        self.disk_ms = 1
        self.failing_writes = 0
        """Number of next markers that cannot be stored."""
        self.life = 0
        self.is_up = False
        self.linked: dict[str, Position] = {}
        """Where this log ended when the link from a region began."""
        self.controller: SnapshotController | PulsarController
        self.start()

    def become_pulsar(self) -> None:
        """Run Apache Pulsar from now on."""
        self.is_pulsar = self.speaks_pulsar = True
        self.start()

    def start(self) -> None:
        """Start a broker that remembers nothing."""
        if self.life:
            self.linked = dict.fromkeys(self._world.regions, self.last_position())
        self.life += 1
        self.is_up = True
        made = PulsarController if self.speaks_pulsar else SnapshotController
        self.controller = made(self, self._world.rules)
        for name in self.subscriptions:
            self._advance(name)
        for name, one in self.subscriptions.items():
            self.controller.follow(name, _place(one.mark_delete))
        behind = min((one.mark_delete for one in self.subscriptions.values()), default=len(self.log))
        for stored in self.log[behind + 1 :]:
            if isinstance(stored.content, Snapshot) and stored.replicated_from is None:
                self.controller.found(stored.content)

    def stop(self) -> None:
        self.life += 1
        self.is_up = False

    # -- the port

    def now_ms(self) -> int:
        return self._world.now_ms

    def new_id(self) -> str:
        self._world.ids += 1
        return f"s{self._world.ids}"

    def others(self) -> frozenset[str]:
        return frozenset(self._world.regions) - {self.region}

    def given_up(self) -> frozenset[str]:
        return frozenset(self.lost)

    def without_records(self) -> frozenset[str]:
        return frozenset(name for name, one in self._world.regions.items() if one.is_pulsar)

    def is_moved_by(self, region: str) -> bool:
        """In the exact mode, Meridian regions know each other's acknowledgements."""
        return not self._world.is_exact or self.is_pulsar or self._world.regions[region].is_pulsar

    def linked_at(self, region: str) -> Position:
        return self.linked.get(region, _place(-1))

    def is_connected(self, region: str) -> bool:
        return self._world.links[self.region, region].is_up and self._world.regions[region].is_up

    def last_position(self) -> Position:
        return _place(len(self.log) - 1)

    def entries_before(self, position: Position) -> int:
        return position.entry

    def write(self, marker: Marker, only_to: str | None, done: Callable[[Position | None], None]) -> None:
        position: Position | None = None
        if self.failing_writes:
            self.failing_writes -= 1
        else:
            self._world.written[type(marker).__name__] += 1
            position = self.store(Stored(marker, None if only_to is None else (only_to,), None))
        life = self.life
        self._world.later(self.disk_ms, lambda: done(position) if self.life == life else None)

    def acknowledge(self, subscription: str, position: Position, sender: str, unknown: frozenset[str]) -> None:
        known = self.subscribe(subscription)
        for entry, stored in enumerate(self.log[: position.entry + 1]):
            message = stored.content
            if not isinstance(message, Message) or entry in known.acked:
                continue
            if not self.is_pulsar and not could_have_had(sender, unknown, message.origin, stored.replicate_to):
                continue
            if message not in self._world.acked[subscription]:
                raise Broken(f"{sender} has {self.region} skip {message}, which nobody acknowledged")
            self._acked(subscription, entry)
        self._world.advance(subscription)

    # -- events

    def store(self, stored: Stored) -> Position:
        self.log.append(stored)
        if isinstance(stored.content, Message):
            self.messages.add(stored.content)
            self.controller.published()
        for name in self.subscriptions:
            self._advance(name)
        return self.last_position()

    def _acked(self, name: str, entry: int) -> None:
        self.subscriptions[name].acked.add(entry)
        message = self.log[entry].content
        if self._world.is_exact and not self.is_pulsar and isinstance(message, Message):
            self._world.shared[name].add(message)

    def subscribe(self, name: str) -> Subscription:
        """Create a replicated subscription from the earliest message."""
        if name not in self.subscriptions:
            self._world.shared.setdefault(name, set())
            self.subscriptions[name] = Subscription()
            self._advance(name)
            self.controller.follow(name, _place(self.subscriptions[name].mark_delete))
        return self.subscriptions[name]

    def owed(self, name: str) -> list[int]:
        """Entries that are not acknowledged."""
        return [
            entry
            for entry, one in enumerate(self.log)
            if isinstance(one.content, Message) and not self._is_acked(name, entry)
        ]

    def _is_acked(self, name: str, entry: int) -> bool:
        if entry in self.subscriptions[name].acked:
            return True
        return not self.is_pulsar and self.log[entry].content in self._world.shared[name]

    def consume(self, name: str, entries: Sequence[int]) -> None:
        """A consumer acknowledges these."""
        self.subscribe(name)
        for entry in entries:
            message = self.log[entry].content
            assert isinstance(message, Message)
            self._world.acked[name].add(message)
            self._acked(name, entry)
        self._world.advance(name)

    def _advance(self, name: str) -> None:
        if not self.is_up:
            return
        one = self.subscriptions[name]
        at = one.mark_delete + 1
        while at < len(self.log) and (not isinstance(self.log[at].content, Message) or self._is_acked(name, at)):
            at += 1
        if at - 1 > one.mark_delete:
            one.mark_delete = at - 1
            self.controller.moved(name, _place(one.mark_delete))


class SnapshotWorld:
    """See the module's text."""

    def __init__(self, names: Sequence[str], rules: SnapshotRules | None = None) -> None:
        self.now_ms = 1000
        self.rules = rules or SnapshotRules()
        self.ids = 0
        self.written: Counter[str] = Counter()
        """Number of markers stored in the region that made them, by type."""
        self.acked: dict[str, set[Message]] = {}
        """Messages that consumers acknowledged in any region."""
        self.is_exact = False
        """Whether Meridian regions exchange acknowledgements at once, and use snapshots only for Pulsar regions."""
        self.shared: dict[str, set[Message]] = {}
        """Messages whose acknowledgements were exchanged so."""
        self.on_marker: Callable[[str, str, Marker], None] | None = None
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self.links = {(one, other): Link() for one in names for other in names if one != other}
        self.regions: dict[str, SnapshotRegion] = {}
        for name in names:
            self.regions[name] = SnapshotRegion(self, name)

    def join(self, name: str) -> None:
        """Add a region. Meridian regions send it everything that they published; Apache Pulsar regions, only what they
        publish from now on. No region passes on messages of others."""
        others = list(self.regions.items())
        for other, region in others:
            self.links[name, other], self.links[other, name] = Link(), Link()
            if region.speaks_pulsar:
                self.links[other, name].next = self.links[other, name].confirmed = len(region.log)
        joined = self.regions[name] = SnapshotRegion(self, name)
        for _, region in others:
            region.controller.regions_changed()
            for subscription in region.subscriptions if self.is_exact and not region.is_pulsar else ():
                joined.subscribe(subscription)

    def advance(self, subscription: str) -> None:
        """Follow an acknowledgement in a region."""
        for region in self.regions.values():
            if self.is_exact and not region.is_pulsar and region.is_up:
                region.subscribe(subscription)
            if subscription in region.subscriptions:
                region._advance(subscription)

    def later(self, delay_ms: int, work: Callable[[], None]) -> None:
        self._number += 1
        heappush(self._events, (self.now_ms + delay_ms, self._number, work))

    def run(self, ms: int) -> None:
        """Let time pass."""
        end_ms = self.now_ms + ms
        while True:
            self._send()
            due = [one.controller.deadline_ms for one in self.regions.values() if one.is_up]
            next_ms = min(
                [at for at in due if at is not None] + [event[0] for event in self._events[:1]], default=end_ms + 1
            )
            if next_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, next_ms)
            while self._events and self._events[0][0] <= self.now_ms:
                heappop(self._events)[2]()
            for one in self.regions.values():
                deadline_ms = one.controller.deadline_ms
                if one.is_up and deadline_ms is not None and deadline_ms <= self.now_ms:
                    one.controller.tick()
        self.now_ms = end_ms

    def publish(self, name: str, replicate_to: tuple[str, ...] | None = None) -> Message:
        region = self.regions[name]
        number = sum(message.origin == name for message in region.messages)
        region.store(Stored(Message(name, number), replicate_to, None))
        return Message(name, number)

    # -- links

    def cut(self, source: str, target: str, repeat: int = 0) -> None:
        """Entries on their way are lost, and are sent again once the link is back.

        :param repeat: number of arrived entries that are sent again, too.
        """
        link = self.links[source, target]
        link.is_up = False
        link.life += 1
        link.arrives_ms = self.now_ms
        link.next = link.confirmed = max(link.confirmed - repeat, 0)

    def heal(self, source: str, target: str) -> None:
        self.links[source, target].is_up = True

    def stop(self, name: str, repeat: int = 0) -> None:
        """A region's broker dies, and everything on its way to and from it is lost."""
        for source, target in self.links:
            if name in (source, target):
                was_up = self.links[source, target].is_up
                self.cut(source, target, repeat)
                self.links[source, target].is_up = was_up
        self.regions[name].stop()

    def start(self, name: str) -> None:
        self.regions[name].start()

    def _send(self) -> None:
        for (source, target), link in self.links.items():
            log = self.regions[source].log
            if not (link.is_up and self.regions[source].is_up and self.regions[target].is_up):
                continue
            while link.next < len(log):
                entry, link.next = link.next, link.next + 1
                link.arrives_ms = max(link.arrives_ms + 1, self.now_ms + link.delay_ms)
                self.later(
                    link.arrives_ms - self.now_ms,
                    lambda one=(source, target, entry, link.life): self._arrive(*one),  # type: ignore[misc]
                )

    def _arrive(self, source: str, target: str, entry: int, life: int) -> None:
        link, stored, region = self.links[source, target], self.regions[source].log[entry], self.regions[target]
        if link.life != life:
            return
        link.confirmed = entry + 1
        if stored.replicated_from is not None or (stored.replicate_to and target not in stored.replicate_to):
            return
        content = stored.content
        if isinstance(content, Message):
            if content not in region.messages:
                region.store(stored._replace(replicated_from=source))
            return
        if link.lose:
            link.lose -= 1
            return
        position = region.store(stored._replace(replicated_from=source))
        if self.on_marker is not None:
            self.on_marker(source, target, content)
        region.controller.received(content, source, position)


def _place(entry: int) -> Position:
    return Position(LEDGER, entry) if entry >= 0 else Position(-1, -1)
