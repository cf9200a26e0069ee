# SPDX-License-Identifier: Apache-2.0
"""Runs and chunks of a roaring bitmap, at the speed of C wherever the library lets us.

The library offers sets of numbers; this code works with runs. The end of one run is found by galloping with
``contains_range``; all runs at once by shifting the set by one and subtracting.

The library's own serialization is *not* canonical: equal sets with different histories may serialize to different
bytes (of a run container and an array container of the same size, neither is converted). ``chunks`` is canonical: it
splits a set into chunks of 65,536 numbers, each in a form that depends only on its content.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from itertools import chain
from typing import Final

from pyroaring import BitMap

ENTRY_LIMIT: Final = 1 << 32
"""Entry ids must be below this, the range of the bitmap's words. A ledger rolls over long before."""

CHUNK_BITS: Final = 1 << 16
CHUNK_BYTES: Final = CHUNK_BITS // 8
ARRAY_MAX: Final = 4096
"""Up to this many numbers of a chunk are kept as an array of u16 (8 KiB, the size of the plain bitset)."""

_WITHOUT_RUNS: Final = 12346
_WITH_RUNS: Final = 12347
_NO_OFFSETS_BELOW: Final = 4
_FULL_CHUNK: Final = b"\xff" * CHUNK_BYTES


def run_end(bits: BitMap, first: int) -> int:
    """The last number of the run that ``first``, a member, belongs to."""
    holds = bits.contains_range
    step = 1
    good = first
    while good + step < ENTRY_LIMIT and holds(good, good + step + 1):
        good += step
        step <<= 1
    while step > 1:
        step >>= 1
        if good + step < ENTRY_LIMIT and holds(good, good + step + 1):
            good += step
    return good


def run_start(bits: BitMap, last: int) -> int:
    """The first number of the run that ``last``, a member, belongs to."""
    holds = bits.contains_range
    step = 1
    good = last
    while good - step >= 0 and holds(good - step, good + 1):
        good -= step
        step <<= 1
    while step > 1:
        step >>= 1
        if good - step >= 0 and holds(good - step, good + 1):
            good -= step
    return good


def runs(bits: BitMap) -> tuple[array[int], array[int]]:
    """First and last numbers of all runs, ascending."""
    return (bits - bits.shift(1)).to_array(), (bits - bits.shift(-1)).to_array()


def chunks(bits: BitMap) -> Iterator[tuple[int, int, bytes]]:
    """``(number // 65536, count, data)`` per chunk that is not empty. Canonical.

    Data of up to 4096 numbers is an array of little-endian u16, of more a bitset of 8 KiB, lowest bit first: the
    containers of the public roaring format, without its run containers.
    """
    data = bits.serialize()
    (cookie,) = struct.unpack_from("<I", data)
    if cookie & 0xFFFF == _WITH_RUNS:
        count = (cookie >> 16) + 1
        flags_size = (count + 7) // 8
        is_run = int.from_bytes(data[4 : 4 + flags_size], "little")
        at = 4 + flags_size
        has_offsets = count >= _NO_OFFSETS_BELOW
    else:
        (count,) = struct.unpack_from("<I", data, 4)
        is_run, at, has_offsets = 0, 8, True
    descriptions = struct.unpack_from(f"<{2 * count}H", data, at)
    at += 4 * count + (4 * count if has_offsets else 0)
    for index in range(count):
        key, members = descriptions[2 * index], descriptions[2 * index + 1] + 1
        if is_run >> index & 1:
            (pairs,) = struct.unpack_from("<H", data, at)
            yield key, members, _from_runs(struct.unpack_from(f"<{2 * pairs}H", data, at + 2), members)
            at += 2 + 4 * pairs
        else:
            size = 2 * members if members <= ARRAY_MAX else CHUNK_BYTES
            yield key, members, data[at : at + size]
            at += size


def _from_runs(pairs: tuple[int, ...], members: int) -> bytes:
    if members == CHUNK_BITS:
        return _FULL_CHUNK
    if members <= ARRAY_MAX:
        numbers = list(
            chain.from_iterable(range(pairs[i], pairs[i] + pairs[i + 1] + 1) for i in range(0, len(pairs), 2))
        )
        return struct.pack(f"<{members}H", *numbers)
    whole = 0
    for i in range(0, len(pairs), 2):
        whole |= ((2 << pairs[i + 1]) - 1) << pairs[i]
    return whole.to_bytes(CHUNK_BYTES, "little")


def as_bitset(members: int, data: bytes) -> bytes:
    """The data of a chunk as a bitset of 8 KiB, whichever form it has."""
    if members > ARRAY_MAX:
        return data
    out = bytearray(CHUNK_BYTES)
    for number in struct.unpack(f"<{members}H", data):
        out[number >> 3] |= 1 << (number & 7)
    return bytes(out)


def from_bitset(first_chunk: int, plain: bytes) -> BitMap:
    """The set whose bitset from number ``first_chunk * 65536`` on is ``plain`` (lowest bit first).

    Builds the public roaring format for the library to read: foreign bytes never reach its parser.
    """
    keys: list[bytes] = []
    containers: list[bytes] = []
    for start in range(0, len(plain), CHUNK_BYTES):
        piece = plain[start : start + CHUNK_BYTES]
        members = int.from_bytes(piece, "little").bit_count()
        if not members:
            continue
        keys.append(struct.pack("<HH", first_chunk + start // CHUNK_BYTES, members - 1))
        if members > ARRAY_MAX:
            containers.append(piece.ljust(CHUNK_BYTES, b"\0"))
        else:
            numbers = [8 * i + bit for i, byte in enumerate(piece) if byte for bit in range(8) if byte >> bit & 1]
            containers.append(struct.pack(f"<{members}H", *numbers))
    offset = 8 + 8 * len(keys)
    offsets = bytearray()
    for container in containers:
        offsets += struct.pack("<I", offset)
        offset += len(container)
    header = struct.pack("<II", _WITHOUT_RUNS, len(keys)) + b"".join(keys) + offsets
    return BitMap.deserialize(header + b"".join(containers))
