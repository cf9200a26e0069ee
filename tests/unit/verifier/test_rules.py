# SPDX-License-Identifier: Apache-2.0
"""The rules R60-R62 over made-up worlds: silence where nothing is wrong, and exactly the fault that was put in."""

from __future__ import annotations

import dataclasses
import itertools

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from meridian_verifier.align.facts import EARLIEST
from meridian_verifier.align.findings import LOSS, Finding, Reason
from meridian_verifier.align.verdicts import State, judge
from support.verifier.verifier_worlds import (
    REGIONS,
    SUBSCRIPTIONS,
    TOPIC,
    Copy,
    Entry,
    Region,
    Simulation,
    drawn,
    examined,
    whole,
)

seeds = st.integers(0, 2**32)
# Worlds are drawn from a seed, so some have no room for a fault. Each takes as long as ten other tests.
several = settings(
    max_examples=settings().max_examples // 4, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
some = settings(several, max_examples=settings().max_examples // 8)


def told(findings: list[Finding]) -> set[tuple[Reason, str, str, str, int]]:
    return {(one.reason, one.subscription, one.source, one.target, one.entries) for one in findings}


def pick(simulation: Simulation, choices: list[Entry]) -> Entry:
    assume(choices)
    return simulation.rng.choice(choices)


def two_regions(simulation: Simulation) -> tuple[Region, Region]:
    first, second = simulation.rng.sample(list(simulation.regions.values()), 2)
    return first, second


@given(seeds, st.integers(0, 150), st.booleans())
@several
def test_a_correct_world_has_no_finding(seed: int, steps: int, old_brokers: bool) -> None:
    findings, flows = Simulation(seed, steps, old_brokers=old_brokers).examined()
    assert findings == []
    assert len(flows) == 9


@given(seeds, st.integers(0, 150), st.sets(st.sampled_from(REGIONS), min_size=1, max_size=2))
@several
def test_a_correct_world_with_some_regions_named_has_no_finding(seed: int, steps: int, named: set[str]) -> None:
    simulation = Simulation(seed, steps)
    asked = sorted(named)
    findings, flows = simulation.examined(asked)
    assert findings == []
    verdict = judge(simulation.world(asked), findings, flows, [])
    assert verdict.state is State.UNKNOWN, "the others may hold proof of the contrary"
    others = sorted(set(REGIONS) - named)
    assert all(one.state is State.UNKNOWN and Reason.NOT_ASKED in one.reasons for one in verdict.subjects)
    assert len(verdict.subjects) == 1 + len(SUBSCRIPTIONS)
    for region in others:
        assert region in verdict.summary
        assert all(any(region in note for note in one.notes) for one in verdict.subjects)


@given(seeds)
@some
def test_a_missing_ack_is_found_for_every_region_that_had_it(seed: int) -> None:
    simulation = Simulation(seed, trim=False)
    name = simulation.rng.choice(SUBSCRIPTIONS)
    _, target = two_regions(simulation)
    sources = [one for one in simulation.regions.values() if one is not target]
    entry = pick(
        simulation,
        [one for one in simulation.known() if any(source.earlier[name].get(one) == whole(one) for source in sources)],
    )
    target.later[name].pop(entry)
    target.earlier[name].pop(entry, None)
    target.passed[name] -= {copy.place for copy in target.log if copy.entry is entry}
    target.dropped[name].discard(entry)
    findings, _ = simulation.examined()
    expected = {
        (Reason.MISSING_ACK, name, source.name, target.name, 1) for source in sources if source.earlier[name].get(entry)
    }
    assert told(findings) == expected
    assert all(found.messages >= 1 and found.ranges[0][1] == entry.place for found in findings)


@given(seeds, st.booleans())
@some
def test_in_snapshot_mode_a_region_must_have_what_it_was_told(seed: int, is_told: bool) -> None:
    simulation = Simulation(seed, trim=False)
    name = simulation.rng.choice(SUBSCRIPTIONS)
    _, target = two_regions(simulation)
    sources = [one for one in simulation.regions.values() if one is not target]
    here = {
        copy.entry.place for copy in target.log if copy.entry.place > target.joined.get(copy.entry.origin, EARLIEST)
    }
    entry = pick(
        simulation,
        [
            one
            for one in simulation.known()
            if one.place in here and all(source.earlier[name].get(one) == whole(one) for source in sources)
        ],
    )
    for source in sources:
        source.told = {name: {entry.origin: entry.place} if is_told else {}}
    target.later[name].pop(entry)
    target.earlier[name].pop(entry, None)
    target.passed[name] -= {copy.place for copy in target.log if copy.entry is entry}
    target.dropped[name].discard(entry)
    findings, _ = simulation.examined()
    expected = {(Reason.MISSING_ACK, name, source.name, target.name, 1) for source in sources}
    assert told(findings) == (expected if is_told else set())


@given(seeds)
@some
def test_a_missing_bit_of_a_batch_is_found(seed: int) -> None:
    simulation = Simulation(seed)
    name = simulation.rng.choice(SUBSCRIPTIONS)
    source, target = two_regions(simulation)
    entry = pick(
        simulation,
        [
            one
            for one in simulation.known()
            if 0 < source.earlier[name].get(one, 0) < whole(one) and 0 < target.later[name].get(one, 0) < whole(one)
        ],
    )
    common = source.earlier[name][entry]
    lost = common & -common
    for region in simulation.regions.values():
        region.earlier[name][entry] = region.earlier[name].get(entry, 0) | lost
    target.later[name][entry] &= ~lost
    findings, _ = simulation.examined()
    expected = {
        (Reason.MISSING_ACK, name, region.name, target.name, 1)
        for region in simulation.regions.values()
        if region is not target
    }
    assert told(findings) == expected
    assert {found.messages for found in findings} == {1}


@given(seeds)
@some
def test_an_ack_nobody_received_is_an_overclaim(seed: int) -> None:
    simulation = Simulation(seed)
    name = simulation.rng.choice(SUBSCRIPTIONS)
    received = {entry for region in simulation.regions.values() for entry in region.firsthand[name]}
    entry = pick(simulation, [one for one in simulation.known() if one not in received])
    liar = simulation.regions[simulation.rng.choice(list(simulation.regions))]
    liar.earlier[name][entry] = whole(entry)
    for region in simulation.regions.values():
        region.later[name][entry] = whole(entry)
    findings, _ = simulation.examined()
    assert told(findings) == {(Reason.OVERCLAIMED, name, liar.name, liar.name, 1)}


@given(seeds)
@some
def test_an_entry_passed_and_neither_acked_nor_dropped_is_lost(seed: int) -> None:
    simulation = Simulation(seed)
    name = simulation.rng.choice(SUBSCRIPTIONS)
    region, _ = two_regions(simulation)
    owing = [copy for copy in region.log if not region.acked_or_dropped(name, copy.entry)]
    assume(owing)
    copy = simulation.rng.choice(owing)
    region.passed[name].add(copy.place)
    findings, _ = simulation.examined()
    assert told(findings) == {(Reason.PASSED_UNACKED, name, region.name, region.name, 1)}


def compacted_world(seed: int) -> tuple[Simulation, Region, str, list[Copy]]:
    simulation = Simulation(seed, trim=False)
    region, _ = two_regions(simulation)
    assume(region.log)
    name = simulation.rng.choice(SUBSCRIPTIONS)
    return simulation, region, name, simulation.compact(region, name)


@given(seeds)
@some
def test_what_compaction_removed_may_be_skipped_and_trimmed_unacknowledged(seed: int) -> None:
    simulation, region, _, _ = compacted_world(seed)
    assert simulation.examined()[0] == []
    horizon = [copy.place for copy in region.log].index(region.compacted_to)
    simulation.trim(region, horizon + 1)
    findings, flows = simulation.examined()
    assert findings == []
    verdict = judge(simulation.world(), findings, flows, [])
    assert verdict.state is State.ALIGNED
    assert all("TrimmedUnacked was not judged" in one.notes[0] for one in verdict.subjects)


@given(seeds)
@some
def test_on_a_compacted_topic_too_what_the_view_has_or_another_subscription_is_owed_is_lost(seed: int) -> None:
    simulation, region, name, kept = compacted_world(seed)
    other = next(one for one in SUBSCRIPTIONS if one != name)
    owed = [(name, copy) for copy in region.log if copy.place > region.compacted_to and not copy.entry.marker]
    owed += [(name, copy) for copy in kept]
    owed += [(other, copy) for copy in region.log]
    owed = [(whose, copy) for whose, copy in owed if whose == name or not region.acked_or_dropped(other, copy.entry)]
    owed = [(whose, copy) for whose, copy in owed if copy in kept or not region.acked_or_dropped(whose, copy.entry)]
    assume(owed)
    whose, copy = simulation.rng.choice(owed)
    for one in simulation.regions.values():
        for acks in (one.earlier, one.later, one.firsthand):
            acks[whose].pop(copy.entry, None)
        one.dropped[whose].discard(copy.entry)
        if one is not region:
            one.passed[whose] -= {held.place for held in one.log if held.entry is copy.entry}
    region.passed[whose].add(copy.place)
    findings, _ = simulation.examined()
    assert told(findings) == {(Reason.PASSED_UNACKED, whose, region.name, region.name, 1)}


@given(seeds)
@some
def test_trimming_what_is_owed_is_a_loss(seed: int) -> None:
    simulation = Simulation(seed, trim=False)
    region, _ = two_regions(simulation)
    assume(len(region.log) > 2)
    count = simulation.rng.randint(1, len(region.log) - 1)
    gone = [copy.entry for copy in region.log[:count]]
    simulation.trim(region, count)
    known = set(simulation.known())
    expected = {}
    for name in SUBSCRIPTIONS:
        for origin in simulation.regions:
            lost = [
                one for one in gone if one.origin == origin and one in known and not region.acked_or_dropped(name, one)
            ]
            if lost:
                expected[(name, origin)] = len(lost)
    assume(expected)
    findings, _ = simulation.examined()
    assert {one.reason for one in findings} == {Reason.TRIMMED_UNACKED}
    assert {(one.subscription, one.origin): one.entries for one in findings} == expected


@given(seeds, st.booleans())
@some
def test_what_a_seek_undid_is_owed_elsewhere_if_it_was_trimmed_here(seed: int, is_by_time: bool) -> None:
    """R12: not a loss, because it was acknowledged before. After a seek by time both layers' acks are exported."""
    simulation = Simulation(seed, trim=False)
    region, _ = two_regions(simulation)
    name = simulation.rng.choice(SUBSCRIPTIONS)
    assume(len(region.log) > 2)
    copies = region.log[: simulation.rng.randint(1, len(region.log) - 1)]
    gone = {copy.entry for copy in copies if not copy.entry.marker}
    simulation.acknowledge_everywhere(region, copies)
    simulation.trim(region, len(copies))
    simulation.epoch = "1"
    assert [one for one in simulation.examined()[0] if one.reason is Reason.OWED_ELSEWHERE] == []
    for one in simulation.regions.values():
        one.dropped[name] -= gone
        one.passed[name] -= {copy.place for copy in one.log if copy.entry in gone}
        for acks in () if is_by_time else (one.earlier[name], one.later[name], one.firsthand[name]):
            for entry in gone:
                acks.pop(entry, None)
    expected = {
        (Reason.OWED_ELSEWHERE, name, other.name, region.name, len(owed))
        for other in simulation.regions.values()
        if other is not region
        for origin in simulation.regions
        if (owed := {copy.entry for copy in other.log if copy.entry in gone and copy.entry.origin == origin})
    }
    findings, _ = simulation.examined()
    assert told(findings) == expected


@given(seeds)
@some
def test_a_hole_below_the_high_water_mark_is_missing(seed: int) -> None:
    simulation = Simulation(seed)
    region, _ = two_regions(simulation)
    held_elsewhere = {copy.entry for other in simulation.regions.values() if other is not region for copy in other.log}
    dropped = set().union(*region.dropped.values())
    untrimmed = [copy for copy in region.log if copy.entry in held_elsewhere and copy.entry not in dropped]
    assume(untrimmed)
    copy = simulation.rng.choice(untrimmed)
    region.log.remove(copy)
    findings, flows = simulation.examined()
    assert told(findings) == {(Reason.ENTRY_MISSING, "", copy.entry.origin, region.name, 1)}
    assert sum(flow.missing for flow in flows) == 1
    region.given_up.append(copy.entry)  # an administrator accepted that it never comes (R4)
    findings, flows = simulation.examined()
    assert not findings
    assert sum(flow.missing for flow in flows) == 0


@given(seeds)
@some
def test_what_an_administrator_skipped_for_a_region_is_reported_as_skipped(seed: int) -> None:
    """Whatever the region got from its origin afterwards; if the origin does not report it, it is missing."""
    simulation = Simulation(seed, trim=False)
    region, source = two_regions(simulation)
    dropped = set().union(*region.dropped.values())
    held = [copy for copy in region.log if copy.entry.origin == source.name and copy.entry not in dropped]
    held = [copy for copy in held if not copy.entry.marker]
    assume(len(held) >= 2)
    first = simulation.rng.randrange(len(held) - 1)
    last = simulation.rng.randrange(first, len(held) - 1)
    for copy in held[first : last + 1]:
        region.log.remove(copy)
    wanted = {(source.name, region.name, last + 1 - first)}
    findings, _ = simulation.examined()
    assert {(Reason.ENTRY_MISSING, *one) for one in wanted} == summed(findings)
    source.skipped[region.name] = [(held[first].entry.prev, held[last].entry.place)]
    findings, flows = simulation.examined()
    assert {(Reason.SKIPPED, *one) for one in wanted} == summed(findings)
    assert not any(one.reason in LOSS for one in findings)
    assert sum(flow.missing for flow in flows) == 0
    findings, _ = simulation.examined([name for name in REGIONS if name != source.name])
    assert {one.reason for one in findings} <= {Reason.ENTRY_MISSING}


@given(seeds)
@some
def test_what_was_skipped_for_a_region_was_not_trimmed_there(seed: int) -> None:
    simulation = Simulation(seed, trim=False)
    region, source = two_regions(simulation)
    held = [copy for copy in region.log if copy.entry.origin == source.name and not copy.entry.marker]
    assume(len(held) >= 2)
    skipped = held[0]
    for name in SUBSCRIPTIONS:
        for one in simulation.regions.values():
            for acks in (one.earlier[name], one.later[name], one.firsthand[name]):
                acks.pop(skipped.entry, None)
            one.dropped[name].discard(skipped.entry)
            one.passed[name] -= {copy.place for copy in one.log if copy.entry == skipped.entry}
    region.log = [copy for copy in region.log if copy.place > held[1].place]
    for name in SUBSCRIPTIONS:
        for copy in held[1:2]:
            region.dropped[name].add(copy.entry)
    region.trimmed_to = held[1].place
    region.trimmed = {source.name: held[1].entry.place}
    findings, _ = simulation.examined()
    assert (Reason.TRIMMED_UNACKED, source.name) in {(one.reason, one.origin) for one in findings}
    source.skipped[region.name] = [(skipped.entry.prev, skipped.entry.place)]
    findings, _ = simulation.examined()
    lost = {one.ranges for one in findings if (one.reason, one.origin) == (Reason.TRIMMED_UNACKED, source.name)}
    assert all(skipped.entry.place != upto for ranges in lost for _, upto in ranges)


def summed(findings: list[Finding]) -> set[tuple[Reason, str, str, int]]:
    return {(one.reason, one.source, one.target, one.entries) for one in findings}


@given(seeds)
@some
def test_what_lies_before_a_join_point_is_not_missing(seed: int) -> None:
    """R21, R62: a region that joined has what follows its join point; a hole after that is still a hole."""
    simulation = Simulation(seed, trim=False)
    region, source = two_regions(simulation)
    held = [copy for copy in region.log if copy.entry.origin == source.name and not copy.entry.marker]
    assume(len(held) >= 3)
    last = simulation.rng.randrange(len(held) - 2)
    lost, dropped = held[: last + 1], set().union(*region.dropped.values())
    for copy in lost:
        region.log.remove(copy)
        for places in region.passed.values():
            places.discard(copy.place)
    assume(any(copy.entry not in dropped for copy in lost))
    findings, _ = simulation.examined()
    assert {one.reason for one in findings} == {Reason.ENTRY_MISSING}, "nothing says that it joined"
    region.joined[source.name] = lost[-1].entry.place
    findings, flows = simulation.examined()
    assert not findings
    assert sum(flow.missing for flow in flows) == 0
    hole = held[last + 1]
    assume(hole.entry not in dropped)
    region.log.remove(hole)
    for places in region.passed.values():
        places.discard(hole.place)
    findings, _ = simulation.examined()
    assert told(findings) == {(Reason.ENTRY_MISSING, "", source.name, region.name, 1)}


@given(seeds)
@some
def test_a_duplicated_entry_is_found(seed: int) -> None:
    simulation = Simulation(seed)
    region, _ = two_regions(simulation)
    entry = pick(simulation, [copy.entry for copy in region.log if not copy.entry.marker])
    region.log.append(Copy(entry, region.next_place, entry.checksum))
    findings, _ = simulation.examined()
    assert told(findings) == {(Reason.ENTRY_DOUBLED, "", region.name, region.name, 1)}


@given(seeds)
@some
def test_entries_in_another_order_are_found(seed: int) -> None:
    simulation = Simulation(seed, trim=False)
    region, _ = two_regions(simulation)
    foreign = [copy for copy in region.log if copy.entry.origin != region.name]
    pairs = [(one, two) for one, two in itertools.pairwise(foreign) if one.entry.origin == two.entry.origin]
    assume(pairs)
    one, two = simulation.rng.choice(pairs)
    one.entry, two.entry, one.checksum, two.checksum = two.entry, one.entry, two.checksum, one.checksum
    for name in SUBSCRIPTIONS:
        region.passed[name] = {copy.place for copy in region.log if region.acked_or_dropped(name, copy.entry)}
    findings, _ = simulation.examined()
    assert told(findings) == {(Reason.OUT_OF_ORDER, "", region.name, region.name, 1)}


def late_world(seed: int, *, follow: bool = False) -> tuple[Simulation, Region, Region, list[Copy]]:
    """A region that has some entries of another one, the origin, after newer ones; and those entries.

    :param follow: whether the newer ones say that they follow them.
    """
    simulation = Simulation(seed, 150, trim=False)
    region, origin = two_regions(simulation)
    if follow:
        before = [entry for entry in simulation.own[origin.name] if not entry.marker][:-1]
    else:
        before = simulation.new_life(origin)
    assume(before)
    count = simulation.rng.randint(1, len(before))
    late = simulation.came_late(region, before[-count:])
    assume(late)
    newer = [one.entry for one in region.log[: -len(late)] if one.entry.origin == origin.name and not one.entry.marker]
    assume(newer and newer[-1].place > late[-1].entry.place)
    return simulation, region, origin, late


@given(seeds)
@some
def test_late_entries_are_counted_and_are_not_wrong(seed: int) -> None:
    """R5: entries that their origin had lost and that other regions gave back follow newer ones."""
    simulation, region, origin, late = late_world(seed)
    findings, flows = simulation.examined()
    assert findings == []
    assert {(one.origin, one.region): one.late for one in flows if one.late} == {(origin.name, region.name): len(late)}
    assert judge(simulation.world(), findings, flows, []).state is State.ALIGNED


@given(seeds)
@some
def test_late_entries_after_a_trimmed_range_make_nothing_missing(seed: int) -> None:
    """Even if nobody has acknowledged them, and some of what came before them in the log is trimmed."""
    simulation, region, _, late = late_world(seed)
    count = simulation.rng.randint(1, len(region.log) - len(late))
    simulation.acknowledge_everywhere(region, region.log[:count])
    simulation.trim(region, count)
    assert simulation.examined()[0] == []


@given(seeds)
@some
def test_a_hole_after_a_trimmed_range_is_missing_and_not_a_loss(seed: int) -> None:
    """It was never there, so it was not trimmed unacknowledged."""
    simulation, region, origin, late = late_world(seed)
    place = {copy.entry.place for copy in late}
    first = min(one for entry in simulation.own[origin.name] if (one := entry.place) > max(place) and not entry.marker)
    del region.log[-len(late) :]
    count = simulation.rng.randint(1, len(region.log))
    simulation.acknowledge_everywhere(region, region.log[:count])
    simulation.trim(region, count)
    region.holes[origin.name] = [(min(copy.entry.prev for copy in late), first)]
    held = {copy.entry for one in simulation.regions.values() if one is not region for copy in one.log}
    missing = [
        one.entry for one in late if one.entry in held and one.entry not in set().union(*region.dropped.values())
    ]
    findings, _ = simulation.examined()
    assert [one.reason for one in findings] == [Reason.ENTRY_MISSING] * bool(missing)
    assert [one.entries for one in findings] == [len(missing)] * bool(missing)


@given(seeds)
@some
def test_entries_that_others_said_they_follow_are_out_of_order_not_late(seed: int) -> None:
    simulation, region, _, late = late_world(seed, follow=True)
    findings, flows = simulation.examined()
    assert told(findings) == {(Reason.OUT_OF_ORDER, "", region.name, region.name, len(late))}
    assert {one.late for one in flows} == {0}


@given(seeds)
@some
def test_one_origin_with_two_checksums_is_found(seed: int) -> None:
    simulation = Simulation(seed)
    region, _ = two_regions(simulation)
    others = {copy.entry for other in simulation.regions.values() if other is not region for copy in other.log}
    shared = [copy for copy in region.log if copy.entry in others and copy.entry.origin != region.name]
    assume(shared)
    copy = simulation.rng.choice(shared)
    copy.checksum ^= 1
    findings, _ = simulation.examined()
    assert {one.reason for one in findings} == {Reason.CHECKSUM_DIFFERS}
    assert all(found.ranges == ((found.ranges[0][0], copy.entry.place),) for found in findings)
    assert any(region.name in (found.source, found.target) for found in findings)


@given(seeds)
@some
def test_an_origin_that_lost_its_end_is_found(seed: int) -> None:
    simulation = Simulation(seed, 120, trim=False)
    origin, witness = two_regions(simulation)
    held = {copy.entry for copy in witness.log if copy.entry.origin == origin.name}
    ahead = [one for one in simulation.own[origin.name] if not one.marker][-12:]
    seen = [one for one in ahead if one in held and one.place <= witness.earlier_last.get(origin.name, (-1, -1))]
    assume(seen and ahead[0].prev != (-1, -1))
    first = ahead[0]
    origin.log = [copy for copy in origin.log if copy.entry.origin != origin.name or copy.entry.place < first.place]
    origin.last_origin[origin.name] = first.prev
    findings, _ = simulation.examined()
    assert {(one.reason, one.target) for one in findings} == {(Reason.ORIGIN_ROLLED_BACK, origin.name)}
    assert witness.name in {one.source for one in findings}


def test_returned_own_entries_are_counted() -> None:
    simulation = Simulation(7, steps=0)
    east, west = simulation.regions["us-east"], simulation.regions["us-west"]
    for now in range(10):
        simulation._publish(east, now)
    for _ in range(3):
        simulation._replicate(east, west)
    _, flows = simulation.examined()
    assert {one.given_back for one in flows} == {0}, "what others have from their peers was not returned"
    own = [copy for copy in east.log if not copy.entry.marker][-2:]
    for copy in own:
        east.log.remove(copy)
    east.next_place = (east.next_place[0] + 1, 0)
    for copy in own:
        east.append(copy.entry)
    _, flows = simulation.examined()
    counts = {(one.origin, one.region): one.given_back for one in flows}
    assert counts.pop(("us-east", "us-east")) == 2
    assert set(counts.values()) == {0}


def test_what_is_above_the_high_water_mark_is_lag() -> None:
    simulation = Simulation(7, steps=0)
    east, west = simulation.regions["us-east"], simulation.regions["us-west"]
    for now in range(10):
        simulation._publish(east, now)
    entries = [one for one in simulation.own["us-east"] if one.goes_to("us-west")]
    for _ in range(3):
        simulation._replicate(east, west)
    findings, flows = simulation.examined()
    assert findings == []
    assert next(one for one in flows if (one.origin, one.region) == ("us-east", "us-west")).behind == len(entries) - 3


def test_a_region_that_was_not_asked_makes_no_overclaim() -> None:
    simulation = Simulation(3)
    name = SUBSCRIPTIONS[0]
    received = {entry for region in simulation.regions.values() for entry in region.firsthand[name]}
    entry = next(one for one in simulation.known() if one not in received)
    for region in simulation.regions.values():
        region.later[name][entry] = region.earlier[name][entry] = whole(entry)
    assert {one.reason for one in simulation.examined()[0]} == {Reason.OVERCLAIMED}
    world = simulation.world()
    del world.earlier["eu-central"], world.later["eu-central"]
    blind = dataclasses.replace(world, unreachable={"eu-central": "down"})
    assert examined(blind, simulation.entries(), simulation.ranges())[0] == []
    assert blind.regions_of(TOPIC) == ["us-east", "us-west", "eu-central"]


def test_a_bar_shows_each_share_and_never_rounds_a_hole_away() -> None:
    simulation = Simulation(7, steps=0)
    east, name = simulation.regions["us-east"], SUBSCRIPTIONS[0]
    for now in range(240):
        simulation._publish(east, now)
    entries = [one for one in simulation.own["us-east"] if not one.marker]
    batch = next(one for one in entries if one.messages == 5)
    east.later[name] = {one: whole(one) for one in entries[:-1]} | {batch: 0b11}
    (own,) = [one for one in drawn(simulation, "us-east", name) if one.region == "us-east"]
    assert own.entries == len(entries)
    assert own.acked[-1] < 100
    assert [share for share in own.acked[:-1] if share < 100] == [70]
    assert set(own.missing) == {0}
