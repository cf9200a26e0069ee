# SPDX-License-Identifier: Apache-2.0
"""The pure core of the shared log: appends go in, batches of bytes come out, completions move the index.

Each append gets its place at once: the log knows where it ends, so the index is filled as entries are queued, and
only ``confirmed`` holds readers back. A batch is everything queued in one turn of the loop. Its owner writes
batches in order, syncs, and reports `complete`; or it reports `fail`, once, which fails everything queued, because
after a failed write no place is certain. The log then continues in a new segment, whose header says how much of
the old one is valid.

No I/O here, and no clock.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from crc32c import crc32c

from meridian_broker.engines.local.index import Ledger, Run, Segment
from meridian_broker.engines.local.segment import (
    BATCH_BYTES,
    ENTRY,
    ENTRY_FACTOR,
    LENGTH_FACTOR,
    MAX_DATA_BYTES,
    PRIME,
    RECORD,
    RECORD_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    batch_record,
    segment_header,
)
from meridian_broker.ledgers.store import AppendDone, LedgerError

MIN_SEGMENT_BYTES: Final = 4096
MAX_SEGMENT_BYTES: Final = 1 << 30
"""Offsets have 32 bits in the index, and a segment may exceed its limit by one record."""

NO_SEGMENT: Final = -1
"""The segment of a batch that has nothing to write."""

MAX_BATCH_BYTES: Final = 4 << 20
"""A larger batch is closed early, so that writing starts before the turn ends."""


_log = logging.getLogger(__name__)


class Batch:
    """Bytes to write at the end of one segment, and the callbacks for them."""

    __slots__ = (
        "begins",
        "buffers",
        "data_bytes",
        "dones",
        "ends",
        "entries",
        "generation",
        "header",
        "ids",
        "last",
        "segment",
    )

    def __init__(self, segment: int, generation: int, header: bytes | None) -> None:
        self.segment = segment
        self.generation = generation
        self.header = header
        """The header of a segment to be started before this batch; None: the segment is open."""
        self.buffers: list[bytes] = []
        self.dones: list[AppendDone] = []
        self.ids: list[int | LedgerError] = []
        """The argument for each of ``dones``."""
        self.last: dict[Ledger, int] = {}
        """The last entry of each ledger in this batch."""
        self.entries = 0
        """Number of entries in it."""
        self.data_bytes = 0
        """Bytes of these entries."""
        self.begins = 0
        self.ends = 0
        """Its place in the segment."""


class Log:
    """The end of the shared log.

    :param wake: called when a batch is started, so that its owner takes it at the end of the turn.
    """

    def __init__(
        self, segments: dict[int, Segment], *, next_segment: int, previous: tuple[int, int], segment_bytes: int
    ) -> None:
        if not MIN_SEGMENT_BYTES <= segment_bytes <= MAX_SEGMENT_BYTES:
            raise ValueError(f"segment_bytes must be from {MIN_SEGMENT_BYTES} to {MAX_SEGMENT_BYTES}")
        self.segments = segments
        self.pending_bytes = 0
        """Bytes of entries queued and not yet reported."""
        self.is_unmarked = False
        """No mark covers the last durable bytes yet, so damage to them would be mistaken for a torn tail."""
        self.wake: Callable[[], None] = lambda: None
        self.on_closed: Callable[[Segment], None] = lambda _: None
        self.full: LedgerError | None = None
        """Why no messages are stored, as of the last group; None: there was room."""
        self.look_for_room: Callable[[], LedgerError | None] = lambda: None
        """As ``full``, but checked now."""
        self._segment_bytes = segment_bytes
        self._next_segment = next_segment
        self._previous = previous
        self._segment: Segment | None = None
        self._tail = 0
        self._durable = 0
        self._generation = 0
        self._open: Batch | None = None
        self._room = 0
        self._ready: deque[Batch] = deque()
        self._in_flight: deque[Batch] = deque()

    @property
    def generation(self) -> int:
        """Grows with each failure; batches of older generations must not be written."""
        return self._generation

    @property
    def idle(self) -> bool:
        """Nothing is queued or being written."""
        return self._open is None and not self._ready and not self._in_flight

    # -- in ------------------------------------------------------------------------------------------------------

    def append(self, ledger: Ledger, data: bytes, done: AppendDone) -> int:
        """Queue an entry and return its id. ``done`` gets the id once it is durable, or an error."""
        return self.append_many(ledger, (data,), done)

    def append_many(self, ledger: Ledger, entries: Sequence[bytes], done: AppendDone) -> int:
        """Queue entries, at least one, and return the id of the first. For each batch that they are in, ``done`` gets
        the id of the last one in it once it is durable, or an error.
        """
        first = ledger.appended
        if self.full is not None and ledger.is_of_messages and ledger.refusal is None:
            self.full = ledger.refusal = self.look_for_room()
        if ledger.refusal is not None:
            self.tell(done, ledger.refusal)
            return first
        queued = 0
        while queued < len(entries):
            queued += self._fill(ledger, entries[queued:] if queued else entries, done)
        return first

    def _fill(self, ledger: Ledger, entries: Sequence[bytes], done: AppendDone) -> int:
        """Queue as many entries as go into one batch, at least the first, and return their number.

        The loop is the hot path, less than a microsecond per entry, and therefore flat and inlined. It changes nothing
        but its own lists: if it raises, none of the entries is queued.
        """
        needed = RECORD_BYTES + len(entries[0])
        batch = self._open
        if batch is None or self._tail + needed > self._room:
            batch = self._begin(needed)
        first = entry = ledger.appended
        ledger_id, seed, begin, room = ledger.ledger_id, ledger.entry_seed, self._tail, self._room
        tail, pack = begin, RECORD.pack
        buffers: list[bytes] = []
        places: list[int] = []
        for data in entries:
            length = len(data)
            if tail + RECORD_BYTES + length > room:
                break
            crc = crc32c(data, seed ^ ((entry * ENTRY_FACTOR + length * LENGTH_FACTOR) % PRIME))
            buffers += (pack(length, crc, ENTRY, ledger_id, entry), data)
            places.append(tail << 32 | length)
            tail += RECORD_BYTES + length
            entry += 1
        count = entry - first
        size = tail - begin - count * RECORD_BYTES
        run = ledger.tail
        if run is None or run.segment != batch.segment:
            run = self._new_tail(ledger, first)
        run.places.fromlist(places)  # type: ignore[union-attr]
        batch.buffers += buffers
        batch.dones.append(done)
        batch.ids.append(entry - 1)
        batch.last[ledger] = entry - 1
        batch.entries += count
        batch.data_bytes += size
        self._tail = tail
        ledger.appended = entry
        ledger.size += size
        self.pending_bytes += size
        return count

    def put(self, record: bytes, done: AppendDone) -> tuple[int, int]:
        """Queue a record that is not a writer's entry; ``done`` gets 0. Returns its segment and offset."""
        batch = self._open
        if batch is None or self._tail + len(record) > self._room:
            batch = self._begin(len(record))
        batch.buffers.append(record)
        batch.dones.append(done)
        batch.ids.append(0)
        place = batch.segment, self._tail
        self._tail += len(record)
        return place

    def tell(self, done: AppendDone, error: LedgerError) -> None:
        """Report an error to ``done``, after everything that is queued; nothing is written."""
        batch = self._open
        if batch is None:
            batch = self._open = Batch(NO_SEGMENT, self._generation, None)
            self._room = 0
            self.wake()
        batch.dones.append(done)
        batch.ids.append(error)

    def mark(self) -> None:
        """Queue a batch that records how much is durable, so that damage is not mistaken for a torn tail."""
        if self._segment is not None and self._open is None:
            self._begin(0)

    # -- out -----------------------------------------------------------------------------------------------------

    def take(self, *, all_of_it: bool = True) -> list[Batch]:
        """The queued batches in write order, with the one that still grows only if ``all_of_it``."""
        if all_of_it:
            self._close_batch()
        taken = list(self._ready)
        self._ready.clear()
        self._in_flight.extend(taken)
        return taken

    def complete(self, count: int) -> None:
        """The first ``count`` batches in flight are durable: confirm them."""
        for _ in range(count):
            batch = self._in_flight.popleft()
            if batch.header is not None:
                self._close_older_than(batch.segment)
            if batch.segment != NO_SEGMENT:
                segment = self.segments[batch.segment]
                segment.length = batch.ends
                if segment is self._segment:
                    self._durable = batch.ends
                self.is_unmarked = bool(batch.dones)
            for ledger, entry in batch.last.items():
                ledger.confirmed = entry + 1
            self.pending_bytes -= batch.data_bytes
            for done, result in zip(batch.dones, batch.ids, strict=True):
                try:
                    done(result)
                except Exception:
                    # The remaining callbacks must still be called.
                    _log.exception("the result of an append could not be handled, which is a bug; other appends go on")

    def fail(self, error: LedgerError) -> None:
        """A batch in flight was not stored: everything queued fails, and the log continues in a new segment."""
        self._close_batch()
        failed = [*self._in_flight, *self._ready]
        self._in_flight.clear()
        self._ready.clear()
        self._generation += 1
        ledgers = {ledger: None for batch in failed for ledger in batch.last}
        for ledger in ledgers:
            dropped = [run for run in ledger.runs if run.first >= ledger.confirmed]
            ledger.forget_unconfirmed()
            for run in dropped:
                self.segments[run.segment].runs.pop(run, None)
            if ledger.refusal is None:
                ledger.refusal = error
        self._abandon_segments()
        for batch in failed:
            self.pending_bytes -= batch.data_bytes
            for done, result in zip(batch.dones, batch.ids, strict=True):
                try:
                    done(result if isinstance(result, LedgerError) else error)
                except Exception:
                    _log.exception("the failure of an append could not be handled, which is a bug; other appends go on")

    # -- inside --------------------------------------------------------------------------------------------------

    def _begin(self, needed: int) -> Batch:
        """Start a batch with room for a record, in a new segment if this one is full."""
        if needed > RECORD_BYTES + MAX_DATA_BYTES:
            raise ValueError(f"an entry of {needed} bytes is too large: the log accepts at most {MAX_DATA_BYTES}")
        self._close_batch()
        header: bytes | None = None
        full = self._tail + BATCH_BYTES + needed > self._segment_bytes and self._tail > SEGMENT_HEADER_BYTES
        if self._segment is None or (full and needed):
            header = self._start_segment()
        assert self._segment is not None
        batch = Batch(self._segment.number, self._generation, header)
        batch.begins = self._tail
        batch.buffers.append(batch_record(self._segment.number, self._tail, self._durable))
        self._tail += BATCH_BYTES
        self._room = max(self._tail + needed, min(self._segment_bytes, self._tail + MAX_BATCH_BYTES))
        self._open = batch
        self.wake()
        return batch

    def _close_batch(self) -> None:
        if self._open is not None:
            if self._open.segment != NO_SEGMENT:
                self._open.ends = self._tail
            self._ready.append(self._open)
            self._open = None

    def _start_segment(self) -> bytes:
        if self._segment is not None:
            self._previous = self._segment.number, self._tail
        number = self._next_segment
        self._next_segment += 1
        self._segment = self.segments[number] = Segment(number)
        self._tail = self._durable = SEGMENT_HEADER_BYTES
        return segment_header(SegmentHeader(number, *self._previous))

    def _new_tail(self, ledger: Ledger, entry: int) -> Run:
        assert self._segment is not None
        if ledger.tail is not None:
            ledger.tail.fix(ledger.size - ledger.tail.start_size)
        run = Run(self._segment.number, entry, ledger.size)
        ledger.runs.append(run)
        ledger.tail = run
        self._segment.runs[run] = ledger
        return run

    def _close_older_than(self, number: int) -> None:
        """Segment ``number`` is durable, so the ones before it are complete."""
        for segment in list(self.segments.values()):
            if segment.number < number and not segment.closed:
                close_segment(segment)
                self.on_closed(segment)

    def _abandon_segments(self) -> None:
        """After a failure: keep segments with durable bytes, remove the others."""
        self._segment = None
        self._tail = self._durable = 0
        self.is_unmarked = False  # the next segment's header records what is durable
        for segment in [each for each in self.segments.values() if not each.closed]:
            if segment.length == 0:
                del self.segments[segment.number]
            else:
                close_segment(segment)
                self.on_closed(segment)
        last = max(self.segments, default=-1)
        self._previous = (last, self.segments[last].length) if last >= 0 else (-1, 0)


def close_segment(segment: Segment) -> None:
    """Fix the numbers of a segment's runs: only now are its live bytes known."""
    segment.closed = True
    for run, ledger in segment.runs.items():
        if run is ledger.tail:
            run.fix(ledger.size - run.start_size)
            ledger.tail = None
        elif run.stored_count != run.count:
            run.fix(run.data_bytes())
    segment.live_bytes = sum(run.record_bytes for run in segment.runs)
