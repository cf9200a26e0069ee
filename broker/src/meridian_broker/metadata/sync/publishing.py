# SPDX-License-Identifier: Apache-2.0
"""Sends the outbox to the event topic, and marks.

Entries share a message as long as their events are applied in one transaction, so a burst of writes costs few messages.
An entry is deleted once its events are durable in the topic, if no write was added to it meanwhile. So a process that
dies in between sends them again, which changes nothing anywhere (``stamped``).

A mark promises that no event up to a moment is sent for the first time after the mark. So the moment is stored first:
every write that is not committed by then gets a later stamp (``recording``), and every earlier one is in the outbox,
which is sent before the mark.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from meridian_broker.metadata.errors import Contended
from meridian_broker.metadata.records import encode
from meridian_broker.metadata.store import Check, Delete, MetadataStore, Put, Record
from meridian_broker.metadata.sync import outbox, paths
from meridian_broker.metadata.sync.events import Changes, Event, Mark, Written
from meridian_broker.metadata.sync.events import encode as encode_message
from meridian_broker.metadata.sync.grouping import EVENTS_TOGETHER
from meridian_broker.metadata.sync.outbox import OutboxEntry
from meridian_broker.metadata.sync.reading import Seen, read
from meridian_broker.metadata.sync.stamped import BEGINNING, Moment, moment
from meridian_broker.positions.clock import HybridClock, Stamp

ATTEMPTS: Final = 64
"""How often a mark is written again because another broker of the region wrote one."""

PAUSE_MS: Final = 600_000
"""A region that has written no mark for longer was away. Marks are seconds apart."""


@dataclass(frozen=True, slots=True)
class Owed:
    """An entry of the outbox."""

    entry: OutboxEntry
    path: str
    record: Record


class Publisher:
    """One per region at a time; a second one only sends what the first sends already."""

    def __init__(
        self,
        store: MetadataStore,
        clock: HybridClock,
        notify: Callable[[bytes], Awaitable[None]],
        recent: Callable[[str], Record | None] = lambda _: None,
    ) -> None:
        """
        :param store: the region's own, not a recording one.
        :param recent: what was seen at a path lately (``RecordingStore.recent``).
        """
        self._store = store
        self._clock = clock
        self._notify = notify
        self._recent = recent
        self.published = 0
        """Events that are in the topic, since the start."""

    async def drain(self, sent: Mapping[str, Owed] = MappingProxyType({})) -> int:
        """Send everything that is in the outbox now, oldest first. Returns the number of events.

        :param sent: entries that are in the topic already, and stay where they are.
        :raises MetadataError: store or topic does not answer. What was not sent stays.
        """
        found = await self._store.scan(paths.OUTBOX + "/")
        count = 0
        for some in in_groups([(at, now) for at, now in found if at not in sent or sent[at].record != now]):
            count += await self.send(some)
            await self.delete(some)
        return count

    async def mark(
        self, heard: Callable[[], Awaitable[Mapping[str, Moment]]], sent: Mapping[str, Owed] = MappingProxyType({})
    ) -> Mark:
        """Promise that nothing up to now is still to be sent, and report what was heard from other regions.

        :param heard: by region, its mark up to which everything was applied here; read after the outbox was sent.
        :param sent: as for ``drain``.
        :raises MetadataError: as ``drain``.
        """
        upto = await self._set_mark()
        await self.drain(sent)
        mark = Mark(self._clock.region, upto, {**await heard(), self._clock.region: upto})
        await self._notify(encode_message(mark))
        return mark

    async def continue_after(self, upto: Moment) -> None:
        """Continue after a mark that another region has of this one; a restored store does not know it."""
        await self._set_mark(upto)

    async def _set_mark(self, at_least: Moment = BEGINNING) -> Moment:
        for _ in range(ATTEMPTS):
            seen = await read(self._store, [paths.MARK])
            floor = max(at_least, seen.moment(paths.MARK))
            upto = moment(self._clock.next(Stamp(*floor, self._clock.region)))
            writes = [Put(paths.MARK, encode(list(upto)))]
            if upto[0] - seen.moment(paths.MARK)[0] > PAUSE_MS:
                writes.append(Put(paths.PRESENT, encode(upto[0])))
            if await self._store.transact(list(seen.checks().values()), writes):
                return upto
        raise Contended(f"writing a mark: others changed it {ATTEMPTS} times in the meantime; try again later")

    async def send(self, some: Sequence[Owed]) -> int:
        """Send one group of entries. Returns the number of events.

        :raises MetadataError: as ``drain``.
        """
        united: dict[str, Written | None] = {}
        newest: dict[str, int] = {}
        for one in reversed(some):
            united |= one.entry.replaced  # of a path in several entries, what the first one replaced
            newest |= {path: max(one.record.version, newest.get(path, 0)) for path in one.entry.replaced}
        seen = await self._read(newest)
        states = [(path, seen.state(path), replaced) for path, replaced in united.items()]
        events = [Event(path, state, replaced) for path, state, replaced in states if state is not None]
        for message in outbox.in_messages(events):
            await self._notify(encode_message(Changes(self._clock.region, message)))
        self.published += len(events)
        return len(events)

    async def delete(self, some: Sequence[Owed]) -> None:
        """Delete entries that were sent. One to which a write was added meanwhile stays, to be sent again.

        :raises MetadataError: the store does not answer. They are sent again, which changes nothing.
        """
        if not some:
            return
        checks = [Check(one.path, one.record.version) for one in some]
        if not await self._store.transact(checks, [Delete(one.path) for one in some]) and len(some) > 1:
            half = len(some) // 2
            await self.delete(some[:half])
            await self.delete(some[half:])

    async def _read(self, wanted: Mapping[str, int]) -> Seen:
        """A path with a value has no tombstone. One that gets its value back between the two reads is in the outbox
        again.

        :param wanted: paths with the versions of their outbox entries. A value written with its entry has the same
            version, so a value remembered with that version or a later one need not be read.
        """
        recent = {path: record for path in wanted if (record := self._recent(path)) is not None}
        known = {path: record for path, record in recent.items() if record.version >= wanted[path]}
        unknown = [path for path in wanted if path not in known]
        values = Seen({**known, **(await read(self._store, unknown)).records} if unknown else known)
        absent = [path for path, record in values.records.items() if record is None]
        stones = await read(self._store, map(paths.tombstone, absent)) if absent else Seen({})
        return Seen({**dict.fromkeys(map(paths.tombstone, values.records)), **values.records, **stones.records})


def in_groups(found: Iterable[tuple[str, Record]]) -> list[list[Owed]]:
    """Entries of the outbox as they were read: oldest first, and as few groups as are applied in one transaction each,
    unless one entry alone is larger.

    :raises MetadataError: an entry is damaged.
    """
    owed = [Owed(outbox.from_store(path, record.value), path, record) for path, record in found]
    groups: list[list[Owed]] = []
    size = 0
    for one in sorted(owed, key=lambda one: (one.entry.since, one.path)):
        added = len(one.entry.replaced)
        if not groups or size + added > EVENTS_TOGETHER:
            groups.append([])
            size = 0
        groups[-1].append(one)
        size += added
    return groups
