# SPDX-License-Identifier: Apache-2.0
"""Replaying the log's tail: states that crashes rarely leave, and damage."""

from __future__ import annotations

from meridian_broker.engines.local import segment
from meridian_broker.engines.local.index import LENGTH_MASK
from meridian_broker.engines.local.replay import Found, Replay, State
from meridian_broker.engines.local.segment import DELETED, ENTRY, MOVED, RECORD_BYTES, LedgerState, SegmentHeader


class Tail:
    """Segments built record by record and replayed."""

    def __init__(self) -> None:
        self.state = State()
        self.replay = Replay(self.state)
        self.content: dict[int, bytes] = {}

    def segment(self, number: int, *records: bytes) -> None:
        content = segment.segment_header(SegmentHeader(number, number - 1, 0)) + b"".join(records)
        self.content[number] = content
        found = Found(number, len(content), True, None)
        self.replay.segment(found, lambda at, size: content[at : at + size])

    def entries(self, ledger: int) -> dict[int, tuple[int, bytes]]:
        """Segment and bytes of each known entry."""
        found = {}
        for run in self.state.ledgers[ledger].runs:
            assert run.places is not None
            for entry, place in enumerate(run.places, run.first):
                at = (place >> 32) + RECORD_BYTES
                found[entry] = run.segment, self.content[run.segment][at : at + (place & LENGTH_MASK)]
        return found


def made(ledger: int = 9, fence: int = 1) -> bytes:
    return segment.state_record(ledger, LedgerState(fence, -1, False))


def sealed(entries: int, ledger: int = 9) -> bytes:
    return segment.state_record(ledger, LedgerState(1, entries, True))


def entry(number: int, kind: int = ENTRY) -> bytes:
    return segment.record(kind, 9, number, b"%d" % number)


def test_copies_count_once_all_are_present() -> None:
    tail = Tail()
    tail.segment(1, made(), *map(entry, range(3)))
    tail.segment(2, *(entry(number, MOVED) for number in range(2)))
    tail.segment(3, entry(2, MOVED))
    assert {place for place, _ in tail.entries(9).values()} == {1}
    tail.segment(4, segment.move_done_record(9, 0, 3))
    tail.replay.finish()
    assert tail.entries(9) == {0: (2, b"0"), 1: (2, b"1"), 2: (3, b"2")}
    assert [tail.state.segments[number].live_bytes > 0 for number in (1, 2, 3)] == [False, True, True]


def test_without_all_copies_the_originals_stay_in_use() -> None:
    tail = Tail()
    tail.segment(1, made(), *map(entry, range(3)))
    tail.segment(2, entry(0, MOVED), entry(2, MOVED), segment.move_done_record(9, 0, 3))
    tail.replay.finish()
    assert tail.entries(9) == {number: (1, b"%d" % number) for number in range(3)}


def test_copies_fill_the_hole_left_by_a_checkpoint_in_between() -> None:
    tail = Tail()
    tail.segment(1, made(), *map(entry, range(2)))
    tail.segment(2, entry(2, MOVED), entry(3, MOVED), segment.move_done_record(9, 0, 4))
    tail.replay.finish()
    assert tail.entries(9) == {0: (1, b"0"), 1: (1, b"1"), 2: (2, b"2"), 3: (2, b"3")}


def test_a_seal_discards_entries_after_it() -> None:
    tail = Tail()
    tail.segment(1, made(), *map(entry, range(5)))
    tail.segment(2, sealed(3))
    tail.replay.finish()
    assert (tail.state.ledgers[9].confirmed, tail.state.ledgers[9].size) == (3, 3)
    assert list(tail.entries(9)) == [0, 1, 2]


def test_a_seal_keeps_the_entry_count_of_lost_entries() -> None:
    tail = Tail()
    tail.segment(1, made(), entry(0), entry(3))
    tail.segment(2, sealed(5))
    tail.replay.finish()
    ledger = tail.state.ledgers[9]
    assert ledger.confirmed == 5
    assert [ledger.run_of(number) is not None for number in range(5)] == [True, False, False, True, False]


def test_the_highest_fence_counts() -> None:
    tail = Tail()
    tail.segment(1, made(fence=5), made(fence=3))
    assert tail.state.ledgers[9].fence == 5


def test_a_deleted_ledger_stays_deleted() -> None:
    tail = Tail()
    tail.segment(1, made(), entry(0), segment.record(DELETED, 9, 0, b""), entry(1), entry(0, MOVED))
    tail.segment(2, segment.move_done_record(9, 0, 1))
    tail.replay.finish()
    assert tail.state.ledgers == {}
    assert list(tail.state.deleted) == [9]
    assert tail.state.segments[1].live_bytes == 0


def test_entries_survive_the_record_that_created_their_ledger() -> None:
    tail = Tail()
    tail.segment(1, entry(0), entry(1))
    tail.replay.finish()
    assert list(tail.entries(9)) == [0, 1]
    assert not tail.state.ledgers[9].sealed


def test_an_entry_seen_before_changes_nothing() -> None:
    tail = Tail()
    tail.segment(1, made(), entry(0), entry(1), entry(0))
    tail.replay.finish()
    assert tail.state.ledgers[9].confirmed == 2
