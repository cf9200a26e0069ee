# SPDX-License-Identifier: Apache-2.0
"""Bitmaps as bytes: canonical whatever the bitmap's history, complete, and near the entropy."""

from __future__ import annotations

from math import log2
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from meridian_broker.positions.bitcodec import put_bits, take_bits
from meridian_broker.positions.bitruns import (
    ENTRY_LIMIT,
    as_bitset,
    chunks,
    from_bitset,
    run_end,
    run_start,
    runs,
)
from meridian_broker.positions.varints import Reader, put_number
from pyroaring import BitMap

TOP = ENTRY_LIMIT - 1
many = settings(max_examples=500, deadline=None)
edges = st.sampled_from([0, 1, 65535, 65536, 65537, 131071, 131072, TOP - 65536, TOP - 1, TOP])
numbers = edges | st.integers(0, 300) | st.integers(65500, 65600) | st.integers(0, TOP)
spans = st.lists(st.tuples(numbers, st.integers(1, 40) | st.sampled_from([70_000, 200_000])), min_size=1, max_size=60)
textures = st.tuples(
    st.integers(0, 1 << 30), st.sampled_from([0.001, 0.01, 0.1, 0.3, 0.5, 0.9]), st.integers(1, 150_000)
)


def encoded(bits: BitMap) -> bytes:
    out = bytearray()
    put_bits(out, bits)
    return bytes(out)


def decoded(data: bytes) -> BitMap:
    reader = Reader(data)
    bits = take_bits(reader)
    reader.end()
    return bits


def from_spans(spans: list[tuple[int, int]]) -> BitMap:
    bits = BitMap()
    for first, length in spans:
        bits.add_range(first, min(first + length, ENTRY_LIMIT))
    return bits


def random_holes(seed: int, share: float, entries: int) -> BitMap:
    bits = BitMap()
    bits.add_range(0, entries)
    return bits - BitMap(Random(seed).sample(range(entries), int(entries * share)))


def histories(bits: BitMap) -> list[BitMap]:
    """The same set, with different internal containers."""
    optimized = bits.copy()
    optimized.run_optimize()
    one_by_one = BitMap()
    for number in bits if len(bits) < 3000 else ():
        one_by_one.add(number)
    shrunk = BitMap([5])
    shrunk.add_range(0, 1 << 20)
    shrunk &= bits
    shrunk |= bits
    return [optimized, BitMap(bits.to_array()), shrunk] + ([one_by_one] if one_by_one else [])


@many
@given(spans)
def test_round_trip_of_runs(spans: list[tuple[int, int]]) -> None:
    bits = from_spans(spans)
    data = encoded(bits)
    assert decoded(data) == bits
    assert all(encoded(other) == data for other in histories(bits))


@settings(max_examples=60, deadline=None)
@given(textures)
@example((1, 0.5, 4097 * 2))
@example((1, 0.5, 65536))
def test_round_trip_of_textures(texture: tuple[int, float, int]) -> None:
    bits = random_holes(*texture)
    if not bits:
        return
    data = encoded(bits)
    assert decoded(data) == bits
    assert all(encoded(other) == data for other in histories(bits))


@many
@given(spans)
def test_chunks_are_canonical_and_complete(spans: list[tuple[int, int]]) -> None:
    bits = from_spans(spans)
    found = list(chunks(bits))
    assert all(list(chunks(other)) == found for other in histories(bits))
    again = BitMap()
    for key, members, data in found:
        part = from_bitset(key, as_bitset(members, data))
        assert len(part) == members
        again |= part
    assert again == bits


@many
@given(spans)
def test_runs_and_their_ends(spans: list[tuple[int, int]]) -> None:
    bits = from_spans(spans)
    firsts, lasts = runs(bits)
    assert from_spans([(first, last - first + 1) for first, last in zip(firsts, lasts, strict=True)]) == bits
    for first, last in zip(firsts, lasts, strict=True):
        assert first == 0 or first - 1 not in bits
        assert last == TOP or last + 1 not in bits
        middle = (first + last) // 2
        for number in (first, middle, last):
            assert (run_start(bits, number), run_end(bits, number)) == (first, last)


@many
@given(st.binary(min_size=1, max_size=40), st.integers(0, 3))
def test_garbage_is_refused_with_value_error(data: bytes, kind: int) -> None:
    try:
        bits = decoded(bytes((kind,)) + data)
    except ValueError:
        return
    assert not bits or decoded(encoded(bits)) == bits


@settings(max_examples=60, deadline=None)
@given(textures, st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4))
def test_damage_is_refused_with_value_error(texture: tuple[int, float, int], damage: list[tuple[int, int]]) -> None:
    bits = random_holes(texture[0], texture[1], min(texture[2], 5000))
    if not bits:
        return
    data = bytearray(encoded(bits))
    for at, value in damage:
        data[at % len(data)] = value
    for broken in (bytes(data), bytes(data[: damage[0][0] % len(data)])):
        try:
            decoded(broken)
        except ValueError:
            continue


@pytest.mark.parametrize(("share", "above_entropy"), [(0.001, 1.15), (0.01, 1.15), (0.1, 1.2), (0.5, 1.01), (0.9, 1.2)])
def test_random_holes_cost_little_more_than_their_entropy(share: float, above_entropy: float) -> None:
    entries = 400_000
    entropy_bytes = -entries * (share * log2(share) + (1 - share) * log2(1 - share)) / 8
    assert len(encoded(random_holes(1, share, entries))) <= entropy_bytes * above_entropy


def test_a_few_bytes_cannot_expand_to_much() -> None:
    everything = BitMap()
    everything.add_range(0, ENTRY_LIMIT)
    one = encoded(everything)
    assert len(one) < 12
    reader = Reader(one * 10)
    with pytest.raises(ValueError, match="expands to more"):
        for _ in range(10):
            take_bits(reader)


@pytest.mark.parametrize("number", [0, 1, 127, 128, (1 << 63) - 1, (1 << 64) - 1])
def test_numbers(number: int) -> None:
    out = bytearray()
    put_number(out, number)
    reader = Reader(bytes(out))
    assert reader.number() == number
    reader.end()


@pytest.mark.parametrize("data", ["", "80", "8000", "ffffffffffffffffff02", "ffffffffffffffffffff01"])
def test_invalid_numbers(data: str) -> None:
    with pytest.raises(ValueError, match="broken encoding"):
        Reader(bytes.fromhex(data)).number()
