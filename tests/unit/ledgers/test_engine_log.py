# SPDX-License-Identifier: Apache-2.0
"""The pure core of the log: what batches contain, who is told what and when, and where the index locates entries."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.engines.local.index import LENGTH_MASK, Ledger, Run, Segment
from meridian_broker.engines.local.log import MIN_SEGMENT_BYTES, Batch, Log
from meridian_broker.engines.local.segment import (
    BATCH,
    ENTRY,
    MAX_DATA_BYTES,
    RECORD_BYTES,
    Record,
    Scanner,
    ledger_seed,
    unpack_segment_header,
)
from meridian_broker.ledgers.store import LedgerError, LedgerWriteFailed


class Disk:
    """Writes batches as the committer does."""

    def __init__(self, segment_bytes: int = MIN_SEGMENT_BYTES) -> None:
        self.log = Log({}, next_segment=1, previous=(-1, 0), segment_bytes=segment_bytes)
        self.files: dict[int, bytes] = {}
        self.heard: list[tuple[int, int | LedgerError]] = []
        self.closed: list[int] = []
        self.log.on_closed = lambda segment: self.closed.append(segment.number)

    def append(self, ledger: Ledger, data: bytes) -> int:
        return self.log.append(ledger, data, lambda result: self.heard.append((ledger.ledger_id, result)))

    def append_many(self, ledger: Ledger, entries: list[bytes]) -> int:
        return self.log.append_many(ledger, entries, lambda result: self.heard.append((ledger.ledger_id, result)))

    def write(self, batches: list[Batch]) -> None:
        for batch in batches:
            if batch.header is not None:
                assert batch.segment not in self.files
                self.files[batch.segment] = batch.header
            if batch.buffers:
                assert len(self.files[batch.segment]) == batch.begins
                self.files[batch.segment] += b"".join(batch.buffers)
                assert len(self.files[batch.segment]) == batch.ends

    def sync(self) -> None:
        batches = self.log.take()
        self.write(batches)
        self.log.complete(len(batches))


def ledger(number: int) -> Ledger:
    return Ledger(number, 1, ledger_seed(ENTRY, number))


_ENTRY = st.binary(max_size=1500)


def _last_of_each_step(steps: list[tuple[int, list[bytes]] | None], number: int) -> list[int]:
    counts = [len(step[1]) for step in steps if step is not None and step[0] == number]
    return [count - 1 for count in accumulate(counts)]


def entry_at(disk: Disk, run: Run, entry: int) -> bytes:
    assert run.places is not None
    place = run.places[entry - run.first]
    at = (place >> 32) + RECORD_BYTES
    return disk.files[run.segment][at : at + (place & LENGTH_MASK)]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 2), st.lists(_ENTRY, min_size=1))), max_size=40))
def test_the_index_says_where_each_entry_is(steps: list[tuple[int, list[bytes]] | None]) -> None:
    disk = Disk()
    ledgers = [ledger(number) for number in range(3)]
    appended: list[list[bytes]] = [[], [], []]
    for step in steps:
        if step is None:
            disk.sync()
            continue
        number, entries = step
        assert disk.append_many(ledgers[number], entries) == len(appended[number])
        appended[number] += entries
    assert disk.log.pending_bytes == sum(
        each.appended and sum(map(len, appended[each.ledger_id][each.confirmed :])) for each in ledgers
    )
    disk.sync()
    assert disk.log.pending_bytes == 0
    for number, each in enumerate(ledgers):
        told = [result for who, result in disk.heard if who == number and isinstance(result, int)]
        assert told == sorted(set(told))
        assert set(_last_of_each_step(steps, number)) <= set(told)
        assert each.confirmed == len(appended[number])
        assert each.size == each.confirmed_size() == sum(map(len, appended[number]))
        for entry, data in enumerate(appended[number]):
            run = each.run_of(entry)
            assert run is not None
            assert entry_at(disk, run, entry) == data
    for number, content in disk.files.items():
        header = unpack_segment_header(content, "x")
        assert header is not None
        if number > 1:
            assert (header.previous, header.previous_length) == (number - 1, len(disk.files[number - 1]))
        found = list(_scan(content, number))
        assert all(isinstance(item, Record) for item in found)
        closed = disk.log.segments[number]
        if closed.closed:
            alive = [run for each in ledgers for run in each.runs if run.segment == number]
            assert closed.live_bytes == sum(run.record_bytes for run in alive)
            assert [run.stored_bytes for run in alive] == [run.data_bytes() for run in alive]


def _scan(content: bytes, number: int) -> list[object]:
    scanner = Scanner(lambda at, size: content[at : at + size], number, len(content), attested=True)
    return list(scanner.scan())


def test_of_entries_that_cannot_be_queued_together_none_is() -> None:
    disk = Disk()
    one = ledger(1)
    with pytest.raises(TypeError):
        disk.append_many(one, [b"x", "no bytes"])  # type: ignore[list-item]
    assert (one.appended, one.size, disk.log.pending_bytes) == (0, 0, 0)
    assert disk.append_many(one, [b"y", b"z"]) == 0
    disk.sync()
    assert disk.heard == [(1, 1)]
    run = one.run_of(1)
    assert run is not None
    assert [entry_at(disk, run, entry) for entry in range(2)] == [b"y", b"z"]


def test_a_segment_is_closed_when_the_next_one_is_durable() -> None:
    disk = Disk()
    first = ledger(1)
    disk.append(first, b"x" * 3000)
    disk.append(first, b"y" * 3000)
    batches = disk.log.take()
    disk.write(batches)
    assert [batch.segment for batch in batches] == [1, 2]
    disk.log.complete(1)
    assert disk.closed == []
    disk.log.complete(1)
    assert disk.closed == [1]


def test_a_segment_may_outgrow_its_limit_by_one_record() -> None:
    disk = Disk()
    first = ledger(1)
    for size in (10, 20_000, 10):
        disk.append(first, b"x" * size)
    disk.sync()
    assert len(disk.files) == 3
    with pytest.raises(ValueError, match="at most"):
        disk.append(first, bytes(MAX_DATA_BYTES + 1))


def test_a_batch_records_what_was_durable_when_it_was_built() -> None:
    disk = Disk()
    first = ledger(1)
    disk.append(first, b"one")
    disk.sync()
    durable = len(disk.files[1])
    disk.append(first, b"two")
    second = disk.log.take()
    disk.append(first, b"three")
    third = disk.log.take()
    disk.write([*second, *third])
    marks = [item for item in _scan(disk.files[1], 1) if isinstance(item, Record) and item.kind == BATCH]
    assert [int.from_bytes(mark.data[8:], "big") for mark in marks[1:]] == [durable, durable]


def test_a_failure_fails_all_that_is_queued_and_nothing_else() -> None:
    disk = Disk()
    first, second, idle = ledger(1), ledger(2), ledger(3)
    disk.append(idle, b"idle")
    disk.append(first, b"good")
    disk.sync()
    disk.append(first, b"in flight")
    disk.log.take()
    disk.append(second, b"ready")
    disk.heard.clear()
    generation = disk.log.generation
    error = LedgerWriteFailed("full")
    disk.log.fail(error)
    assert disk.log.generation > generation
    assert disk.heard == [(1, error), (2, error)]
    assert (first.confirmed, first.appended, first.size) == (1, 1, 4)
    assert disk.log.pending_bytes == 0
    assert disk.append(idle, b"goes on") == 1
    disk.append(first, b"never")
    disk.heard.clear()
    disk.sync()
    assert disk.heard == [(3, 1), (1, error)]
    header = unpack_segment_header(disk.files[2], "x")
    assert header is not None
    assert (header.previous, header.previous_length) == (1, disk.log.segments[1].length)


def test_a_refusal_is_reported_in_its_turn_and_writes_nothing() -> None:
    disk = Disk()
    first, refused = ledger(1), ledger(2)
    refused.refusal = LedgerError("sealed")
    disk.append(refused, b"x")
    disk.sync()
    assert disk.files == {}
    disk.append(first, b"x")
    disk.append(refused, b"x")
    disk.append(first, b"x")
    disk.heard.clear()
    disk.sync()
    assert disk.heard == [(1, 0), (2, refused.refusal), (1, 1)]
    assert disk.log.idle


@pytest.mark.logs_error("mine")
def test_a_callback_that_raises_does_not_stop_the_others() -> None:
    disk = Disk()
    first = ledger(1)

    def broken(_: int | LedgerError) -> None:
        raise RuntimeError("mine")

    disk.log.append(first, b"x", broken)
    disk.append(first, b"y")
    disk.sync()
    assert disk.heard == [(1, 1)]


def test_copies_take_the_place_of_originals() -> None:
    each = ledger(1)
    old = _run(1, 0, 10)
    younger = _run(2, 10, 5)
    each.runs = [old, younger]
    first, second = _run(3, 0, 4), _run(4, 4, 6)
    assert each.place_run(first) == [old]
    assert each.place_run(second) == []
    assert each.runs == [first, second, younger]
    assert [each.run_of(entry) for entry in (0, 3, 4, 9, 10, 14)] == [first, first, second, second, younger, younger]
    assert each.run_of(15) is None


def test_dead_runs_leave_their_segment() -> None:
    segment = Segment(1, length=1000, closed=True)
    run = _run(1, 0, 3)
    run.fix(30)
    segment.runs[run] = ledger(1)
    segment.live_bytes = run.record_bytes
    segment.drop(run)
    segment.drop(run)
    assert segment.live_bytes == 0


def _run(segment: int, first: int, count: int) -> Run:
    run = Run(segment, first)
    assert run.places is not None
    run.places.extend([10] * count)
    return run
