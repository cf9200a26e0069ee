# SPDX-License-Identifier: Apache-2.0
"""Messages from an Apache Pulsar region's replicator, where there is no other Meridian region."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.ledgers.entry import unpack
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.publishing.from_pulsar import source_of
from meridian_broker.topics.publishing.pulsar_places import PulsarPlacesError
from meridian_broker.wire.pulsar import markers
from support.worlds.from_pulsar import APACHE, entered, sent
from support.worlds.topic_of_one_region import Region


async def opened() -> Region:
    one = Region()
    await one.start()
    return one


async def stored_sources(one: Region) -> list[Position]:
    found, at = list[Position](), EARLIEST
    while some := await one.topic.log.read_after(at, 1000, 1 << 20):
        found += [came[1] for _, entry in some if (came := unpack(entry).came_from) is not None]
        at = some[-1][0]
    return found


async def test_a_message_is_for_this_region_and_the_one_it_came_from() -> None:
    one = await opened()
    producer, port = await entered(one)
    one.topic.publish_foreign(producer, sent(9, "3:7", replicate_to=["us", "eu"]))
    await one.settle()
    ((_, entry),) = await one.topic.log.read_after(EARLIEST, 10, 1 << 20)
    header = unpack(entry)
    assert header.region is None, "no region shares an origin with us"
    assert header.came_from == (APACHE, Position(3, 7))
    assert header.replicate_to == ("us", APACHE)
    assert port.answers == [("stored", 3, 7)]
    assert one.topic.stored.messages_replicated_in == 1


@settings(max_examples=40, deadline=None)
@given(
    brought=st.lists(st.lists(st.integers(0, 12), max_size=8), max_size=6),
    ends=st.lists(st.sampled_from(["reconnect", "crash", "record"]), min_size=6, max_size=6),
)
async def test_each_message_is_stored_once_whatever_is_sent_again(brought: list[list[int]], ends: list[str]) -> None:
    """A replicator restarts at an earlier position, in order; the broker crashes and replays its logs."""
    one = await opened()
    producer, port = await entered(one)
    expected: list[Position] = []
    for numbers, end in zip(brought, ends, strict=False):
        for number in sorted(set(numbers)):
            source = Position(5 + number // 6, number % 6)
            one.topic.publish_foreign(producer, sent(number, f"{source.ledger}:{source.entry}"))
            if not expected or source > expected[-1]:
                expected.append(source)
        await one.settle()
        if end == "record":
            one.topic.pulsar.record()
            await one.settle()
        elif end == "crash":
            await one.kill()
            await one.start()
            await one.topic.pulsar.open()
        producer, port = await entered(one)
    assert await stored_sources(one) == expected
    assert all(kind in ("stored", "repeated") for kind, *_ in port.answers)
    await one.kill()


async def test_unstamped_messages_are_stored_as_often_as_they_come() -> None:
    one = await opened()
    producer, port = await entered(one, names_sources=False)
    for _ in range(2):
        one.topic.publish_foreign(producer, sent(4, None))
    await one.settle()
    assert port.answers == [("stored", 4, None)] * 2
    assert await stored_sources(one) == [EARLIEST] * 2


async def test_nothing_after_a_refused_message_is_stored() -> None:
    """Otherwise it would be taken for a repeat when it comes again, because later ones are stored."""
    one = await opened()
    producer, port = await entered(one)
    for send in (sent(1, "3:1"), sent(2, "3:2", replicated_from="elsewhere"), sent(3, "3:3")):
        one.topic.publish_foreign(producer, send)
    await one.settle()
    kinds = [kind for kind, *_ in port.answers]
    assert sorted(kinds) == ["closed", "dropped", "refused", "stored"]
    assert await stored_sources(one) == [Position(3, 1)]
    producer, port = await entered(one)
    for number in (1, 2, 3):
        one.topic.publish_foreign(producer, sent(number, f"3:{number}"))
    await one.settle()
    assert await stored_sources(one) == [Position(3, number) for number in (1, 2, 3)]


async def test_a_marker_is_confirmed_in_turn_and_not_stored() -> None:
    one = await opened()
    producer, port = await entered(one)
    one.topic.publish_foreign(producer, sent(1, "3:1"))
    one.topic.publish_foreign(producer, sent(2, None, marker_type=10))
    await one.settle()
    assert port.answers == [("stored", 3, 1), ("stored", 2, markers.RECEIPT)]
    assert len(await stored_sources(one)) == 1


@pytest.mark.parametrize("text", ["", ":", "3", "3:", ":4", "-3:4", "3:-4", "3:4:5", "a:b", "3:4 ", "9" * 20 + ":1"])
def test_no_source_position(text: str) -> None:
    assert source_of(sent(1, text).body) is None


async def test_a_message_without_a_valid_position_is_refused_where_positions_are_named() -> None:
    one = await opened()
    producer, port = await entered(one)
    one.topic.publish_foreign(producer, sent(1, "three"))
    assert [kind for kind, *_ in port.answers] == ["refused", "closed"]


async def test_the_position_served_survives_a_restart_and_holds_retention() -> None:
    one = await opened()
    await one.publish(4)
    one.topic.region_joined(APACHE)
    assert one.topic.needed_from() == EARLIEST
    one.topic.pulsar.served(APACHE, one.stored[2], one.stored[1])
    assert one.topic.needed_from() == EARLIEST, "it is not recorded yet"
    one.topic.pulsar.record()
    await one.settle()
    assert one.topic.needed_from() == one.stored[2]
    await one.kill()
    await one.start()
    await one.topic.pulsar.open()
    assert one.topic.pulsar.reached(APACHE) == (one.stored[2], one.stored[1])
    one.topic.region_joined(APACHE)
    assert one.topic.needed_from() == one.stored[2]
    one.topic.region_left(APACHE)
    await one.settle()
    await one.kill()
    await one.start()
    assert one.topic.pulsar.reached(APACHE) == (EARLIEST, EARLIEST), "a region that returns starts over"


async def test_an_unreadable_record_says_why() -> None:
    one = await opened()
    with pytest.raises(PulsarPlacesError, match=r"newer version of Meridian \(format 3, this one reads up to 2\)"):
        one.topic.pulsar.replay(APACHE, b"\x03" + bytes(64))
    with pytest.raises(PulsarPlacesError, match=r"is damaged: it has format 0, and .* reads 1 to 2"):
        one.topic.pulsar.replay(APACHE, bytes(65))
    with pytest.raises(PulsarPlacesError, match="is damaged: it has 65 bytes"):
        one.topic.pulsar.replay(APACHE, b"\x02" + bytes(64))


async def test_a_region_that_names_no_sources_causes_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    one = Region()
    await one.start()
    producer, _ = await entered(one, names_sources=False)
    for number in range(3):
        one.topic.publish_foreign(producer, sent(number, None))
    await one.settle()
    (warning,) = [record.getMessage() for record in caplog.records if "source positions" in record.getMessage()]
    assert APACHE in warning and "4.0.3" in warning
