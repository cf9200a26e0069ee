# SPDX-License-Identifier: Apache-2.0
"""Another topic's log, read under the same positions; nothing is ever written to it (PIP-180).

The view shares its source's chain of ledgers and what is known of them: indexes, publish times, damage. So a roll-over,
a trim or an index appears in both at the same time, and costs memory once. The view's own is only the end that its
readers were told. It follows the source's and never goes back.

A view is empty while its source does not exist. Its end stays where it was: ledger ids only grow (R1), so whatever a
source of the same name stores later lies after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from meridian_broker.ledgers.chapters import CacheBudget, LogLimits, Span
from meridian_broker.ledgers.followed import FollowedLog, NoRecord, not_its_own
from meridian_broker.ledgers.index import LedgerIndex
from meridian_broker.ledgers.log import TopicLog
from meridian_broker.ledgers.notifying import notify_all
from meridian_broker.ledgers.pending import Waiting
from meridian_broker.ledgers.reading import Stored
from meridian_broker.ledgers.scheduling import Scheduler
from meridian_broker.ledgers.store import LedgerError, LedgerNotFound, LedgerStore
from meridian_broker.positions.position import Position

_LIMITS: Final = LogLimits()


class LogView(TopicLog):
    """See the module's text. ``attach`` it to its source, if there is one, before anything reads it."""

    def __init__(self, region: str, store: LedgerStore, scheduler: Scheduler, cache: CacheBudget) -> None:
        super().__init__(region, store, NoRecord(), 0, _LIMITS, scheduler, cache)
        self._source: TopicLog | None = None
        self._unwatch: Callable[[], None] = lambda: None
        self.skipped_entries = 0
        """Entries deleted while a subscription was still owed them, summed over subscriptions, since the view was
        made."""

    # -- its source ----------------------------------------------------------------------------------------------

    def attach(self, source: TopicLog) -> None:
        """Become a view of this log, now and as it grows."""
        self.detach()
        self._source = source
        self._chapters, self._ids = source.chain
        self.damage, self.holes = source.damage, source.holes
        self.last_origin, self.joined = source.last_origin, source.joined
        self._unwatch = source.watch(self._follow)
        self.last_confirmed = max(self.last_confirmed, source.last_confirmed)

    def go_on(self, source: TopicLog) -> bool:
        """Become a view of this log, the successor of the source's log after that was closed.

        :returns: False: it lacks something that readers were told of. Nothing was changed.
        """
        if not self._is_all_in(source):
            return False
        before = self.last_confirmed
        self.attach(source)
        if self.last_confirmed > before:
            notify_all(tuple(self._watchers))
        return True

    def _is_all_in(self, source: TopicLog) -> bool:
        stored = {ledger: entries for ledger, entries, _ in source.counts()}
        last = self.last_confirmed
        return all(
            stored.get(ledger, 0) >= (min(entries, last.entry + 1) if ledger == last.ledger else entries)
            for ledger, entries, _ in self.counts()
            if ledger <= last.ledger
        )

    def detach(self) -> None:
        """The source is gone, and with it all that the view had."""
        self._unwatch()
        self._unwatch = lambda: None
        source, self._source = self._source, None
        if source is not None:
            self._own_appended = source.last_own
            self._chapters, self._ids = [], []
            self._repeated.forget()

    @property
    def is_attached(self) -> bool:
        """Whether there is a source."""
        return self._source is not None and not (isinstance(self._source, FollowedLog) and not self._source.exists)

    @property
    def is_alone(self) -> bool:
        """Whether it has no source and will not notice by itself when there is one."""
        return self._source is None

    @property
    def resets(self) -> int:
        """How often entries were not read ahead of its subscriptions (``FollowedLog.reset_behind``)."""
        return self._source.resets if isinstance(self._source, FollowedLog) else 0

    def source_confirmed(self, position: Position) -> None:
        """The source's broker says that everything up to here is confirmed. A source that this one serves knows."""
        if isinstance(self._source, FollowedLog):
            self._source.told_confirmed(position)

    def has_read(self, position: Position) -> bool:
        """Whether there is nothing up to here that it has not read. What is not stored any more counts as read."""
        source = self._source
        return position <= self.last_confirmed or (isinstance(source, FollowedLog) and source.is_past(position))

    @property
    def follows(self) -> bool:
        """Whether another broker serves the source."""
        return isinstance(self._source, FollowedLog)

    def skipped(self, entries: int) -> None:
        """Entries that subscriptions are owed are about to be deleted."""
        self.skipped_entries += entries

    def _follow(self) -> None:
        if self._source is not None and self._source.last_confirmed > self.last_confirmed:
            self.last_confirmed = self._source.last_confirmed
            notify_all(tuple(self._watchers))

    # -- reading -------------------------------------------------------------------------------------------------

    def tail_after(self, position: Position, max_entries: int, max_bytes: int) -> list[Stored] | None:
        """From the source's memory."""
        if self._source is None:
            return super().tail_after(position, max_entries, max_bytes)
        found = self._source.tail_after(position, max_entries, max_bytes)
        if found is not None or (following := self.after(position)) is None:
            return found
        return self._kept(following, max_entries, max_bytes)

    async def read_after(self, position: Position, max_entries: int, max_bytes: int) -> list[Stored]:
        """As in any log; if the source trims a ledger while it is read, what follows it is read instead."""
        while True:
            following = self.after(position)
            try:
                return await super().read_after(position, max_entries, max_bytes)
            except LedgerNotFound:
                if following is None or self.holds(following):
                    raise

    async def reload_index(self, ledger: int) -> LedgerIndex:
        """The source's index. :raises LedgerError: there is none, or it cannot be read."""
        return await (super().reload_index(ledger) if self._source is None else self._source.reload_index(ledger))

    def tell_damaged(self, new: int, why: str | None) -> None:
        """The source repairs the entries, which both read."""
        if self._source is not None:
            self._source.tell_damaged(new, why)

    def spans(self) -> list[Span]:
        """The source's ledgers."""
        return [] if self._source is None else self._source.spans()

    @property
    def last_own(self) -> Position:
        """The source's last own entry."""
        return self._own_appended if self._source is None else self._source.last_own

    @property
    def staying_from(self) -> int:
        """As for the source."""
        return -1 if self._source is None else self._source.staying_from

    # -- what it does not do -------------------------------------------------------------------------------------

    def _wait_for_ledger(self, _: Waiting) -> None:
        """Any append would need a ledger. :raises LedgerError: always."""
        raise not_its_own()

    async def roll(self) -> None:
        """:raises LedgerError: always."""
        raise not_its_own()

    async def trim(self, *_: object) -> list[int]:
        """Does nothing: only the source deletes ledgers."""
        return []

    def cool_indexes(self, below: int) -> None:
        """Does nothing, as the source drops indexes, unless another broker serves it."""
        if isinstance(self._source, FollowedLog):
            self._source.cool_indexes(below)

    def drop_tail(self) -> None:
        """Drop what it read itself; the tail is the source's."""
        self._repeated.forget()

    async def close(self) -> None:
        """Detach from the source, which is neither sealed nor written."""
        self.failure = self.failure or LedgerError("the topic is being closed: look its owner up again")
        self._answer()
        self.detach()

    async def delete(self) -> None:
        """Detach from the source. Nothing is deleted."""
        await self.close()
