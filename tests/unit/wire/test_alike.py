# SPDX-License-Identifier: Apache-2.0
"""Equal commands of many consumers are parsed in one go, with the same result as frame by frame."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.positions.position import Position
from meridian_broker.wire.pulsar import alike, encode
from meridian_broker.wire.pulsar.alike import GROWTH, UNITS_MIN
from meridian_broker.wire.pulsar.frames import (
    ACK_OF_MANY,
    FLOW_OF_MANY,
    Ack,
    AckOfMany,
    Flow,
    FlowOfMany,
    FrameDecoder,
    FrameError,
)

LEDGER = 750_000_000_000_123
CONSUMERS = [0, 1, 120, 126, 127, 128, 129, 1000, 16380, 16383, 16384]
ENTRIES = [1, 2, 127, 128, 70_000]


def one_by_one(commands: Iterable[Any]) -> list[Any]:
    """The result of parsing each consumer's frames separately."""
    found: list[Any] = []
    for command in commands:
        if isinstance(command, AckOfMany):
            found += [Ack(10, one, 0, [command.position], None, None) for one in command.consumer_ids]
        elif isinstance(command, FlowOfMany):
            found += [Flow(11, one, command.permits) for one in command.consumer_ids]
        else:
            found.append(command)
    return found


def written(consumer: int, entries: list[int], permits: int) -> bytes:
    """What a consumer sends after these entries."""
    return b"".join(
        encode.ack(consumer, 0, [(LEDGER, entry)]) + (encode.flow(consumer, permits) if permits else b"")
        for entry in entries
    )


def read(decoder: FrameDecoder, pieces: Iterable[bytes]) -> tuple[list[Any], type[FrameError] | None]:
    """The single commands, in an order that does not depend on who wrote first; and what ended them."""
    found: list[Any] = []
    failure = None
    for piece in pieces:
        try:
            found += decoder.feed(piece)
        except FrameError as error:
            found, failure = found + error.before, type(error)
            break
    return sorted(map(repr, one_by_one(found))), failure


@pytest.mark.parametrize("entries", [[7], [7, 8], [7, 200, 70_000]])
@pytest.mark.parametrize("permits", [0, 1, 1000])
@pytest.mark.parametrize("consumers", [range(100), range(1000, 1100)])
def test_a_run_is_parsed_at_once(entries: list[int], permits: int, consumers: range) -> None:
    decoder = FrameDecoder(joins=True)
    decoder.feed(b"".join(written(one, entries, permits) for one in (200, 201, 1, 2)))
    commands = decoder.feed(b"".join(written(one, entries, permits) for one in consumers))
    wanted: list[Any] = []
    for entry in entries:
        wanted.append(AckOfMany(ACK_OF_MANY, list(consumers), Position(LEDGER, entry)))
        if permits:
            wanted.append(FlowOfMany(FLOW_OF_MANY, list(consumers), permits))
    assert commands == wanted


def test_nothing_is_joined_unless_requested() -> None:
    data = b"".join(written(one, [7], 1) for one in range(50))
    decoder = FrameDecoder()
    assert [type(one) for _ in range(2) for one in decoder.feed(data)] == [Ack, Flow] * 100


class Counting(bytes):
    """Counts the bytes that are read from it."""

    taken = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        Counting.taken += len(found) if isinstance(at, slice) else 1
        return found


@pytest.mark.parametrize("length", [UNITS_MIN, UNITS_MIN + 1, 3 * UNITS_MIN, 20 * UNITS_MIN])
def test_a_short_run_costs_nothing_for_what_follows_it(length: int) -> None:
    """Otherwise each short run of a client would be compared with everything that follows it."""
    run = b"".join(encode.ack(one % 100, 0, [(LEDGER, 7)]) for one in range(length))
    rest = b"".join(encode.ack(1, 0, [(LEDGER, 8)]) for _ in range(10_000))
    unit = encode.ack(1, 0, [(LEDGER, 7)])
    Counting.taken, commands = 0, list[Any]()
    assert alike.take(Counting(run + rest), 0, {unit[14:]: Position(LEDGER, 7)}, commands) == len(run)
    assert [len(one.consumer_ids) for one in commands] == [length]
    assert Counting.taken < 2 * GROWTH * len(run) + 10 * len(unit)


@pytest.mark.parametrize("first", [1, 300])
@pytest.mark.parametrize(("entries", "permits"), [([7], 0), ([7], 1), ([7, 200], 1)])
@pytest.mark.parametrize("in_all", [False, True])
def test_any_changed_byte_of_a_run_is_noticed(first: int, entries: list[int], permits: int, in_all: bool) -> None:
    known = b"".join(written(consumer, [7, 200], 0) for consumer in (1, 2))
    units = [written(first + number, entries, permits) for number in range(UNITS_MIN + 2)]
    size, run = len(units[0]), b"".join(units)
    for at in range(size if in_all else len(run)):
        for other in {0, 1, run[at] ^ 0x80, run[at] ^ 1, run[at] ^ 0x7F, 0xFF}:
            changed = bytearray(run)
            for place in range(at, len(run), size) if in_all else (at,):
                changed[place] = other
            pieces = [known, bytes(changed)]
            assert read(FrameDecoder(joins=True), pieces) == read(FrameDecoder(), pieces)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Runs of equal commands, sometimes with a changed byte or another consumer's number."""
    out = bytearray()
    for _ in range(draw(st.integers(1, 4))):
        entries = draw(st.lists(st.sampled_from(ENTRIES), min_size=1, max_size=3))
        permits = draw(st.sampled_from([0, 1, 127, 128, 1 << 20, 1 << 28]))
        first, length = draw(st.sampled_from(CONSUMERS)), draw(st.sampled_from([1, 3, 7, 8, 9, 31, 32, 33, 60]))
        step = draw(st.sampled_from([0, 1, 3]))
        for number in range(length):
            consumer = (first + number * step) % (1 << 15)
            out += written(consumer, entries, permits)
        if draw(st.integers(0, 3)) == 0:
            out += draw(st.sampled_from([encode.PING, encode.ack(1, 1, [(LEDGER, 1)]), encode.flow(1, 9)]))
    for _ in range(draw(st.integers(0, 2))):
        out[draw(st.integers(0, len(out) - 1))] = draw(st.integers(0, 255))
    return bytes(out)


@settings(max_examples=500, deadline=None)
@given(streams(), st.data())
def test_joined_commands_equal_those_parsed_frame_by_frame(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=3)))
    known = b"".join(written(consumer, ENTRIES, 0) for consumer in (1, 2))
    pieces = [known, known, *(stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True))]
    assert read(FrameDecoder(joins=True), pieces) == read(FrameDecoder(), pieces)
