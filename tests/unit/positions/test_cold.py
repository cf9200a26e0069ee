# SPDX-License-Identifier: Apache-2.0
"""Cold sets answer, merge and encode like warm ones, whatever happens to them; packed indexes like unpacked ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.ledgers.entry import MARKER, EntryHeader
from meridian_broker.ledgers.index import OWN, LedgerIndex, Place, RegionCodes
from meridian_broker.positions import ZERO, AckSet, Position, Progress, claims
from meridian_broker.positions.cold import AT_ONCE
from meridian_broker.positions.position import EARLIEST, LATEST

LEDGERS, ENTRIES = 3, 40
Step = tuple[int, int, int]
# One draw of a ready-made tuple instead of three draws.
steps = st.lists(st.sampled_from([*product(range(LEDGERS), range(ENTRIES), range(10))]), max_size=40)
entries = st.lists(st.sampled_from([*product(range(5), range(1, 4), (False, True))]))
maybe, up_to_eighty = st.booleans(), st.integers(1, 80)


@pytest.fixture(scope="module", autouse=True)
def _small_sets_cool_too() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "COLD_FROM", 1)
        yield


def do(acks: AckSet, step: Step) -> bool:
    ledger, entry, kind = step
    upto = Position(ledger, entry)
    if kind == 9 and ledger:
        return acks.claim(Position(ledger - 1, ENTRIES - 1 - entry), upto)  # a link
    if kind == 8:
        return acks.claim_batch(upto, 3, 1 << entry % 3, None)
    if kind == 7:
        return acks.raise_floor(Position(ledger, entry // 4))
    return acks.claim(Position(ledger, max(-1, entry - 1 - kind % 3)), upto)


def build(plan: list[Step]) -> AckSet:
    acks = AckSet()
    for step in plan:
        do(acks, step)
    return acks


def chilled(acks: AckSet) -> AckSet:
    for _ in range(3):
        acks.cool()
    return acks


@settings(max_examples=500)
@given(steps, steps, steps)
def test_cold_and_warm_sets_are_equivalent(one: list[Step], two: list[Step], then: list[Step]) -> None:
    warm, cold, other = build(one), chilled(build(one)), build(two)
    assert cold.digests() == warm.digests()
    assert cold.encode() == warm.encode()
    assert cold.count_detail() == warm.count_detail()
    assert cold == chilled(build(one))
    assert chilled(cold.copy()) == cold
    assert warm == cold
    assert chilled(cold).within(chilled(build(one)))
    assert chilled(cold).within(other) == warm.within(other)
    assert other.minus(chilled(cold)) == other.minus(warm)
    assert chilled(cold).minus(chilled(other.copy())) == warm.minus(other)
    assert list(chilled(cold).runs()) == list(warm.runs())
    for step in then:
        assert do(chilled(cold), step) == do(warm, step)
        upto = Position(step[0], step[1])
        assert cold.contains(upto) == warm.contains(upto)
        assert chilled(cold).reach(upto) == warm.reach(upto)
    assert chilled(cold).join(chilled(other)) == warm.join(build(two))
    assert cold == warm
    assert AckSet.decode(chilled(cold).encode()) == warm


def test_a_visit_encodes_a_bounded_number_of_ledgers() -> None:
    acks = AckSet()
    for ledger in range(3 * AT_ONCE + 1):
        acks.claim(Position(ledger, 4), Position(ledger, 7))
    warm = acks.copy()
    for visit in range(4):
        acks.cool()
        cold = sum(one.is_cold for _, one in acks._ledgers())
        assert cold == min(visit, 3) * AT_ONCE
    acks.cool()
    assert acks._cold is not None
    assert acks == warm


def test_acks_made_only_here_are_kept_once() -> None:
    progress, first_hand = Progress(), Progress()
    for entry in Random(1).sample(range(50_000), 25_000):
        for one in (progress, first_hand):
            one.ack(ZERO, "us", Position(7, entry - 1), Position(7, entry))
    for _ in range(2):
        progress.cool()
        first_hand.cool(progress)
    mine, its = (one.acks(ZERO, "us") for one in (progress, first_hand))
    assert mine is not None and its is not None
    assert mine._cold is its._cold is not None
    assert not progress.is_acked("us", Position(7, 50_000))
    assert progress == first_hand


@st.composite
def logs(draw: st.DrawFn) -> list[EntryHeader]:
    """What a ledger may hold: own entries, markers, two other regions' entries of two ledgers each, returned ones."""
    last = {"eu": EARLIEST, "ap": EARLIEST, "us": EARLIEST}
    found = []
    for kind, step, withheld in draw(entries):
        region = (None, None, "eu", "ap", "us")[kind]
        messages = 1 + step % 2 * 400
        if region is None:
            found.append(header(MARKER if kind else 0, messages))
            continue
        before = last[region]
        jumps = before.entry > 12
        origin = Position(max(before.ledger, 3) + jumps, 0 if jumps else before.entry + step)
        prev = Position(origin.ledger, origin.entry - 1) if withheld else before
        found.append(header(0, messages, region, origin, prev))
        last[region] = origin
    return found


def header(
    flags: int, messages: int, region: str | None = None, origin: Position | None = None, prev: Position = EARLIEST
) -> EntryHeader:
    return EntryHeader(flags, 0, messages, 0, 0, 0, 0, prev, region, origin, None, None)


@settings(max_examples=500)
@given(logs())
def test_a_packed_index_answers_the_same(entries: list[EntryHeader]) -> None:
    index, packed = (LedgerIndex(9, RegionCodes("us"), Position(8, 3)) for _ in range(2))
    for entry in entries:
        index.add(entry)
        packed.add(entry)
    packed.pack()
    packed.pack()
    assert len(packed) == len(entries)
    for at in range(len(entries)):
        assert packed.place(at) == index.place(at)
        assert packed.origin(at) == index.origin(at)
        assert packed.messages(at) == index.messages(at)
    assert list(packed.origins(0, len(entries))) == list(index.origins(0, len(entries)))
    assert packed.last_own() == index.last_own()
    with pytest.raises(IndexError):
        packed.place(len(entries))


@settings(max_examples=500)
@given(logs(), st.data())
def test_entries_between_two_origins_are_found(entries: list[EntryHeader], data: st.DataObject) -> None:
    """Even if entries came back late and follow newer ones, packed or not."""
    if data.draw(maybe):
        entries = data.draw(st.permutations(entries))
    index = LedgerIndex(9, RegionCodes("us"), Position(8, 3))
    for entry in entries:
        index.add(entry)
    if data.draw(maybe):
        index.pack()
    everything = list(index.origins(0, len(entries)))
    places = sorted({origin for _, _, origin in everything} | {EARLIEST, LATEST, Position(9, 0), Position(10, 0)})
    after, before = data.draw(st.sampled_from(places)), data.draw(st.sampled_from(places))
    most = data.draw(up_to_eighty)
    for region in ("us", "eu", "ap", "nowhere"):
        wanted = sorted((o, at) for at, name, o in everything if name == region and after < o < before)
        found = index.between(region, after, before, most)
        assert sorted(found)[:most] == wanted[:most]
        assert set(found) <= set(wanted)


@settings(max_examples=500)
@given(logs(), st.data())
def test_runs_join_exactly_consecutive_entries(entries: list[EntryHeader], data: st.DataObject) -> None:
    """In any order, even if a damaged entry is later identified as an entry of another region."""
    if data.draw(maybe):
        entries = data.draw(st.permutations(entries))
    foreign = [at for at, entry in enumerate(entries) if entry.region not in (None, "us")]
    damaged = data.draw(st.sets(st.sampled_from(foreign), max_size=2)) if foreign else set()
    index = LedgerIndex(9, RegionCodes("us"), Position(8, 3))
    for at, entry in enumerate(entries):
        if at in damaged:
            index.add_unknown()
        else:
            index.add(entry)
    for at in damaged:
        region, origin = entries[at].region, entries[at].origin
        assert region is not None and origin is not None
        index.identify_foreign(at, region, origin, entries[at].prev)
    if data.draw(maybe):
        index.pack()
    first = data.draw(st.integers(0, len(entries)))
    last = data.draw(st.integers(first, len(entries) + 1))
    wanted: list[Place] = []
    begun: dict[int, Place] = {}
    for at in range(first, min(last, len(entries) - 1) + 1):
        place, kind = index.place(at), index.kinds[at]
        if place is None:
            continue
        run = begun.get(kind)
        if run is not None and (run.origin == place.prev or kind == OWN):
            place = place._replace(prev=run.prev)
        elif run is not None:
            wanted.append(run)
        begun[kind] = place
    assert sorted(index.runs(first, last)) == sorted([*wanted, *begun.values()])
    assert index.count_runs(first, last) >= len(wanted) + len(begun)
    assert index.last_of_each(last) == {region: origin for _, region, origin in index.origins(0, last - 1)}
