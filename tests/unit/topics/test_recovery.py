# SPDX-License-Identifier: Apache-2.0
"""A topic's subscriptions are recovered from its progress log in slices, exactly as record by record."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meridian_broker.positions import ZERO, Cause, Dropped, Position, Progress, Stamp
from meridian_broker.positions.position import EARLIEST
from meridian_broker.topics.journal.changes import Change, Kind
from meridian_broker.topics.journal.subscription_record import SubscriptionRecord, encode_record
from meridian_broker.topics.journal.subscription_snapshot import Whole
from meridian_broker.topics.lifecycle import replay
from meridian_broker.topics.topic import Topic
from support.worlds.progress_model import RUNS, histories, many, plans, run
from support.worlds.topic_of_one_region import Region

NAMES = ("a", "a", "b")
DROPS = [(cause, origin, *one) for cause in Cause for origin in ("us-east", "us-west") for one in RUNS]


async def opened() -> Topic:
    one = Region()
    await one.start()
    return one.topic


@dataclass
class Worlds:
    """Two copies of a topic, for all examples."""

    one_by_one: Topic
    in_slices: Topic


@pytest.fixture(scope="module")
def worlds() -> Worlds:
    return Worlds(asyncio.run(opened()), asyncio.run(opened()))


def progress_of(plan: list[Any], history: Any) -> Progress:
    made = Progress()
    for step in plan:
        run(made, step, history)
    return made


def a_record(name: str, replicated: bool, incarnation: int) -> SubscriptionRecord:
    created = Stamp(60, 0, "a")
    return SubscriptionRecord(name, replicated, created, created, {}, Stamp(50, 0, "a") if incarnation else ZERO)


def dropped(plan: list[Any]) -> Dropped:
    made = Dropped()
    for one in plan:
        made.add(*one)
    return made


deltas = st.tuples(st.sampled_from((Kind.ACKED,) * 4 + (Kind.MERGED,) * 2 + (Kind.PROGRESS, Kind.FLOORS)), plans)
drop_records = st.tuples(st.just(Kind.DROPPED), st.lists(st.sampled_from(DROPS), min_size=1, max_size=4))
others = st.one_of(
    st.tuples(st.just(Kind.FIRST_HAND), plans),
    st.tuples(st.just(Kind.SUBSCRIPTION), st.tuples(st.booleans(), st.integers(0, 1))),
    st.tuples(st.just(Kind.WHOLE), st.tuples(st.booleans(), st.integers(0, 1), plans)),
    st.tuples(st.just(Kind.REMOVED), st.none()),
)
logs = st.lists(st.tuples(st.sampled_from(NAMES), deltas | deltas | drop_records | others), max_size=20)


def change(time_ms: int, name: str, kind: Kind, what: Any, history: Any) -> Change:
    if kind == Kind.DROPPED:
        payload = dropped(what).encode()
    elif kind == Kind.SUBSCRIPTION:
        payload = encode_record(a_record(name, *what))
    elif kind == Kind.WHOLE:
        replicated, incarnation, plan = what
        record, acked = a_record(name, replicated, incarnation), progress_of(plan, history)
        payload = Whole(encode_record(record), acked.encode(), acked.encode() if replicated else b"").encode()
    elif kind == Kind.REMOVED:
        payload = b""
    else:
        payload = progress_of(what, history).encode()
    return Change(kind, name, time_ms, payload)


def take_one(topic: Topic, one: Change) -> None:
    """The meaning of a record: a delta is merged into what is known by then."""
    subscription = topic.subscriptions.get(one.subscription)
    if one.kind not in (Kind.ACKED, Kind.MERGED):
        replay.take(topic, [one])
    elif subscription is not None:
        delta = Progress.decode(one.payload)
        subscription.cursor.join(delta)
        if one.kind == Kind.ACKED:
            subscription.cursor.was_acked_at(one.time_ms)
            if subscription.replicated:
                subscription.cursor.join_first_hand(delta)


def emptied(topic: Topic) -> Topic:
    topic.subscriptions.clear()
    topic.subscription_registry.tombstones.clear()
    return topic


def state(topic: Topic) -> dict[str, tuple[Any, ...]]:
    return {
        name: (one.record, at.progress, at.first_hand, at.dropped or Dropped(), at.last_acked_ms)
        for name, one in topic.subscriptions.items()
        for at in [one.cursor]
    }


@many
@given(logs, histories, st.lists(st.integers(1, 20), min_size=20, max_size=20))
def test_slices_give_the_same_as_one_record_after_another(
    worlds: Worlds, log: list[Any], history: Any, sizes: list[int]
) -> None:
    changes = [change(0, name, Kind.WHOLE, (True, 0, []), history) for name in sorted(set(NAMES))]
    changes += [change(at, name, kind, what, history) for at, (name, (kind, what)) in enumerate(log, 1)]
    acked = [(one.subscription, one.time_ms, Progress.decode(one.payload)) for one in changes if one.kind == Kind.ACKED]
    one_by_one, in_slices = emptied(worlds.one_by_one), emptied(worlds.in_slices)
    for one in changes:
        take_one(one_by_one, one)
    heard: list[tuple[str, int, Progress]] = []
    left = list(changes)
    for size in sizes:
        replay.take(in_slices, left[:size], lambda name, time_ms, delta: heard.append((name, time_ms, delta.copy())))
        del left[:size]
    replay.take(in_slices, left, lambda name, time_ms, delta: heard.append((name, time_ms, delta.copy())))
    assert state(in_slices) == state(one_by_one)
    assert heard == acked


def test_a_rewind_undoes_the_drops_it_ruled_when_it_was_made(worlds: Worlds) -> None:
    """Later it comes to rule what older rewinds ruled: what was only dropped there stays dropped."""
    topic, acks = emptied(worlds.in_slices), Progress()
    records = [Change(Kind.WHOLE, "a", 0, Whole(encode_record(a_record("a", True, 0)), acks.encode(), b"").encode())]
    records.append(Change(Kind.DROPPED, "a", 1, dropped([(Cause.TTL, "us", EARLIEST, Position(0, 3))]).encode()))
    for number in (1, 2):
        rewound = acks.empty_delta()
        rewound.rewind(Stamp(70 + number, 0, "a"), {"us": (Position(0, number), Position(0, number + 1))})
        acks.join(rewound)
        records.append(Change(Kind.MERGED, "a", 2, rewound.encode()))
    merged = acks.merge_rewinds({"us": Position(0, 3)})
    assert merged is not None
    records.append(Change(Kind.MERGED, "a", 3, merged.encode()))
    replay.take(topic, records)
    kept = topic.subscriptions["a"].cursor.dropped
    assert kept is not None
    assert list(kept.runs()) == [(Cause.TTL, "us", EARLIEST, Position(0, 1))]
