# SPDX-License-Identifier: Apache-2.0
"""The election among the operator's replicas, in virtual time: never two that act, and never none for long."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from meridian_operator.handlers.desk import START_SECONDS
from meridian_operator.plan.lease import ACT_SECONDS, LEASE_SECONDS, LONGEST_SECONDS, RENEW_SECONDS, Candidate, Lease


@dataclass
class Store:
    """Accepts a write only if it names the version that was read."""

    lease: Lease | None = None
    version: int = 0

    def write(self, lease: Lease, version: str) -> bool:
        if version != str(self.version):
            return False
        self.lease, self.version = lease, self.version + 1
        return True


@dataclass
class Turn:
    """One attempt: how long each step takes, and whether the answer to the write arrives."""

    idle: float
    read: float
    sent: float
    answered: float
    heard: bool


def replica(me: Candidate, store: Store, turns: list[Turn], clock: Callable[[], float]) -> Iterator[float]:
    """Yields how long each step takes."""
    for turn in turns:
        yield turn.idle
        found, version = store.lease, str(store.version)
        yield turn.read
        wanted = me.next(found, version, clock(), "")
        if wanted is None:
            me.lost()
            continue
        began = clock()
        yield turn.sent
        stored = store.write(wanted, version)
        yield turn.answered
        if stored and turn.heard:
            me.holds(began)


def turn(chance: random.Random) -> Turn:
    """Steps that are mostly quick, and sometimes much too slow."""
    idle, read, sent, answered = (chance.choice((0.0, 0.1, 1.0, 2.0, chance.uniform(0, 30))) for _ in range(4))
    return Turn(idle, read, sent, answered, heard=chance.random() < 0.8)


def test_no_two_replicas_act_at_once() -> None:
    """However slow the calls are, even if lost, and whatever the replicas' clocks show."""
    acted = [judged(random.Random(seed)) for seed in range(1500)]
    assert sum(count > 1 for count in acted) > 500, "they do take over from one another"


def judged(chance: random.Random) -> int:
    """One random story; how many of its replicas acted at some time."""
    plans = [[turn(chance) for _ in range(12)] for _ in range(chance.choice((2, 3)))]
    offsets = [chance.uniform(-1e6, 1e6) for _ in plans]
    now = 0.0
    store = Store()
    candidates = [Candidate(f"replica-{number}") for number in range(len(plans))]
    runs = [
        replica(one, store, plan, lambda offset=offset: now + offset)  # type: ignore[misc]
        for one, plan, offset in zip(candidates, plans, offsets, strict=True)
    ]
    due = [(0.0, number) for number in range(len(runs))]
    acted = set()
    while due:
        now, number = heapq.heappop(due)
        delay = next(runs[number], None)
        acting = [one.me for one, offset in zip(candidates, offsets, strict=True) if one.acts(now + offset)]
        assert len(acting) <= 1, acting
        acted.update(acting)
        if delay is not None:
            heapq.heappush(due, (now + delay, number))
    return len(acted)


def test_a_replica_that_saw_the_lease_expire_takes_it_over() -> None:
    first, second = Candidate("first"), Candidate("second")
    lease = first.next(None, "", 0.0, "noon")
    assert lease == Lease("first", "noon", "noon", 0, LEASE_SECONDS)
    first.holds(0.0)
    assert first.acts(ACT_SECONDS - 0.1) and not first.acts(ACT_SECONDS)
    assert second.next(lease, "1", 100.0, "later") is None, "it may have been renewed just now"
    assert second.next(lease, "1", 100.0 + LEASE_SECONDS - 0.1, "later") is None
    assert second.next(lease, "2", 100.0 + LEASE_SECONDS, "later") is None, "it was renewed"
    taken = second.next(lease, "2", 100.0 + 2 * LEASE_SECONDS, "later")
    assert taken == Lease("second", "later", "later", 1, LEASE_SECONDS)
    assert first.next(taken, "3", 200.0, "later") is None, "the loser waits like everybody else"


def test_a_released_lease_is_free_at_once_and_one_that_claims_years_is_not_believed() -> None:
    lease = Lease("first", "noon", "noon", 3)
    one = Candidate("second")
    released = one.next(replace(lease, holder=""), "1", 0.0, "later")
    assert released is not None and released.transitions == 4
    years = replace(lease, seconds=10**9)
    assert one.next(years, "2", 0.0, "later") is None
    assert one.next(years, "2", float(LONGEST_SECONDS), "later") is not None


def test_a_replica_gets_several_attempts_before_it_must_stop_and_is_replaced_within_20_seconds() -> None:
    assert 3 * RENEW_SECONDS < ACT_SECONDS < LEASE_SECONDS
    assert LEASE_SECONDS + RENEW_SECONDS + START_SECONDS < 20
