# SPDX-License-Identifier: Apache-2.0
"""Cumulative acknowledgements and chunks (R18): of a message with interleaved chunks, all count or none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from meridian_broker.ledgers.entry import CHUNK, pack_extras, pack_own
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.cursors.chunk_pieces import Pieces
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.metadata import build_body

LEDGER = 5


def chunk(producer: str, message: int, number: int, of: int) -> bytes:
    metadata = pb.MessageMetadata(producer_name=producer, sequence_id=message, publish_time=1)
    metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg = f"{producer}-{message}", number, of
    head = pack_own(CHUNK, 1, 0, 0, 1, 1, EARLIEST.ledger, EARLIEST.entry, pack_extras(None, None))
    return head + build_body(metadata.SerializeToString(), b"x")


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.integers(1, 4)), max_size=8), st.data())
def test_all_chunks_of_a_message_count_or_none(messages: list[tuple[str, int]], data: st.DataObject) -> None:
    """Producers send their messages in order; acknowledgements go up to any position at any time."""
    waiting = {
        producer: [
            (number, piece, of) for number, (one, of) in enumerate(messages) if one == producer for piece in range(of)
        ]
        for producer in "xyz"
    }
    pieces, acked = Pieces(), set[Position]()
    where: dict[int, list[Position]] = {}
    upto, entry = EARLIEST, 0
    while any(waiting.values()):
        producer = data.draw(st.sampled_from([one for one, left in waiting.items() if left]))
        number, piece, of = waiting[producer].pop(0)
        position, entry = Position(LEDGER, entry), entry + 1
        where.setdefault(number, []).append(position)
        pieces.sent(position, chunk(producer, number, piece, of), EARLIEST, EARLIEST)
        if data.draw(st.booleans()):
            before, upto = upto, Position(LEDGER, data.draw(st.integers(max(upto.entry, 0), position.entry)))
            withheld, covered = pieces.acknowledged(upto)
            pieces.forget(upto)
            passed = {Position(LEDGER, at) for at in range(before.entry + 1, upto.entry + 1)}
            acked |= (passed - withheld) | set(covered)
        for number_, places in where.items():
            ends = len(places) == messages[number_][1] and places[-1] <= upto
            assert acked.issuperset(places) if ends else acked.isdisjoint(places)


def test_a_message_abandoned_by_its_producer_is_no_longer_waited_for() -> None:
    pieces = Pieces()
    for number, (message, piece) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        pieces.sent(Position(LEDGER, number), chunk("x", message, piece, 3), EARLIEST, EARLIEST)
    assert pieces.acknowledged(Position(LEDGER, 9)) == (frozenset({Position(LEDGER, 2), Position(LEDGER, 3)}), [])


def test_what_the_client_drops_is_not_acknowledged_with_later_messages() -> None:
    pieces = Pieces()
    for number in range(3):
        pieces.sent(Position(LEDGER, number), chunk("x", 0, number, 3), Position(LEDGER, 1), EARLIEST)
    assert pieces.acknowledged(Position(LEDGER, 9)) == (frozenset(Position(LEDGER, number) for number in range(3)), [])


def test_a_message_whose_beginning_was_not_sent_is_not_acknowledged() -> None:
    pieces = Pieces()
    for number in (1, 2):
        pieces.sent(Position(LEDGER, number), chunk("x", 0, number, 3), EARLIEST, EARLIEST)
    assert pieces.acknowledged(Position(LEDGER, 9)) == (frozenset(), [])


def test_individually_acknowledged_chunks_are_not_kept() -> None:
    pieces = Pieces()
    for number in range(6):
        before = Position(LEDGER, number - number % 3 - 1) if number >= 3 else EARLIEST
        pieces.sent(Position(LEDGER, number), chunk("x", number // 3, number % 3, 3), EARLIEST, before)
    assert pieces.acknowledged(Position(LEDGER, 9)) == (frozenset(), [Position(LEDGER, at) for at in (3, 4, 5)])
