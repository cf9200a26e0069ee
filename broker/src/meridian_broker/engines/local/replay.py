# SPDX-License-Identifier: Apache-2.0
"""What the records of the log's tail say, applied in their order. This reads no file: ``recovery.py`` does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from meridian_broker.engines.local.index import Ledger, Run, Segment
from meridian_broker.engines.local.log import close_segment
from meridian_broker.engines.local.segment import (
    BATCH,
    DELETED,
    ENTRY,
    MOVE_DONE,
    MOVED,
    STATE,
    Damage,
    Record,
    Scanner,
    TornTail,
    ledger_seed,
    segment_name,
    unpack_count,
    unpack_durable,
    unpack_state,
)

DELETED_MAX: Final = 65536
"""How many ids of deleted ledgers are remembered: they take half a megabyte of a checkpoint."""


@dataclass(slots=True)
class State:
    """Everything that the log records."""

    ledgers: dict[int, Ledger] = field(default_factory=dict)
    segments: dict[int, Segment] = field(default_factory=dict)
    next_segment: int = 1
    previous: tuple[int, int] = (-1, 0)
    """Number and length of the last segment."""
    covered: int = 0
    """The last segment that the checkpoint describes."""
    checkpoints: dict[int, int] = field(default_factory=dict)
    """By number of each checkpoint on disk, the last segment that it covers."""
    unneeded: list[str] = field(default_factory=list)
    """Damaged checkpoints that are older than an intact one. Nothing else would ever remove them."""
    deleted: dict[int, None] = field(default_factory=dict)
    """Ids of recently deleted ledgers, oldest first."""
    rebuilding: bool = False
    """No checkpoint is intact, so the log is the only source."""
    scanned_bytes: int = 0
    damages: list[str] = field(default_factory=list)
    """Sentences about damaged files, for the log and the health page."""


@dataclass(frozen=True, slots=True)
class Found:
    """A segment file to be replayed."""

    number: int
    end: int
    attested: bool
    broken_previous: int | None
    """If its header is broken: the segment that probably came before it."""


class Replay:
    """Applies the records of the log's tail, in order."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._moved: dict[int, list[Run]] = {}
        self._marked = 0

    def segment(self, found: Found, read: Callable[[int, int], bytes]) -> tuple[int, int]:
        """Replay one segment. Returns its length without a torn tail, and how much its own marks call durable."""
        self._marked = 0
        segment = Segment(found.number, length=found.end)
        self._state.segments[found.number] = segment
        name = segment_name(found.number)
        for item in Scanner(read, found.number, found.end, attested=found.attested).scan():
            if isinstance(item, Record):
                self._record(segment, item)
            elif isinstance(item, TornTail):
                segment.length = item.offset
            else:
                self._damage(segment, name, item)
        self._state.scanned_bytes += segment.length
        return segment.length, self._marked

    def finish(self) -> None:
        """Call it after the last segment."""
        for ledger in self._state.ledgers.values():
            if ledger.sealed:
                self._clamp(ledger)
            else:
                ledger.confirmed = ledger.runs[-1].end if ledger.runs else 0
            ledger.appended = ledger.confirmed
            ledger.tail = None
        for segment in self._state.segments.values():
            if not segment.closed:
                close_segment(segment)
        for ledger in self._state.ledgers.values():
            ledger.size = sum(run.stored_bytes for run in ledger.runs)

    def _record(self, segment: Segment, record: Record) -> None:
        kind = record.kind
        if kind == ENTRY:
            self._entry(segment, record.ledger, record.entry, record.offset, record.length)
        elif kind == STATE:
            self._state_of(record)
        elif kind == DELETED:
            self._deleted(record.ledger)
        elif kind == MOVED:
            runs = self._moved.setdefault(record.ledger, [])
            run = runs[-1] if runs else None
            if run is None or run.segment != segment.number or run.end != record.entry:
                run = Run(segment.number, record.entry)
                runs.append(run)
            assert run.places is not None
            run.places.append(record.offset << 32 | record.length)
        elif kind == MOVE_DONE:
            self._move_done(record.ledger, record.entry, unpack_count(record.data))
        elif kind == BATCH:
            self._marked = unpack_durable(record.data)

    def _entry(self, segment: Segment, number: int, entry: int, offset: int, length: int) -> None:
        ledger = self._state.ledgers.get(number)
        if ledger is None and number not in self._state.deleted:
            # The record that created it is damaged or, without a checkpoint, was in a segment that was removed.
            ledger = self._state.ledgers[number] = Ledger(number, 0, ledger_seed(ENTRY, number))
        if ledger is None:
            return
        run = ledger.tail
        if run is None or run.segment != segment.number or entry != run.end:
            last = ledger.runs[-1].end if ledger.runs else 0
            if entry < last:
                return
            run = Run(segment.number, entry)
            ledger.runs.append(run)
            ledger.tail = run
            segment.runs[run] = ledger
        assert run.places is not None
        run.places.append(offset << 32 | length)

    def _state_of(self, record: Record) -> None:
        state = unpack_state(record.data)
        ledger = self._state.ledgers.get(record.ledger)
        if ledger is None:
            ledger = Ledger(record.ledger, state.fence, ledger_seed(ENTRY, record.ledger))
            self._state.ledgers[record.ledger] = ledger
        ledger.fence = max(ledger.fence, state.fence)
        ledger.label = state.label or ledger.label
        if state.sealed:
            ledger.sealed = True
            ledger.confirmed = state.entries

    def _clamp(self, ledger: Ledger) -> None:
        """A seal says how many entries are valid; failed writes may have left more behind."""
        dropped = [run for run in ledger.runs if run.first >= ledger.confirmed]
        ledger.forget_unconfirmed()
        for run in dropped:
            self._state.segments[run.segment].drop(run)

    def _deleted(self, number: int) -> None:
        ledger = self._state.ledgers.pop(number, None)
        self._moved.pop(number, None)
        remember_deleted(self._state.deleted, number)
        if ledger is not None:
            for run in ledger.runs:
                self._state.segments[run.segment].drop(run)

    def _move_done(self, number: int, first: int, count: int) -> None:
        """The copies replace the originals. If only some of them are in the tail, the checkpoint has either the
        originals, which then stay in use, or the other copies, and those in the tail fill the gap between them."""
        runs = [run for run in self._moved.pop(number, []) if first <= run.first and run.end <= first + count]
        ledger = self._state.ledgers.get(number)
        if ledger is None:
            return
        whole = sum(run.count for run in runs) == count
        for run in runs:
            if not whole and (ledger.run_of(run.first) or ledger.run_of(run.end - 1)):
                continue
            for old in ledger.place_run(run):
                self._state.segments[old.segment].drop(old)
            self._state.segments[run.segment].runs[run] = ledger

    def _damage(self, segment: Segment, name: str, damage: Damage) -> None:
        sentence = f"{name} is damaged from byte {damage.offset} to {damage.end}"
        if damage.record is not None:
            kind, number, entry, length = damage.record
            ledger = self._state.ledgers.get(number)
            if kind == ENTRY and ledger is not None and entry == (ledger.runs[-1].end if ledger.runs else 0):
                # Its head is plausible: keep the place, so that an attempt to read it names the entry.
                self._entry(segment, number, entry, damage.offset, length)
                sentence += f": entry {entry} of ledger {number}"
        self._state.damages.append(sentence)


def remember_deleted(deleted: dict[int, None], number: int) -> None:
    """Note a deleted ledger's id, so that it is not used again; the oldest ids are forgotten."""
    deleted[number] = None
    if len(deleted) > DELETED_MAX:
        del deleted[next(iter(deleted))]
