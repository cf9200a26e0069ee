# SPDX-License-Identifier: Apache-2.0
"""The order of keys in a Key_Shared subscription, as arithmetic over slots and positions.

Each active slot has a *lane*: its entries in flight (sent, not acknowledged), their consumer, and the entries waiting.
Two rules guarantee that "a key's messages go to one consumer at a time, in order":

- If a slot has waiting entries, new ones wait behind them: nothing overtakes within a slot.
- A slot with entries in flight at one consumer sends nothing to another. So a slot that moved, because a consumer
  joined or left, waits exactly until the old owner's entries are acknowledged or returned (PIP-379).

Other slots are not affected. If a subscription allows out-of-order delivery, neither rule applies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Generic

from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.dispatch.key_ranges import C, Split


class _Lane(Generic[C]):
    """A slot that has entries waiting or in flight."""

    __slots__ = ("holder", "in_flight", "last_sent", "waiting")

    def __init__(self) -> None:
        self.holder: C | None = None
        """The consumer of the entries in flight."""
        self.in_flight = 0
        self.last_sent: Position = EARLIEST
        self.waiting: list[Position] = []
        """A heap."""


class Lanes(Generic[C]):
    """All lanes of a subscription. A position is waiting, in flight or unknown here."""

    def __init__(self, split: Split[C], out_of_order: bool) -> None:
        self.split = split
        self.waiting = 0
        """Waiting positions, in all slots."""
        self._out_of_order = out_of_order
        self._lanes: dict[int, _Lane[C]] = {}
        self._heads: dict[C, list[tuple[Position, int]]] = {}
        """Per consumer a heap of (first waiting position, slot) of its slots that are not draining. May hold stale
        pairs.
        """

    # -- consumers -----------------------------------------------------------------------------------------------

    def join(self, consumer: C, name: str, ranges: tuple[tuple[int, int], ...] = ()) -> None:
        """:raises ConsumerAssignError: see ``Split.join``."""
        self.split.join(consumer, name, ranges)
        self._heads[consumer] = []
        self._sort_anew()

    def leave(self, consumer: C, unacked: Iterable[tuple[Position, int]]) -> None:
        """``unacked``: what was in flight to it, with slots. It now waits for whichever consumer owns the slot."""
        self.split.leave(consumer)
        del self._heads[consumer]
        for position, slot in unacked:
            self._lower(self._lanes[slot])
            self._wait(slot, position)
        self._sort_anew()

    def _sort_anew(self) -> None:
        """Owners changed: rebuild the heaps of sendable slots."""
        for consumer in self._heads:
            self._heads[consumer] = []
        for slot, lane in self._lanes.items():
            owner = self.split.owner(slot) if lane.waiting else None
            if owner is not None and self._is_free(lane, owner):
                self._heads[owner].append((lane.waiting[0], slot))
        for heads in self._heads.values():
            heapify(heads)

    def _is_free(self, lane: _Lane[C], owner: C) -> bool:
        return self._out_of_order or lane.holder is None or lane.holder is owner

    # -- entries -------------------------------------------------------------------------------------------------

    def consumer_for(self, slot: int) -> C | None:
        """The consumer that may get a new entry of this slot now; None: the entry has to wait."""
        lane = self._lanes.get(slot)
        owner = self.split.owner(slot)
        if lane is None or owner is None:
            return owner
        if not self._is_free(lane, owner) or (lane.waiting and not self._out_of_order):
            return None
        return owner

    def hold(self, slot: int, position: Position) -> None:
        """The entry has to wait: its consumer is full, the slot is draining, or earlier entries of the slot wait."""
        self._wait(slot, position)
        self._show(slot)

    def sent(self, slot: int, position: Position, consumer: C) -> None:
        """An entry that was not waiting is now in flight."""
        lane = self._lanes.get(slot)
        if lane is None:
            lane = self._lanes[slot] = _Lane()
        lane.holder = consumer
        lane.in_flight += 1
        lane.last_sent = max(lane.last_sent, position)

    def acked(self, slot: int) -> None:
        """An entry in flight was acknowledged."""
        lane = self._lanes[slot]
        self._lower(lane)
        if lane.in_flight == 0:
            if lane.waiting:
                self._show(slot)
            else:
                del self._lanes[slot]

    def given_back(self, slot: int, position: Position) -> None:
        """An entry in flight was returned: it is sent again before later entries of its slot."""
        self._lower(self._lanes[slot])
        self.hold(slot, position)

    def _lower(self, lane: _Lane[C]) -> None:
        lane.in_flight -= 1
        if lane.in_flight == 0:
            lane.holder = None

    def _wait(self, slot: int, position: Position) -> None:
        lane = self._lanes.get(slot)
        if lane is None:
            lane = self._lanes[slot] = _Lane()
        heappush(lane.waiting, position)
        self.waiting += 1

    def _show(self, slot: int) -> None:
        """Offer the slot's first waiting entry to its owner, unless the slot is draining."""
        lane = self._lanes[slot]
        owner = self.split.owner(slot)
        if lane.waiting and owner is not None and self._is_free(lane, owner):
            heappush(self._heads[owner], (lane.waiting[0], slot))

    def first_waiting(self, consumer: C) -> tuple[Position, int] | None:
        """The oldest entry that may be sent to ``consumer`` now, with its slot; None: there is none."""
        heads = self._heads[consumer]
        while heads:
            position, slot = heads[0]
            lane = self._lanes.get(slot)
            if lane is not None and lane.waiting and lane.waiting[0] == position and self._is_free(lane, consumer):
                return heads[0]
            heappop(heads)
        return None

    def positions(self) -> set[Position]:
        """All waiting positions."""
        return {position for lane in self._lanes.values() for position in lane.waiting}

    def take(self, slot: int, position: Position) -> bool:
        """Remove the slot's first waiting entry, to send it or because it is acked. False: another entry is first by
        now.
        """
        lane = self._lanes.get(slot)
        if lane is None or not lane.waiting or lane.waiting[0] != position:
            return False
        heappop(lane.waiting)
        self.waiting -= 1
        assert self.waiting >= 0, "more is taken than is waiting"
        if lane.waiting:
            self._show(slot)
        elif lane.in_flight == 0:
            del self._lanes[slot]
        return True

    # -- acknowledgements of others ----------------------------------------------------------------------------------

    def passed(self, mark_delete: Position) -> None:
        """Everything up to ``mark_delete`` is acknowledged, here or elsewhere: none of it waits or is in flight any
        more.
        """
        for slot, lane in list(self._lanes.items()):
            if lane.waiting and lane.waiting[0] <= mark_delete:
                kept = [position for position in lane.waiting if position > mark_delete]
                self.waiting -= len(lane.waiting) - len(kept)
                heapify(kept)
                lane.waiting = kept
            if lane.in_flight and lane.last_sent <= mark_delete:
                lane.holder = None
            if not lane.waiting and not lane.in_flight:
                del self._lanes[slot]
        self._sort_anew()

    def keep(self, wanted: Callable[[Position], bool]) -> None:
        """Forget all waiting entries except these; the rest is read again."""
        for slot, lane in list(self._lanes.items()):
            kept = [position for position in lane.waiting if wanted(position)]
            self.waiting -= len(lane.waiting) - len(kept)
            heapify(kept)
            lane.waiting = kept
            if not kept and not lane.in_flight:
                del self._lanes[slot]
        self._sort_anew()

    def clear(self) -> None:
        """Forget everything, because it is read again."""
        self._lanes.clear()
        self.waiting = 0
        self._sort_anew()
