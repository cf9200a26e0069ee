# SPDX-License-Identifier: Apache-2.0
"""Reads confirmed entries from one bookie, and from another one when the first fails or is slow.

A bookie of a segment may lack an entry that the others have confirmed without it, so "no such entry" means only that
the next bookie is asked. If a bookie has not answered after a while, the next one is asked as well, and the first good
answer counts. A reader stays with the bookie that served it last, to benefit from its read-ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from meridian_broker.engines.bookkeeper.entries import OVERHEAD, EntryDamaged, parse_entry
from meridian_broker.engines.bookkeeper.ledger_metadata import LedgerMetadata
from meridian_broker.engines.bookkeeper.packets import Answer, Code, Flags
from meridian_broker.engines.bookkeeper.ports import AskPort
from meridian_broker.ledgers.store import LedgerCorrupt, LedgerError, LedgerUnreadable

SPECULATE_MS: Final = 300
"""How long to wait for an answer before another bookie is asked as well."""
BATCH_BYTES: Final = 1 << 20
"""Bytes asked for at a time. Larger answers cost bookie and client more per byte."""
BATCH_ENTRIES: Final = 2_000
_SIZE_BYTES: Final = 4
"""Size of the length before each entry of a batch."""

Entries = list[bytes]


class Reading:
    """One read of one ledger: entries ``first`` to ``last``, as many as fit."""

    def __init__(
        self,
        ledger: int,
        metadata: LedgerMetadata,
        ask: AskPort,
        first: int,
        last: int,
        max_bytes: int,
        told: Callable[[Entries | LedgerError, str], None],
        *,
        prefer: str = "",
    ) -> None:
        """
        :param last: at most the last confirmed entry, because bookies return unconfirmed ones as well.
        :param max_bytes: limit of the entries' data; at least one entry is read.
        :param told: called with the entries, or why there are none, and the bookie to prefer next time.
            LedgerCorrupt: on every bookie the first entry is damaged or missing. LedgerUnreadable: a bookie did not
            answer.
        """
        self._ledger = ledger
        self._metadata = metadata
        self._ask = ask
        self._next = first
        self._last = last
        self._left = max_bytes
        self._told = told
        self._prefer = prefer
        self._found: Entries = []
        self._round = 0
        self._is_batched = metadata.write_quorum == metadata.ensemble_size

    def start(self) -> None:
        self._begin_round()

    def _begin_round(self) -> None:
        """Ask for the next entries."""
        self._round += 1
        bookies = self._metadata.bookies_of(self._next)
        at = bookies.index(self._prefer) if self._prefer in bookies else self._next % len(bookies)
        self._candidates = [*bookies[at:], *bookies[:at]]
        self._failures: dict[str, Code] = {}
        self._under_way: set[str] = set()
        self._ask_next()

    def _ask_next(self) -> None:
        if not self._candidates:
            return
        bookie = self._candidates.pop(0)
        self._under_way.add(bookie)
        told = partial(self._answered, self._round, bookie)
        if self._is_batched:
            segment_end = self._end_of_segment()
            count = min(self._last, segment_end) - self._next + 1
            count = min(count, BATCH_ENTRIES, max(self._left, 0) + 1)  # an entry may be empty
            most = min(max(self._left, 0) + count * (OVERHEAD + _SIZE_BYTES), BATCH_BYTES)
            self._ask.read_batch(bookie, self._next, count, most, told)
        else:
            self._ask.read(bookie, self._next, Flags.NONE, told)
        self._ask.later(SPECULATE_MS, partial(self._speculate, self._round, bookie))

    def _end_of_segment(self) -> int:
        """The last entry of the segment that the next entry is in."""
        return min((one.first - 1 for one in self._metadata.segments if one.first > self._next), default=self._last)

    def _speculate(self, number: int, bookie: str) -> None:
        if number == self._round and bookie in self._under_way:
            self._ask_next()

    def _answered(self, number: int, bookie: str, answer: Answer) -> None:
        if number != self._round or bookie not in self._under_way:
            return
        self._under_way.discard(bookie)
        good = self._whole(answer)
        if good:
            self._prefer = bookie
            self._take(good)
            return
        self._failures[bookie] = Code.DAMAGED if answer.code == Code.OK else answer.code
        if self._candidates:
            self._ask_next()
        elif not self._under_way:
            self._finish()

    def _whole(self, answer: Answer) -> Entries:
        """The entries of an answer up to the first damaged one."""
        good: Entries = []
        for number, body in enumerate(answer.bodies, self._next):
            try:
                good.append(parse_entry(self._ledger, body, number).data)
            except EntryDamaged:
                break
        return good

    def _take(self, good: Entries) -> None:
        for data in good:
            self._left -= len(data)
            if (self._left < 0 and self._found) or self._next > self._last:
                self._finish()
                return
            self._found.append(data)
            self._next += 1
        if self._next > self._last or self._left <= 0:
            self._finish()
        else:
            self._begin_round()

    def _finish(self) -> None:
        self._round += 1  # ignore later answers
        self._told(self._found if self._found else self._failure(), self._prefer)

    def _failure(self) -> LedgerError:
        said = ", ".join(f"{bookie}: {code.name}" for bookie, code in self._failures.items())
        about = f"entry {self._next} of ledger {self._ledger}"
        if all(code in (Code.DAMAGED, Code.NO_ENTRY, Code.NO_LEDGER) for code in self._failures.values()):
            return LedgerCorrupt(f"{about} is damaged or missing on all its bookies ({said})")
        return LedgerUnreadable(f"{about} cannot be read ({said}): are the region's bookies running?")
