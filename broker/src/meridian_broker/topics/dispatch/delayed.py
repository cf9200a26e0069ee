# SPDX-License-Identifier: Apache-2.0
"""Delayed entries of a Shared or Key_Shared subscription that are not due yet.

The deliver time is in the entry's header, so it survives restarts and is replicated with the entry. A dispatcher that
reads such an entry too early records its position here and reads on. Nothing else is kept and nothing is stored: after
a restart, or after all consumers have left, the dispatcher reads the same entries again from mark-delete.

Positions are kept in one bucket per ``TICK_MS`` of deliver time, 24 bytes each. An entry is never delivered early, and
at most one tick late. At ``DELAYED_MAX`` entries the dispatcher stops reading until some are due.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from meridian_broker.positions.position import Position

if TYPE_CHECKING:
    from meridian_broker.ledgers.scheduling import Scheduler, Timer

TICK_MS: Final = 100
DELAYED_MAX: Final = 200_000
"""Entries per subscription: 5 MB if they share ticks, about 60 MB if each has a tick of its own."""
SLEEP_SECONDS_MAX: Final = 60.0
"""The wall clock may be set while a timer runs, so it is checked at least this often."""


class DelayedEntries:
    """Positions by the tick at which they are due."""

    def __init__(self, limit: int = DELAYED_MAX) -> None:
        self._limit = limit
        self._ticks: list[int] = []
        self._buckets: dict[int, array[int]] = {}
        """Ledger, entry and slot of each entry, flattened."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def full(self) -> bool:
        """Whether no more entries can be recorded."""
        return self._count >= self._limit

    def add(self, deliver_at_ms: int, position: Position, slot: int = 0) -> None:
        """Record an entry. ``slot``: that of its key, for Key_Shared."""
        tick = -(-deliver_at_ms // TICK_MS)
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = array("q")
            heappush(self._ticks, tick)
        bucket.extend((position.ledger, position.entry, slot))
        self._count += 1

    def next_due_ms(self) -> int | None:
        """When the next entry is due, in milliseconds since 1970; None: there is none."""
        return self._ticks[0] * TICK_MS if self._ticks else None

    def take_due(self, now_ms: int, limit: int) -> list[tuple[Position, int]]:
        """At most ``limit`` entries that are due, with their slots, earliest first. They are removed."""
        due: list[tuple[Position, int]] = []
        while self._ticks and self._ticks[0] * TICK_MS <= now_ms and len(due) < limit:
            bucket = self._buckets[self._ticks[0]]
            size = 3 * min(limit - len(due), len(bucket) // 3)
            due += [(Position(bucket[i], bucket[i + 1]), bucket[i + 2]) for i in range(0, size, 3)]
            del bucket[:size]
            if not bucket:
                del self._buckets[heappop(self._ticks)]
        self._count -= len(due)
        return due

    def keep(self, wanted: Callable[[Position], bool]) -> None:
        """Forget all entries except these."""
        kept = 0
        for bucket in self._buckets.values():
            left = array("q")
            for i in range(0, len(bucket), 3):
                if wanted(Position(bucket[i], bucket[i + 1])):
                    left.extend(bucket[i : i + 3])
            bucket[:] = left
            kept += len(left) // 3
        self._count = kept

    def clear(self) -> None:
        self._ticks.clear()
        self._buckets.clear()
        self._count = 0


class Delays(DelayedEntries):
    """Delayed entries with a timer that wakes their dispatcher when some are due."""

    def __init__(self, scheduler: Scheduler, wake: Callable[[], None], limit: int = DELAYED_MAX) -> None:
        super().__init__(limit)
        self._scheduler = scheduler
        self._wake = wake
        self._timer: Timer | None = None
        self._timer_ms = 0

    def add(self, deliver_at_ms: int, position: Position, slot: int = 0) -> None:
        super().add(deliver_at_ms, position, slot)
        self._set_timer(self._scheduler.now_ms())

    def take_due(self, now_ms: int, limit: int) -> list[tuple[Position, int]]:
        due = super().take_due(now_ms, limit)
        if len(due) < limit:  # if there were more, the dispatcher asks again once these are sent
            self._set_timer(now_ms)
        return due

    def _set_timer(self, now_ms: int) -> None:
        """Wake up at the next tick, whatever the clock shows by now: a tick that is skipped here would never wake
        anyone.
        """
        due_ms = self.next_due_ms()
        if due_ms is None or (self._timer is not None and self._timer_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = self._scheduler.later(min(max(due_ms - now_ms, 0) / 1000, SLEEP_SECONDS_MAX), self._timer_ran)

    def _timer_ran(self) -> None:
        self._timer = None
        self._wake()

    def clear(self) -> None:
        super().clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
