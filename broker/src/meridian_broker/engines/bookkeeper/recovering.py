# SPDX-License-Identifier: Apache-2.0
"""Recovery: closes a ledger whose writer is gone, or presumed gone, so that nothing confirmed is lost.

1. The metadata becomes IN_RECOVERY, with the new owner's epoch: the writer can no longer change the ensemble.
2. The bookies of the last segment are *fenced*: they refuse the writer's adds. Once fewer than an ack quorum are left
   unfenced, the writer can confirm nothing more. The LACs in their last entries show what was surely confirmed.
3. After that, each later entry is read. One that any bookie has may have been confirmed: the same bytes are added again
   until an ack quorum has them. Once so many bookies lack an entry that no ack quorum can have it, neither it nor any
   later one was confirmed: the ledger ends before it. If neither is certain, the bookies are asked again; nothing is
   ever guessed.
4. The metadata becomes CLOSED, with the last entry.

Bookies do most of a recovery's work, so they are asked little: the last entries that they returned in step 2 are not
read again, those before them are read from one bookie first, and only one entry after them from all, which usually
shows the end. Each read also fences its bookie, so one that lacked an entry never gets it from the writer later.
Bookies lost during recovery are replaced in memory, and the metadata is written with step 4. Reads go to the bookies
that the metadata named at the beginning, because a replacement lacks entries for another reason.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from typing import Final

from meridian_broker.engines.bookkeeper.adding import Adding
from meridian_broker.engines.bookkeeper.entries import EntryDamaged, parse_entry
from meridian_broker.engines.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from meridian_broker.engines.bookkeeper.packets import LAST_ENTRY, Answer, Code, Flags, add_request, master_key
from meridian_broker.engines.bookkeeper.ports import (
    AddLimits,
    AskPort,
    LinkPort,
    MetadataPort,
    Packet,
    Versioned,
)
from meridian_broker.engines.bookkeeper.question import ABSENT, Found, Question
from meridian_broker.engines.bookkeeper.updating import Updating
from meridian_broker.ledgers.store import LedgerError, LedgerFenced, LedgerUnreadable

WINDOW: Final = 256
"""Entries read at once."""
WINDOW_BYTES: Final = 8 << 20
"""Bytes of entries that were read and are not yet on an ack quorum again."""
ASK_AGAIN_MS: Final = 300
ASKED_MAX: Final = 20
"""Attempts of a read before the recovery is abandoned."""
STARTS_MAX: Final = 5
"""How often it may start, including restarts because another client changed the metadata."""

_FENCING: Final = Flags.FENCE | Flags.HIGH_PRIORITY


class Recovering:
    """See the module's text."""

    def __init__(
        self,
        ledger: int,
        fence: int,
        link: LinkPort,
        ask: AskPort,
        metadata: MetadataPort,
        limits: AddLimits,
        told: Callable[[LedgerMetadata | LedgerError], None],
        *,
        known: Versioned | None = None,
        now_ms: int,
    ) -> None:
        """
        :param fence: the new owner's epoch.
        :param told: called with the closed ledger's metadata, or why it could not be closed: LedgerFenced if a newer
            owner has it.
        :param known: the metadata, just read; None: read it first.
        """
        self.ledger = ledger
        self._fence = fence
        self._link = link
        self._ask = ask
        self._metadata_port = metadata
        self._limits = limits
        self._tell = told
        self._known = known
        self._now_ms = now_ms
        self._starts = 0
        self._is_done = False
        self.adding: Adding | None = None

    def start(self) -> None:
        """Begin, or start over: all but the fences on the bookies is forgotten."""
        self._starts += 1
        self.adding = None
        self._questions: dict[int, Question] = {}
        self._unfenced: set[str] = set()
        self._heard = -1
        self._last_entries: dict[int, Found] = {}
        self._furthest = ""
        known, self._known = self._known, None
        Updating(self.ledger, self._metadata_port, known, self._begin, self._begun).start()

    def tick(self, now_ms: int) -> None:
        self._now_ms = now_ms
        if self.adding is not None:
            self.adding.tick(now_ms)

    # -- from the shell, for ``adding`` --------------------------------------------------------------------------

    @property
    def ensemble(self) -> tuple[str, ...]:
        """The bookies that entries are added to again."""
        return () if self.adding is None else self.adding.ensemble

    @property
    def is_idle(self) -> bool:
        return self._is_done

    def acked(self, bookie: str, entries: list[int]) -> None:
        if self.adding is not None:
            self.adding.acked(bookie, entries)

    def answered(self, bookie: str, entry: int, code: Code) -> None:
        """FENCED answers an entry of the earlier writer, if that was in this process: the read that fenced the bookie
        overtook the entry. Bookies never refuse a recovery's own entries that way."""
        if self.adding is not None and code != Code.FENCED:
            self.adding.answered(bookie, entry, code)

    def room(self, bookie: str) -> None:
        if self.adding is not None:
            self.adding.room(bookie)

    def lost(self, bookie: str, why: str) -> None:
        if self.adding is not None:
            self.adding.lost(bookie, why)

    def stop(self, error: LedgerError) -> None:
        """Abandon the recovery."""
        if not self._is_done:
            self._is_done = True
            self._tell(error)

    # -- 1: the metadata -----------------------------------------------------------------------------------------

    def _begin(self, metadata: LedgerMetadata) -> LedgerMetadata:
        fence = metadata.fence
        if fence is None:
            raise LedgerUnreadable(f"ledger {self.ledger} was not created by Meridian, so it is not recovered")
        if fence > self._fence:
            raise LedgerFenced(
                f"ledger {self.ledger} belongs to owner epoch {fence}, and {self._fence} is older: close the topic"
            )
        if metadata.state is LedgerState.CLOSED:
            return metadata
        if not metadata.is_readable:
            raise LedgerUnreadable(f"ledger {self.ledger} does not use CRC32C checksums, so it is not recovered")
        if metadata.write_quorum != metadata.ensemble_size:
            raise LedgerUnreadable(
                f"ledger {self.ledger} is striped over {metadata.ensemble_size} bookies with a write quorum of "
                f"{metadata.write_quorum}: this client does not recover striped ledgers"
            )
        return metadata.in_recovery(self._fence)

    def _begun(self, outcome: Versioned | LedgerError) -> None:
        if self._is_done:
            return
        if isinstance(outcome, LedgerError):
            self.stop(outcome)
        elif outcome.metadata.state is LedgerState.CLOSED:
            self._done(outcome.metadata)
        else:
            self._stored = outcome
            self._working = outcome.metadata
            self._key = master_key(outcome.metadata.password)
            self._last_segment = outcome.metadata.segments[-1]
            self._heard = self._last_segment.first - 1
            self._unfenced = set(self._last_segment.ensemble)
            self._fence_all(self._starts, 1)

    # -- 2: fence ------------------------------------------------------------------------------------------------

    def _fence_all(self, start: int, asked: int) -> None:
        if self._is_over(start) or self.adding is not None:
            return
        if asked > ASKED_MAX:
            self.stop(self._unknown(f"{', '.join(sorted(self._unfenced))} did not answer", "fenced"))
            return
        for bookie in sorted(self._unfenced):
            self._ask.read(bookie, LAST_ENTRY, _FENCING, partial(self._fenced, start, bookie))
        self._ask.later(ASK_AGAIN_MS, partial(self._fence_all, start, asked + 1))

    def _fenced(self, start: int, bookie: str, answer: Answer) -> None:
        if self._is_over(start) or self.adding is not None:
            return
        if answer.code == Code.OK:
            try:
                last = parse_entry(self.ledger, answer.bodies[0])
            except EntryDamaged:
                pass  # the bookie is fenced; the other bookies, or step 3, show how far the writer got
            else:
                self._heard = max(self._heard, last.last_confirmed)
                if last.entry > max(self._last_entries, default=-1):
                    self._furthest = bookie
                self._last_entries[last.entry] = last, answer.bodies[0]
        elif answer.code not in ABSENT:
            return
        self._unfenced.discard(bookie)
        if len(self._unfenced) < self._working.ack_quorum:
            self._start_adding()

    def _start_adding(self) -> None:
        working = self._working
        self.adding = Adding(
            *(self.ledger, self._link, self._store_ensemble, self._last_segment.ensemble, working.ack_quorum),
            confirmed=self._heard,
            limits=self._limits,
            now_ms=self._now_ms,
        )
        self._end: int | None = None
        self._newest = max(self._heard, *self._last_entries, -1)
        """The newest entry that a bookie is known to have."""
        self._beyond = 1
        """How many entries after it are asked for."""
        self._window_bytes = 0
        self._length = 0
        # The last entry known to be confirmed shows the ledger's length so far; it is not added again.
        self._next_question = max(self._heard, 0)
        self._go_on()

    # -- 3: find, and add again ----------------------------------------------------------------------------------

    def _ask_more(self) -> None:
        """Ask for more entries once half of those asked for are found: the rest may already show the end."""
        if len(self._questions) > WINDOW // 2:
            return
        while (
            self._end is None
            and len(self._questions) < WINDOW
            and self._next_question <= self._newest + self._beyond
            and (self._window_bytes < WINDOW_BYTES or not self._questions)
        ):
            entry = self._next_question
            self._next_question += 1
            question = Question(self._stored.metadata.bookies_of(entry), self._working.ack_quorum)
            self._questions[entry] = question
            if (found := self._last_entries.get(entry)) is not None:
                question.found = found
                self._window_bytes += len(found[1])
                continue
            if entry < self._newest and self._furthest in question.waiting:
                question.alone = self._furthest
            self._ask_for(self._starts, entry)

    def _ask_for(self, start: int, entry: int) -> None:
        question = None if self._is_over(start) else self._questions.get(entry)
        if question is None or question.is_answered:
            return
        question.asked += 1
        if question.asked > ASKED_MAX:
            self.stop(
                self._unknown(f"{', '.join(sorted(question.waiting))} gave no clear answer", f"asked for entry {entry}")
            )
            return
        if question.asked > 1:
            question.alone = ""
        self._read(entry, {question.alone} if question.alone else question.waiting)
        self._ask.later(ASK_AGAIN_MS, partial(self._ask_for, start, entry))

    def _read(self, entry: int, bookies: Set[str]) -> None:
        start = self._starts
        for bookie in sorted(bookies):
            self._ask.read(bookie, entry, _FENCING, partial(self._answered, start, entry, bookie))

    def _answered(self, start: int, entry: int, bookie: str, answer: Answer) -> None:
        question = None if self._is_over(start) else self._questions.get(entry)
        if question is None or question.is_answered:
            return
        if question.take(self.ledger, entry, bookie, answer):
            if question.found is not None:
                self._window_bytes += len(question.found[1])
                if entry > self._newest:
                    self._newest, self._beyond = entry, min(self._beyond * 2, WINDOW)
            self._go_on()
        elif bookie == question.alone:
            question.alone = ""
            self._read(entry, question.waiting - {bookie})

    def _go_on(self) -> None:
        """Add what was found, in order, up to the end, and ask for more before that."""
        asked = -1
        while asked < self._next_question and not self._is_done:
            asked = self._next_question
            self._add_found()
            if self._end is None and not self._is_done:
                self._ask_more()

    def _add_found(self) -> None:
        adding = self.adding
        assert adding is not None
        while self._questions:
            entry = next(iter(self._questions))
            question = self._questions[entry]
            if not question.is_answered:
                return
            if question.found is None:
                if entry <= self._heard:
                    self.stop(self._lost(entry))
                    return
                self._end = entry - 1
                self._questions.clear()
                adding.when_idle(partial(self._close, self._starts))
                return
            stored, body = question.found
            self._length = stored.length
            del self._questions[entry]
            if entry <= self._heard:
                self._window_bytes -= len(body)
            else:
                head = add_request(self._key, len(body), Flags.RECOVERY | Flags.HIGH_PRIORITY)
                adding.add(Packet(head, body), partial(self._added, len(body)))

    def _added(self, size: int, outcome: int | LedgerError) -> None:
        if isinstance(outcome, LedgerError):
            self.stop(outcome)
            return
        self._window_bytes -= size
        if self._end is None and not self._is_done:
            self._go_on()

    def _store_ensemble(self, first: int, ensemble: tuple[str, ...]) -> None:
        assert self.adding is not None
        self._working = self._working.with_ensemble(first, ensemble)
        self.adding.ensemble_stored()

    # -- 4: close ------------------------------------------------------------------------------------------------

    def _close(self, start: int) -> None:
        if self._is_over(start):
            return
        assert self._end is not None
        wanted = self._working.closed(self._end, self._length)

        def close(metadata: LedgerMetadata) -> LedgerMetadata:
            if metadata == self._stored.metadata:
                return wanted
            if metadata.state is LedgerState.CLOSED and (metadata.fence or 0) <= self._fence:
                return metadata
            if (metadata.fence or 0) > self._fence:
                raise LedgerFenced(
                    f"ledger {self.ledger} was taken over by owner epoch {metadata.fence}: close the topic"
                )
            raise _ChangedMeanwhile(f"the metadata of ledger {self.ledger} keeps changing while it is recovered")

        Updating(self.ledger, self._metadata_port, self._stored, close, partial(self._closed, start)).start()

    def _closed(self, start: int, outcome: Versioned | LedgerError) -> None:
        if self._is_over(start):
            return
        if isinstance(outcome, _ChangedMeanwhile) and self._starts < STARTS_MAX:
            self.start()
        elif isinstance(outcome, LedgerError):
            self.stop(outcome)
        else:
            self._done(outcome.metadata)

    def _done(self, metadata: LedgerMetadata) -> None:
        self._is_done = True
        self._tell(metadata)

    def _is_over(self, start: int) -> bool:
        """Whether a callback belongs to a recovery that has ended or started over."""
        return self._is_done or start != self._starts

    def _unknown(self, who: str, what: str) -> LedgerError:
        return LedgerUnreadable(
            f"ledger {self.ledger} cannot be recovered: {who} when {what}, and without them it is unknown what was "
            "confirmed: are the region's bookies running?"
        )

    def _lost(self, entry: int) -> LedgerError:
        return LedgerUnreadable(
            f"ledger {self.ledger} cannot be recovered: entry {entry} was confirmed, and none of its bookies has it: "
            "was a bookie's disk wiped?"
        )


class _ChangedMeanwhile(LedgerError):
    """Another client wrote the metadata during the recovery."""
