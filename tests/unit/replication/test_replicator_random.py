# SPDX-License-Identifier: Apache-2.0
"""Random faults: nothing is lost, nothing repeated, and the order is kept (R3, R4)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from meridian_broker.ledgers import entry as entries
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.positions.skipped import extended
from meridian_broker.replication.entries.replicator import Replicator
from support.worlds.replicator_model import LOCAL, REMOTE, THIRD, LocalLog, RemoteTopic, Wire

APPENDS = ["own", "own", "own", "foreign", "marker", "no-origin", "elsewhere", "here-only", "named", "roll"]
FAULTS = ["disconnect", "disconnect-late", "late-arrives", "crash-remote", "restart-local", "trim"]
KINDS = [APPENDS, ["connect", "pump", "pump", "deliver", "confirm"], ["serve"], FAULTS, ["trim", "restart-local"]]
STEPS = st.sampled_from(KINDS).flatmap(st.sampled_from)


def core(queue: int = 4) -> Replicator:
    return Replicator("persistent://t/n/topic", LOCAL, REMOTE, "", queue_size=queue)


def append(log: LocalLog, what: str) -> None:
    if what == "roll":
        log.roll()
    elif what in ("foreign", "marker", "no-origin"):
        log.append({"foreign": entries.FOREIGN, "marker": entries.MARKER, "no-origin": entries.NO_ORIGIN}[what])
    else:
        regions = {"own": None, "elsewhere": (THIRD,), "here-only": ("__local__",), "named": (THIRD, REMOTE)}
        log.append(replicate_to=regions[what])


def step(wire: Wire, what: str, number: int) -> None:
    if what in APPENDS:
        append(wire.log, what)
        wire.core.new_entries(wire.now)
    elif what == "connect":
        if wire.core.state.value == "Disconnected":
            assert wire.connect(), wire.core.last_error
    elif what == "serve":
        if wire.core.state.value == "Disconnected":
            assert wire.connect(), wire.core.last_error
        while wire.pump():
            wire.deliver(100)
            wire.confirm(100)
    elif what == "pump":
        wire.pump()
    elif what == "deliver":
        wire.deliver(number)
    elif what == "confirm":
        wire.confirm(number)
    elif what == "disconnect":
        wire.disconnect()
    elif what == "disconnect-late":
        wire.disconnect(deliver_late=True)
    elif what == "late-arrives":
        wire.deliver_late()
    elif what == "crash-remote":
        wire.disconnect()
        wire.late.clear()
        wire.remote.crash()
    elif what == "restart-local":
        wire.disconnect()
        wire.core = core(number)
    else:
        assert what == "trim"
        wire.log.trim(wire.core.trimmable)


@given(st.lists(st.tuples(STEPS, st.integers(1, 5)), min_size=20, max_size=60))
def test_nothing_is_lost_or_repeated_and_the_order_is_kept(steps: list[tuple[str, int]]) -> None:
    wire = Wire(core(), LocalLog(), RemoteTopic())
    for what, number in steps:
        step(wire, what, number)
        assert wire.remote.stored == wire.log.wanted[: len(wire.remote.stored)]
        durable = wire.remote.stored[: wire.remote.durable]
        promised = [position for position in wire.log.wanted if position <= wire.core.confirmed]
        assert promised == durable[: len(promised)], "more is confirmed than the remote keeps"
        assert wire.core.hold is None
    wire.finish()
    assert wire.remote.stored == wire.log.wanted
    assert wire.core.confirmed == wire.log.end or not wire.log.stored
    assert not wire.remote.refused or "late-arrives" in {what for what, _ in steps}


@given(
    st.lists(st.sampled_from(APPENDS), min_size=1, max_size=25),
    st.integers(0, 25),
    st.lists(st.sampled_from(APPENDS), max_size=10),
    st.integers(0, 35),
)
def test_entries_trimmed_too_early_are_reported_and_nothing_is_sent_past_them(
    before: list[str], replicated: int, after: list[str], cut: int
) -> None:
    wire = Wire(core(100), LocalLog(), RemoteTopic())
    for what in before:
        append(wire.log, what)
    wire.connect()
    wire.pump()
    wire.deliver(replicated)
    wire.confirm(100)
    wire.disconnect()
    for what in after:
        append(wire.log, what)
    if wire.log.stored:
        wire.log.trim(wire.log.stored[min(cut, len(wire.log.stored) - 1)][0])
    kept = {position for position, _ in wire.log.stored}
    had = list(wire.remote.stored)
    missing = [position for position in wire.log.wanted[len(had) :] if position not in kept]

    wire.core = core(100)
    assert wire.connect()
    while wire.pump():
        wire.deliver(100)
        wire.confirm(100)

    if had and missing:
        assert wire.core.hold is not None and wire.core.hold.value == "gap"
        assert wire.remote.stored == had, "something was sent past a gap"
        assert str(had[-1]) in str(wire.core.last_error)
    if not had:  # the remote joins with what is stored, and the status says where it begins
        assert wire.remote.stored == [position for position in wire.log.wanted if position in kept]
        assert wire.core.hold is None
        if missing and wire.remote.stored:
            assert wire.core.joined_at is not None
    if wire.core.hold is None:
        assert not had or not missing
    assert wire.core.confirmed >= EARLIEST


@given(st.lists(st.tuples(st.one_of(STEPS, st.just("skip")), st.integers(1, 5)), min_size=20, max_size=60))
def test_all_but_what_was_skipped_arrives_once_and_in_order(steps: list[tuple[str, int]]) -> None:
    wire, record, skipped = Wire(core(), LocalLog(), RemoteTopic()), None, set[Position]()
    for what, number in steps:
        if what == "skip":
            waiting = [place for place, _ in wire.log.stored if place > wire.core.confirmed][:number]
            if waiting:
                durable = wire.remote.stored[: wire.remote.durable][-1:] or [EARLIEST]
                skipped |= {position for position in wire.log.wanted if durable[0] < position <= waiting[-1]}
                own = max(wire.log.own_upto(waiting[-1]), default=EARLIEST)
                record = extended(record, wire.core.remote_last, waiting[-1], own)
                wire.core.skip(record)
                wire.disconnect(deliver_late=True)
            continue
        step(wire, what, number)
        if what == "restart-local" and record is not None:
            wire.core.skip(record)
        assert wire.remote.stored == sorted(set(wire.remote.stored))
        owed = [position for position in wire.log.wanted if position not in skipped]
        stored = [position for position in wire.remote.stored if position not in skipped]
        assert stored == owed[: len(stored)]
        assert wire.core.hold is None
    wire.finish()
    assert wire.core.hold is None
    assert set(wire.log.wanted) - skipped <= set(wire.remote.stored) <= set(wire.log.wanted)
