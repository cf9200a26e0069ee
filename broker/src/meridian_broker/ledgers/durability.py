# SPDX-License-Identifier: Apache-2.0
"""Which of a log's entries are durable in the store, and who waits for them.

The store confirms entries one by one, in order. All that it confirmed in one turn of the loop is processed after that
turn: the index, the cached tail and the end of the log move on, then the callbacks of those entries run, then the log's
watchers. If the store refuses an entry, the log fails for good, and every waiter gets the error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from meridian_broker.ledgers.chapters import CacheBudget, LogLimits
from meridian_broker.ledgers.notifying import notify_all
from meridian_broker.ledgers.pending import Pending, Waiting
from meridian_broker.ledgers.reading import ReadableLog
from meridian_broker.ledgers.scheduling import Scheduler
from meridian_broker.ledgers.store import FollowedWriter, LedgerError, LedgerStore, Writer
from meridian_broker.positions.position import Position


class DurableLog(ReadableLog):
    """A log whose entries become durable some time after the store got them."""

    def __init__(
        self, region: str, store: LedgerStore, cache: CacheBudget, scheduler: Scheduler, limits: LogLimits
    ) -> None:
        super().__init__(region, store, cache, scheduler)
        self._limits = limits
        self._writer: Writer | None = None
        self._waiting: deque[Waiting] = deque()
        self._pending: deque[Pending] = deque()
        self._durable = -1
        """The last entry of the writer's ledger that the store reported durable."""
        self._refusal: LedgerError | None = None
        self._watchers: list[Callable[[], None]] = []
        self._waking = False
        self.failure: LedgerError | None = None
        self.appended_bytes = 0
        self._asked = 0
        self._finished = 0
        self._awaiting: deque[tuple[int, Callable[[LedgerError | None], None]]] = deque()

    def _on_durable(self, result: int | LedgerError) -> None:
        """The store's result for one entry. All results of one turn are processed together, after it."""
        if isinstance(result, int):
            self._durable = result
        elif self._refusal is None:
            self._refusal = result
        if not self._waking:
            self._waking = True
            self._scheduler.defer(self._wake)

    def _take_durable(self) -> None:
        """Publish what became durable, then call all waiting callbacks; an exception from one is raised at the end."""
        mistake: Exception | None = None
        told: list[Pending] = []
        while self._pending and self._pending[0].first <= self._durable:
            count = self._durable + 1 - self._pending[0].first
            told.append(self._pending[0].cut(count) or self._pending.popleft())
        if told:
            index, chapter = self._index, self._chapters[-1]
            assert index is not None
            size = 0
            for group in told:
                index.add_all(group.facts)
                self._tail.update(zip(range(group.first, group.first + len(group.entries)), group.entries, strict=True))
                size += sum(map(len, group.entries))
            chapter.entries = self._durable + 1
            chapter.size += size
            self.appended_bytes += size
            self._tail_bytes += size
            self._cache.used += size
            self.last_confirmed = Position(chapter.ledger_id, self._durable)
            for group in told:
                self._finished += len(group.entries)
                try:
                    group.done(group.tokens, Position(chapter.ledger_id, group.first))
                except Exception as raised:
                    mistake = raised
        if self._refusal is not None:
            refusal = self._refusal
            self._fail(refusal)
            failed, self._pending = self._pending, deque()
            notify_all([partial(group.done, group.tokens) for group in failed], refusal)
        if self._awaiting:
            self._answer()
        if mistake is not None:
            raise mistake

    def when_durable(self, callback: Callable[[LedgerError | None], None]) -> None:
        """Call ``callback`` once everything appended so far is durable (at once if it is), or with the error that
        prevents it.
        """
        self._awaiting.append((self._asked, callback))
        self._answer()

    def _answer(self) -> None:
        due: list[Callable[[], None]] = []
        while self._awaiting and (self._awaiting[0][0] <= self._finished or self.failure is not None):
            asked, callback = self._awaiting.popleft()
            due.append(partial(callback, None if asked <= self._finished else self.failure))
        notify_all(due)

    def _wake(self) -> None:
        self._waking = False
        try:
            self._take_durable()
        finally:
            if self._tail_bytes > self._limits.tail_bytes:
                self._shrink_tail(self._limits.tail_bytes)
            if self._cache.used > self._cache.limit:
                self._shrink_tail(max(0, self._tail_bytes - (self._cache.used - self._cache.limit)))
            notify_all(tuple(self._watchers))

    def announce(self) -> None:
        """Tell brokers that follow this log what is durable."""
        if isinstance(self._writer, FollowedWriter):
            self._writer.announce()

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback``, once per turn of the loop, after entries became durable. Returns a function that stops
        this.
        """
        self._watchers.append(callback)

        def unwatch() -> None:
            if callback in self._watchers:
                self._watchers.remove(callback)

        return unwatch

    def _fail(self, error: LedgerError) -> None:
        if self.failure is None:
            self.failure = error
            self._writer = None
            self._forget_tail()
            self._scheduler.defer(lambda: self._fail_waiting(error))
            self._answer()
            notify_all(tuple(self._watchers))

    def _fail_waiting(self, error: LedgerError) -> None:
        waiting, self._waiting = self._waiting, deque()
        notify_all([partial(each.done, each.tokens) for each in waiting], error)
