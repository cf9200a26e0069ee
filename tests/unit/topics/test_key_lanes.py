# SPDX-License-Identifier: Apache-2.0
"""The owners of keys, and the order of keys, against a model that keeps everything in plain lists."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.positions.position import Position
from meridian_broker.topics.dispatch.key_lanes import Lanes
from meridian_broker.topics.dispatch.key_ranges import (
    RANGES_MAX,
    SLOTS,
    AutoSplit,
    KeySharedPolicy,
    StickyRanges,
    slot_of,
)
from meridian_broker.topics.errors import ConsumerAssignError

names = st.lists(st.text(max_size=5), min_size=1, max_size=8)


# -- owners ------------------------------------------------------------------------------------------------------


@settings(max_examples=500)
@given(names, st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=50), st.data())
def test_a_leaving_consumer_moves_only_its_own_slots(joined: list[str], slots: list[int], data: st.DataObject) -> None:
    split: AutoSplit[int] = AutoSplit()
    for consumer, name in enumerate(joined):
        split.join(consumer, name)
    before = {slot: split.owner(slot) for slot in slots}
    leaver = data.draw(st.sampled_from(range(len(joined))))
    split.leave(leaver)
    for slot, owner in before.items():
        after = split.owner(slot)
        if len(joined) == 1:
            assert after is None
        elif owner == leaver:
            assert after not in (None, leaver)
        else:
            assert after == owner
    split.join(99, joined[leaver])  # it returns as a new object and gets the same slots
    if len(set(joined)) == len(joined):
        assert {slot: 99 if owner == leaver else owner for slot, owner in before.items()} == {
            slot: split.owner(slot) for slot in slots
        }


def test_slots_are_split_about_evenly() -> None:
    split: AutoSplit[str] = AutoSplit()
    for name in ("a", "b", "c", "c2"):
        split.join(name, name[0])  # two consumers share a name
    counts = Counter(split.owner(slot) for slot in range(SLOTS))
    assert set(counts) == {"a", "b", "c", "c2"}
    assert min(counts.values()) > SLOTS / 4 * 0.6


def test_slot_zero_is_never_used() -> None:
    assert slot_of(0) == 1
    assert slot_of(SLOTS) == 1
    assert slot_of(SLOTS - 1) == SLOTS - 1


ranges = st.lists(
    st.tuples(st.integers(-2, 40), st.integers(-2, 40)) | st.tuples(st.integers(0, SLOTS), st.integers(0, SLOTS)),
    max_size=4,
).map(tuple)


@settings(max_examples=500)
@given(st.lists(st.tuples(st.integers(0, 3), ranges), max_size=10))
def test_sticky_ranges_are_those_their_consumers_named(steps: list[tuple[int, tuple[tuple[int, int], ...]]]) -> None:
    split: StickyRanges[int] = StickyRanges()
    owned: dict[int, tuple[tuple[int, int], ...]] = {}
    for consumer, wanted in steps:
        if consumer in owned:
            split.leave(consumer)
            del owned[consumer]
            continue
        taken = sorted(itertools.chain(wanted, *owned.values()))
        valid = (
            wanted
            and all(0 <= start <= end < SLOTS for start, end in wanted)
            and all(end < start for (_, end), (start, _) in itertools.pairwise(taken))
        )
        if valid:
            split.join(consumer, "c", wanted)
            owned[consumer] = wanted
        else:
            with pytest.raises(ConsumerAssignError):
                split.join(consumer, "c", wanted)
        edges = {slot for start, end in wanted for slot in (start - 1, start, end, end + 1)}
        for slot in {0, 1, 20, SLOTS - 1, *edges}:
            owners = [one for one, named in owned.items() if any(start <= slot <= end for start, end in named)]
            assert split.owner(slot) == (owners[0] if owners else None)


def test_a_sticky_consumer_names_a_bounded_number_of_ranges() -> None:
    split: StickyRanges[int] = StickyRanges()
    with pytest.raises(ConsumerAssignError):
        split.join(1, "c", tuple((slot, slot) for slot in range(RANGES_MAX + 1)))
    split.join(1, "c", tuple((slot, slot) for slot in range(RANGES_MAX)))


def test_compatible_policies() -> None:
    usual = KeySharedPolicy()
    assert usual.fits(KeySharedPolicy(ranges=((0, 1),)))
    assert not usual.fits(KeySharedPolicy(sticky=True))
    assert not usual.fits(KeySharedPolicy(out_of_order=True))


# -- lanes -------------------------------------------------------------------------------------------------------

SLOTS_USED = 5


class LanesWorld:
    """Lanes as a dispatcher uses them, with what must hold for them."""

    def __init__(self, sizes: list[int]) -> None:
        self.lanes: Lanes[int] = Lanes(AutoSplit(), out_of_order=False)
        self.log = [Position(1, entry) for entry in range(len(sizes))]
        self.slots = {Position(1, entry): 1 + 13_107 * slot for entry, slot in enumerate(sizes)}
        self.read = 0
        self.waiting: set[Position] = set()
        self.in_flight: dict[Position, int] = {}
        self.done: set[Position] = set()
        self.consumers: list[int] = []
        self.last = 0

    def deliver(self, consumer: int, position: Position) -> None:
        slot = self.slots[position]
        holders = {who for other, who in self.in_flight.items() if self.slots[other] == slot}
        assert holders <= {consumer}, f"slot {slot} has an owner with messages in flight already"
        assert consumer == self.lanes.split.owner(slot)
        overtaken = [one for one in self.waiting if self.slots[one] == slot and one < position]
        assert not overtaken, f"{position} overtakes {overtaken}"
        self.waiting.discard(position)
        self.in_flight[position] = consumer
        self.lanes.sent(slot, position, consumer)

    def join(self, _: int) -> None:
        if len(self.consumers) < 4:
            self.last += 1
            self.consumers.append(self.last)
            self.lanes.join(self.last, f"c{self.last}")

    def leave(self, choice: int) -> None:
        if self.consumers:
            consumer = self.consumers.pop(choice % len(self.consumers))
            unacked = [(one, self.slots[one]) for one, who in self.in_flight.items() if who == consumer]
            for position, _ in unacked:
                del self.in_flight[position]
                self.waiting.add(position)
            self.lanes.leave(consumer, unacked)

    def read_next(self, choice: int) -> None:
        """Read the next entry of the log; with odd choices its consumer has no room."""
        if self.read < len(self.log):
            position = self.log[self.read]
            self.read += 1
            consumer = self.lanes.consumer_for(self.slots[position])
            if consumer is None or choice % 2:
                self.waiting.add(position)
                self.lanes.hold(self.slots[position], position)
            else:
                self.deliver(consumer, position)

    def send_waiting(self, choice: int) -> None:
        if self.consumers:
            consumer = self.consumers[choice % len(self.consumers)]
            first = self.lanes.first_waiting(consumer)
            if first is not None:
                position, slot = first
                assert slot == self.slots[position]
                assert position in self.waiting
                assert self.lanes.take(slot, position)
                assert not self.lanes.take(slot, position)
                self.deliver(consumer, position)

    def acknowledge(self, choice: int) -> None:
        if self.in_flight:
            position = sorted(self.in_flight)[choice % len(self.in_flight)]
            del self.in_flight[position]
            self.done.add(position)
            self.lanes.acked(self.slots[position])

    def give_back(self, choice: int) -> None:
        if self.in_flight:
            position = sorted(self.in_flight)[choice % len(self.in_flight)]
            del self.in_flight[position]
            self.waiting.add(position)
            self.lanes.given_back(self.slots[position], position)

    def pass_all(self, choice: int) -> None:
        """Everything up to some entry is acknowledged elsewhere; consumers release what they hold of it."""
        if self.read:
            mark_delete = self.log[choice % self.read]
            for position in [one for one in self.in_flight if one <= mark_delete]:
                del self.in_flight[position]
                self.done.add(position)
                self.lanes.acked(self.slots[position])
            self.done |= {one for one in self.waiting if one <= mark_delete}
            self.waiting = {one for one in self.waiting if one > mark_delete}
            self.lanes.passed(mark_delete)

    def finish(self) -> None:
        if not self.consumers:
            self.join(0)
        for _ in range(10 * len(self.log) + 10):
            for choice in range(len(self.consumers)):
                self.send_waiting(choice)
            self.read_next(0)
            self.acknowledge(0)
        assert self.done == set(self.log)
        assert self.lanes.waiting == 0
        assert not self.lanes._lanes, "nothing is kept for idle slots"


steps: list[Callable[[LanesWorld, int], None]] = [
    LanesWorld.join,
    LanesWorld.leave,
    LanesWorld.read_next,
    LanesWorld.read_next,
    LanesWorld.send_waiting,
    LanesWorld.send_waiting,
    LanesWorld.acknowledge,
    LanesWorld.give_back,
    LanesWorld.pass_all,
]


@settings(max_examples=500)
@given(
    st.lists(st.integers(0, SLOTS_USED - 1), max_size=25),
    st.lists(st.tuples(st.sampled_from(steps), st.integers(0, 7)), max_size=80),
)
def test_a_slot_has_one_consumer_at_a_time_and_nothing_overtakes(
    sizes: list[int], chosen: list[tuple[Callable[[LanesWorld, int], None], int]]
) -> None:
    world = LanesWorld(sizes)
    for step, choice in chosen:
        step(world, choice)
        assert world.lanes.waiting == len(world.waiting)
    world.finish()


def test_without_order_nothing_drains_or_waits() -> None:
    split: StickyRanges[str] = StickyRanges()
    lanes: Lanes[str] = Lanes(split, out_of_order=True)
    lanes.join("a", "a", ((0, 9),))
    lanes.sent(5, Position(1, 0), "a")
    lanes.sent(5, Position(1, 1), "a")
    lanes.given_back(5, Position(1, 1))
    assert lanes.consumer_for(5) == "a"
    lanes.split.leave("a")
    lanes.split.join("b", "b", ((0, 9),))
    assert lanes.consumer_for(5) == "b"


def test_a_slot_nobody_owns_waits_for_a_consumer() -> None:
    lanes: Lanes[str] = Lanes(StickyRanges(), out_of_order=False)
    lanes.join("a", "a", ((0, 9),))
    assert lanes.consumer_for(10) is None
    lanes.hold(10, Position(1, 0))
    assert lanes.first_waiting("a") is None
    lanes.join("b", "b", ((10, 10),))
    assert lanes.first_waiting("b") == (Position(1, 0), 10)
