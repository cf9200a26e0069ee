# SPDX-License-Identifier: Apache-2.0
"""Deleted subscriptions stay deleted for 30 days, however many there are, and cost a bounded amount of memory (R16)."""

from __future__ import annotations

import pytest
from meridian_broker.positions import Progress
from meridian_broker.positions.position import EARLIEST
from meridian_broker.topics.errors import LimitReached, NotAllowed
from meridian_broker.topics.journal.subscription_record import encode_record
from meridian_broker.topics.subscriptions import tombstones
from meridian_broker.topics.subscriptions.administration import replicate_subscription
from meridian_broker.topics.subscriptions.incoming_records import TOMBSTONE_MS
from support.worlds.topic_of_one_region import Region, region

HOUR_MS = 3_600_000


async def jobs(one: Region, first: int, end: int) -> None:
    """Create and delete short-lived subscriptions, one after another."""
    for number in range(first, end):
        one.topic.subscribing.create_subscription(f"job-{number}", EARLIEST, replicated=True)
        one.topic.subscription_registry.delete(f"job-{number}")
    await one.settle()


async def told(one: Region, name: str, record: bytes) -> str | None:
    """The region's answer to another one that still has the subscription."""
    answers: list[str | None] = []
    one.topic.subscription_registry.merge(name, Progress(), record, answers.append)
    await one.settle()
    return answers[0]


async def test_a_region_that_was_down_revives_no_deleted_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tombstones, "TOMBSTONES_MAX", 50)
    one = await region(**{"job-0": True})
    elsewhere = encode_record(one.topic.subscriptions["job-0"].record)
    one.topic.subscription_registry.delete("job-0")
    with pytest.raises(LimitReached, match="do not replicate short-lived"):
        await jobs(one, 1, 100)
    one.scheduler.ms += HOUR_MS
    assert await told(one, "job-0", elsewhere) is None
    assert "job-0" not in one.topic.subscriptions
    # A name already remembered takes no more room.
    one.topic.subscribing.create_subscription("job-3", EARLIEST, replicated=True)


async def test_a_full_memory_of_deletions_refuses_nothing_but_replication(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tombstones, "TOMBSTONES_MAX", 5)
    one = await region(kept=False)
    await jobs(one, 0, 5)
    with pytest.raises(LimitReached):
        await replicate_subscription(one.topic.subscriptions["kept"], True)
    assert not one.topic.subscriptions["kept"].replicated
    one.topic.subscribing.create_subscription("local", EARLIEST)
    one.scheduler.ms += TOMBSTONE_MS + HOUR_MS
    one.topic.subscribing.create_subscription("later", EARLIEST, replicated=True)
    assert not one.topic.subscription_registry.tombstones, "those older than 30 days made room"


async def test_a_temporarily_blocked_name_is_forgotten_afterwards() -> None:
    one = await region()
    for number in range(100):
        one.topic.subscribing.create_subscription(f"job-{number}", EARLIEST)
        one.topic.subscription_registry.delete(f"job-{number}", forced=True)
        with pytest.raises(NotAllowed, match="a moment ago"):
            one.topic.subscription_registry.closed_names.check(f"job-{number}")
        one.scheduler.ms += round(one.topic.limits.closed_seconds * 1000)
    assert len(one.topic.subscription_registry.closed_names) == 1
    one.topic.subscription_registry.closed_names.check("job-99")
