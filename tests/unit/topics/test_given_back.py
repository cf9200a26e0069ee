# SPDX-License-Identifier: Apache-2.0
"""What a region learns from its own entries that others returned (R5), and what is reported when it stops waiting."""

from __future__ import annotations

from meridian_broker.ledgers.entry import EntryHeader, pack_foreign
from meridian_broker.ledgers.holes import HOLES_MAX, Holes
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.wire.pulsar.metadata import body_checksum
from support.worlds.compaction_world import Message, single_body
from support.worlds.topic_world import TopicWorld


def returned(origin: Position, region: str = "here") -> tuple[EntryHeader, bytes]:
    """A message of producer ``p`` with sequence id 1, as another region returns it."""
    body = single_body(Message(None, b"x"), 1)
    checksum = body_checksum(body)
    return EntryHeader(2, 0, 1, 0, checksum, 1, 1, EARLIEST, region, origin, None, None), body


async def test_a_repeat_of_a_returned_message_is_a_repeat() -> None:
    """R5, R6: its producer has no receipt and sends it again, before or after a restart: it is stored already."""
    world = TopicWorld()
    await world.open()
    world.topic.deduplication.follow(True)
    assert world.topic.deduplication.last_sequence_id("p") == -1
    header, body = returned(Position(900, 0))
    world.topic.deduplication.given_back(pack_foreign(header) + body)
    assert world.topic.deduplication.last_sequence_id("p") == 1


async def test_a_restart_counts_returned_entries_and_none_of_other_regions() -> None:
    world = TopicWorld()
    await world.open()
    world.topic.deduplication.follow(True)
    for header, body in (returned(Position(900, 0), "there"), returned(Position(901, 0))):
        await world.scheduler.answer(
            lambda ready, header=header, body=body: world.topic.log.append_foreign(  # type: ignore[misc]
                header, body, lambda _, result: ready(result), None
            )
        )
        await world.settle()
        await world._open_topic()
        await world.topic.deduplication.open(True)
        assert world.topic.deduplication.last_sequence_id("p") == (1 if header.region == "here" else -1)


def test_abandoned_holes_are_counted() -> None:
    holes = Holes()
    for number in range(HOLES_MAX + 2):
        holes.open("us", Position(number, 5), Position(number + 1, 0))
    assert holes.given_up == 2
    assert holes.of("us")[0] == (Position(2, 5), Position(3, 0))
    assert len(holes.of("us")) == HOLES_MAX
