# SPDX-License-Identifier: Apache-2.0
"""A metadata store that notes, in the transaction of each write, what other regions have to learn of it.

It stands between the catalog and the region's store, so no writer can forget it. To a transaction that writes paths of
a scope it adds, all or nothing:

- the stamp of each value, greater than that of the state it replaces, deleted or not, and than the region's mark (R40).
  The writer's own stamp is kept if it is greater;
- a tombstone for each deletion. One that follows from something else, such as a topic's deletion, has the stamp of that
  event, so that it removes nothing that was written since;
- an entry of the outbox (``outbox``);
- the role that asked for it, if it is known.

So a process that dies anywhere leaves either nothing of a write, or the write and the duty to send it; and no write
waits for the event topic. What was read is checked in the same transaction. If only that has changed, it is read again;
if a check of the caller's fails, the caller is told.

A writer has just read what it changes, through this store or in the catalog's view. So the first attempt guesses the
rest, and reads nothing: no tombstone, the outbox entry that a watch reported, the mark that was seen last. The
transaction checks the guess.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

from meridian_broker.metadata.errors import Contended, Invalid
from meridian_broker.metadata.forwarding import ForwardingStore
from meridian_broker.metadata.limits import MAX_OPERATIONS, BadRequest
from meridian_broker.metadata.store import (
    ABSENT,
    Check,
    Committed,
    Delete,
    MetadataStore,
    MetadataUnavailable,
    Put,
    Record,
    VersionConflict,
)
from meridian_broker.metadata.sync import outbox, paths
from meridian_broker.metadata.sync.converging import written
from meridian_broker.metadata.sync.events import MAX_COUNTER, Written
from meridian_broker.metadata.sync.outbox import OutboxEntry
from meridian_broker.metadata.sync.reading import Seen, read, with_tombstones
from meridian_broker.metadata.sync.stamped import MAX_GENERATION, Moment, Stamped, from_store, moment, to_store
from meridian_broker.positions.clock import ZERO, HybridClock, Stamp

ATTEMPTS: Final = 64
"""How often the records about a path are read again because they changed."""
LATELY: Final = 1024
"""Records that are remembered until they are written."""
SCANNED: Final = 256
"""Records of a longer list are not remembered: it was not read to change one."""
WARY: Final = 2
"""Writes without guessing after a wrong guess."""


class WritesRefused(MetadataUnavailable):
    """For now, this region must not change synced values. The message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A transaction with everything that belongs to it."""

    checks: list[Check]
    operations: list[Put | Delete]


class RecordingStore(ForwardingStore):
    """See the module's text."""

    def __init__(
        self,
        store: MetadataStore,
        clock: HybridClock,
        is_synced: Callable[[str], bool],
        refusal: Callable[[], str | None] = lambda: None,
        caller: Callable[[], str] = lambda: "",
    ) -> None:
        """
        :param is_synced: whether a path is in a scope that this region shares with others.
        :param refusal: why such paths must not be written now; None: they may.
        :param caller: the role that asks for the present write; empty: unknown. It is stored with the value, for people
            who look at a conflict that the write has lost (R45).
        """
        super().__init__(store)
        self._clock = clock
        self._is_synced = is_synced
        self._refusal = refusal
        self._caller = caller
        self._lately: dict[str, Record] = {}
        """Records seen lately at synced paths; the oldest first."""
        self._mark: tuple[Record | None] | None = None
        """The region's mark, as it was last read; None: it never was."""
        self._last_seen: Callable[[str], tuple[Record | None] | None] = _nothing
        self._entry: Callable[[str], Record | None] = _nothing
        """What is probably at a path of the outbox."""
        self._wary = 0
        """Writes still to be made without guessing, because a guess was wrong."""

    async def transact(self, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> Committed | None:
        """:raises BadRequest: with what has to be noted, the transaction is too large for a store.
        :raises WritesRefused: synced paths must not be written now.
        """
        synced = sorted(operation.path for operation in operations if self._is_synced(operation.path))
        if not synced:
            return await self._store.transact(checks, [self._named(operation) for operation in operations])
        if (refusal := self._refusal()) is not None:
            raise WritesRefused(refusal)
        if (done := await self._transact_unread(checks, operations, synced)) is not None:
            return done
        before: Seen | None = None
        for _ in range(ATTEMPTS):
            seen = await read(self._store, [*with_tombstones(synced), paths.outbox(synced[0]), paths.MARK])
            if self._mark != (mark := (seen.records[paths.MARK],)):
                self._wary = 0  # only the mark was guessed wrong, and that is known now
            self._mark = mark
            if before is not None and seen.versions() == before.versions():
                return None  # a check of the caller failed
            recorded = self._record(checks, operations, synced, seen)
            if recorded is None:
                return None
            if not recorded.operations:
                return Committed(ABSENT)
            if (done := await self._store.transact(recorded.checks, recorded.operations)) is not None:
                return self._noted(done)
            before = seen
        return None

    def guess_entries(self, entry: Callable[[str], Record | None] | None) -> None:
        """:param entry: as ``FollowedOutbox.entry``; None: nobody follows the outbox any more."""
        self._entry = entry or _nothing

    def guess_records(self, last_seen: Callable[[str], tuple[Record | None] | None]) -> None:
        """:param last_seen: what is probably stored at a path; None: unknown."""
        self._last_seen = last_seen

    def recent(self, path: str) -> Record | None:
        """What was read or written lately at a synced path through this store; None: not remembered."""
        return self._lately.get(path)

    def _named(self, operation: Put | Delete) -> Put | Delete:
        """With its caller, if other regions may ever share the path: it may turn out to be one side of a conflict."""
        caller = self._caller()
        if not caller or not isinstance(operation, Put) or paths.scope_of(operation.path) is None:
            return operation
        state = from_store(operation.path, operation.value)
        return operation if state.stamp == ZERO else replace(operation, value=to_store(state, caller))

    async def _transact_unread(
        self, checks: Sequence[Check], operations: Sequence[Put | Delete], synced: list[str]
    ) -> Committed | None:
        """Write without reading anything first; None: that failed."""
        if self._wary:
            self._wary -= 1
            return None
        seen = self._guess(checks, synced)
        recorded = None if seen is None else self._record(checks, operations, synced, seen)
        if recorded is None:
            return None
        if (done := await self._store.transact(recorded.checks, recorded.operations)) is not None:
            return self._noted(done)
        self._wary = WARY
        return None

    def _guess(self, checks: Sequence[Check], synced: list[str]) -> Seen | None:
        """What is probably noted about these paths; None: too little is known."""
        if self._mark is None:
            return None
        versions = {check.path: check.version for check in checks}
        entry = paths.outbox(synced[0])
        records: dict[str, Record | None] = {paths.MARK: self._mark[0], entry: self._entry(entry)}
        for path in synced:
            record = self._probably(path, versions.get(path, ABSENT))
            if path not in versions or (record.version if record else ABSENT) != versions[path]:
                return None
            records[path], records[paths.tombstone(path)] = record, None
        return Seen(records)

    def _probably(self, path: str, version: int) -> Record | None:
        """The record of this version, if it is remembered here or in the catalog, where it may come from elsewhere."""
        if version == ABSENT:
            return None
        record = self._lately.get(path)
        if record is None or record.version != version:
            record = (self._last_seen(path) or (None,))[0]
        return record

    def _noted(self, done: Committed) -> Committed:
        for change in done.changes:
            if self._is_synced(change.path):
                self._note(change.path, change.record)
        return done

    def _note(self, path: str, record: Record | None) -> None:
        self._lately.pop(path, None)
        if record is not None:
            self._lately[path] = record
        while len(self._lately) > LATELY:
            del self._lately[next(iter(self._lately))]

    async def put(self, path: str, value: bytes, *, expected: int | None = None, lease: int | None = None) -> int:
        if not self._is_synced(path):
            return await self._store.put(path, value, expected=expected, lease=lease)
        await self._write_one(path, Put(path, value, lease), expected)
        record = await self._store.get(path)
        return 0 if record is None else record.version

    async def delete(self, path: str, *, expected: int | None = None) -> bool:
        if not self._is_synced(path):
            return await self._store.delete(path, expected=expected)
        return await self._write_one(path, Delete(path), expected)

    async def _write_one(self, path: str, operation: Put | Delete, expected: int | None) -> bool:
        """Returns whether there was a value."""
        for _ in range(ATTEMPTS):
            record = await self._store.get(path)
            version = 0 if record is None else record.version
            if expected not in (None, version):
                raise VersionConflict(f"{path} is at version {version}, not {expected}")
            if await self.transact([Check(path, version)], [operation]):
                return record is not None
        raise VersionConflict(f"{path}: others changed it {ATTEMPTS} times in the meantime; try again later")

    async def restamp(self, path: str) -> Stamped:
        """Begin the next generation of a path with what it has here: it wins over anything written before, whatever its
        stamp, in every region (R43). A parked state of the path is removed.

        :raises Invalid: the path is not shared with other regions, or nothing is known of it.
        :raises Contended: others kept changing it.
        """
        if not self._is_synced(path):
            raise Invalid(f"{path} is not shared with other regions, so it has no stamp to replace")
        for _ in range(ATTEMPTS):
            places = [*with_tombstones([path]), paths.parked(path), paths.outbox(path), paths.MARK]
            seen = await read(self._store, places)
            present = seen.state(path)
            if present is None and seen.records[paths.parked(path)] is None:
                raise Invalid(f"nothing is known of {path}, here or from another region")
            state = self._next_generation(present, seen)
            entry = owing(path, seen, {path: written(present)}, state.stamp)
            operations = [*seen.storing(path, state, self._caller()), Delete(paths.parked(path)), entry]
            if await self._store.transact(list(seen.checks().values()), operations):
                return state
        raise Contended(f"restamping {path}: others changed it {ATTEMPTS} times in the meantime; try again later")

    def _next_generation(self, present: Stamped | None, seen: Seen) -> Stamped:
        """It is stamped now, even if earlier stamps are in the future."""
        generation = 0 if present is None else present.generation
        if generation == MAX_GENERATION:
            raise Invalid(f"restamped {MAX_GENERATION} times: no generation is left")
        value = None if present is None else present.value
        return Stamped(self._stamp(None, seen.moment(paths.MARK)), value, generation + 1).following(present)

    def stamp_after(self, stamp: Stamp) -> Stamp:
        """A stamp for a write that wins over another region's."""
        return self._clock.next(stamp)

    async def get(self, path: str) -> Record | None:
        record = await self._store.get(path)
        if self._is_synced(path):
            self._note(path, record)
        return record

    async def scan(self, prefix: str) -> list[tuple[str, Record]]:
        found = await self._store.scan(prefix)
        if len(found) <= SCANNED:
            for path, record in found:
                if self._is_synced(path):
                    self._note(path, record)
        return found

    def _record(
        self, checks: Sequence[Check], operations: Sequence[Put | Delete], synced: list[str], seen: Seen
    ) -> Recorded | None:
        """None: a check of the caller's has failed already."""
        added = seen.checks()
        for check in checks:
            if added.pop(check.path, check).version != check.version:
                return None
        mark = seen.moment(paths.MARK)
        complete: list[Put | Delete] = []
        replaced: dict[str, Written | None] = {}
        first: Stamp | None = None
        for operation in operations:
            if operation.path not in synced:
                complete.append(operation)
                continue
            present = seen.state(operation.path)
            if isinstance(operation, Delete) and seen.records[operation.path] is None:
                continue  # nothing is there, so nothing happens
            state = self._state(operation, present, mark)
            if state is None:
                continue
            first = state.stamp if first is None else min(first, state.stamp)
            replaced[operation.path] = written(present)
            complete += seen.storing(operation.path, state.following(present), self._caller())
        if first is not None:
            complete.append(owing(synced[0], seen, replaced, first))
        all_checks = [*checks, *added.values()]
        if max(len(all_checks), len(complete)) > MAX_OPERATIONS:
            raise BadRequest(
                f"{len(synced)} values that other regions share change at once, {synced[0][:80]} among them; with "
                f"bookkeeping for each, that exceeds the {MAX_OPERATIONS} operations of a transaction: change fewer "
                "at a time"
            )
        return Recorded(all_checks, complete)

    def _state(self, operation: Put | Delete, present: Stamped | None, mark: Moment) -> Stamped | None:
        """None: what is there stays."""
        if isinstance(operation, Delete) and operation.stamp is not None:
            return self._following(operation.stamp, present, mark)
        if isinstance(operation, Delete):
            wanted = Stamped(self._stamp(present, mark), None)
        else:
            if operation.lease is not None:
                raise BadRequest(f"{operation.path} is shared with other regions, so it cannot end with a lease")
            wanted = from_store(operation.path, operation.value)
        if present is not None:
            wanted = Stamped(wanted.stamp, wanted.value, present.generation)
        if not self._is_valid(wanted, present, mark):
            wanted = wanted.with_value(wanted.value, self._stamp(present, mark))
        return wanted

    def _following(self, stamp: Stamp, present: Stamped | None, mark: Moment) -> Stamped | None:
        """A deletion that follows from what happened at ``stamp``.

        States up to the mark are no longer sent. If that happened in another region, it sends its own deletion.
        """
        if present is not None and present.stamp >= stamp:
            return None
        is_new = moment(stamp) > mark
        if not is_new and stamp.region != self._clock.region:
            return None
        stamp = stamp if is_new and stamp.counter <= MAX_COUNTER else self._stamp(present, mark)
        return Stamped(stamp, None) if present is None else present.with_value(None, stamp)

    def _is_valid(self, wanted: Stamped, present: Stamped | None, mark: Moment) -> bool:
        is_own = wanted.stamp.region == self._clock.region and wanted.stamp.counter <= MAX_COUNTER
        is_later = present is None or moment(wanted.stamp) > moment(present.stamp)
        return is_own and is_later and moment(wanted.stamp) > mark

    def _stamp(self, present: Stamped | None, mark: Moment) -> Stamp:
        return stamp_after(self._clock, max(mark, mark if present is None else moment(present.stamp)))


def _nothing(_path: str) -> None:
    return None


def stamp_after(clock: HybridClock, floor: Moment) -> Stamp:
    """A stamp of now, or right after ``floor`` if that is later."""
    stamp = clock.next(Stamp(*floor, clock.region))
    return stamp if stamp.counter <= MAX_COUNTER else Stamp(stamp.time_ms + 1, 0, stamp.region)


def owing(anchor: str, seen: Seen, replaced: dict[str, Written | None], first: Stamp) -> Put:
    """The outbox entry of a transaction. Its oldest unsent write decides when it is sent."""
    where = paths.outbox(anchor)
    record = seen.records[where]
    if record is not None and record.value != outbox.SENT:
        together = outbox.from_store(where, record.value).and_then(replaced)
        if together is not None:
            return Put(where, outbox.to_store(together))
        where += f"#{blake2b(' '.join(sorted(replaced)).encode(), digest_size=8).hexdigest()}"
    return Put(where, outbox.to_store(OutboxEntry(first, replaced)))
