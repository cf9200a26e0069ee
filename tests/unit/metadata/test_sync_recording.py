# SPDX-License-Identifier: Apache-2.0
"""What a write to a shared path records besides its value, and what may happen between its store requests."""

from __future__ import annotations

import json
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
from meridian_broker.metadata import keys
from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.limits import BadRequest
from meridian_broker.metadata.records import decode as decode_record
from meridian_broker.metadata.records import encode
from meridian_broker.metadata.store import ABSENT, Check, Put, Record, VersionConflict
from meridian_broker.metadata.sync import outbox, paths, recording
from meridian_broker.metadata.sync.applying import Poison
from meridian_broker.metadata.sync.events import MAX_COUNTER, MAX_EVENTS, Changes, Event, Mark, decode
from meridian_broker.metadata.sync.grouping import EVENTS_TOGETHER, in_transactions
from meridian_broker.metadata.sync.outbox import OutboxEntry
from meridian_broker.metadata.sync.recording import RecordingStore
from meridian_broker.metadata.sync.stamped import Stamped, caller_of, moment
from meridian_broker.positions.clock import Stamp
from support.worlds.sync_world import START_MS, SyncWorld, Task, tenant_role

T = keys.tenant("t")
ROLE = tenant_role("t", "r")


@pytest.fixture
def world() -> SyncWorld:
    return SyncWorld(["us", "eu"], brokers=2)


def write(world: SyncWorld, values: dict[str, Any], broker: int = 0) -> bool:
    done: bool = world.finish("us", world.write("us", values, broker))
    return done


def state(world: SyncWorld, path: str, region: str = "us") -> Stamped:
    found = world.regions[region].store.state(path)
    assert found is not None
    return found


def entry(world: SyncWorld, anchor: str) -> OutboxEntry:
    where = paths.outbox(anchor)
    return outbox.from_store(where, world.regions["us"].store.records[where].value)


def advance_to_the_end(world: SyncWorld, task: Task) -> Any:
    while (done := world.advance(task)) is None:
        pass
    return done[0]


def begun(world: SyncWorld, running: Coroutine[Any, Any, Any], steps: int) -> Task:
    task = world.begin("us", running, "")
    for _ in range(steps):
        assert world.advance(task) is None
    return task


def test_paths_of_one_region_are_written_as_they_are(world: SyncWorld) -> None:
    store = world.regions["us"].brokers[0].catalog
    assert world.finish("us", store.put("/local/x", b"1")) == 1
    assert world.finish("us", store.transact([Check("/local/x", 1)], [Put("/local/x", b"2")]))
    assert world.finish("us", store.delete("/local/x"))
    assert not world.regions["us"].store.records


def test_the_writer_is_recorded_even_while_nothing_is_shared(world: SyncWorld) -> None:
    store, clock = world.regions["us"].store, world.regions["us"].brokers[0].clock
    alone = RecordingStore(store, clock, lambda _path: False, caller=lambda: "ann")
    put = Put(tenant_role("t", "r"), encode({"b": 1, "a": "ü"}, clock.next()))
    local = Put("/local/brokers/b", encode(1, clock.next()))
    assert world.finish("us", alone.transact([], [put, local]))
    stored = store.records[put.path].value
    assert decode_record(put.path, stored) == decode_record(put.path, put.value)
    assert caller_of(put.path, stored) == "ann"
    assert store.records[local.path].value == local.value
    assert not world.outbox("us")


def test_an_entry_names_only_what_other_regions_may_know(world: SyncWorld) -> None:
    write(world, {T: {"n": 1}, ROLE: True})
    first = state(world, T)
    assert entry(world, T) == OutboxEntry(state(world, T).stamp, {T: None, ROLE: None})
    world.finish("us", world.publish("us"))
    world.now_ms += 1
    write(world, {T: {"n": 2}})
    write(world, {T: None, ROLE: None})
    assert entry(world, T).replaced == {T: (0, first.stamp), ROLE: (0, Stamp(START_MS, 1, "us"))}


def test_deleting_nothing_records_nothing(world: SyncWorld) -> None:
    assert write(world, {T: None})
    assert not world.regions["us"].store.records


def test_writes_of_single_paths_are_recorded_too(world: SyncWorld) -> None:
    store = world.regions["us"].brokers[0].catalog
    version = world.finish("us", store.put(T, encode({"n": 1}, Stamp(START_MS, 0, "us")), expected=ABSENT))
    assert world.outbox("us") == [T]
    for refused in (store.put(T, encode({}), expected=ABSENT), store.delete(T, expected=version + 1)):
        with pytest.raises(VersionConflict):
            world.finish("us", refused)
    assert world.finish("us", store.delete(T, expected=version)) is True
    assert world.tombstones("us") == [T]


def test_a_callers_check_that_fails_is_reported(world: SyncWorld) -> None:
    store = world.regions["us"].brokers[0].catalog
    write(world, {T: {"n": 1}})
    put = Put(T, encode({"n": 2}, Stamp(START_MS + 1, 0, "us")))
    for check in (Check(T, ABSENT), Check("/local/other", 7)):
        assert not world.finish("us", store.transact([check], [put]))
    assert world.values("us") == {T: {"n": 1}}


def test_an_entry_sent_meanwhile_fails_no_write(world: SyncWorld) -> None:
    """Only the recorded part has changed, so the write is composed again; its event is sent later."""
    write(world, {T: {"n": 1}})
    writing = begun(world, world.write("us", {T: {"n": 2}}), 5)
    world.finish("us", world.publish("us", 1))
    assert advance_to_the_end(world, writing) is True
    assert world.outbox("us") == [T]


def test_writes_made_while_an_entry_is_sent_stay_in_the_outbox(world: SyncWorld) -> None:
    write(world, {T: {"n": 1}})
    sending = begun(world, world.publish("us", 1), 5)
    assert len(world.topic["us"]) == 1
    write(world, {T: {"n": 2}})
    advance_to_the_end(world, sending)
    assert world.outbox("us") == [T]
    world.finish("us", world.publish("us"))
    sent = [event.state for data in world.topic["us"] for event in decode_changes(data).events]
    assert [json.loads(one.value or b"") for one in sent] == [{"n": 1}, {"n": 2}]


def test_a_write_that_a_mark_overtakes_gets_a_later_stamp(world: SyncWorld) -> None:
    writing = begun(world, world.write("us", {T: {"n": 1}}), 5)
    world.now_ms += 5
    mark: Mark = world.finish("us", world.mark("us", 1))
    assert world.outbox("us") == []
    assert advance_to_the_end(world, writing) is True
    assert moment(state(world, T).stamp) > mark.upto


def test_a_stamp_beats_the_stored_one_even_if_its_broker_does_not_know_it(world: SyncWorld) -> None:
    world.regions["us"].brokers[1].clock.observe(Stamp(START_MS + 9000, 0, "eu"), 10_000)
    write(world, {T: {"n": 1}}, broker=1)
    before = state(world, T)
    write(world, {T: {"n": 2}}, broker=0)
    assert state(world, T).beats(before)
    write(world, {T: None}, broker=1)
    deleted = state(world, T)
    world.crash("us")
    write(world, {T: {"n": 3}})
    assert state(world, T).beats(deleted)


def test_a_counter_that_is_used_up_continues_in_the_next_millisecond(world: SyncWorld) -> None:
    event = Event(T, Stamped(Stamp(START_MS, MAX_COUNTER, "eu"), b"{}"))
    world.finish("us", world.regions["us"].brokers[0].applier.apply(Changes("eu", (event,))))
    write(world, {T: {"n": 1}})
    assert state(world, T).stamp == Stamp(START_MS + 1, 0, "us")


def test_a_transaction_too_large_with_its_records_is_refused(world: SyncWorld) -> None:
    with pytest.raises(BadRequest, match="change fewer at a time"):
        write(world, {tenant_role("t", str(number)): True for number in range(100)})
    with pytest.raises(BadRequest, match="cannot end with a lease"):
        world.finish("us", world.regions["us"].brokers[0].catalog.put(T, encode({}), lease=1))


def test_an_entry_never_names_more_paths_than_a_message_holds(world: SyncWorld) -> None:
    for start in range(0, MAX_EVENTS + 50, 50):
        for n in range(2):
            write(world, {T: {"n": start + n}, **{tenant_role("t", str(start + n)): n for n in range(49)}})
    assert len(world.outbox("us")) == 3
    world.finish("us", world.publish("us"))
    assert world.outbox("us") == []
    sent = {event.path for data in world.topic["us"] for event in decode_changes(data).events}
    assert sent == set(world.values("us"))


def test_only_a_shared_path_with_a_known_state_is_restamped(world: SyncWorld) -> None:
    store = world.regions["us"].brokers[0].catalog
    for path, why in ((keys.LEDGER_IDS, "not shared"), (T, "nothing is known")):
        with pytest.raises(Invalid, match=why):
            world.finish("us", store.restamp(path))


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (Changes("xx", (Event(T, Stamped(Stamp(1, 0, "us"), b"{}")),)), "not a region of the event topic"),
        (Mark("xx", (1, 0)), "not a region of the event topic"),
        (Changes("us", (Event("/local/brokers/b/epoch", Stamped(Stamp(1, 0, "us"), b"{}")),)), "no scope"),
        (Changes("us", (Event(T, Stamped(Stamp(1, 0, "us"), b"5")),)), "cannot be served"),
        (
            Changes("us", (Event(f"{T}/roles/a b", Stamped(Stamp(1, 0, "us"), b"1")),)),
            "is not a metadata path",
        ),
    ],
)
def test_poisoned_messages_change_nothing(world: SyncWorld, message: Changes | Mark, why: str) -> None:
    with pytest.raises(Poison, match=why):
        world.finish("us", world.regions["us"].brokers[0].applier.apply(message))
    assert not world.regions["us"].store.records


def test_a_large_message_is_applied_in_transactions_that_a_store_accepts(world: SyncWorld) -> None:
    large = b'"%s"' % (b"x" * 300_000)
    some = [Event(tenant_role("t", f"{n:03}"), Stamped(Stamp(1, n, "us"), b"1")) for n in range(MAX_EVENTS - 2)]
    some += [Event(tenant_role("t", f"x{n}"), Stamped(Stamp(1, n, "us"), large)) for n in range(2)]
    groups = in_transactions(some)
    assert [event for group in groups for event in group] == some
    assert max(map(len, groups)) == EVENTS_TOGETHER
    world.finish("eu", world.regions["eu"].brokers[0].applier.apply(Changes("us", tuple(some))))
    assert len(world.values("eu")) == MAX_EVENTS


def test_a_mark_from_a_wrong_clock_promises_nothing(world: SyncWorld) -> None:
    applier = world.regions["eu"].brokers[0].applier
    world.finish("eu", applier.apply(Mark("us", (START_MS + 60_000, 0))))
    assert world.finish("eu", applier.heard()) == {}
    for upto in ((START_MS, 5), (START_MS, 3)):
        world.finish("eu", applier.apply(Mark("us", upto, {"eu": (1, 0)})))
    assert world.finish("eu", applier.heard()) == {"us": (START_MS, 5)}


def decode_changes(data: bytes) -> Changes:
    message = decode(data)
    assert isinstance(message, Changes)
    return message


def test_a_write_reads_only_what_its_writer_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Except after something that it could not guess: here, an earlier write's unsent entry."""
    world = SyncWorld(["eu", "us"])
    store = world.regions["us"].store
    reads: list[list[str]] = []
    get_many = store.get_many

    async def counted(some: Sequence[str]) -> list[Record | None]:
        reads.append(list(some))
        return await get_many(some)

    def write(value: int) -> int:
        reads.clear()
        assert world.finish("us", world.write("us", {tenant_role("shop", "admin"): value}))
        found = len(reads)
        assert world.values("us") == {tenant_role("shop", "admin"): value}
        return found

    world.finish("us", world.mark("us"))
    monkeypatch.setattr(store, "get_many", counted)
    assert write(1) == 1, "it does not know the mark"
    world.finish("us", world.publish("us"))
    assert write(2) == 0
    assert write(3) == 1, "the outbox has an entry"
    world.finish("us", world.publish("us"))
    for value in range(recording.WARY):
        assert write(4 + value) == 1
        world.finish("us", world.publish("us"))
    assert write(99) == 0
    world.finish("us", world.publish("us"))
    world.finish("us", world.mark("us"))
    assert write(100) == 1, "another mark"
    world.quiet()
    world.check_agreement()
