# SPDX-License-Identifier: Apache-2.0
"""Each region's drops are its own: never acknowledgements elsewhere, and in all regions only on request (R14)."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest
from support.brokers.broker_process import RegionsProcess, wait_until
from support.brokers.region_clients import (
    EAST,
    EXCLUSIVE,
    WEST,
    backlog,
    client,
    new_topic,
    numbered,
    publish,
    stats,
    stored,
    subscribe,
    take,
    take_numbers,
    wait_for_backlog,
)
from support.protocol.admin_paths import topic_path
from support.verifier.verifier_live import live_findings

SETTINGS = {
    "backlogQuotaCheckIntervalInSeconds": "1",
    "managedLedgerMaxEntriesPerLedger": "10",
    "retentionCheckIntervalInSeconds": "1",
}

REGIONS = (EAST, WEST)

pytestmark = pytest.mark.slow


def expire(regions: RegionsProcess, region: str, topic: str, what: str = "/0", body: Any = ...) -> int:
    return regions.http(region, "POST", f"{topic_path(topic)}/subscription/s/expireMessages{what}", body).status


def prepared(regions: RegionsProcess, topic: str, count: int) -> list[pulsar.MessageId]:
    """Both regions have this many messages, all owed to subscription s."""
    with client(regions, EAST) as east:
        subscribe(east, topic).close()
        ids = publish(east, topic, numbered(range(count)))
    stored(regions, WEST, topic, count)
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, count)
    return ids


def test_what_one_region_drops_the_other_still_owes(regions: RegionsProcess) -> None:
    topic = new_topic("drops-here")
    ids = prepared(regions, topic, 30)
    upto = {"ledgerId": ids[19].ledger_id(), "entryId": ids[19].entry_id()}
    assert expire(regions, EAST, topic, "", upto) == 204
    assert backlog(regions, EAST, topic) == 10
    with client(regions, EAST) as east:
        consumer = subscribe(east, topic, kind=EXCLUSIVE)
        messages = take(consumer, 5)
        assert [int(one.data()) for one in messages] == list(range(20, 25))
        consumer.acknowledge_cumulative(messages[-1])
        consumer.close()
    wait_for_backlog(regions, WEST, topic, 25)
    assert live_findings({region: regions.admin_url(region) for region in REGIONS}, topic) == []
    with client(regions, WEST) as west:
        take_numbers(subscribe(west, topic), [*range(20), *range(25, 30)])
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 0)


def test_what_a_consumer_held_when_it_was_dropped_can_be_acknowledged_later(regions: RegionsProcess) -> None:
    """Even after the message was trimmed here: the other region, which did not drop it, does not deliver it."""
    topic = new_topic("late")
    prepared(regions, topic, 30)
    with client(regions, EAST) as east, client(regions, WEST) as west:
        consumer = subscribe(east, topic)
        held = take(consumer, 25)
        before = stats(regions, EAST, topic)
        last = held[-1].message_id()
        assert expire(regions, EAST, topic, "", {"ledgerId": last.ledger_id(), "entryId": last.entry_id() + 5}) == 204
        publish(east, topic, numbered(range(30, 40)))
        wait_until(
            lambda: stats(regions, EAST, topic)["storageSize"] < before["storageSize"],
            "the dropped messages to be trimmed",
        )
        for message in held[5:20]:
            consumer.acknowledge(message)
        consumer.close()
        wait_for_backlog(regions, WEST, topic, 25)
        take_numbers(subscribe(west, topic), [*range(5), *range(20, 40)])
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 0)


def test_all_regions_drop_when_asked(regions: RegionsProcess) -> None:
    by_age, by_id = new_topic("all-by-age"), new_topic("all-by-id")
    prepared(regions, by_age, 5)
    assert expire(regions, WEST, by_age, "/0?allRegions=true") == 204
    assert [backlog(regions, region, by_age) for region in REGIONS] == [0, 0]
    ids = prepared(regions, by_id, 5)
    upto = {"ledgerId": ids[3].ledger_id(), "entryId": ids[3].entry_id(), "isExcluded": True}
    assert expire(regions, EAST, by_id, "?allRegions=true", upto) == 204
    assert [backlog(regions, region, by_id) for region in REGIONS] == [2, 2]


def test_a_truncated_region_and_all_of_them(regions: RegionsProcess) -> None:
    topic = new_topic("truncated")
    prepared(regions, topic, 25)
    assert regions.http(EAST, "DELETE", f"{topic_path(topic)}/truncate").status == 204
    assert [backlog(regions, region, topic) for region in REGIONS] == [0, 25]
    with client(regions, WEST) as west:
        publish(west, topic, numbered(range(25, 30)))
        wait_for_backlog(regions, EAST, topic, 5)
        assert live_findings({region: regions.admin_url(region) for region in REGIONS}, topic) == []
        take_numbers(subscribe(west, topic), range(30))
    with client(regions, EAST) as east:
        publish(east, topic, numbered(range(30, 35)))
    wait_for_backlog(regions, WEST, topic, 5)
    assert regions.http(WEST, "DELETE", f"{topic_path(topic)}/truncate?allRegions=true").status == 204
    wait_for_backlog(regions, EAST, topic, 0)
    wait_for_backlog(regions, WEST, topic, 0)
    with client(regions, EAST) as east:
        publish(east, topic, numbered(range(35, 40)))
    with client(regions, WEST) as west:
        take_numbers(subscribe(west, topic), range(35, 40))


def test_a_quota_holds_replication_and_nothing_is_lost(regions: RegionsProcess) -> None:
    topic = new_topic("held")
    prepared(regions, topic, 5)
    quota = {"limitSize": 20_000, "policy": "producer_request_hold"}
    assert regions.http(WEST, "POST", f"{topic_path(topic)}/backlogQuota", quota).status == 204
    kept = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}  # read once more after everything is acknowledged
    assert regions.http(WEST, "POST", f"{topic_path(topic)}/retention", kept).status == 204
    with client(regions, EAST) as east:
        publish(east, topic, [b"%d" % number + b" " * 1000 for number in range(5, 45)])
        wait_until(lambda: "backlog quota" in str(replication(regions, topic)["lastError"]), "replication to be held")
        publish(east, topic, numbered(range(45, 60)))
    assert not replication(regions, topic)["connected"]
    held = backlog(regions, WEST, topic)
    assert held is not None and held < 60
    with client(regions, WEST) as west:
        take_numbers(subscribe(west, topic), range(60))
        assert stored(regions, WEST, topic, 60) == list(range(60)), "each once, in order"


def replication(regions: RegionsProcess, topic: str) -> dict[str, Any]:
    """The east's replication status for the west."""
    found: dict[str, Any] = stats(regions, EAST, topic)["replication"][WEST]
    return found


def test_a_region_that_cannot_be_asked_is_named(regions: RegionsProcess) -> None:
    topic = new_topic("all-but-one")
    prepared(regions, topic, 3)
    regions.kill_region(WEST)
    try:
        answer = regions.http(EAST, "POST", f"{topic_path(topic)}/subscription/s/expireMessages/0?allRegions=true")
        assert answer.status == 503
        assert "done in us-east, but not everywhere: us-west cannot be asked" in answer.reason
        assert backlog(regions, EAST, topic) == 0
    finally:
        regions.bring_back(WEST)
    wait_until(lambda: backlog(regions, WEST, topic) == 3, "the west still to owe what it did not drop")
    assert expire(regions, EAST, topic, "/0?allRegions=true") == 204, "a second request drops everywhere"
    assert backlog(regions, WEST, topic) == 0
