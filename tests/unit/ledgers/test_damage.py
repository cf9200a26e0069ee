# SPDX-License-Identifier: Apache-2.0
"""What damaged entries were, inferred from what is left of them and from the entries around them."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.ledgers.damage import AT_ONCE, Damage, Mend, Rebuilding, is_damaged, mends_of, stand_in
from meridian_broker.ledgers.entry import MARKER, EntryHeader, pack_foreign, pack_own, unpack
from meridian_broker.ledgers.index import LedgerIndex, Place, RegionCodes
from meridian_broker.positions.position import EARLIEST, Position

LEDGER = 50
BEFORE = {"eu": Position(7, 3)}
OWN_BEFORE = Position(40, 9)

kinds = st.lists(st.sampled_from(("us", "us", "eu", "ap", "marker")), min_size=1, max_size=12)


class Written:
    """A ledger of region us, intact as written."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self.entries: list[bytes] = []
        self.last = {"us": OWN_BEFORE, **BEFORE, "ap": EARLIEST}
        self.index = LedgerIndex(LEDGER, RegionCodes("us"), OWN_BEFORE)
        for number, kind in enumerate(kinds):
            messages = 1 + number % 3
            if kind == "marker":
                entry = pack_own(MARKER, 1, 0, 0, 5, 5, *self.last["us"], b"", b"marker")
            elif kind == "us":
                entry = pack_own(0, messages, 0, 0, 5, 5, *self.last["us"], b"", b"a body")
                self.last["us"] = Position(LEDGER, number)
            else:
                origin = Position(8, self.last[kind].entry + 2)
                header = EntryHeader(0, 0, messages, 0, 0, 5, 5, self.last[kind], kind, origin, None, None)
                entry = pack_foreign(header) + b"a body"
                self.last[kind] = origin
            self.entries.append(entry)
            self.index.add(unpack(entry))

    def read(self, damaged: Iterable[int], *, has_header: bool, is_last: bool) -> LedgerIndex:
        """The index, rebuilt from what is left of the ledger."""
        index = LedgerIndex(LEDGER, RegionCodes("us"), OWN_BEFORE)
        rebuilding, lost = Rebuilding(index, "us", OWN_BEFORE, BEFORE), set(damaged)
        for number, entry in enumerate(self.entries):
            if number in lost:
                rebuilding.add_damaged(None, entry[:-1] + b"?" if has_header else b"\xff" * len(entry))
            else:
                rebuilding.add(unpack(entry))
        if is_last:
            list(rebuilding.finish(EARLIEST, {}, is_sure=False))
        else:
            list(rebuilding.finish(self.last["us"], {region: self.last[region] for region in ("eu", "ap")}))
        return index

    def places(self, index: LedgerIndex) -> list[Place | None]:
        return [index.place(number) for number in range(len(self.entries))]


@settings(max_examples=500)
@given(kinds, st.data(), st.booleans())
def test_if_only_bodies_are_damaged_nothing_is_unknown(chosen: list[str], data: st.DataObject, is_last: bool) -> None:
    written = Written(chosen)
    links = [number for number, kind in enumerate(chosen) if kind != "marker"]
    damaged = data.draw(st.sets(st.sampled_from(links))) if links else set()
    found = written.read(damaged, has_header=True, is_last=is_last)
    assert written.places(found) == written.places(written.index)
    assert [found.messages(n) for n in range(len(chosen))] == [written.index.messages(n) for n in range(len(chosen))]
    assert found.last_own() == written.index.last_own()
    assert found.last_origins() == written.index.last_origins()


@settings(max_examples=500)
@given(kinds, st.data())
def test_if_one_header_is_damaged_the_next_ledger_tells(chosen: list[str], data: st.DataObject) -> None:
    """An entry without which no number is missing was a marker."""
    written = Written(chosen)
    number = data.draw(st.integers(0, len(chosen) - 1))
    found = written.read([number], has_header=False, is_last=False)
    if chosen[number] != "marker":
        assert written.places(found) == written.places(written.index)
    elif "us" in chosen[number:]:
        assert found.place(number) is None


@settings(max_examples=500)
@given(kinds, st.data())
def test_an_acknowledgement_claims_nothing_else_that_may_be_owed(chosen: list[str], data: st.DataObject) -> None:
    """Whatever is damaged: intact entries claim what they claimed before, or less."""
    written = Written(chosen)
    damaged = data.draw(st.sets(st.integers(0, len(chosen) - 1)))
    found = written.read(damaged, has_header=False, is_last=data.draw(st.booleans()))
    for number in range(len(chosen)):
        was, now = written.index.place(number), found.place(number)
        if number not in damaged:
            assert (was is None) == (now is None)
            if was is not None and now is not None:
                assert now.prev >= was.prev
                assert (now.region, now.origin) == (was.region, was.origin)


changes = st.dictionaries(st.integers(0, 30), st.integers(0, 2), max_size=20)
"""0: lost; otherwise the ledger of its copy."""


def put(damage: Damage, more: dict[Position, Position | None]) -> tuple[Mend, ...]:
    mends = damage.mends(Position(5, 10), mends_of(more))
    damage.plan(mends)
    for _ in damage.replace(mends_of({at: copy for at, copy in more.items() if at.entry >= 10})):
        pass
    return mends


@settings(max_examples=500)
@given(st.lists(changes, min_size=1, max_size=4))
def test_recorded_damage_is_read_back(drawn: list[dict[int, int]]) -> None:
    """Also if a copy is damaged later, and lost or copied again."""
    damage, again, known = Damage(), Damage(), dict[Position, Position | None]()
    for chosen in drawn:
        more = {Position(5, n): Position(90 + to, n * to) if to else None for n, to in chosen.items()}
        mends = put(damage, more)
        known |= {at: copy for at, copy in more.items() if at.entry >= 10}
    for _ in again.restore(mends):
        pass
    assert again.copies == {at: copy for at, copy in known.items() if copy is not None}
    assert again.lost == known.keys() - again.copies.keys()
    assert list(mends) == mends_of(known), "in as few lines as possible"
    assert again.mends(Position(5, 10), ()) == mends
    for first in range(31):
        assert again.is_any_in(5, first, first) == (Position(5, first) in again.lost)


def test_adjacent_entries_are_recorded_as_one_line() -> None:
    copies = {Position(5, n): Position(9, n + 4) for n in range(1000)}
    more = mends_of({**copies, Position(5, 1000): None, Position(5, 1001): None})
    assert Damage().mends(Position(5, 0), more) == (
        Mend(Position(5, 0), 1000, Position(9, 4)),
        Mend(Position(5, 1000), 2, None),
    )


def test_very_many_damaged_entries_are_processed_in_slices() -> None:
    """Looking at some of them does not go through all."""
    count, damage = 100_000, Damage()
    places = {Position(5, n): Place("us", Position(5, n - 1), Position(5, n)) for n in range(count)}
    assert damage.found(places) == count
    assert damage.is_any_in(5, 70_000, 70_000)
    assert not damage.is_any_in(5, count, 2 * count)
    lost = mends_of(dict.fromkeys(places))
    assert sum(1 for _ in damage.replace(lost)) >= count // AT_ONCE
    assert len(damage.lost) == count and not damage.damaged
    assert sum(1 for _ in Damage().restore(lost)) >= count // AT_ONCE


def test_a_damaged_entrys_placeholder_says_which_entry_it_was() -> None:
    at = Position(LEDGER, 3)
    for place in (Place("us", OWN_BEFORE, at), Place("eu", Position(7, 3), Position(8, 0))):
        entry = stand_in(place, "us", at, 99)
        header = unpack(entry)
        assert header.is_marker
        assert is_damaged(entry)
        assert (header.prev, header.publish_time_ms) == (place.prev, 99)
        assert (header.region or "us", header.origin or at) == (place.region, place.origin)
    assert not is_damaged(stand_in(None, "us", at, 99)), "nobody is owed a marker"


class Counted(Position):
    """A position that counts how often it is compared."""

    times = 0

    def __lt__(self, other: tuple[object, ...]) -> bool:
        Counted.times += 1
        return tuple.__lt__(self, other)


def test_the_cost_of_an_entry_does_not_grow_with_damaged_ones_before_it() -> None:
    count = 1000
    index = LedgerIndex(LEDGER, RegionCodes("us"), OWN_BEFORE)
    rebuilding = Rebuilding(index, "us", OWN_BEFORE, {})
    for _ in range(count):
        rebuilding.add_damaged(None, b"")
    for number in range(count, 2 * count):
        rebuilding.add(EntryHeader(0, 0, 1, 0, 0, 5, 5, Counted(LEDGER, number - 1), None, None, None, None))
    list(rebuilding.finish(Position(LEDGER, 2 * count - 1), {}))
    assert Counted.times <= 10 * count
    assert [index.place(number) for number in (count - 1, count)] == [
        Place("us", Position(LEDGER, count - 2), Position(LEDGER, count - 1)),
        Place("us", Position(LEDGER, count - 1), Position(LEDGER, count)),
    ]
