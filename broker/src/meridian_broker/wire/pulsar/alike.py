# SPDX-License-Identifier: Apache-2.0
"""ACKs and FLOWs of many consumers in a row that differ in nothing but the consumer's number.

After a message for thousands of subscriptions, each consumer of a connection writes the same: an ACK of one entry,
perhaps of several, perhaps a FLOW after each. What one consumer writes is the *unit*. A whole run of units is compared
with its first one at once, and its numbers are read from where they stand in each. A number has one byte or two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from meridian_broker.positions.position import Position
from meridian_broker.wire.pulsar.commands import ACK, ACK_OF_MANY, FLOW, FLOW_OF_MANY, AckOfMany, FlowOfMany
from meridian_broker.wire.pulsar.varints import read_varint

UNIT_BYTES: Final = 512
"""Largest unit that is looked for: ten ACKs with their FLOWs."""
UNITS_MIN: Final = 8
"""Fewer in a row are cheaper frame by frame."""
GROWTH: Final = 4
"""After units that were all alike, so many times as many are compared at once, so that a short run costs little."""
_NUMBER: Final = 13
"""Where the consumer's number begins in a frame whose command is shorter than 128 bytes."""
_Said = tuple[int, Position | None, int]
"""Where a frame begins; the entry of an ACK, or else the permits of a FLOW."""
_ACK_HEAD: Final = bytes((8, ACK, ACK << 3 | 2))
_FLOW_HEAD: Final = bytes((8, FLOW, FLOW << 3 | 2))
_SMALLEST: Final = _NUMBER + 3
_PERMITS: Final = re.compile(rb"\x10[\x80-\xff]{0,3}[\x00-\x7f]", re.DOTALL)


def take(data: bytes, position: int, acked: Mapping[bytes, Position], commands: list[Any]) -> int:
    """Append what a run says that begins with the short ACK of one entry at ``position``.

    :param acked: entries, by what follows the consumer in their ACKs. That of this ACK is among them.
    :returns: where the run ends; ``position``: there is none.
    """
    width = 1 if data[position + _NUMBER] < 0x80 else 2
    said = position + _NUMBER + width
    end = position + 4 + int.from_bytes(data[position : position + 4], "big")
    again = data.find(data[said:end], end, end + UNIT_BYTES)
    size = again - said
    if again < 0 or position + UNITS_MIN * size > len(data):
        return position
    frames = _frames_of(data[position : position + size], width, acked)
    if frames is None:
        return position
    begins = [at for at, _, _ in frames]
    looked, most = UNITS_MIN, (len(data) - position) // size
    while (count := _count_alike(data, position, size, looked, width, begins)) == looked < most:
        looked = min(looked * GROWTH, most)
    if count < UNITS_MIN:
        return position
    stop = position + count * size
    numbers = data[position + _NUMBER : stop : size]
    consumer_ids = list(numbers)
    if width == 2:
        seconds = data[position + _NUMBER + 1 : stop : size]
        if min(numbers) < 0x80 or max(seconds) >= 0x80:
            return position
        consumer_ids = [first & 0x7F | second << 7 for first, second in zip(numbers, seconds, strict=True)]
    elif max(numbers) >= 0x80:
        return position
    for _, place, permits in frames:
        if place is not None:
            commands.append(AckOfMany(ACK_OF_MANY, consumer_ids, place))
        else:
            commands.append(FlowOfMany(FLOW_OF_MANY, consumer_ids, permits))
    return stop


def _frames_of(unit: bytes, width: int, acked: Mapping[bytes, Position]) -> list[_Said] | None:
    """Where the frames of a unit begin, and what each says. None: a frame is something else."""
    found: list[_Said] = []
    at = 0
    while at < len(unit):
        total, length = int.from_bytes(unit[at : at + 4], "big"), int.from_bytes(unit[at + 4 : at + 8], "big")
        end = at + 4 + total
        if not _SMALLEST <= end - at <= len(unit) - at or length != total - 4:
            return None
        if not unit[at + 11] == length - 4 < 0x80 or unit[at + 12] != 8:
            return None
        head, said = unit[at + 8 : at + 11], unit[at + _NUMBER + width : end]
        place = acked.get(said) if head == _ACK_HEAD else None
        if place is not None:
            found.append((at, place, 0))
        elif head == _FLOW_HEAD and _PERMITS.fullmatch(said):
            found.append((at, None, read_varint(said, 1)[0]))
        else:
            return None
        at = end
    return found


def _count_alike(data: bytes, position: int, size: int, count: int, width: int, begins: list[int]) -> int:
    """How many of ``count`` units in a row equal the first one, the consumer's number aside, which is the same in all
    frames of a unit."""
    run = data[position : position + count * size]
    first, plain = run[:size], bytearray(run)
    for byte in range(_NUMBER, _NUMBER + width):
        numbers = run[byte::size]
        for begin in begins:
            if run[begin + byte :: size] != numbers:  # cut short where they differ, then compare again
                count = min(count, _common(run[begin + byte :: size], numbers))
            plain[begin + byte :: size] = first[byte : byte + 1] * len(numbers)
    return min(count, _common(plain, first * (len(run) // size)) // size)


def _common(one: bytes | bytearray, other: bytes) -> int:
    """How many bytes at the beginning are the same, of as many."""
    if one == other:
        return len(other)
    differing = int.from_bytes(one, "big") ^ int.from_bytes(other, "big")
    return len(other) - (differing.bit_length() + 7) // 8
