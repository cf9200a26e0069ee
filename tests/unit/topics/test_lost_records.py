# SPDX-License-Identifier: Apache-2.0
"""Damaged records of a progress log: the topic opens, nothing is skipped, and what may be redelivered is reported."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from meridian_broker.engines.memory.ledgers import MemoryReader
from meridian_broker.ledgers.store import LedgerCorrupt
from meridian_broker.positions import Dropped, Progress, Stamp
from meridian_broker.positions.position import EARLIEST, LATEST
from meridian_broker.replication.leases.manager import LeaseManager
from meridian_broker.topics.journal.changes import SEVERAL_MIN, Kind
from meridian_broker.topics.journal.subscription_record import SubscriptionRecord, encode_record
from meridian_broker.topics.lifecycle import replay
from meridian_broker.topics.service.leased_topics import LeasedTopics
from meridian_broker.topics.service.registry import TopicRegistry
from meridian_broker.topics.service.unused import expire_subscriptions
from meridian_broker.topics.subscriptions.damaged_records import DOUBT_MS
from meridian_broker.topics.subscriptions.subscription import Subscription
from simulation.story import Story
from support.worlds.topic_of_one_region import Region, region
from support.worlds.topic_record import TopicRecord

pytestmark = pytest.mark.logs_error("the disk damaged")


class Rot(dict[tuple[int, int], bytes | None]):
    """What is left of a damaged record, by ledger and entry; None: all of it, with one bit of its last byte flipped."""

    async def damage(
        self, one: Region, kind: Kind, name: str, *, nth: int | None = None, remains: bytes | None = None
    ) -> None:
        """Damage all records of a kind that name a subscription, or only the nth of them."""
        (ledger,) = one.topic.progress_log.ledgers
        changes = [change async for some in one.topic.progress_log.changes() for change in some]
        found = [entry for entry, change in enumerate(changes) if change[:2] == (kind, name)]
        assert found
        self.update({(ledger, entry): remains for entry in (found if nth is None else [found[nth]])})


@pytest.fixture
def rot(monkeypatch: pytest.MonkeyPatch) -> Rot:
    bad, read = Rot(), MemoryReader.read

    async def checked(self: MemoryReader, first: int, last: int, max_bytes: int) -> list[bytes]:
        found = await read(self, first, last, max_bytes)
        whole = next((n for n in range(len(found)) if (self.ledger_id, first + n) in bad), len(found))
        if found and not whole:
            left = bad[self.ledger_id, first]
            raise LedgerCorrupt("checksum", found[0][:-1] + b"?" if left is None else left)
        return found[:whole]

    monkeypatch.setattr(MemoryReader, "read", checked)
    return bad


def acked(one: Region, name: str) -> list[int]:
    progress = one.topic.subscriptions[name].cursor.progress
    return [number for number, position in enumerate(one.stored) if progress.is_acked("us", position)]


async def restarted(one: Region) -> None:
    await one.settle()
    await one.start()
    await one.settle()


async def subscribed(one: Region, name: str) -> Subscription:
    heard: list[Subscription | Exception] = []
    one.topic.subscribing.subscribe(
        *(name,), durable=True, replicated=False, initial=LATEST, properties=None, may_create=True, ready=heard.append
    )
    await one.settle()
    assert isinstance(heard[0], Subscription)
    return heard[0]


async def test_only_what_a_damaged_record_acknowledged_is_redelivered(rot: Rot) -> None:
    one = await region(s=True, other=False)
    for number in (0, 1, 2):
        await one.ack("s", [number], number)
    await rot.damage(one, Kind.ACKED, "s", nth=1)
    for start in range(2):
        await restarted(one)
        assert (acked(one, "s"), acked(one, "other")) == ([0, 2], [])
        (loss,) = one.topic.subscription_registry.lost_records.recent()
        assert (loss.records, loss.subscriptions, loss.in_doubt) == (1, ("s",), False)
        assert not rot or start == 0
        rot.clear()  # the first start wrote a snapshot: the damaged ledger is gone, but the report remains
    one.scheduler.ms += DOUBT_MS
    assert one.topic.subscription_registry.lost_records.recent() == []


async def test_a_damaged_record_of_many_subscriptions_leaves_the_topic_in_doubt(rot: Rot) -> None:
    one = await region(**{f"s{number}": False for number in range(SEVERAL_MIN)})
    one.topic.progress_log._roll()
    await one.settle()
    await one.ack("s1", [0], 0)
    (ledger,) = one.topic.progress_log.ledgers
    rot[ledger, 0] = None
    await restarted(one)
    assert list(one.topic.subscriptions) == ["s1"]
    assert acked(one, "s1") == [0]
    assert one.topic.subscription_registry.lost_records.in_doubt
    assert (await subscribed(one, "s2")).cursor.mark_delete < one.stored[0], "it may be the lost one"


async def test_a_subscription_with_a_damaged_creation_is_recreated_from_later_records(rot: Rot) -> None:
    one = await region(s=False)
    await one.ack("s", [4], 0)
    await rot.damage(one, Kind.WHOLE, "s", remains=b"")
    await restarted(one)
    assert acked(one, "s") == [4]
    assert one.topic.subscriptions["s"].cursor.mark_delete < one.stored[0]
    (loss,) = one.topic.subscription_registry.lost_records.recent()
    assert loss.subscriptions == ("s",)


async def test_a_subscription_with_a_damaged_creation_is_recreated_from_its_name(rot: Rot) -> None:
    one = await region(s=False)
    await rot.damage(one, Kind.WHOLE, "s")
    await restarted(one)
    assert acked(one, "s") == []
    assert one.topic.subscription_registry.lost_records.in_doubt, "the name may be damaged too"


async def test_a_topic_that_may_lack_a_subscription_keeps_everything_for_it(rot: Rot) -> None:
    one = await region(s=False, quick=False)
    await one.ack("quick", range(12), 0)
    await rot.damage(one, Kind.WHOLE, "s", remains=b"")
    await restarted(one)
    assert list(one.topic.subscriptions) == ["quick"]
    assert one.topic.needed_from() == EARLIEST
    came_back = await subscribed(one, "s")
    assert came_back.cursor.mark_delete < one.stored[0], "not at the latest message, as its consumer asks"
    rot.clear()
    await restarted(one)
    assert one.topic.needed_from() == EARLIEST
    one.scheduler.ms += DOUBT_MS
    assert (
        one.topic.needed_from() > EARLIEST or one.topic.subscriptions["s"].cursor.mark_delete == one.topic.needed_from()
    )
    assert (await subscribed(one, "new")).cursor.mark_delete == one.stored[-1]


async def test_a_subscription_that_was_deleted_stays_deleted(rot: Rot) -> None:
    one = await region(gone=True, s=False)
    one.topic.subscription_registry.delete("gone")
    await one.ack("s", [0], 0)
    await rot.damage(one, Kind.ACKED, "s", remains=b"")
    await restarted(one)
    assert list(one.topic.subscriptions) == ["s"]


DELETED = Stamp(1_700_000_000_001, 0, "eu")
GRAVE = SubscriptionRecord("s", True, deleted=DELETED)
LATER = SubscriptionRecord("s", True, DELETED, Stamp(1_700_000_000_002, 0, "eu"), deleted=DELETED)


async def told(one: Region, record: SubscriptionRecord) -> str | None:
    """The region's answer to another one that knows the subscription."""
    answers: list[str | None] = []
    one.topic.subscription_registry.merge(record.name, Progress(), encode_record(record), answers.append)
    await one.settle()
    return answers[0]


@pytest.mark.parametrize("starts", [1, 2])
async def test_a_recreated_one_follows_a_deletion_in_another_region_for_good(rot: Rot, starts: int) -> None:
    one = await region(s=True)
    await rot.damage(one, Kind.WHOLE, "s")
    for _ in range(starts):
        await restarted(one)
        rot.clear()
    assert not one.topic.subscriptions["s"].replicated
    assert await told(one, GRAVE) is None
    assert "s" not in one.topic.subscriptions
    await restarted(one)
    assert "s" not in one.topic.subscriptions
    assert one.topic.subscription_registry.tombstones["s"] == GRAVE


async def test_a_recreated_one_is_deleted_in_all_regions_because_they_may_share_it(rot: Rot) -> None:
    one = await region(s=True, own=False)
    await rot.damage(one, Kind.WHOLE, "s")
    await restarted(one)
    rot.clear()
    one.topic.subscription_registry.delete("s")
    one.topic.subscription_registry.delete("own")
    assert list(one.topic.subscription_registry.tombstones) == ["s"]
    await restarted(one)
    assert not one.topic.subscriptions
    assert list(one.topic.subscription_registry.tombstones) == ["s"]


async def test_a_recreated_one_does_not_expire_while_other_regions_may_use_it(rot: Rot) -> None:
    one = await region(s=True, own=False)
    await rot.damage(one, Kind.WHOLE, "s")
    await restarted(one)
    rot.clear()
    one.topic.rules = replace(one.topic.rules, subscription_expiration_minutes=1)
    one.scheduler.ms += 3_600_000
    asked: list[str] = []

    async def cannot_say(_: str, name: str, __: int) -> str:
        asked.append(name)
        return "the other region does not answer"

    registry = SimpleNamespace(topics={"t": one.topic}, parts=SimpleNamespace(scheduler=one.scheduler))
    await expire_subscriptions(cast("TopicRegistry", registry), cannot_say)
    assert (asked, list(one.topic.subscriptions)) == (["s"], ["s"])


async def test_a_recreated_one_has_the_incarnation_that_another_region_reports(rot: Rot) -> None:
    one = await region(s=True)
    await rot.damage(one, Kind.WHOLE, "s")
    await restarted(one)
    assert await told(one, LATER) is None
    rot.clear()
    for _ in range(2):
        assert one.topic.subscriptions["s"].record == LATER
        assert one.topic.subscriptions["s"].cursor.progress.beginning.incarnation == DELETED
        await restarted(one)


async def test_a_recreated_one_is_never_the_earlier_creation(rot: Rot) -> None:
    """This region's clock may be behind that of the region that created it."""
    one = await region(s=True)
    await rot.damage(one, Kind.WHOLE, "s")
    await restarted(one)
    stamp = Stamp(one.scheduler.ms + 60_000, 0, "eu")
    made = SubscriptionRecord("s", True, stamp, stamp, {"team": "a"})
    assert await told(one, made) is None
    assert one.topic.subscriptions["s"].record == made


async def test_a_damaged_acknowledgement_does_not_let_other_regions_delete_a_clients_subscription(
    rot: Rot,
) -> None:
    one = await region(s=False)
    await one.ack("s", [0], 0)
    await rot.damage(one, Kind.ACKED, "s")
    await restarted(one)
    assert await told(one, GRAVE) is None
    assert "s" in one.topic.subscriptions
    assert "older than the deletion" in (await told(one, LATER) or "")


@pytest.mark.parametrize("replicated", [True, False])
@pytest.mark.parametrize("is_acked", [True, False])
async def test_one_created_after_a_deletion_of_its_name_is_not_lost_with_its_creation_record(
    rot: Rot, replicated: bool, is_acked: bool
) -> None:
    one = await region(s=True)
    one.topic.subscription_registry.delete("s")
    incarnation = one.topic.subscribing.create_subscription("s", EARLIEST, replicated=replicated).record.deleted
    await one.settle()
    await rot.damage(one, Kind.WHOLE, "s", nth=-1)
    if is_acked:
        await one.ack("s", [2], 0)
    await restarted(one)
    assert one.topic.subscriptions["s"].cursor.progress.beginning.incarnation == incarnation
    assert acked(one, "s") == ([2] if is_acked else [])


@pytest.mark.parametrize("drops", [True, False])
async def test_acknowledgements_of_an_incarnation_with_a_damaged_creation_stay_when_others_report_it(
    rot: Rot, drops: bool
) -> None:
    one = await region(s=True)
    if not drops:
        await one.ack("s", [7], 0)  # of the earlier incarnation
    one.topic.subscription_registry.delete("s")
    made = one.topic.subscribing.create_subscription("s", EARLIEST, replicated=True).record
    await one.settle()
    await rot.damage(one, Kind.SUBSCRIPTION, "s")
    grave = dict(rot)
    rot.clear()  # otherwise the log could not be read to find the others
    await rot.damage(one, Kind.WHOLE, "s", nth=None if drops else -1)
    rot.update(grave)
    if drops:
        one.topic.progress_log.append(Kind.DROPPED, "s", Dropped().encode())  # does not name its incarnation
    await one.ack("s", [2], 0)
    await restarted(one)
    assert acked(one, "s") == [2]
    assert await told(one, made) is None
    assert (acked(one, "s"), one.topic.subscriptions["s"].record) == ([2], made)
    rot.clear()
    await restarted(one)
    assert (acked(one, "s"), one.topic.subscriptions["s"].record) == ([2], made)


async def test_a_deletion_after_a_damaged_creation_counts_but_may_be_of_an_earlier_incarnation(rot: Rot) -> None:
    """A new ledger of the log begins with subscriptions, followed by tombstones of their names."""
    one = await region(s=True)
    one.topic.subscription_registry.delete("s")
    await one.settle()
    await rot.damage(one, Kind.WHOLE, "s")
    await restarted(one)
    assert "s" not in one.topic.subscriptions
    assert one.topic.subscription_registry.lost_records.in_doubt


async def test_the_regions_own_deletion_after_a_damaged_creation_counts(rot: Rot) -> None:
    one = await region(s=False)
    one.topic.subscription_registry.delete("s")
    await one.settle()
    await rot.damage(one, Kind.WHOLE, "s")
    await restarted(one)
    assert "s" not in one.topic.subscriptions
    assert not one.topic.subscription_registry.lost_records.in_doubt


async def test_a_damaged_later_deletion_recreates_nothing(rot: Rot) -> None:
    one = await region(s=True)
    one.topic.subscription_registry.delete("s")
    assert await told(one, replace(GRAVE, deleted=Stamp(1_800_000_000_000, 0, "eu"))) is None
    await rot.damage(one, Kind.SUBSCRIPTION, "s", nth=-1)
    await restarted(one)
    assert "s" not in one.topic.subscriptions
    assert one.topic.subscription_registry.lost_records.in_doubt


async def test_a_day_later_a_recreated_one_is_the_regions_own(rot: Rot) -> None:
    one = await region(s=False)
    await rot.damage(one, Kind.WHOLE, "s")
    await restarted(one)
    one.scheduler.ms += DOUBT_MS
    assert await told(one, GRAVE) is None
    assert "s" in one.topic.subscriptions


@pytest.mark.parametrize("remains", [None, b"", b"\xff" * 40], ids=["a bit", "all", "garbage"])
async def test_whatever_is_damaged_nothing_counts_as_acknowledged_that_is_not(rot: Rot, remains: bytes | None) -> None:
    one = await region(s=True, t=False)
    await one.ack("s", [0, 3], 1)
    await one.ack("t", [1], 2)
    await one.ack("s", [5], 3)
    (ledger,) = one.topic.progress_log.ledgers
    count = sum([len(some) async for some in one.topic.progress_log.changes()])
    for some in itertools.chain.from_iterable(itertools.combinations(range(count), size) for size in (1, 2, count)):
        rot.clear()
        rot.update({(ledger, entry): remains for entry in some})
        found = Region()
        found.disk, found.record, found.stored = copy.deepcopy(one.disk), TopicRecord(), one.stored
        found.record.spans, found.record.progress, found.record._last = one.record.spans, [ledger], one.record._last
        found.fence = one.fence
        await found.start()
        for name, whole in (("s", {0, 3, 5}), ("t", {1})):
            if name in found.topic.subscriptions:
                assert set(acked(found, name)) <= whole
            else:
                assert found.topic.subscription_registry.lost_records.in_doubt
        await found.settle()


async def test_a_log_being_written_replaces_what_is_damaged(rot: Rot) -> None:
    one = await region(s=False)
    await one.ack("s", [0], 0)
    await rot.damage(one, Kind.WHOLE, "s")
    with pytest.raises(LedgerCorrupt):
        [None async for _ in one.topic.progress_log.changes()]
    await one.settle()
    changes = [change async for some in one.topic.progress_log.changes() for change in some]
    assert Kind.WHOLE in {change.kind for change in changes}
    await restarted(one)
    assert acked(one, "s") == [0]
    assert one.topic.subscription_registry.lost_records.recent() == []


def test_a_region_that_may_have_lost_a_vote_abstains_until_the_vote_is_over() -> None:
    story = Story()
    for line in (
        *("regions us eu ap", "subscribe us t sub", "tick 100", "scope us t sub origin"),
        *("consumer c us t sub auto", "tick 3000", *(f"rot eu t progress {n}" for n in range(9))),
        *("crash eu", "tick 100", "start eu", "tick 1500"),
    ):
        story.run(line)
    broker = story.world.regions["eu"].broker
    assert broker is not None
    manager = broker.exchange.core.leases
    assert isinstance(manager, LeaseManager)
    leased, stream = cast("LeasedTopics", manager._topics), ("persistent://public/default/t", "sub", "us")
    assert stream[0] in broker.service.topics
    heard: list[object] = []
    leased.hear(
        stream[:2],
        broker.service.topics[stream[0]].subscriptions["sub"].record.voter_sets,
        lambda *told: heard.append(told),
    )
    assert leased.voter_sets(stream) is None
    story.run(f"tick {manager.promise_ms}")
    assert leased.voter_sets(stream) is not None
    assert heard == [], "it cannot rule out that a promise of its binds"


async def test_the_snapshot_that_replaces_a_damaged_ledger_is_not_begun_before_everything_is_known(rot: Rot) -> None:
    """Sequence ids are known once deduplication is open, after the subscriptions."""
    one = await region(s=False)
    await one.ack("s", [0], 0)
    await rot.damage(one, Kind.ACKED, "s")
    await one.settle()
    (before,) = one.topic.progress_log.ledgers
    log = one.topic.subscription_registry.lost_records
    await replay.recover(one.topic)
    await one.settle()
    assert one.topic.progress_log.ledgers == [before]
    assert log.recent() == []
    log.report()
    assert [loss.records for loss in log.recent()] == [1]
