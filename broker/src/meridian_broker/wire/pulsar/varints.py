# SPDX-License-Identifier: Apache-2.0
"""Protobuf's variable-length integers, by hand, for the few places where every nanosecond is paid per message."""

from __future__ import annotations

from typing import Final

VARINT_CACHE_ENTRIES: Final = 1024
"""Number of ledger ids (nine bytes of varint) whose encoding is cached; a connection uses few at a time."""
_U64: Final = (1 << 64) - 1
_TWO_BYTES: Final = 1 << 14

SHORT: Final = [bytes((n,)) if n < 0x80 else bytes((n & 0x7F | 0x80, n >> 7)) for n in range(_TWO_BYTES)]
"""The varints of one or two bytes, by their number."""
_MORE: Final = [bytes((n & 0x7F | 0x80, n >> 7 | 0x80)) for n in range(_TWO_BYTES)]
"""Fourteen bits with more to follow."""


def varint(number: int) -> bytes:
    """The shortest varint of ``number``; a negative one as protobuf writes it, in 64 bits two's complement."""
    if 0 <= number < _TWO_BYTES:
        return SHORT[number]
    number &= _U64
    encoded = b""
    while number >= _TWO_BYTES:
        encoded += _MORE[number & 0x3FFF]
        number >>= 14
    return encoded + SHORT[number]


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The varint at ``at``, and where it ends. Nine bytes (63 bits) at most: longer ones are for the parser.

    :raises IndexError: it is longer, or ``data`` ends before it does.
    """
    first = data[at]
    if first < 0x80:
        return first, at + 1
    second = data[at + 1]
    if second < 0x80:
        return first & 0x7F | second << 7, at + 2
    third = data[at + 2]
    number = first & 0x7F | (second & 0x7F) << 7 | (third & 0x7F) << 14
    if third < 0x80:
        return number, at + 3
    shift = 21
    for place in range(at + 3, at + 9):
        byte = data[place]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place + 1
        shift += 7
    raise IndexError
