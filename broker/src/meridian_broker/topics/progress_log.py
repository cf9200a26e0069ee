# SPDX-License-Identifier: Apache-2.0
"""A topic's durable record of its subscriptions: who they are and what is acked (R10).

It is a chain of ledgers of its own, beside the topic's messages, so it shares their group commit and their fencing. A
record is a small change; when a ledger is full the next one begins with a snapshot of every subscription and the old
ones go. Reading it is joining it: records may be read twice and snapshots may overlap changes, the result is the same.

Record layout, big-endian: ``u8 version | u8 kind | u16 length of the name | u64 time ms | name | payload``.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import suppress
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from meridian_broker.ledgers.labels import Belonging, Label
from meridian_broker.ledgers.labels import Kind as LedgerKind
from meridian_broker.ledgers.scheduling import Scheduler
from meridian_broker.ledgers.store import LedgerError, LedgerNotFound, LedgerStore, Writer
from meridian_broker.ledgers.telling import tell_each

FORMAT_VERSION: Final = 1
_HEAD: Final = struct.Struct(">BBHQ")
_LENGTHS: Final = struct.Struct(">II")
ROLL_BYTES: Final = 32 << 20
"""A progress ledger is rolled over at this size: what it holds shrinks to one snapshot a subscription."""
READ_BYTES: Final = 1 << 20


class Kind(IntEnum):
    """What a record says."""

    SUBSCRIPTION = 1
    """The subscription's own record (JSON): made, or its flags or properties changed."""
    ACKED = 2
    """A delta of progress from this region's own clients: first-hand."""
    MERGED = 3
    """A delta of progress that another region told."""
    PROGRESS = 4
    """Whole progress, at the start of a ledger."""
    FIRST_HAND = 5
    """Whole first-hand progress, at the start of a ledger."""
    DROPPED = 6
    """Ranges gone without an acknowledgement (R14)."""
    REMOVED = 7
    """The subscription was deleted."""
    SEQUENCES = 8
    """Last sequence ids of producers, of no subscription (``sequences.py``)."""
    WHOLE = 9
    """A subscription as it stands (``Whole``): made, or its flag switched. One record, so that a crash leaves no
    subscription behind of which it is not known where it begins."""
    GAP = 10
    """Entries of an origin (its name stands in the subscription's place) that somebody gave up (``gaps.py``)."""
    FLOORS = 11
    """Floors that all regions reported (R11): progress, and nobody's acknowledgements."""
    VOTES = 16
    """To whom this region has promised shares of a subscription, and for how long (``sharing.py``)."""


_KINDS: Final = frozenset(Kind)


class Change(NamedTuple):
    """One record."""

    kind: Kind
    subscription: str
    time_ms: int
    payload: bytes


class Whole(NamedTuple):
    """Payload of ``Kind.WHOLE``. Layout: ``u32 length of the record | u32 length of the progress | record | progress |
    first-hand progress``; the last one is empty where nobody keeps it."""

    record: bytes
    progress: bytes
    first_hand: bytes

    def encode(self) -> bytes:
        return _LENGTHS.pack(len(self.record), len(self.progress)) + self.record + self.progress + self.first_hand

    @classmethod
    def decode(cls, payload: bytes) -> Whole:
        """:raises ProgressLogError: these bytes are no such payload."""
        if len(payload) < _LENGTHS.size:
            raise ProgressLogError(f"{len(payload)} bytes are no whole subscription")
        record, progress = _LENGTHS.unpack_from(payload)
        middle = _LENGTHS.size + record
        if middle + progress > len(payload):
            raise ProgressLogError(f"a whole subscription is cut off after {len(payload)} bytes")
        return cls(payload[_LENGTHS.size : middle], payload[middle : middle + progress], payload[middle + progress :])


class ProgressLogMetadata(Protocol):
    """Where a topic's list of progress ledgers is kept."""

    @property
    def belonging(self) -> Belonging: ...

    async def allocate_ledger_id(self) -> int: ...

    async def save_progress_ledgers(self, ledgers: list[int]) -> None: ...


class ProgressLogError(ValueError):
    """A record of the progress log cannot be read."""


def encode(kind: Kind, subscription: str, time_ms: int, payload: bytes) -> bytes:
    """One record as bytes."""
    name = subscription.encode()
    return _HEAD.pack(FORMAT_VERSION, kind, len(name), time_ms) + name + payload


def decode(record: bytes) -> Change:
    """:raises ProgressLogError: a newer format, or bytes that are no record."""
    try:
        version, kind, length, time_ms = _HEAD.unpack_from(record)
        if version != FORMAT_VERSION:
            raise ProgressLogError(
                f"progress record of format {version}; this broker reads {FORMAT_VERSION}: a newer broker wrote it, "
                "start that version again"
            )
        if kind not in _KINDS:
            raise ProgressLogError(
                f"progress record of kind {kind}, which this broker does not know: a newer broker wrote it, "
                "start that version again"
            )
        end = _HEAD.size + length
        return Change(Kind(kind), str(record[_HEAD.size : end], "utf-8"), time_ms, bytes(record[end:]))
    except (struct.error, UnicodeDecodeError) as error:
        raise ProgressLogError(f"{len(record)} bytes are no progress record: {error}") from error


Done = Callable[[LedgerError | None], None]
WhenDurable = Callable[[Done], None]
"""Tells whoever asks once everything written before is on disk, or why it never will be."""


class ProgressLog:
    """Appends changes; hands all of them back when the topic is opened again."""

    def __init__(
        self,
        store: LedgerStore,
        metadata: ProgressLogMetadata,
        fence: int,
        scheduler: Scheduler,
        snapshot: Callable[[], Iterable[tuple[Kind, str, bytes]]],
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._fence = fence
        self._scheduler = scheduler
        self._snapshot = snapshot
        self._writer: Writer | None = None
        self._rolling = False
        self._held: list[tuple[bytes, Done | None]] = []
        self.ledgers: list[int] = []
        self.failure: LedgerError | None = None
        self.on_failure: Callable[[str], None] | None = None
        """Told once when nothing more can be written: the topic must not go on without its record of truth."""
        self._asked = 0
        self._settled = 0
        self._settling: deque[tuple[int, Done]] = deque()

    async def open(self, ledgers: list[int], unnamed: Collection[int] = ()) -> list[Change]:
        """Every change that is on record, oldest first. Fences the earlier owner (R10).

        :param unnamed: progress ledgers of the topic on the volume that are not among ``ledgers``. Later ones were made
            after these metadata were copied. Earlier ones were superseded, and their owner ended before it deleted
            them: that is done now, unless one of ``ledgers`` is missing. Then the volume is the older copy, and where
            it has none of them the earlier ones are all there is.
        """
        entries: dict[int, int] = {}
        for ledger_id in ledgers:
            with suppress(LedgerNotFound):
                entries[ledger_id] = (await self._store.recover(ledger_id, self._fence)).entries
        after = max(ledgers) if entries else -1
        is_whole = len(entries) == len(ledgers)
        for ledger_id in unnamed:
            if ledger_id > after:
                with suppress(LedgerNotFound):  # opened before, in vain, and deleted
                    entries[ledger_id] = (await self._store.recover(ledger_id, self._fence)).entries
        self.ledgers = sorted(entries)
        if not entries.keys() <= set(ledgers):
            await self._metadata.save_progress_ledgers(self.ledgers)
        if is_whole:
            for ledger_id in unnamed:
                if ledger_id <= after:
                    await self._store.delete(ledger_id)
        return [change for ledger_id in self.ledgers async for change in self._read(ledger_id, entries[ledger_id])]

    async def _read(self, ledger_id: int, entries: int) -> AsyncIterator[Change]:
        reader = await self._store.open(ledger_id)
        at = 0
        while at < entries:
            records = await reader.read(at, entries - 1, READ_BYTES)
            at += len(records)
            for record in records:
                yield decode(record)

    async def changes(self) -> list[Change]:
        """Every change still on record, for the export's evidence."""
        found: list[Change] = []
        for ledger_id in list(self.ledgers):
            reader = await self._store.open(ledger_id)
            found.extend([change async for change in self._read(ledger_id, reader.last_confirmed() + 1)])
        return found

    def append(self, kind: Kind, subscription: str, payload: bytes, done: Done | None = None) -> None:
        """Write one change; ``done(None)`` once durable, ``done(error)`` otherwise."""
        record = encode(kind, subscription, self._scheduler.now_ms(), payload)
        if self.failure is not None:
            if done is not None:
                failure, tell = self.failure, done
                self._scheduler.defer(lambda: tell(failure))
            return
        self._asked += 1
        writer = self._writer
        if writer is None:
            self._held.append((record, done))
            self._roll()
            return
        self._write(writer, record, done)
        if writer.size >= ROLL_BYTES:
            self._roll()

    def _fail(self, error: LedgerError) -> None:
        if self.failure is None:
            self.failure = error
            if self.on_failure is not None:
                self.on_failure(f"acknowledgements cannot be stored: {error}")

    def when_durable(self, done: Done) -> None:
        """``done`` hears once everything appended so far is durable, at once when it is."""
        self._settling.append((self._asked, done))
        self._settle()

    def _settle(self) -> None:
        due: list[Done] = []
        while self._settling and (self._settling[0][0] <= self._settled or self.failure is not None):
            due.append(self._settling.popleft()[1])
        tell_each(due, self.failure)

    def _write(self, writer: Writer, record: bytes, done: Done | None) -> None:
        def finished(result: int | LedgerError) -> None:
            error = None if isinstance(result, int) else result
            if error is not None:
                self._fail(error)
            try:
                if done is not None:
                    done(error)
            finally:
                self._settled += 1
                self._settle()

        writer.append(record, finished)

    def _roll(self) -> None:
        if not self._rolling:
            self._rolling = True
            self._scheduler.spawn(self._roll_over(), "roll a progress ledger over")

    async def _roll_over(self) -> None:
        """Begin a ledger with a snapshot of everything, then forget the ones before it."""
        try:
            ledger_id = await self._metadata.allocate_ledger_id()
            label = Label(LedgerKind.PROGRESS, self._metadata.belonging).encode()
            writer = await self._store.create(ledger_id, self._fence, label)
            # Only now: a next owner that finds it on record must find it in the store, or it could not fence it.
            await self._metadata.save_progress_ledgers([*self.ledgers, ledger_id])
        except Exception as error:
            failure = error if isinstance(error, LedgerError) else LedgerError(f"no new progress ledger: {error}")
            self._fail(failure)
            self._settle()
            held, self._held = self._held, []
            self._rolling = False
            tell_each([done for _, done in held if done is not None], failure)
            if not isinstance(error, LedgerError):
                raise
            return
        old, self.ledgers = self.ledgers, [*self.ledgers, ledger_id]
        before, self._writer = self._writer, writer
        now = self._scheduler.now_ms()
        snapshot = [encode(kind, name, now, payload) for kind, name, payload in self._snapshot()]
        held, self._held = self._held, []
        self._put_off(self._asked - len(held), len(snapshot))
        for record in snapshot[:-1]:
            self._write(writer, record, None)

        def settled(error: LedgerError | None) -> None:
            if error is None:
                self._scheduler.spawn(self._forget(old, ledger_id, before), "forget old progress ledgers")
            else:
                self._rolling = False

        if snapshot:
            self._write(writer, snapshot[-1], settled)
        for record, done in held:
            self._write(writer, record, done)
        if not snapshot:
            settled(None)

    def _put_off(self, written: int, snapshot: int) -> None:
        """Who waits for what was held waits for the snapshot, too, which is written before it.

        :param written: so many were written before. :param snapshot: so many records the new ledger begins with.
        """
        self._settling = deque((at + snapshot if at > written else at, done) for at, done in self._settling)
        self._asked += snapshot

    async def _forget(self, old: list[int], current: int, before: Writer | None) -> None:
        try:
            if before is not None:
                await before.seal()
            await self._metadata.save_progress_ledgers([current])
            self.ledgers = [current]
            for ledger_id in old:
                await self._store.delete(ledger_id)
        finally:
            self._rolling = False  # whatever failed, the next roll-over is due at its time

    async def close(self) -> None:
        """Seal what is being written; later appends fail."""
        writer, self._writer = self._writer, None
        self.failure = self.failure or LedgerError("the topic is being closed: look its owner up again")
        if writer is not None:
            await writer.seal()

    async def delete(self) -> None:
        """Delete every progress ledger."""
        await self.close()
        for ledger_id in self.ledgers:
            await self._store.delete(ledger_id)
        self.ledgers = []
