# SPDX-License-Identifier: Apache-2.0
"""Many subscriptions acknowledge the same: one record names them, with the same effect as separate records."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meridian_broker.ledgers.reading import ReadableLog
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions import ZERO, Progress
from meridian_broker.positions.position import Position
from meridian_broker.topics.cursors import seeking
from meridian_broker.topics.cursors.cursor import Cursor
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.types import EXCLUSIVE
from meridian_broker.topics.journal import progress_log
from meridian_broker.topics.journal.changes import (
    MANY,
    SEVERAL_MIN,
    Change,
    Kind,
    ProgressLogError,
    encode,
    encode_many,
    expand,
    join,
)
from support.worlds.topic_of_one_region import BEGAN_MS, Region, region

NAMES = st.lists(st.text(max_size=20), min_size=2, max_size=MANY)


@given(NAMES, st.binary(max_size=100))
def test_a_record_of_many_stands_for_one_change_of_each(names: list[str], delta: bytes) -> None:
    assert expand(encode_many(names, 7, delta)) == [Change(Kind.ACKED, name, 7, delta) for name in names]


@given(NAMES, st.binary(max_size=100), st.data())
def test_a_truncated_record_is_refused_or_names_some_of_them(
    names: list[str], delta: bytes, data: st.DataObject
) -> None:
    record = encode_many(names, 7, delta)
    cut = data.draw(st.integers(0, len(record) - 1))
    try:
        changes = expand(record[:cut])
    except ProgressLogError as refusal:
        assert len(str(refusal)) < 300
        return
    assert [change.subscription for change in changes] == names[: len(changes)]


def test_a_record_that_names_more_than_a_broker_writes_is_refused() -> None:
    with pytest.raises(ProgressLogError, match="they name 129 subscriptions"):
        expand(encode_many(["s"] * (MANY + 1), 7, b"delta"))


@given(st.lists(st.tuples(st.text(max_size=9), st.binary(max_size=30)), min_size=1, max_size=20))
def test_joined_records_stand_for_the_same_changes(said: list[tuple[str, bytes]]) -> None:
    records = [encode(Kind.WHOLE, name, 7, payload) for name, payload in said]
    joined = join(records, 8)
    assert len(joined) == (1 if len(records) >= SEVERAL_MIN else len(records))
    assert [change for one in joined for change in expand(one)] == [Change(Kind.WHOLE, *one) for one in with_time(said)]


def with_time(said: list[tuple[str, bytes]]) -> list[tuple[str, int, bytes]]:
    return [(name, 7, payload) for name, payload in said]


@given(st.data())
def test_a_truncated_record_of_several_is_refused(data: st.DataObject) -> None:
    records = [encode(Kind.WHOLE, "s", 7, b"abc")] * SEVERAL_MIN
    (joined,) = join(records, 8)
    cut = data.draw(st.integers(0, len(joined) - 1))
    try:
        changes = expand(joined[:cut])
    except ProgressLogError:
        return
    assert changes == [Change(Kind.WHOLE, "s", 7, b"abc")] * len(changes)


def test_records_of_several_are_not_nested() -> None:
    (joined,) = join([encode(Kind.WHOLE, "s", 7, b"abc")] * SEVERAL_MIN, 8)
    (nested,) = join([joined] * SEVERAL_MIN, 8)
    with pytest.raises(ProgressLogError, match="not several"):
        expand(nested)


def expected(one: Region, name: str, numbers: set[int]) -> Progress:
    """The expected acknowledgements: one entry after another, made separately."""
    progress = one.topic.subscriptions[name].cursor.progress.empty_delta()
    progress.begin(one.topic.subscriptions[name].cursor.progress.beginning)
    for number in numbers:
        place = one.topic.log.place(one.stored[number])
        assert place is not None
        progress.ack(ZERO, *place)
    return progress


@pytest.mark.parametrize("seed", range(6))
async def test_each_subscription_has_its_own_acknowledgements_in_any_order_and_after_a_crash(seed: int) -> None:
    random = Random(seed)
    names = [f"s{number}" for number in range(9)]
    one = await region(**{name: name == "s0" for name in names})
    acked: dict[str, set[int]] = {name: set() for name in names}
    for _ in range(40):
        for _ in range(random.randrange(12)):
            name, number = random.choice(names), random.randrange(4) + random.choice((0, 4))
            one.acknowledge(name, [number])
            acked[name].add(number)
        await one.settle()
        for name in names:
            owed = [place for number, place in enumerate(one.stored) if number not in acked[name]]
            assert one.topic.log.after(one.topic.subscriptions[name].cursor.mark_delete) == owed[0]
    for name in names:
        assert one.topic.subscriptions[name].cursor.progress == expected(one, name, acked[name])
    before = one.state()
    await one.kill()
    await one.start()
    assert one.state() == before


async def test_many_acknowledgements_of_one_entry_are_few_records() -> None:
    names = [f"s{number}" for number in range(2 * MANY)]
    one = await region(**dict.fromkeys(names, False))
    for name in names:
        one.acknowledge(name, [0])
    await one.settle()
    wrote = one.topic.progress_log._since_bytes
    for name in names:
        one.acknowledge(name, [1])
    await one.settle()
    assert one.topic.progress_log._since_bytes - wrote < 12 * len(names)
    await one.kill()
    await one.start()
    assert all(s.cursor.mark_delete == one.stored[1] for s in one.topic.subscriptions.values())


async def test_acknowledgements_of_consecutive_entries_are_few_records_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that is behind acknowledges several entries in one turn."""
    names = [f"s{number}" for number in range(2 * MANY)]
    one = await region(**dict.fromkeys(names, False))
    for name in names[:2]:
        for number in range(12):
            one.acknowledge(name, [number])
            await one.settle()
    wrote, log = one.topic.progress_log._since_bytes, one.topic.progress_log
    built: list[Position] = []
    before = ReadableLog.before

    def counted(log: ReadableLog, at: Position) -> Position:
        built.append(at)
        return before(log, at)

    monkeypatch.setattr(ReadableLog, "before", counted)
    for name in names[2:]:
        for number in range(12):  # across several ledgers
            one.acknowledge(name, [number])
    await one.settle()
    assert log._since_bytes - wrote < 12 * len(names)
    assert not built
    state = one.state()
    await one.kill()
    await one.start()
    assert one.state() == state
    assert {s.cursor.mark_delete for s in one.topic.subscriptions.values()} == {one.stored[-1]}


async def test_acknowledgements_are_combined_even_in_a_turn_that_dispatches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise each subscription that is sent something would write its own first."""
    names = [f"s{number}" for number in range(2 * MANY)]
    one = await region(**dict.fromkeys(names, False))
    one.topic.begin()
    for name in names:
        found = one.topic.subscriptions[name]
        consumer = Consumer(found, Port(), 0, "c", 0, BEGAN_MS, None, None)  # type: ignore[arg-type]
        found.add_consumer(consumer, EXCLUSIVE)
        consumer.flow(100)
    await one.settle()
    for name in names[:2]:
        one.acknowledge(name, [0])
        await one.settle()
    alone: list[Cursor] = []
    flush = Cursor.flush

    def counted(cursor: Cursor) -> None:
        alone.append(cursor)
        flush(cursor)

    monkeypatch.setattr(Cursor, "flush", counted)
    for name in names[2:]:
        one.topic.subscriptions[name].dispatch_soon()
    for name in names[2:]:
        one.acknowledge(name, [0])
    await one.settle()
    assert not alone
    assert {s.cursor.mark_delete for s in one.topic.subscriptions.values()} == {one.stored[0]}


async def test_nothing_is_confirmed_before_the_record_is_on_disk() -> None:
    names = [f"s{number}" for number in range(8)]
    one = await region(**dict.fromkeys(names, False))
    for number in range(2):
        for name in names:
            one.acknowledge(name, [number])
        await one.settle()
    told: list[LedgerError | None] = []
    for name in names:
        one.acknowledge(name, [2])
        one.topic.subscriptions[name].cursor.flush()
        one.topic.progress_log.when_durable(told.append)
    assert not told
    await one.kill()
    await one.start()
    assert not told
    assert {s.cursor.mark_delete for s in one.topic.subscriptions.values()} == {one.stored[1]}


async def test_other_records_are_written_after_acknowledgements_gathered_earlier() -> None:
    one = await region(**{f"s{number}": False for number in range(4)})
    for number in range(4):
        one.acknowledge(f"s{number}", [0])
    for found in list(one.topic.subscriptions.values()):
        found.cursor.flush()
    registry = one.topic.subscription_registry
    registry.delete("s1")
    one.topic.subscribing.create_subscription("s1", one.stored[2], replicated=False)
    await one.settle()
    before = one.state()
    await one.kill()
    await one.start()
    assert one.state() == before
    assert not one.topic.subscriptions["s1"].cursor.progress.is_acked("us", one.stored[5])


async def test_snapshots_in_between_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"s{number}" for number in range(20)]
    one = await region(**dict.fromkeys(names, False))
    monkeypatch.setattr(progress_log, "ROLL_RECORDS", 8)
    told: list[LedgerError | None] = []
    for number in range(12):
        for name in names:
            one.acknowledge(name, [number])
            one.topic.subscriptions[name].cursor.flush()
            one.topic.progress_log.when_durable(told.append)
    await one.settle()
    assert told == [None] * 12 * len(names)
    await one.kill()
    await one.start()
    assert {s.cursor.mark_delete for s in one.topic.subscriptions.values()} == {one.stored[-1]}


async def test_a_rewound_subscription_acknowledges_separately() -> None:
    names = [f"s{number}" for number in range(4)]
    one = await region(**dict.fromkeys(names, False))
    for name in names[:3]:
        one.acknowledge(name, [0])
    await one.settle()
    rewound = one.topic.subscriptions["s3"]
    one.acknowledge("s3", [0])
    await one.settle()
    await seeking.seek(rewound.cursor, one.stored[0])
    await one.settle()
    assert rewound.cursor.mark_delete < one.stored[0]
    # a client may hold it from before the rewind: an acknowledgement in the older epoch (R13)
    one.acknowledge("s3", [0])
    await one.settle()
    assert rewound.cursor.mark_delete < one.stored[0]


class Port:
    """A connection that accepts a message, or none."""

    def __init__(self) -> None:
        self.is_full = False
        self.got: list[Position] = []

    def deliver(self, _: Consumer, position: Position, *__: object) -> None:
        self.got.append(position)

    def writable(self) -> bool:
        return not self.is_full

    def disconnect_consumer(self, _: Consumer) -> None:
        raise AssertionError("nobody is disconnected")


async def test_a_slow_consumer_delays_no_other_and_goes_on_once_it_reads() -> None:
    one = await region(slow=False, quick=False)
    one.topic.begin()
    ports = {name: Port() for name in ("slow", "quick")}
    for name, port in ports.items():
        found = one.topic.subscriptions[name]
        consumer = Consumer(found, port, 0, "c", 0, BEGAN_MS, None, None)  # type: ignore[arg-type]
        found.add_consumer(consumer, EXCLUSIVE)
        consumer.flow(100)
    ports["slow"].is_full = True
    await one.settle()
    await one.publish(3)
    assert ports["quick"].got == one.stored
    assert not ports["slow"].got
    ports["slow"].is_full = False
    for name in ports:
        one.topic.subscriptions[name].consumers[0].resume()
    await one.settle()
    assert ports["slow"].got == ports["quick"].got == one.stored


async def test_late_permits_are_used_at_once() -> None:
    one = await region(sub=False)
    one.topic.begin()
    port, found = Port(), one.topic.subscriptions["sub"]
    consumer = Consumer(found, port, 0, "c", 0, BEGAN_MS, None, None)  # type: ignore[arg-type]
    found.add_consumer(consumer, EXCLUSIVE)
    await one.settle()
    assert not port.got
    for permits in (3, 1, 0, 4):
        consumer.flow(permits)
        await one.settle()
    assert port.got == one.stored[:8]


async def test_many_subscriptions_owed_the_same_after_a_restart_read_it_once_or_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"s{number}" for number in range(200)]
    one = await region(**dict.fromkeys(names, False))
    for name in names:
        one.acknowledge(name, [5, 7])
    await one.settle()
    await one.kill()
    await one.start()
    reads: list[object] = []
    read = ReadableLog._read

    async def counted(log: ReadableLog, *asked: Any) -> Any:
        reads.append(asked)
        return await read(log, *asked)

    monkeypatch.setattr(ReadableLog, "_read", counted)
    ports = [Port() for _ in names]
    for name, port in zip(names, ports, strict=True):
        found = one.topic.subscriptions[name]
        consumer = Consumer(found, port, 0, "c", 0, BEGAN_MS, None, None)  # type: ignore[arg-type]
        found.add_consumer(consumer, EXCLUSIVE)
        consumer.flow(100)
        await one.settle()
    owed = [position for number, position in enumerate(one.stored) if number not in (5, 7)]
    assert all(port.got == owed for port in ports)
    assert len(reads) <= 2 * 3  # of three ledgers
