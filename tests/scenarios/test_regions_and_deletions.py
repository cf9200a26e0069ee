# SPDX-License-Identifier: Apache-2.0
"""A topic is deleted while a region is away: when the region is back, its copy is deleted too, or quarantined if it
has messages that no other region got (R8)."""

from __future__ import annotations

import pytest
from support.brokers.broker_process import RegionsProcess, wait_until
from support.brokers.region_clients import (
    CENTRAL,
    EAST,
    WEST,
    client,
    new_topic,
    numbered,
    publish,
    stats,
    stored,
    subscribe,
    take_numbers,
)
from support.protocol.admin_paths import topic_path

REGIONS = (EAST, WEST, CENTRAL)

pytestmark = pytest.mark.slow


def topics(regions: RegionsProcess, region: str) -> set[str]:
    return set(regions.http(region, "GET", "/admin/v2/persistent/public/default").json)


def incarnation(regions: RegionsProcess, region: str, topic: str) -> str:
    return str(regions.http(region, "GET", f"{topic_path(topic)}/internalStats").json["incarnation"])


def test_a_region_was_away_while_topics_were_deleted(regions: RegionsProcess) -> None:
    """R8: one copy has nothing of its own, one has messages that the others never got, one topic is created again, and
    one has partitions."""
    plain, ahead, again, parts = (new_topic(name) for name in ("plain", "ahead", "again", "parts"))
    assert regions.http(EAST, "PUT", f"{topic_path(parts)}/partitions", 2).status == 204
    with client(regions, EAST) as east:
        for topic in (plain, ahead, again, parts):
            subscribe(east, topic).close()
            publish(east, topic, numbered(range(10)))
    for topic in (plain, ahead, again, f"{parts}-partition-0", f"{parts}-partition-1"):
        wait_until(
            lambda topic=topic: "s" in stats(regions, WEST, topic).get("subscriptions", {}), f"the west to have {topic}"
        )
    for topic in (plain, ahead, again):
        assert stored(regions, WEST, topic, 10) == list(range(10))
    regions.kill_region(WEST)
    for topic in (plain, ahead, again):
        assert regions.http(EAST, "DELETE", topic_path(topic)).status == 412, "a subscription exists: not without force"
        assert regions.http(EAST, "DELETE", f"{topic_path(topic)}?force=true").status == 204
    assert regions.http(EAST, "DELETE", f"{topic_path(parts)}/partitions?force=true").status == 204
    with client(regions, EAST) as east:
        publish(east, again, numbered(range(20, 23)))
    regions.pause_region(EAST)
    regions.pause_region(CENTRAL)
    regions.bring_back(WEST)
    with client(regions, WEST) as west:
        publish(west, ahead, numbered(range(10, 15)))
    regions.resume_region(EAST)
    regions.resume_region(CENTRAL)
    prefix = f"{ahead}-set-aside-"

    def settled() -> bool:
        left = topics(regions, WEST)
        return not left & {plain, ahead, f"{parts}-partition-0", f"{parts}-partition-1"} and again in left

    wait_until(settled, "the deleted topics to be removed")
    for region in REGIONS:
        assert stored(regions, region, again, 3) == [20, 21, 22], f"{region} has the topic that was created again"
        assert regions.http(region, "GET", f"{topic_path(parts)}/partitions").status == 404, (
            f"{region} created the partitions again"
        )
        assert not topics(regions, region) & {plain, ahead}, region
    assert len({incarnation(regions, region, again) for region in REGIONS}) == 1
    (aside,) = [name for name in topics(regions, WEST) if name.startswith(prefix)]
    assert "never got" in regions.http(WEST, "GET", f"{topic_path(aside)}/properties").json["meridian.setAside"]
    with client(regions, WEST) as west:
        take_numbers(subscribe(west, aside), range(15))
    assert not any(name.startswith(prefix) for region in (EAST, CENTRAL) for name in topics(regions, region))
    assert regions.http(WEST, "DELETE", topic_path(aside)).status == 204
