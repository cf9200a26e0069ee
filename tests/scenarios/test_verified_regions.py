# SPDX-License-Identifier: Apache-2.0
"""The verifier's verdicts on live regions where something only looks wrong, and on one real loss."""

from __future__ import annotations

import pytest
from meridian_verifier.align.findings import Reason
from meridian_verifier.align.verdicts import State
from support.brokers.broker_process import RegionsProcess, wait_until
from support.brokers.region_clients import (
    CENTRAL,
    EAST,
    EXCLUSIVE,
    WEST,
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
from support.verifier.verifier_live import live_verdict
from support.worlds.compaction_steps import Door, compact
from support.worlds.compaction_steps import publish as publish_rows

REGIONS = (EAST, WEST, CENTRAL)
SETTINGS = {
    "compactionRateInMBPerSecond": "0",
    "faultInjectionEnabled": "true",
    "managedLedgerMaxEntriesPerLedger": "10",
    "retentionCheckIntervalInSeconds": "1",
}

pytestmark = pytest.mark.slow


def urls(regions: RegionsProcess, *named: str) -> dict[str, str]:
    return {region: regions.admin_url(region) for region in named or REGIONS}


def test_with_some_regions_left_out_it_cannot_tell(regions: RegionsProcess) -> None:
    """The region left out received the acknowledgements: the others know them, but no region asked received them."""
    topic = new_topic("named-in-part")
    with client(regions, EAST) as east, client(regions, CENTRAL) as central:
        subscribe(east, topic).close()
        publish(east, topic, numbered(range(8)))
        for region in REGIONS:
            stored(regions, region, topic, 8)
        take_numbers(subscribe(central, topic), range(8))
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 0)
    for named in ((EAST, WEST), (EAST,)):
        verdict = live_verdict(urls(regions, *named), topic)
        assert verdict.findings == ()
        assert (verdict.state, verdict.exit_code) == (State.UNKNOWN, 2)
        assert {one.reasons for one in verdict.subjects} == {(Reason.NOT_ASKED,)}
        assert CENTRAL in verdict.summary
    assert live_verdict(urls(regions), topic).state is State.ALIGNED


def test_a_seek_goes_back_over_what_its_region_stores(regions: RegionsProcess) -> None:
    """R12: a region that trimmed less does not owe more. If another one trimmed more, the verdict says so."""
    topic = new_topic("trimmed-more")
    place = f"{topic_path(topic)}/subscription/s/resetcursor"
    with client(regions, EAST) as east, client(regions, WEST) as west:
        subscribe(east, topic).close()
        publish(east, topic, numbered(range(24)))
        for region in REGIONS:
            stored(regions, region, topic, 24)
        for region in (WEST, CENTRAL):
            keep = {"retentionTimeInMinutes": 100, "retentionSizeInMB": 100}
            assert regions.http(region, "POST", f"{topic_path(topic)}/retention", keep).status == 204
        take_numbers(subscribe(east, topic), range(24))
        for region in REGIONS:
            wait_for_backlog(regions, region, topic, 0)
        ledgers = f"{topic_path(topic)}/internalStats"
        wait_until(lambda: len(regions.http(EAST, "GET", ledgers).json["ledgers"]) == 1, "two ledgers to be trimmed")

        assert regions.http(EAST, "POST", f"{place}/1000").status == 204
        for region in REGIONS:
            wait_for_backlog(regions, region, topic, 4)
        assert live_verdict(urls(regions), topic).state is State.ALIGNED

        assert regions.http(WEST, "POST", f"{place}/1000").status == 204
        for region, backlog in ((EAST, 4), (WEST, 24), (CENTRAL, 24)):
            wait_for_backlog(regions, region, topic, backlog)
        verdict = live_verdict(urls(regions), topic)
        assert {(one.reason, one.target, one.entries) for one in verdict.findings} == {
            (Reason.OWED_ELSEWHERE, EAST, 20)
        }
        assert not verdict.losses
        take_numbers(subscribe(west, topic), range(24))
        for region in REGIONS:
            wait_for_backlog(regions, region, topic, 0)
        assert live_verdict(urls(regions), topic).state is State.ALIGNED


def test_what_compaction_took_out_is_passed_and_not_lost(regions: RegionsProcess) -> None:
    """Even after trimming; what the view has, or what follows it, is still owed."""
    topic = new_topic("compacted")
    door = Door(regions.admin_url(EAST))
    with client(regions, EAST) as east:
        consumer = subscribe(east, topic, kind=EXCLUSIVE, is_read_compacted=True)
        publish_rows(east, topic, [(f"k{number % 7}", b"%d" % number) for number in range(60)])
        for region in REGIONS:
            stored(regions, region, topic, 60)
        compact(door, topic.rpartition("/")[2])
        consumer.close()
        consumer = subscribe(east, topic, kind=EXCLUSIVE, is_read_compacted=True)
        messages = take(consumer, 7)
        assert {int(one.data()) for one in messages} == set(range(53, 60))
        for message in messages[:4]:
            consumer.acknowledge(message)
        for region in (WEST, CENTRAL):
            wait_for_backlog(regions, region, topic, 56)
        place = f"{topic_path(topic)}/internalStats"
        cursor = regions.http(EAST, "GET", place).json["cursors"]["s"]["markDeletePosition"]
        assert int(cursor.rpartition(":")[2]) >= 0, "the cursor passed what compaction removed"
        verdict = live_verdict(urls(regions), topic)
        assert verdict.findings == ()
        assert verdict.state is State.ALIGNED
        wait_until(lambda: stats(regions, EAST, topic)["storageSize"] < 60 * 70, "the compacted entries to be trimmed")
        verdict = live_verdict(urls(regions), topic)
        assert verdict.findings == ()
        assert "not judged" in " ".join(verdict.subjects[0].notes), (
            "it cannot know what compaction removed from trimmed entries"
        )
        damaged = regions.http(
            EAST, "POST", f"/meridian/v1/subscriptions/{topic.replace('://', '/')}/s/damage", {"entries": 2}
        )
        assert damaged.status == 200, damaged.text
        verdict = live_verdict(urls(regions), topic)
        assert Reason.OVERCLAIMED in {one.reason for one in verdict.losses}
        consumer.close()
