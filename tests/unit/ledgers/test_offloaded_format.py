# SPDX-License-Identifier: Apache-2.0
"""The bytes of a ledger's copy: what is packed is read back, and nothing else is accepted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.ledgers.offloaded.format import (
    Block,
    CopyDamaged,
    CopyIndex,
    Packer,
    pack_block,
    unpack_block,
)

LEDGERS = st.integers(0, (1 << 53) - 1)
ENTRIES = st.lists(st.binary(max_size=40), min_size=1, max_size=30)


def packed(ledger: int, entries: list[bytes], block: int, chunk: int) -> tuple[list[bytes], CopyIndex]:
    packer = Packer(ledger, block, chunk)
    chunks = [full for entry in entries if (full := packer.add(entry)) is not None]
    last, index = packer.finish(b"label")
    return [*chunks, *([] if last is None else [last])], index


@settings(max_examples=500)
@given(LEDGERS, ENTRIES, st.integers(1, 100), st.integers(1, 300))
def test_every_entry_is_found_through_the_index(ledger: int, entries: list[bytes], block: int, chunk: int) -> None:
    chunks, index = packed(ledger, entries, block, chunk)
    assert CopyIndex.decode(index.encode(), ledger) == index
    assert (index.entries, index.size, index.label) == (len(entries), sum(map(len, entries)), b"label")
    assert [len(one) for one in chunks] == list(index.chunks)
    found: list[bytes | None] = []
    for number, place in enumerate(index.blocks):
        assert index.block_of(len(found)) == number
        data = chunks[place.chunk][place.offset : place.offset + place.length]
        content = unpack_block(ledger, place.first, index.end_of(number) - place.first, data)
        assert content.is_whole
        found += content.entries
    assert found == entries


@settings(max_examples=500)
@given(LEDGERS, st.integers(0, 50_000), ENTRIES, st.data())
def test_damage_costs_only_the_damaged_entries(
    ledger: int, first: int, entries: list[bytes], data: st.DataObject
) -> None:
    block = pack_block(ledger, first, entries)
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(block) - 1))
        damaged = block[:at] + bytes([block[at] ^ data.draw(st.integers(1, 255))]) + block[at + 1 :]
    else:
        damaged = block[: data.draw(st.integers(0, len(block) - 1))]
    content = unpack_block(ledger, first, len(entries), damaged)
    assert len(content.entries) == len(entries)
    assert all(found in (None, entry) for found, entry in zip(content.entries, entries, strict=True))
    assert content.remains.keys() == {number for number, one in enumerate(content.entries) if one is None}
    if damaged[:4] == block[:4] and len(damaged) == len(block):
        head = 8 + 8 * len(entries)
        assert block[:head] != damaged[:head] or content.entries.count(None) == 1


@settings(max_examples=500)
@given(LEDGERS, ENTRIES, st.data())
def test_a_damaged_index_is_detected(ledger: int, entries: list[bytes], data: st.DataObject) -> None:
    encoded = packed(ledger, entries, 50, 100)[1].encode()
    at = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(CopyDamaged):
        CopyIndex.decode(
            encoded[:at] + bytes([encoded[at] ^ data.draw(st.integers(1, 255))]) + encoded[at + 1 :], ledger
        )
    with pytest.raises(CopyDamaged):
        CopyIndex.decode(encoded[:at], ledger)


def test_an_entry_in_place_of_another_is_damage() -> None:
    block = pack_block(7, 100, [b"same", b"size"])
    assert unpack_block(7, 100, 2, block).is_whole
    assert unpack_block(8, 100, 2, block).entries == (None, None)
    assert unpack_block(7, 101, 2, block).entries == (None, None)


def test_the_index_of_another_ledger_is_refused() -> None:
    index = CopyIndex(7, 1, 4, b"", (10,), (Block(0, 0, 0, 10),))
    with pytest.raises(CopyDamaged, match="belongs to ledger 7"):
        CopyIndex.decode(index.encode(), 8)
