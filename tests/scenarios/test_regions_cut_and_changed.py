# SPDX-License-Identifier: Apache-2.0
"""Links between real regions are cut, one way and both ways, and a topic's regions change: one is removed for good, one
is added, one comes back. Nothing is lost or delivered twice, and the remaining regions converge meanwhile."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pulsar
import pyarrow.ipc
import pytest
from support.brokers.broker_process import wait_until
from support.brokers.linked_regions import LinkedRegions
from support.brokers.region_clients import (
    CENTRAL,
    EAST,
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
)
from support.brokers.region_clients import wait_for_backlog as wait_for
from support.protocol.admin_paths import topic_path

REGIONS = (EAST, WEST, CENTRAL)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinkedRegions]:
    with LinkedRegions(REGIONS, tmp_path_factory.mktemp("linked"), {"managedLedgerMaxEntriesPerLedger": "10"}) as up:
        yield up
        up.heal()


def live(regions: LinkedRegions, topic: str, in_regions: tuple[str, ...], told: tuple[str, ...]) -> None:
    """Set a topic's regions in each of ``told``."""
    for region in told:
        answer = regions.http(region, "POST", f"{topic_path(topic)}/replication", list(in_regions))
        assert answer.status == 204, answer.text


def acknowledge_some(to: pulsar.Client, topic: str, count: int, *, below: int) -> None:
    """A consumer that receives this many messages and acknowledges those with a smaller number."""
    consumer = subscribe(to, topic)
    for message in take(consumer, count):
        if int(message.data()) < below:
            consumer.acknowledge(message)
    consumer.close()


def fill(regions: LinkedRegions, region: str, topic: str) -> dict[str, Any]:
    return dict(stats(regions, region, topic).get("fill", {"ready": False, "reason": "no such topic"}))


@pytest.mark.parametrize("ways", [[(EAST, WEST)], [(EAST, WEST), (WEST, EAST)]], ids=["one way", "both ways"])
def test_a_link_is_cut(regions: LinkedRegions, ways: list[tuple[str, str]]) -> None:
    """R6, R19: entries and acknowledgements find another way: the region that cannot be dialled asks for them, or the
    third one passes them on; when the link is back, nothing is delivered twice."""
    topic = new_topic("cut")
    with client(regions, EAST) as east, client(regions, WEST) as west:
        publish(east, topic, numbered(range(10)))
        subscribe(east, topic).close()
        assert stored(regions, WEST, topic, 10) == list(range(10))
        wait_for(regions, WEST, topic, 10)
        for dialler, to in ways:
            regions.cut(dialler, to)
        publish(east, topic, numbered(range(10, 15)))
        publish(west, topic, numbered(range(15, 20)))
        for region in REGIONS:
            assert sorted(stored(regions, region, topic, 20)) == list(range(20)), region
        here, there = subscribe(east, topic), subscribe(west, topic)
        for consumer in (here, there):
            consumer.close()
        acknowledge_some(east, topic, 20, below=8)
        wait_for(regions, WEST, topic, 12)
        regions.heal()
        for region, other in ((EAST, WEST), (WEST, EAST)):
            wait_until(
                lambda region=region, other=other: stats(regions, region, topic)["replication"][other]["connected"],
                f"{region} to send its entries to {other} itself again",
            )
        publish(east, topic, numbered(range(20, 25)))
        take_numbers(subscribe(west, topic), range(8, 25))
    for region in REGIONS:
        wait_for(regions, region, topic, 0)
        assert sorted(stored(regions, region, topic, 25)) == list(range(25))
        assert stats(regions, region, topic)["msgInCounter"] >= 20, "replicated messages count, too"


def test_a_link_falls_silent(regions: LinkedRegions) -> None:
    """R6, R19: a network that loses every packet closes no connection. That is noticed within seconds all the same, and
    entries and acknowledgements then go through the third region."""
    topic = new_topic("silent")
    with client(regions, EAST) as east, client(regions, WEST) as west:
        publish(east, topic, numbered(range(10)))
        subscribe(east, topic).close()
        wait_for(regions, WEST, topic, 10)
        regions.fall_silent(EAST, WEST)
        publish(east, topic, numbered(range(10, 15)))
        publish(west, topic, numbered(range(15, 20)))
        for region in REGIONS:
            wait_until(
                lambda region=region: backlog(regions, region, topic) == 20, f"{region} to have all 20 messages", 25
            )
        acknowledge_some(east, topic, 20, below=8)
        wait_for(regions, WEST, topic, 12)
        regions.heal()
        take_numbers(subscribe(west, topic), range(8, 20))
    for region in REGIONS:
        wait_for(regions, region, topic, 0)
        assert sorted(stored(regions, region, topic, 20)) == list(range(20))


def test_a_region_joins_is_removed_for_good_and_comes_back(regions: LinkedRegions) -> None:
    """R21: an added region is filled from the earliest unacknowledged message and is not ready until then; R11, R6:
    once it is removed, nothing waits for it; added again, it continues where it left."""
    topic = new_topic("joins")
    for other in (EAST, CENTRAL):
        regions.cut(other, WEST)
        regions.cut(WEST, other)
    for region in (EAST, CENTRAL):
        assert regions.http(region, "PUT", topic_path(topic)).status in (
            204,
            409,
        )  # 409: the other region's replicator was faster
    live(regions, topic, (EAST, CENTRAL), (EAST, CENTRAL))
    with client(regions, EAST) as east:
        here = subscribe(east, topic)
        publish(east, topic, numbered(range(45)))
        for message in take(here, 45):
            if int(message.data()) < 24 or int(message.data()) > 40:
                here.acknowledge(message)
        here.close()
        for region in (EAST, CENTRAL):
            wait_for(regions, region, topic, 17)
            wait_until(lambda region=region: trimmed(regions, region, topic), f"{region} to trim two ledgers")
    assert regions.http(WEST, "PUT", topic_path(topic)).status == 204
    live(regions, topic, REGIONS, REGIONS)
    waiting = fill(regions, WEST, topic)
    assert (waiting["ready"], waiting["reason"]) == (False, "no other region could be asked yet")
    seen = {one["name"]: one for one in regions.http(WEST, "GET", "/meridian/v1/regions").json["regions"]}
    assert seen[WEST]["not_ready"][topic] == waiting["reason"]
    regions.heal()
    wait_until(lambda: fill(regions, WEST, topic)["ready"], "the region to be filled")
    joined = fill(regions, WEST, topic)["joinedAt"]
    assert list(joined) == [EAST], "two ledgers of ten entries were trimmed before it joined"
    assert exported(regions, WEST, topic) == joined
    assert stored(regions, WEST, topic, 25) == list(range(20, 45))
    wait_for(regions, WEST, topic, 17)
    # Removed for good: the others do not wait for it, and a subscription can be deleted without it.
    regions.kill_region(WEST)
    live(regions, topic, (EAST, CENTRAL), (EAST, CENTRAL))
    wait_until(
        lambda: list(stats(regions, EAST, topic)["replication"]) == [CENTRAL],
        "the replicator to the removed region to end",
    )
    with client(regions, EAST) as east, client(regions, CENTRAL) as central:
        publish(east, topic, numbered(range(45, 50)))
        take_numbers(subscribe(central, topic), [*range(24, 41), *range(45, 50)])
        subscribe(east, topic, "other").close()
    wait_until(
        lambda: "other" in stats(regions, CENTRAL, topic)["subscriptions"],
        "the third region to have the other subscription",
    )
    assert regions.http(EAST, "DELETE", f"{topic_path(topic)}/subscription/other").status == 204, (
        "a removed region is not asked"
    )
    # It comes back on its own: it knows that it was removed, and what happens there stays there.
    regions.bring_back(WEST)
    live(regions, topic, (WEST,), (WEST,))
    wait_until(lambda: not stats(regions, WEST, topic)["replication"], "the copy to be on its own")
    with client(regions, WEST) as west:
        publish(west, topic, numbered(range(50, 53)))
        alone = subscribe(west, topic)
        for message in take(alone, 20):
            if int(message.data()) >= 50:
                alone.acknowledge(message)
        alone.close()
    # Added again: both sides continue where they parted.
    live(regions, topic, REGIONS, REGIONS)
    with client(regions, EAST) as east:
        assert stored(regions, WEST, topic, 33) == [*range(20, 45), *range(50, 53), *range(45, 50)]
        publish(east, topic, numbered(range(60, 62)))
        take_numbers(subscribe(east, topic), range(60, 62))
    for region in REGIONS:
        wait_for(regions, region, topic, 0)
    wait_until(lambda: fill(regions, WEST, topic)["ready"], "the region to be filled again")


def trimmed(regions: LinkedRegions, region: str, topic: str) -> bool:
    assert regions.http(region, "POST", f"{topic_path(topic)}/trim").status == 204
    return int(regions.http(region, "GET", f"{topic_path(topic)}/internalStats").json["numberOfEntries"]) == 25


def exported(regions: LinkedRegions, region: str, topic: str) -> dict[str, str]:
    """The join point as the verifier reads it."""
    taken = regions.http(region, "POST", "/meridian/v1/export", {"topics": topic}).json["snapshot"]
    body = regions.http(region, "GET", f"/meridian/v1/export/{taken}/topics").body
    (row,) = pyarrow.ipc.open_stream(io.BytesIO(body)).read_all().to_pylist()
    return {one["region"]: f"{one['ledger']}:{one['entry']}" for one in row["joined"]}
