# SPDX-License-Identifier: Apache-2.0
"""A topic's durable record of its subscriptions and what they have acked (R10).

It is a separate chain of ledgers next to the topic's messages, with the same group commit and fencing. A record is a
small change. When a ledger is full, the next one begins with a snapshot of every subscription, and the old ones are
deleted. Replay joins records: reading one twice, or a snapshot that overlaps changes, does not change the result.

Where ledgers are scarce, a log that has not changed for a while goes *to rest*: if its snapshot is small, the topic's
record takes it, in the write that also takes the ledgers off the list, and the ledgers are deleted. The next change
begins a ledger as a roll-over does, and the record keeps its snapshot until that of the ledger is durable. So at every
moment the record names all there is, and a replaced owner can neither take a snapshot nor delete a ledger, because its
write of the record fails (R10).
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from meridian_broker.ledgers.notifying import notify_all
from meridian_broker.ledgers.scheduling import Scheduler, next_turn
from meridian_broker.ledgers.store import Done, LedgerError, LedgerStore, Writer
from meridian_broker.ledgers.under_way import UnderWay
from meridian_broker.metadata.store import MetadataError, MetadataUnavailable, VersionConflict
from meridian_broker.positions.position import Position
from meridian_broker.topics.journal.changes import Change, Kind, encode, join
from meridian_broker.topics.journal.common_acks import CommonAck
from meridian_broker.topics.journal.gathering import Gathering
from meridian_broker.topics.journal.progress_ledgers import Damaged, ProgressLedgers, ProgressLogMetadata

ROLL_BYTES: Final = 32 << 20
"""A progress ledger is rolled over once this many bytes follow its snapshot, ..."""
ROLL_RECORDS: Final = 50_000
"""... or this many records: a restart decodes and joins each of them, which takes a second of CPU. Whichever comes
first, but never before there are as many bytes as in the snapshot: a snapshot then costs no more than the changes it
replaces.
"""
SNAPSHOT_BYTES: Final = 32 << 10
SNAPSHOT_RECORDS: Final = 4
"""Records of a snapshot that are encoded and written before others run: a few milliseconds, ..."""
SNAPSHOT_SMALL_BYTES: Final = 4 << 10
"""... unless all of them are small: those of thirty subscriptions that acknowledged everything take a millisecond."""
SNAPSHOT_PENDING: Final = 256 << 10
"""Bytes of a snapshot that are in flight to the disk at a time."""
REST_BYTES: Final = 4 << 10
"""Largest snapshot that a topic's record takes: 100,000 topics at rest may fill a quarter of etcd's default quota of
2 GiB, and not more. A replicated subscription with a few gaps takes some 300 bytes.
"""
REST_MS: Final = 300_000
"""A log goes to rest once it has not changed for this long: that costs a ledger and three writes to the metadata store
when it changes again.
"""


class ProgressLog:
    """Appends changes, and returns all of them when the topic is opened again."""

    def __init__(
        self,
        store: LedgerStore,
        metadata: ProgressLogMetadata,
        fence: int,
        scheduler: Scheduler,
        snapshot: Callable[[], Iterable[tuple[Kind, str, bytes]]],
        *,
        rests: bool = False,
    ) -> None:
        """:param rests: ledgers are scarce, and listed by the metadata store: see the module's text."""
        self._chain = ProgressLedgers(store, metadata, fence, scheduler, rests=rests)
        self._scheduler = scheduler
        self._snapshot = snapshot
        self._changed_ms = scheduler.now_ms()
        self._too_large_at = -1
        """After how many changes the snapshot was found to be too large for the record."""
        self._writer: Writer | None = None
        self._rolls = UnderWay()
        self._is_resting = False
        self._snapshot_bytes = 0
        """Size of the snapshot in the current ledger. What was appended after it:"""
        self._since_bytes = self._since_records = 0
        self._held: list[tuple[bytes, Done | None]] = []
        self.common_acks: dict[Position, CommonAck | None] = {}
        """Entries that were acknowledged lately, ``REMEMBERED`` at most. None: by one subscription so far."""
        self._gathering = Gathering()
        """The record that it gathers counts as asked for, and is not written yet."""
        self._is_gathering = False
        self._refusal: MetadataUnavailable | None = None
        """Why the last roll-over failed."""
        self.failure: LedgerError | None = None
        self.on_failure: Callable[[str], None] | None = None
        """Called once when nothing more can be written: the topic must not continue without its source of truth."""
        self._asked = 0
        self._finished = 0
        self._awaiting: deque[tuple[int, Done]] = deque()

    @property
    def ledgers(self) -> list[int]:
        """The ids of its ledgers, oldest first."""
        return self._chain.ids

    async def open(
        self, ledgers: list[int], unnamed: Collection[int] = (), snapshot: tuple[bytes, ...] | None = None
    ) -> None:
        """See ``ProgressLedgers.open``. ``changes`` returns what is on record."""
        await self._chain.open(ledgers, unnamed, snapshot)

    def changes(self, met: Callable[[Damaged], None] | None = None) -> AsyncIterator[list[Change]]:
        """See ``ProgressLedgers.changes``. A log that is being written replaces a damaged ledger by a snapshot,
        because memory has what the disk lost.
        """
        return self._chain.changes(met, self._replace)

    def _replace(self) -> None:
        if self._writer is not None:
            self._roll()

    async def prepare(self) -> None:
        """Make sure that there is a ledger to write to, before a change depends on it.

        :raises MetadataUnavailable: none can be created now, because the metadata store is full or unreachable.
        """
        self._changed_ms = self._scheduler.now_ms()
        if self._writer is None or self._is_resting:  # else the snapshot being written includes what is created now
            await self._scheduler.answer(self._rolls.when_over)
        if self._writer is None and self.failure is None:
            self._roll()
            await self._scheduler.answer(self._rolls.when_over)
            if self._writer is None and self.failure is None and self._refusal is not None:
                raise self._refusal

    def append(self, kind: Kind, subscription: str, payload: bytes, done: Done | None = None) -> None:
        """Write one change; ``done(None)`` once durable, ``done(error)`` otherwise."""
        if not self._gathering.is_empty:
            self._write_gathered()
        self._changed_ms = now_ms = self._scheduler.now_ms()
        record = encode(kind, subscription, now_ms, payload)
        if self.failure is not None:
            if done is not None:
                failure, tell = self.failure, done
                self._scheduler.defer(lambda: tell(failure))
            return
        self._asked += 1
        self._append(record, done)

    def append_acked(self, subscriptions: Sequence[str], delta: bytes) -> None:
        """As ``append`` of ``Kind.ACKED`` for each of them. They share records, with others that acknowledge the same
        in this turn of the loop."""
        left = subscriptions[self._gathering.add(subscriptions, delta) :]
        while left:
            self._write_gathered()
            if self.failure is not None:
                return
            self._asked += 1
            self._gathering.begin(delta)
            left = left[self._gathering.add(left, delta) :]
            if not self._is_gathering:
                self._is_gathering = True
                self._scheduler.defer(self._gathered)

    def _gathered(self) -> None:
        self._is_gathering = False
        self._write_gathered()

    def _write_gathered(self) -> None:
        """Called before anything else is written or counted: records keep their order."""
        gathered = self._gathering.take(self._scheduler.now_ms)
        if gathered is not None and self.failure is None:
            record, names = gathered
            self._changed_ms = self._scheduler.now_ms()
            self._since_records += names - 1  # a restart joins each
            self._append(record, None)

    def _append(self, record: bytes, done: Done | None) -> None:
        writer = self._writer
        if writer is None:
            self._held.append((record, done))
            self._roll()
            return
        self._write_change(writer, record, done)
        if self._since_bytes >= self._snapshot_bytes and (
            self._since_bytes >= ROLL_BYTES or self._since_records >= ROLL_RECORDS
        ):
            self._roll()

    def _fail(self, error: LedgerError) -> None:
        if self.failure is None:
            self.failure = error
            if self.on_failure is not None:
                self.on_failure(f"acknowledgements cannot be stored: {error}")

    def when_durable(self, done: Done) -> None:
        """Call ``done`` once everything appended so far is durable, at once if it is."""
        self._awaiting.append((self._asked, done))
        self._answer()

    def _answer(self) -> None:
        due: list[Done] = []
        while self._awaiting and (self._awaiting[0][0] <= self._finished or self.failure is not None):
            due.append(self._awaiting.popleft()[1])
        notify_all(due, self.failure)

    def _write_change(self, writer: Writer, record: bytes, done: Done | None) -> None:
        self._since_bytes += len(record)
        self._since_records += 1
        self._write(writer, record, done)

    def _write(self, writer: Writer, record: bytes, done: Done | None = None) -> None:
        def finished(result: int | LedgerError) -> None:
            error = None if isinstance(result, int) else result
            if error is not None:
                self._fail(error)
            try:
                if done is not None:
                    done(error)
            finally:
                self._finished += 1
                self._answer()

        writer.append(record, finished)

    # -- roll-over -----------------------------------------------------------------------------------------------

    def _roll(self) -> None:
        if self._rolls.is_idle:
            self._scheduler.spawn(self._roll_over(self._rolls.begin()), "roll over a progress ledger")

    async def _roll_over(self, number: int) -> None:
        """Continue in another ledger, write a snapshot of everything to it, then delete the ledgers before it."""
        old = self.ledgers
        try:
            try:
                snapshot = await self._begin_ledger()
                await self._write_snapshot(snapshot)
            except MetadataUnavailable:
                return  # nothing waits for it: changes go to the previous ledger, and the next one tries again
            except (LedgerError, MetadataError):
                return  # nothing can be written any more, and all waiting callers have their answer
            try:
                await self._chain.forget(old, begins_with_snapshot=bool(self._snapshot_bytes))
            except VersionConflict as error:
                self._fail(LedgerError(str(error)))
        finally:
            self._rolls.end(number)

    async def _begin_ledger(self) -> Iterator[list[bytes]]:
        """Create the ledger. What is appended meanwhile is written after the first slice of the snapshot.

        :returns: the remaining slices.
        :raises MetadataUnavailable: no ledger can be created, and no record waits for one.
        :raises LedgerError: no ledger can be created; as after any other error, all appends fail from then on.
        """
        try:
            writer = await self._chain.extend()
            before, self._writer = self._writer, None
            if before is not None:
                await before.seal()  # everything written before is durable before anything that follows
            if self.failure is not None:
                raise self.failure
            self._write_gathered()
            snapshot = self._slices(self._snapshot())
            first = next(snapshot, [])
        except Exception as error:
            if isinstance(error, MetadataUnavailable) and not self._held:
                self._refusal = error
                raise
            failure = (
                error if isinstance(error, LedgerError) else LedgerError(f"cannot begin a new progress ledger: {error}")
            )
            self._fail(failure)
            self._answer()
            self._refuse_held(failure)
            raise
        held, self._held = self._held, []
        self._put_off(self._asked - len(held), len(first))
        self._writer = writer
        self._snapshot_bytes = self._since_bytes = self._since_records = 0
        self._write_slice(writer, first)
        for record, done in held:
            self._write_change(writer, record, done)
        return snapshot

    def _slices(self, snapshot: Iterable[tuple[Kind, str, bytes]]) -> Iterator[list[bytes]]:
        """Slices are encoded on demand, so that each is current in the turn in which it is written."""
        now, records, size = self._scheduler.now_ms(), list[bytes](), 0
        wholes: list[bytes] = []
        for kind, name, payload in snapshot:
            record = encode(kind, name, now, payload)
            if kind == Kind.WHOLE:
                wholes.append(record)
            else:
                records += [*join(wholes, now), record]
                wholes = []
            size += len(record)
            is_full = len(records) + len(wholes) >= SNAPSHOT_RECORDS and size >= SNAPSHOT_SMALL_BYTES
            if (is_full or size >= SNAPSHOT_BYTES) and kind != Kind.SEQUENCES:
                yield records + join(wholes, now)
                # sequence ids are written together: only their last record says up to where they hold
                records, wholes, size = [], [], 0
        if records or wholes:
            yield records + join(wholes, now)

    async def _write_snapshot(self, slices: Iterator[list[bytes]]) -> None:
        """Write the rest of the snapshot, and wait until all of it is durable.

        Other changes are written between the slices. Each slice is encoded in the turn in which it is written, so it
        contains all changes before it, and those after it are joined to it.
        """
        pending = 0
        while self.failure is None:
            if pending >= SNAPSHOT_PENDING:
                await self._scheduler.answer(self.when_durable)
                pending = 0
            await next_turn(self._scheduler)
            records, writer = next(slices, None), self._writer
            if records is None or writer is None:
                break
            self._write_gathered()
            self._asked += len(records)
            self._write_slice(writer, records)
            pending += sum(map(len, records))
        await self._scheduler.answer(self.when_durable)

    def _write_slice(self, writer: Writer, records: list[bytes]) -> None:
        for record in records:
            self._snapshot_bytes += len(record)
            self._write(writer, record)

    def _put_off(self, written: int, snapshot: int) -> None:
        """Callers that wait for what was held also wait for the first slice, which is written before it.

        :param written: records of the new ledger written so far. :param snapshot: records of its snapshot so far.
        """
        self._awaiting = deque((at + snapshot if at > written else at, done) for at, done in self._awaiting)
        self._asked += snapshot

    def _refuse_held(self, failure: LedgerError) -> None:
        held, self._held = self._held, []
        notify_all([done for _, done in held if done is not None], failure)

    # -- rest ----------------------------------------------------------------------------------------------------

    @property
    def may_rest(self) -> bool:
        """Whether ``rest`` would do something: it has not changed for a while, and its ledgers are not needed."""
        is_quiet = self._scheduler.now_ms() - self._changed_ms >= REST_MS and self._too_large_at != self._asked
        return self._chain.rests and bool(self.ledgers) and is_quiet and self._rolls.is_idle and self.failure is None

    async def rest(self) -> None:
        """Store everything in the topic's record, if it is little, and delete the ledgers. Changes that arrive
        meanwhile are written to another ledger, after that.

        :raises LedgerError: the ledger cannot be sealed; all appends fail from then on.
        :raises MetadataError: the record was not written. Unless another owner wrote it, nothing is lost by that: the
            next change begins another ledger.
        """
        number, self._is_resting = self._rolls.begin(), True
        self._write_gathered()
        try:
            asked = self._asked
            if self._small_snapshot() is None:
                self._too_large_at = asked
                return
            # Without the metadata store an open ledger still takes changes, and a sealed one does not.
            await self._chain.confirm()
            if self._asked != asked:
                return
            writer, self._writer = self._writer, None
            if writer is not None:
                await writer.seal()  # everything written before is durable before the record says that it holds it
            if self.failure is not None:
                raise self.failure
            await self._move_into_record()
            await self._chain.drop_spare()
        except LedgerError as error:
            self._fail(error)
            self._answer()
            self._refuse_held(error)
            raise
        finally:
            self._is_resting = False
            self._rolls.end(number)
            if self._held:
                self._roll()

    async def _move_into_record(self) -> None:
        """Every ledger is sealed. Another owner's write of the record makes this one fail, and nothing is deleted."""
        snapshot = self._small_snapshot()
        if snapshot is not None:
            await self._chain.move_into_record(snapshot)

    def _small_snapshot(self) -> tuple[bytes, ...] | None:
        """The records of the snapshot; None: there are too many for the topic's record."""
        now_ms, left, records = self._scheduler.now_ms(), REST_BYTES, list[bytes]()
        for kind, name, payload in self._snapshot():
            records.append(encode(kind, name, now_ms, payload))
            left -= len(records[-1])
            if left < 0:
                return None
        return tuple(records)

    async def close(self, *, to_rest: bool = False) -> None:
        """Write what was accepted, then seal; later appends fail. A roll-over that hangs is waited for up to a
        limit.

        :param to_rest: nobody is about to open the topic again: it goes to rest at once.
        """
        self._write_gathered()
        is_written = True
        while is_written and not self._rolls.is_idle:
            is_written = await self._rolls.wait(self._scheduler)
        if is_written:
            with suppress(LedgerError):
                await self._scheduler.answer(self.when_durable)
        writer, self._writer = self._writer, None
        rests = to_rest and self._chain.rests and is_written and self.failure is None and bool(self.ledgers)
        self.failure = self.failure or LedgerError("the topic is being closed: look its owner up again")
        self._refuse_held(self.failure)
        self._answer()
        if writer is not None:
            await writer.seal()
        if rests:
            with suppress(MetadataError):  # it stays in its ledgers, or another owner has it
                await self._move_into_record()
        await self._chain.drop_spare()

    async def delete(self) -> None:
        """Delete every progress ledger."""
        await self.close()
        await self._chain.delete()
