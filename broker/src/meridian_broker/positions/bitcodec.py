# SPDX-License-Identifier: Apache-2.0
"""Bitmaps as bytes: canonical, and close to the smallest possible size.

A subscription's holes come in three patterns, each with its own coding. The choice depends on the set alone, so equal
sets have equal bytes:

* **few runs** (up to 16, nearly always): gaps and lengths as plain numbers;
* **many runs** (some holes, say 1 or 10 %): gaps and lengths as Rice codes (Golomb 1966, Rice 1979), each with its own
  parameter. If holes are spread at random, both are geometrically distributed, and for that this code is within a few
  per cent of the entropy;
* **mostly runs of two or three** (about half of the entries): a plain bitset, which then *is* the entropy.
"""

from __future__ import annotations

import re
from array import array
from operator import sub
from typing import Final

from pyroaring import BitMap

from meridian_broker.positions.bitruns import (
    CHUNK_BYTES,
    ENTRY_LIMIT,
    as_bitset,
    chunks,
    from_bitset,
    runs,
)
from meridian_broker.positions.varints import Reader, put_bytes, put_number

_RUNS: Final = 0
_RICE: Final = 1
_PLAIN: Final = 2

_FEW_RUNS: Final = 16
_DENSE: Final = 5
"""With a run per this many numbers or fewer, take the plain bitset without comparing: at most 10 % larger, and fast."""
_ESCAPE: Final = 24
"""A Rice quotient this large is not written in unary: the value follows in 32 bits. One huge gap costs 7 bytes."""
_MAX_PARAMETER: Final = 31


def put_bits(out: bytearray, bits: BitMap) -> None:
    """Append a set, which must not be empty."""
    first, last = bits.min(), bits.max()
    if last - first + 1 == len(bits):  # one run, most often one entry
        out += b"\x00\x01"
        put_number(out, first)
        put_number(out, last - first)
        return
    firsts, lasts = runs(bits)
    count = len(firsts)
    if count <= _FEW_RUNS:
        out.append(_RUNS)
        put_number(out, count)
        end = -1
        for first, last in zip(firsts, lasts, strict=True):
            put_number(out, first - end - 1)
            put_number(out, last - first)
            end = last
        return
    span = lasts[-1] - firsts[0] + 1
    if count * _DENSE < span:
        coded = _rice(firsts, lasts)
        if len(coded) <= span // 8:
            out.append(_RICE)
            out += coded
            return
    out.append(_PLAIN)
    _put_plain(out, bits)


def take_bits(reader: Reader) -> BitMap:
    """Read what ``put_bits`` wrote.

    :raises ValueError: these bytes are not a valid set, or exceed the limits.
    """
    kind = reader.byte()
    if kind == _RUNS:
        return _take_runs(reader)
    if kind == _RICE:
        return _take_rice(reader)
    if kind == _PLAIN:
        first = reader.number()
        plain = reader.bytes()
        if (first + len(plain)) * 8 > ENTRY_LIMIT or not plain:
            raise reader.broken("a bitset is empty or goes past the last entry id")
        lead = first % CHUNK_BYTES
        return from_bitset(first // CHUNK_BYTES, bytes(lead) + plain)
    raise reader.broken(f"a bitmap has the unknown coding {kind}")


def _put_plain(out: bytearray, bits: BitMap) -> None:
    plain = bytearray()
    first_chunk = -1
    for key, members, data in chunks(bits):
        if first_chunk < 0:
            first_chunk = key
        plain += bytes((key - first_chunk) * CHUNK_BYTES - len(plain))
        plain += as_bitset(members, data)
    lead = len(plain) - len(plain.lstrip(b"\0"))
    put_number(out, first_chunk * CHUNK_BYTES + lead)
    put_bytes(out, plain.strip(b"\0"))


def _take_runs(reader: Reader) -> BitMap:
    bits = BitMap()
    first = 0
    for _ in range(reader.count(2)):
        first += reader.number()
        last = first + reader.number()
        if last >= ENTRY_LIMIT:
            raise reader.broken("a run goes past the last entry id")
        reader.spend(last - first >> 16)
        bits.add_range(first, last + 1)
        first = last + 1
    return bits


class _Codes(dict[int, str]):
    """Rice code words, built on first use: the values of one set repeat a lot."""

    def __init__(self, parameter: int) -> None:
        super().__init__()
        self._parameter = parameter

    def __missing__(self, value: int) -> str:
        quotient = value >> self._parameter
        if quotient >= _ESCAPE:
            code = "1" * _ESCAPE + f"{value:032b}"
        else:
            low = f"{value & (1 << self._parameter) - 1:0{self._parameter}b}" if self._parameter else ""
            code = "1" * quotient + "0" + low
        self[value] = code
        return code


class _Values(dict[str, int]):
    """The inverse: code words of one parameter to values."""

    def __init__(self, parameter: int) -> None:
        super().__init__()
        self._parameter = parameter

    def __missing__(self, code: str) -> int:
        quotient = code.find("0")
        if quotient < 0 or quotient >= _ESCAPE:
            value = int(code[_ESCAPE:], 2)
        else:
            value = quotient << self._parameter | int("0" + code[quotient + 1 :], 2)
        self[code] = value
        return value


def _parameter(total: int, count: int) -> int:
    """The parameter that suits geometrically distributed values with this sum: about log2 of their median."""
    return min(max((total * 45426 // (count << 16)).bit_length(), 1) - 1, _MAX_PARAMETER) if total else 0


def _rice(firsts: array[int], lasts: array[int]) -> bytes:
    """``count, first, gaps, lengths``: the gaps between runs, and how many entries follow the first one of each run."""
    out = bytearray()
    put_number(out, len(firsts))
    put_number(out, firsts[0])
    _put_codes(out, [gap - 2 for gap in map(sub, firsts[1:], lasts)])
    _put_codes(out, list(map(sub, lasts, firsts)))
    return bytes(out)


def _put_codes(out: bytearray, values: list[int]) -> None:
    parameter = _parameter(sum(values), len(values))
    text = "".join(map(_Codes(parameter).__getitem__, values))
    size = (len(text) + 7) // 8
    out.append(parameter)
    put_bytes(out, int(text.ljust(size * 8, "0"), 2).to_bytes(size, "big"))


def _take_rice(reader: Reader) -> BitMap:
    count, first = reader.number(), reader.number()
    if count < 2:
        raise reader.broken("a Rice coding has fewer than two runs")
    gaps = _take_codes(reader, count - 1)
    lengths = _take_codes(reader, count)
    if first + sum(gaps) + sum(lengths) + 2 * count - 1 > ENTRY_LIMIT:
        raise reader.broken("a run goes past the last entry id")
    reader.spend(sum(lengths) >> 16)
    gaps.append(0)
    return _from_runs(first, gaps, lengths)


def _take_codes(reader: Reader, count: int) -> list[int]:
    parameter = reader.byte()
    data = reader.bytes()
    if parameter > _MAX_PARAMETER or not count <= 8 * len(data):
        raise reader.broken("a Rice coding does not hold as many runs as announced")
    text = f"{int.from_bytes(data, 'big'):0{8 * len(data)}b}"
    codes = re.findall(f"1{{{_ESCAPE}}}[01]{{32}}|1{{0,{_ESCAPE - 1}}}0[01]{{{parameter}}}", text)[:count]
    used = "".join(codes)
    rest = text[len(used) :]
    if len(codes) < count or not text.startswith(used) or len(rest) > 7 or "1" in rest:
        raise reader.broken("a Rice coding has too few bits, or bits left over")
    return list(map(_Values(parameter).__getitem__, codes))


def _from_runs(first: int, gaps: list[int], lengths: list[int]) -> BitMap:
    bits = BitMap()
    add = bits.add_range
    for gap, length in zip(gaps, lengths, strict=True):
        end = first + length + 1
        add(first, end)
        first = end + gap + 1
    return bits
