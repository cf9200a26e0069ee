# SPDX-License-Identifier: Apache-2.0
"""Regions that share no metadata store and synchronize metadata over an event topic, step by step.

Everything of ``metadata/sync`` is real. Simulated are the stores, durable and in memory; the topic, which keeps each
region's messages in order; and clocks. Each request to a store is a step, so tasks that run concurrently in a region
can be interleaved, and a broker can die between any two requests.

The world checks at each write that no region replaces a state by one that it beats, even once its tombstone is gone,
and that no conflict is recorded between two states of which the writer of one knew the other. In the end, no value is
lost that was neither known to a later writer nor listed.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, permutations, product
from typing import Any

from meridian_broker.metadata import keys
from meridian_broker.metadata.records import encode
from meridian_broker.metadata.store import (
    ABSENT,
    Check,
    Delete,
    MetadataUnavailable,
    Put,
    Record,
)
from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.applying import Applier
from meridian_broker.metadata.sync.catching_up import Digest, compared, take
from meridian_broker.metadata.sync.conflicts import Conflict
from meridian_broker.metadata.sync.conflicts import from_store as conflict_from_store
from meridian_broker.metadata.sync.digests import Place, Summary
from meridian_broker.metadata.sync.events import Changes, Event, Mark, decode
from meridian_broker.metadata.sync.known import Known
from meridian_broker.metadata.sync.marks import read_mark
from meridian_broker.metadata.sync.parked import from_parked
from meridian_broker.metadata.sync.publishing import PAUSE_MS, Publisher
from meridian_broker.metadata.sync.reading import read_moment
from meridian_broker.metadata.sync.recording import RecordingStore
from meridian_broker.metadata.sync.stamped import BEGINNING, Moment, Stamped
from meridian_broker.positions.clock import HybridClock
from support.worlds.sync_histories import Histories
from support.worlds.sync_store import Broken, StoreInMemory, WaitingInMemory, shown, step

START_MS = 1_000_000_000_000


@dataclass
class Task:
    """A coroutine that runs in a region, request by request."""

    region: str
    running: Coroutine[Any, Any, Any]
    name: str


@dataclass
class Reader:
    """How far a region has read a region's messages (including its own)."""

    delivered: set[int] = field(default_factory=set)

    def waiting(self, length: int) -> list[int]:
        return [index for index in range(length) if index not in self.delivered]


@dataclass
class Broker:
    """One run of one of a region's brokers."""

    clock: HybridClock
    catalog: RecordingStore
    publisher: Publisher
    applier: Applier
    seen: dict[str, Record]
    """The store's content when this broker last applied messages: its memory may be stale."""


@dataclass
class SyncRegion:
    """A region: its store outlives its brokers."""

    name: str
    store: StoreInMemory
    skew_ms: int = 0
    brokers: list[Broker] = field(default_factory=list)
    readers: dict[str, Reader] = field(default_factory=dict)


class SyncWorld:
    """See the module's text."""

    def __init__(self, names: Sequence[str], brokers: int = 1) -> None:
        self.now_ms = START_MS
        self.retention_ms = 0
        """How long tombstones wait for a region that is away; 0: until it is back."""
        self.callers: dict[str, str] = {}
        """By region, the role that requests writes there."""
        self.names = list(names)
        self.topic: dict[str, list[bytes]] = {name: [] for name in names}
        self.tasks: list[Task] = []
        self.histories = Histories()
        self.regions = {name: SyncRegion(name, StoreInMemory(name, self.histories)) for name in names}
        self.on_event: Callable[[str, str, Event], None] | None = None
        for region in self.regions.values():
            region.readers = {name: Reader() for name in names}
            self.start(region.name, brokers)

    # -- brokers

    def start(self, name: str, brokers: int = 1) -> None:
        """Start new runs of a region's brokers, which remember nothing."""
        region = self.regions[name]
        region.brokers = [self._broker(region) for _ in range(brokers)]

    def crash(self, name: str) -> None:
        """A region's brokers die between two requests to the store, and start again."""
        for task in self.tasks:
            if task.region == name:
                task.running.close()
        self.tasks = [task for task in self.tasks if task.region != name]
        self.start(name, len(self.regions[name].brokers))

    def restore(self, name: str, copy: StoreInMemory) -> None:
        """Restore a region's store from a copy, but not the topic's subscription. It catches up before it writes."""
        self.crash(name)
        self.regions[name].store = copy.copy()
        self.start(name, len(self.regions[name].brokers))
        for peer in self.names:
            if peer != name:
                self.finish(name, self.catch_up(name, peer))

    def _broker(self, region: SyncRegion) -> Broker:
        def now_ms() -> int:
            return self.now_ms + region.skew_ms

        async def notify(message: bytes) -> None:
            await step()
            self.topic[region.name].append(message)
            await step()

        clock = HybridClock(now_ms, region.name)
        catalog = RecordingStore(region.store, clock, is_synced, caller=lambda: self.callers.get(region.name, ""))
        seen: dict[str, Record] = {}
        return Broker(
            clock,
            catalog,
            Publisher(region.store, clock, notify, catalog.recent),
            Applier(
                region.store,
                clock,
                now_ms,
                is_synced,
                lambda: frozenset(self.names),
                WaitingInMemory(region.store),
                lambda: self.retention_ms,
                last_seen=lambda path: (seen.get(path),),
            ),
            seen,
        )

    # -- what they do

    def begin(self, name: str, running: Coroutine[Any, Any, Any], what: str) -> Task:
        task = Task(name, running, what)
        self.tasks.append(task)
        return task

    def advance(self, task: Task) -> Any:
        """Run one step. Returns the result in a list once the task is done."""
        try:
            task.running.send(None)
        except StopIteration as stop:
            self.tasks.remove(task)
            return [stop.value]
        return None

    def finish(self, name: str, running: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end, with nothing in between."""
        task = self.begin(name, running, "")
        while (done := self.advance(task)) is None:
            pass
        return done[0]

    async def write(self, name: str, values: dict[str, Any], broker: int = 0) -> bool:
        """One transaction on the current state, like the catalog's writes; a value None deletes. False: another write
        came first."""
        region = self.regions[name]
        one = region.brokers[broker]
        checks: list[Check] = []
        operations: list[Put | Delete] = []
        for path, value in values.items():
            record = await one.catalog.get(path)
            checks.append(Check(path, ABSENT if record is None else record.version))
            if value is None:
                operations.append(Delete(path))
            else:
                operations.append(Put(path, encode(value, one.clock.next())))
        return await one.catalog.transact(checks, operations) is not None

    async def publish(self, name: str, broker: int = 0) -> int:
        return await self.regions[name].brokers[broker].publisher.drain()

    async def mark(self, name: str, broker: int = 0) -> Mark:
        one = self.regions[name].brokers[broker]
        return await one.publisher.mark(one.applier.heard)

    async def deliver(self, name: str, source: str, index: int, broker: int = 0) -> None:
        """Like ``deliver_all``, for one message."""
        await self.deliver_all(name, [(source, index)], broker)

    async def deliver_all(self, name: str, some: Sequence[tuple[str, int]], broker: int = 0) -> None:
        """The reader acknowledges messages once they are applied, so they are delivered again after a crash."""
        messages = [decode(self.topic[source][index]) for source, index in some]
        for (source, _), message in zip(some, messages, strict=True):
            if isinstance(message, Changes) and self.on_event is not None:
                for event in message.events:
                    self.on_event(source, name, event)
        one = self.regions[name].brokers[broker]
        await one.applier.apply_all(messages)
        one.seen.clear()
        one.seen.update(self.regions[name].store.records)
        for source, index in some:
            self.regions[name].readers[source].delivered.add(index)

    def deliverable(self, name: str, source: str) -> list[int]:
        """Messages that may arrive next: they may overtake those on other paths, but no mark."""
        waiting = self.regions[name].readers[source].waiting(len(self.topic[source]))
        found: list[int] = []
        overtaken: set[str] = set()
        for index in waiting:
            message = decode(self.topic[source][index])
            if isinstance(message, Mark):
                return found or [index]
            touched = {event.path for event in message.events}
            if not touched & overtaken:
                found.append(index)
            overtaken |= touched
        return found

    async def catch_up(self, name: str, peer: str, broker: int = 0) -> int:
        """Compare with a peer and take what differs. Returns the number of paths."""
        region, one = self.regions[name], self.regions[name].brokers[broker]
        other = await PeerInMemory.of(self, peer, name)
        comparison = await compared(await known_in(region.store), other)
        mark = region.store.records.get(paths.MARK)
        if comparison.digest.mark > (BEGINNING if mark is None else read_moment(paths.MARK, mark)):
            await one.publisher.continue_after(comparison.digest.mark)
        return await take(comparison, other, one.applier, one_after_another, paths.SCOPES)

    def stay(self, ms: int, *groups: Sequence[str], compares: bool = False) -> None:
        """Let time pass, in which the regions of each group hear each other, and no others.

        :param compares: they also compare with each other, at the beginning and at the end, as brokers do every minute.
            Only so do deletions reach others in time that were made while no tombstone waited for a region, or by a
            region that none waits for any more. In text stories, comparisons are commands of their own.
        """
        began = self.now_ms
        until = self.now_ms + ms
        while self.now_ms < until:
            self.now_ms = min(until, self.now_ms + PAUSE_MS // 2)
            for _ in range(2):
                for name in chain(*groups):
                    self.finish(name, self.mark(name))
                for name, source in chain(*(product(group, group) for group in groups)):
                    for index in self.regions[name].readers[source].waiting(len(self.topic[source])):
                        self.finish(name, self.deliver(name, source, index))
            if compares and self.now_ms in (began + PAUSE_MS // 2, until):
                for name, peer in chain(*(permutations(group, 2) for group in groups)):
                    self.finish(name, self.catch_up(name, peer))

    # -- state

    def horizon(self, name: str) -> Moment:
        record = self.regions[name].store.records.get(paths.HORIZON)
        return BEGINNING if record is None else read_moment(paths.HORIZON, record)

    def values(self, name: str) -> dict[str, Any]:
        states = self.regions[name].store.states()
        return {path: json.loads(state.value) for path, state in sorted(states.items()) if state.value is not None}

    def parked(self, name: str) -> dict[str, Stamped]:
        records = self.regions[name].store.records
        prefix = paths.PARKED
        return {
            path.removeprefix(prefix): from_parked(path, record.value)
            for path, record in sorted(records.items())
            if path.startswith(prefix)
        }

    def conflicts(self, name: str) -> dict[str, Conflict]:
        records = self.regions[name].store.records
        return {
            path.removeprefix(paths.CONFLICTS): conflict_from_store(path, record.value)
            for path, record in sorted(records.items())
            if path.startswith(paths.CONFLICTS)
        }

    def outbox(self, name: str) -> list[str]:
        records = self.regions[name].store.records
        return sorted(path.removeprefix(paths.OUTBOX) for path in records if path.startswith(paths.OUTBOX))

    def tombstones(self, name: str) -> list[str]:
        records = self.regions[name].store.records
        return sorted(path.removeprefix(paths.TOMBSTONES) for path in records if path.startswith(paths.TOMBSTONES))

    # -- the end

    def quiet(self, *, has_checks: bool = True) -> None:
        """Finish all tasks, empty outboxes and the topic, decide on parked states; then compare if ``has_checks``."""
        while self.tasks:
            self.advance(self.tasks[0])
        for region in self.regions.values():
            region.skew_ms = 0
        self.now_ms += 3_600_000
        self._exchange()
        for _ in self.names if has_checks else ():
            for name, peer in product(self.names, self.names):
                if name != peer:
                    self.finish(name, self.catch_up(name, peer))
            self._exchange()

    def _exchange(self) -> None:
        """Send, deliver and decide everything, including what regions write because of it.

        Where regions gave a topic different numbers of partitions, the winner of a round may have fewer than another
        region, which then writes again: at most one round per region.
        """
        for _ in range(len(self.names) + 2):
            for name in self.names:
                self.finish(name, self.publish(name))
            for name, source in product(self.names, self.names):
                for index in self.regions[name].readers[source].waiting(len(self.topic[source])):
                    self.finish(name, self.deliver(name, source, index))
            for name in self.names:
                self.finish(name, self.regions[name].brokers[0].applier.release())
            if not any(map(self.outbox, self.names)):
                return

    def check_agreement(self, *, was_restored: bool = False) -> None:
        """Every region has the latest state of each path that is stored anywhere or was ever published, unless it was
        listed as a conflict because a forgotten deletion may be later.

        :param was_restored: published states count only if a store has them: all stores may be older copies.
        """
        latest: dict[str, Stamped] = {}
        found: list[tuple[str, Stamped]] = []
        for messages in [] if was_restored else self.topic.values():
            for message in map(decode, messages):
                found += [(event.path, event.state) for event in message.events] if isinstance(message, Changes) else []
        stored = [(path, state) for one in self.regions.values() for path, state in one.store.states().items()]
        listed = {one for region in self.regions.values() for one in region.store.set_aside}
        for path, state in [*stored, *((path, state) for path, state in found if (path, state.stamp) not in listed)]:
            latest[path] = max(state, latest.get(path, state), key=lambda one: one.rank)
        wanted = {path: json.loads(state.value) for path, state in sorted(latest.items()) if state.value is not None}
        for name in self.names:
            has = self.values(name)
            if has != wanted:
                differ = [path for path in has.keys() | wanted.keys() if has.get(path) != wanted.get(path)]
                said = ", ".join(f"{path} {has.get(path)} not {wanted.get(path)}" for path in sorted(differ))
                raise Broken(f"in the end, {name} has {said}")
            if self.outbox(name) or self.parked(name):
                raise Broken(f"in the end, {name} has events to send or parked states")

    def check_losses(self) -> None:
        """Every value that lost to a write whose region did not know it was listed for people (R44, R45).

        Not for stories in which a store is restored: what it had written since the copy may be lost with it."""
        for path, state in self.histories.lost(self.regions[self.names[0]].store.states()):
            raise Broken(f"{path}: {shown(state)} is gone, and no region lists it")


def is_synced(path: str) -> bool:
    return paths.scope_of(path) is not None


async def known_in(store: StoreInMemory) -> Known:
    known = Known(store, step)
    await known.follow_values()
    await known.follow_deletions()
    return known


async def one_after_another(works: Iterable[Awaitable[None]]) -> None:
    """Those after one that fails do not begin."""
    left = list(works)
    try:
        while left:
            await left.pop(0)
    finally:
        for work in left:
            assert isinstance(work, Coroutine)
            work.close()


@dataclass
class PeerInMemory:
    """A region as seen by another one that compares itself with it."""

    region: str
    known: Known
    store: StoreInMemory
    present_store: Callable[[], StoreInMemory]
    answer: Digest

    @classmethod
    async def of(
        cls, world: SyncWorld, name: str, asking: str, shared: Collection[str] = paths.SCOPES.keys()
    ) -> PeerInMemory:
        """:param shared: scopes that both regions share."""
        store = world.regions[name].store
        known, mark = await known_in(store), store.records.get(paths.region(asking))
        heard = BEGINNING if mark is None else read_mark(asking, mark.value)[0]
        scopes = frozenset(shared)
        everyone = await world.regions[name].brokers[0].applier.heard_of_all()
        buckets, horizon = known.buckets(scopes), world.horizon(name)
        answer = Digest(scopes, buckets, horizon, heard, everyone)
        return cls(name, known, store, lambda: world.regions[name].store, answer)

    async def _answers(self) -> None:
        """A restored store has new brokers, which did not begin this comparison."""
        await step()
        if self.present_store() is not self.store:
            raise MetadataUnavailable(f"{self.region} was restored from a copy: compare again")

    async def digest(self, scopes: Collection[str]) -> Digest:
        await self._answers()
        return self.answer

    async def parts(self, scopes: Collection[str], buckets: Sequence[int]) -> dict[int, list[int]]:
        await self._answers()
        return {bucket: self.known.parts(scopes, bucket) for bucket in buckets}

    async def listing(self, scopes: Collection[str], places: Sequence[Place]) -> dict[str, Summary]:
        await self._answers()
        return self.known.listing(scopes, places)

    async def states(self, some: Sequence[str]) -> dict[str, Stamped]:
        await self._answers()
        return {path: state for path in some if (state := self.store.state(path)) is not None}


def tenant_role(tenant: str, role: str) -> str:
    return f"{keys.tenant(tenant)}/roles/{keys.escape(role)}"
