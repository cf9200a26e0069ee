# SPDX-License-Identifier: Apache-2.0
"""Where every entry is: ledgers, and the runs of their entries in segments.

A *run* is a sequence of consecutive entries of one ledger in one segment. Its places, one packed number per entry
(``offset << 32 | length``), are the whole index. Runs of closed segments are also in the segment's index file,
so their places may be dropped from memory and loaded again when they are read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final

from meridian_broker.engines.local.segment import RECORD_BYTES
from meridian_broker.ledgers.labels import holds_messages
from meridian_broker.ledgers.store import LedgerError, LedgerInfo

LENGTH_MASK: Final = 0xFFFFFFFF


class Run:
    """Consecutive entries of one ledger in one segment."""

    __slots__ = ("block", "first", "places", "segment", "start_size", "stored_bytes", "stored_count")

    def __init__(self, segment: int, first: int, start_size: int = 0) -> None:
        self.segment = segment
        self.first = first
        self.start_size = start_size
        """The ledger's size where the run starts, from which the run's own size follows."""
        self.places: array[int] | None = array("Q")
        """One packed place per entry; None while only the index file has them."""
        self.block = -1
        """Offset of the run's block in the segment's index file, -1 if it has none yet."""
        self.stored_count = 0
        self.stored_bytes = 0
        """Number of entries and bytes of data, fixed when the segment closed (`fix`)."""

    @property
    def count(self) -> int:
        return self.stored_count if self.places is None else len(self.places)

    @property
    def end(self) -> int:
        """The entry id after the last."""
        return self.first + self.count

    def data_bytes(self) -> int:
        """Bytes of the entries, computed from the places if they are in memory."""
        if self.places is None:
            return self.stored_bytes
        mask = LENGTH_MASK
        return sum(place & mask for place in self.places)

    def fix(self, data_bytes: int) -> None:
        """The run is complete: note its numbers."""
        self.stored_count = self.count
        self.stored_bytes = data_bytes

    @property
    def record_bytes(self) -> int:
        """Bytes of the run in its segment, once it is fixed."""
        return self.stored_bytes + self.stored_count * RECORD_BYTES


class Ledger:
    """One ledger. ``appended`` is ahead of ``confirmed`` by the entries that are not durable yet."""

    __slots__ = (
        "appended",
        "confirmed",
        "deleted",
        "entry_seed",
        "fence",
        "is_of_messages",
        "label",
        "ledger_id",
        "refusal",
        "runs",
        "sealed",
        "size",
        "tail",
    )

    def __init__(self, ledger_id: int, fence: int, entry_seed: int, label: bytes = b"") -> None:
        self.ledger_id = ledger_id
        self.label = label
        self.is_of_messages = holds_messages(label)
        self.fence = fence
        self.entry_seed = entry_seed
        self.appended = 0
        self.confirmed = 0
        self.size = 0
        """Bytes of all appended entries."""
        self.sealed = False
        self.deleted = False
        self.refusal: LedgerError | None = None
        """Why appends are refused; None: they are accepted."""
        self.runs: list[Run] = []
        """In the order of their entries. Entries missing between two runs were lost to damage."""
        self.tail: Run | None = None
        """The run appends go to."""

    def run_of(self, entry: int) -> Run | None:
        """The run that holds an entry; None: it was lost."""
        at = bisect_right(self.runs, entry, key=_first) - 1
        if at < 0 or entry >= self.runs[at].end:
            return None
        return self.runs[at]

    def place_run(self, run: Run) -> list[Run]:
        """Insert a run; those that hold the same entries are replaced and returned."""
        lower = bisect_right(self.runs, run.first, key=_first)
        while lower > 0 and self.runs[lower - 1].end > run.first:
            lower -= 1
        upper = lower
        while upper < len(self.runs) and self.runs[upper].first < run.end:
            upper += 1
        replaced = self.runs[lower:upper]
        self.runs[lower:upper] = [run]
        return replaced

    def confirmed_size(self) -> int:
        """Bytes of the durable entries."""
        waiting = 0
        for run in reversed(self.runs):
            if run.end <= self.confirmed or run.places is None:
                break
            waiting += sum(place & LENGTH_MASK for place in run.places[max(0, self.confirmed - run.first) :])
        return self.size - waiting

    def forget_unconfirmed(self) -> None:
        """Remove all entries from ``confirmed`` on: they were not stored."""
        self.size = self.confirmed_size()
        while self.runs and self.runs[-1].first >= self.confirmed:
            self.runs.pop()
        if self.runs and self.runs[-1].end > self.confirmed:
            run = self.runs[-1]
            if run.places is not None:
                del run.places[self.confirmed - run.first :]
                run.stored_count = 0
        self.appended = self.confirmed
        self.tail = None

    def info(self) -> LedgerInfo:
        return LedgerInfo(self.ledger_id, self.confirmed, self.confirmed_size(), self.sealed, self.label)


def _first(run: Run) -> int:
    return run.first


@dataclass(slots=True)
class Segment:
    """The engine's state for one segment file."""

    number: int
    length: int = 0
    """Bytes that are valid."""
    closed: bool = False
    """Everything in it is durable and nothing will be added."""
    runs: dict[Run, Ledger] = field(default_factory=dict)
    """The live runs in it."""
    live_bytes: int = 0
    """Bytes of the live runs' records, once closed."""
    indexed: bool = False
    """Its index file is durable."""

    def drop(self, run: Run) -> None:
        """A run is dead: its ledger was deleted, or it was moved."""
        if self.runs.pop(run, None) is not None and self.closed:
            self.live_bytes -= run.record_bytes
