# SPDX-License-Identifier: Apache-2.0
"""Messages of Apache Pulsar that name their source position have the same origin in all regions (R2, R3, R11)."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.ledgers.entry import NO_ORIGIN, UNCHAINED, EntryHeader, before, unpack
from meridian_broker.ledgers.index import LedgerIndex, Place, RegionCodes
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.topics.backfill.answers import checked, find
from meridian_broker.topics.backfill.questions import Want
from support.worlds.from_pulsar import APACHE, entered, sent
from support.worlds.pulsar_and_regions import SUB, Regions

HOLE_EVERY = 10


async def regions(*, ledger_entries: int = 5) -> Regions:
    world = Regions("us", "eu", ledger_entries=ledger_entries)
    await world.begin()
    return world


async def test_a_message_has_one_origin_in_all_regions() -> None:
    world = await regions()
    for name in ("us", "eu"):
        assert await world.bring(name, [Position(3, 7)], replicate_to=["us", "eu"]) == [("stored", 3, 7)]
        ((position, entry),) = await world[name].topic.log.read_after(EARLIEST, 10, 1 << 20)
        header = unpack(entry)
        assert (header.region, header.origin, header.prev) == (APACHE, Position(3, 7), Position(3, 6))
        assert header.flags & UNCHAINED and not header.flags & NO_ORIGIN
        assert header.replicate_to == ("us", "eu")
        assert world[name].topic.log.place(position) == Place(APACHE, Position(3, 6), Position(3, 7))
    await world.end()


async def test_an_acknowledgement_counts_in_all_regions_even_before_the_message_is_there() -> None:
    world = await regions()
    sources = [Position(3, entry) for entry in (0, 1, 2, 5)]
    await world.bring("us", sources)
    here = await world.stored("us")
    await world.acknowledge("us", here[sources[0]])
    await world.acknowledge("us", here[sources[3]])
    await world.bring("eu", sources)
    assert [world.owes("eu", source) for source in sources] == [False, True, True, False]
    cursor = world["eu"].topic.subscriptions[SUB].cursor
    assert cursor.mark_delete == (await world.stored("eu"))[sources[0]]
    await world.end()


async def test_a_message_that_one_region_does_not_get_is_not_claimed_there() -> None:
    world = await regions()
    sources = [Position(3, entry) for entry in range(4, 9)]
    await world.bring("us", sources)
    await world.bring("eu", [source for source in sources if source.entry != 6])
    last = (await world.stored("eu"))[sources[-1]]
    await world.acknowledge("eu", last, is_cumulative=True)
    await world.look_after()
    assert [source.entry for source in sources if world.owes("us", source)] == [6]
    assert world.progress("us").floors().get(APACHE, EARLIEST) < Position(3, 6), "us owes it"
    await world.acknowledge("us", (await world.stored("us"))[Position(3, 6)])
    await world.look_after()
    for name in ("us", "eu"):
        assert world.progress(name).floors()[APACHE] == sources[-1]
        assert world.progress(name).count_detail() == 0
    await world.end()


async def test_no_floor_passes_what_a_region_has_not_got_yet() -> None:
    world = await regions()
    sources = [Position(3, entry) for entry in range(0, 9, 2)]
    await world.bring("us", sources)
    await world.acknowledge("us", (await world.stored("us"))[sources[-1]], is_cumulative=True)
    await world.look_after()
    assert world.progress("us").floors()[APACHE] == EARLIEST
    await world.bring("eu", [*sources[:2], Position(3, 3)])  # 3:3 is for eu alone, and everything after it is late
    await world.look_after()
    assert world.owes("eu", Position(3, 3))
    assert world.progress("us").floors()[APACHE] < Position(3, 3)
    await world.bring("eu", sources)
    await world.acknowledge("eu", (await world.stored("eu"))[Position(3, 3)])
    await world.look_after()
    assert world.progress("us").floors()[APACHE] == world.progress("eu").floors()[APACHE] == sources[-1]
    await world.end()


MESSAGES = 12
STEPS = st.one_of(
    st.tuples(st.sampled_from(["bring"]), st.sampled_from(["us", "eu"]), st.integers(0, MESSAGES), st.integers(0, 3)),
    st.tuples(
        st.sampled_from(["ack", "cumulative"]), st.sampled_from(["us", "eu"]), st.integers(0, MESSAGES), st.just(0)
    ),
    st.tuples(
        st.sampled_from(["kill", "report", "cut", "compare"]), st.sampled_from(["us", "eu"]), st.just(0), st.just(0)
    ),
)


@settings(max_examples=60, deadline=None)
@given(
    positions=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 4)), min_size=MESSAGES, max_size=MESSAGES, unique=True
    ),
    withheld=st.lists(st.sampled_from([(), (), (), ("us",), ("eu",)]), min_size=MESSAGES, max_size=MESSAGES),
    steps=st.lists(STEPS, max_size=25),
)
async def test_nothing_is_skipped_and_nothing_acknowledged_is_redelivered(
    positions: list[tuple[int, int]], withheld: list[tuple[str, ...]], steps: list[tuple[str, str, int, int]]
) -> None:
    """Whatever is withheld, late, sent again, reported or lost in a crash."""
    world, acked = await regions(), set[Position]()
    sources = [Position(7 + ledger, entry) for ledger, entry in sorted(positions)]
    meant = {
        name: [one for one, without in zip(sources, withheld, strict=True) if name not in without]
        for name in ("us", "eu")
    }
    reached = {"us": 0, "eu": 0}
    for what, name, number, again in steps:
        if what == "bring":
            begin = max(0, reached[name] - again)
            reached[name] = max(reached[name], min(number, len(meant[name])))
            await world.bring(name, meant[name][begin : reached[name]])
        elif what in ("ack", "cumulative"):
            here = await world.stored(name)
            if here:
                source = sorted(here)[number % len(here)]
                acked |= {one for one in here if one == source or (what == "cumulative" and one < source)}
                await world.acknowledge(name, here[source], is_cumulative=what == "cumulative")
        elif what == "kill":
            await world[name].kill()
            await world.start(name)
        elif what == "report":
            await world.look_after()
        elif what == "cut":
            world.is_cut = not world.is_cut
        else:
            await world.compare()
        for region in ("us", "eu"):
            here = await world.stored(region)
            assert sorted(here) == meant[region][: reached[region]], "each is stored once"
            assert all(world.owes(region, one) for one in sources if one not in acked and one in meant[region])
    world.is_cut = False
    await world.compare()
    for region in ("us", "eu"):
        await world.bring(region, meant[region])
        for one in meant[region]:
            assert world.owes(region, one) == (one not in acked)
    for region in ("us", "eu"):
        for place in (await world.stored(region)).values():
            await world.acknowledge(region, place)
    await world.compare()
    await world.look_after()
    common = min((meant[region][-1] for region in ("us", "eu") if meant[region]), default=EARLIEST)
    if all(meant.values()):
        for region in ("us", "eu"):
            assert world.progress(region).floors()[APACHE] >= common, "the holes are closed"
    await world.end()


def unchained(source: Position) -> EntryHeader:
    return EntryHeader(UNCHAINED, 0, 1, 0, 0, 1, 1, before(source), APACHE, source, None, None)


def with_holes(messages: int) -> list[Position]:
    """Positions of that many messages: each tenth position is a marker's."""
    return [Position(5, entry) for entry in range(messages * HOLE_EVERY // (HOLE_EVERY - 1)) if entry % HOLE_EVERY]


async def test_twenty_thousand_messages_with_holes_leave_no_state_behind() -> None:
    """What a subscription keeps is a bit for each position from the first message that some region owes; nothing once
    none does."""
    world, sources = await regions(ledger_entries=12_000), with_holes(20_000)
    for name in ("us", "eu"):
        await world.bring(name, sources[:1])
        for source in sources[1:]:
            world[name].topic.log.append_foreign(unchained(source), b"x", lambda *_: None, 0)
        await world.settle()
    await world.acknowledge("us", world["us"].topic.log.last_confirmed, is_cumulative=True)
    while (kept := world.progress("eu").count_detail()) < len(sources):
        await world.settle()
    assert kept == len(sources)
    assert len(world.progress("eu").encode()) < sources[-1].entry // 7
    await world.look_after()
    for name in ("us", "eu"):
        assert world.progress(name).floors()[APACHE] == sources[-1]
        assert world.progress(name).count_detail() == 0
        assert len(world.progress(name).encode()) < 300
        assert world[name].topic.subscriptions[SUB].cursor.mark_delete == world[name].topic.log.last_confirmed
    await world.end()


def test_an_index_keeps_no_exception_for_a_hole() -> None:
    codes = RegionCodes("us")
    index = LedgerIndex(1, codes, EARLIEST)
    sources = [Position(5, 2 * entry) for entry in range(20_000)]
    for source in sources:
        index.add(unchained(source))
    places = [index.place(entry) for entry in range(len(index))]
    assert places == [Place(APACHE, before(source), source) for source in sources]
    runs = list(index.runs(0, 99))
    assert runs == places[:100], "no run spans a hole"
    index.pack()
    assert [index.place(entry) for entry in range(len(index))] == places
    assert list(index.runs(0, 99)) == runs
    assert index.memory() < 10 * len(index)


async def test_repeats_are_recognised_after_trimming_everything_and_after_a_crash() -> None:
    world = await regions()
    sources = [Position(3, entry) for entry in range(0, 24, 2)]
    await world.bring("us", sources)
    await world.acknowledge("us", (await world.stored("us"))[sources[-1]], is_cumulative=True)
    topic = world["us"].topic
    await topic.log.roll()
    await topic.log.trim(topic.log.last_confirmed, 0, None)
    assert not await world.stored("us")
    for _ in range(2):
        answers = await world.bring("us", sources)
        assert [kind for kind, *_ in answers] == ["repeated"] * len(sources)
        await world["us"].kill()
        await world.start("us")
    assert [kind for kind, *_ in await world.bring("us", [*sources, Position(4, 0)])][-1] == "stored"
    await world.end()


async def test_a_restored_region_accepts_what_it_lost_if_it_is_sent_again() -> None:
    world = await regions()
    sources = [Position(3, entry) for entry in range(0, 20, 2)]
    await world.bring("us", sources[:4])
    await world.settle()
    one = world["us"]
    older = copy.deepcopy(one.disk), copy.deepcopy(one.record)
    await world.bring("us", sources[4:])
    await world.bring("eu", sources)
    await world.acknowledge("eu", (await world.stored("eu"))[sources[6]])
    await one.kill()
    one.disk, one.record = older
    await world.start("us")
    await world.compare()
    assert sorted(await world.stored("us")) == sources[:4]
    answers = await world.bring("us", sources)
    assert [kind for kind, *_ in answers] == ["repeated"] * 4 + ["stored"] * 6
    assert [world.owes("us", source) for source in sources[4:]] == [True, True, False, True, True, True]
    await world.end()


async def test_in_a_single_region_it_is_stored_as_its_own_and_both_kinds_are_repeats_later() -> None:
    world = await regions()
    one = world["us"]
    both = one.topic.regions
    sources = [Position(3, entry) for entry in range(6)]
    one.topic.regions = lambda: frozenset({"us"})
    await world.bring("us", sources[:2])
    one.topic.regions = both
    await world.bring("us", sources[:4])
    one.topic.regions = lambda: frozenset({"us"})
    await world.bring("us", sources)
    assert sorted(await world.stored("us")) == sources[2:4]
    assert one.topic.log.last_confirmed.entry >= 0
    for _ in range(2):
        answers = await world.bring("us", sources)
        assert [kind for kind, *_ in answers] == ["repeated"] * 6
        one.topic.pulsar.record()
        await world.settle()
        await one.kill()
        await world.start("us")
    await world.end()


async def test_a_position_copied_by_a_client_is_ignored() -> None:
    """A region that stamps no positions passes on properties that clients copied, as to a dead-letter topic."""
    world = await regions()
    producer, port = await entered(world["us"], names_sources=False)
    for number, copied in enumerate(["9:9", "3:1", "3:1"]):
        world["us"].topic.publish_foreign(producer, sent(number, copied))
    await world.settle()
    assert [kind for kind, *_ in port.answers] == ["stored"] * 3
    assert not await world.stored("us")
    await world.end()


@pytest.mark.parametrize("source", ["3:4294967296", f"{(1 << 63) - 1}:1", f"{1 << 63}:0"])
async def test_an_impossible_position_is_refused(source: str) -> None:
    world = await regions()
    producer, port = await entered(world["us"])
    world["us"].topic.publish_foreign(producer, sent(1, source))
    assert [kind for kind, *_ in port.answers] == ["refused", "closed"]
    await world.end()


async def test_other_regions_are_neither_asked_for_it_nor_sent_it() -> None:
    world = await regions()
    await world.bring("us", [Position(3, 0), Position(3, 4)])
    topic = world["us"].topic
    assert not topic.log.joined and not topic.log.holes.of(APACHE), "nothing before it is expected"
    everything = Want("t", "", APACHE, EARLIEST, LATEST)
    assert not (await find(topic, None, "eu", everything)).entries
    one = Want("t", "", APACHE, Position(3, 3), Position(3, 5))
    (copied,) = (await find(topic, None, "eu", one)).entries
    assert checked(copied, one, one.after)[0].origin == Position(3, 4), "a copy of a damaged entry may be requested"
    await world["us"].kill()
    await world.start("us")
    assert APACHE in world["us"].topic.log.unchained, "known before any of its entries is read"
    world["us"].topic.region_left(APACHE)
    await world.settle()
    await world["us"].kill()
    await world.start("us")
    assert APACHE in world["us"].topic.log.unchained, "and also after it has left"
    await world.end()


async def test_a_copy_is_the_same_in_regions_that_number_schemas_differently() -> None:
    world = await regions()
    checksums = set()
    for name, version in (("us", b"\0" * 8), ("eu", b"\0" * 7 + b"\1")):
        await world.bring(name, [Position(3, 1)], schema_version=version)
        ((_, entry),) = await world[name].topic.log.read_after(EARLIEST, 10, 1 << 20)
        checksums.add(unpack(entry).origin_checksum)
    assert len(checksums) == 1
    await world.end()
