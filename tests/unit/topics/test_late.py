# SPDX-License-Identifier: Apache-2.0
"""What is kept of ledgers deleted while a consumer held their entries: a bounded number, the newest."""

from __future__ import annotations

from meridian_broker.ledgers.index import LedgerIndex, RegionCodes
from meridian_broker.ledgers.retired_indexes import LEDGERS_MAX, Late
from meridian_broker.positions.position import EARLIEST, Position


def index_of(ledger: int, entries: int) -> LedgerIndex:
    index = LedgerIndex(ledger, RegionCodes("us"), EARLIEST)
    for _ in range(entries):
        index.add_own(3)
    return index


def test_the_newest_ledgers_are_kept() -> None:
    late = Late()
    indexes = {ledger: index_of(ledger, 2) for ledger in range(LEDGERS_MAX + 5)}
    for index in (*indexes.values(), *indexes.values()):
        late.note(index)
    kept = [ledger for ledger in indexes if late.index(Position(ledger, 1)) is indexes[ledger]]
    assert kept == list(range(5, LEDGERS_MAX + 5))


def test_only_entries_that_existed_are_known() -> None:
    late = Late()
    late.note(index_of(7, 2))
    found = [entry for entry in range(-2, 5) if late.index(Position(7, entry)) is not None]
    assert found == [0, 1]
    assert late.index(Position(8, 0)) is None


def test_a_deleted_ledgers_index_takes_less_and_answers_the_same() -> None:
    late, given_back, stored = Late(), index_of(7, 4), index_of(8, 1)
    late.note(given_back)
    late.note(stored)
    places = [given_back.place(entry) for entry in range(4)]
    late.pack({8})
    assert given_back.is_packed
    assert not stored.is_packed
    stored.add_own(1)  # it is being written
    assert [given_back.place(entry) for entry in range(4)] == places
    assert given_back.messages(3) == 3
