# SPDX-License-Identifier: Apache-2.0
"""A region comes back from an older copy, whole or in part, or from nothing: it fetches back its entries
from the others before it accepts new ones (R1, R5), and while it is away the others help each other (R6)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest
from support.brokers.broker_process import RegionsProcess
from support.brokers.region_clients import (
    CENTRAL,
    EAST,
    WEST,
    client,
    new_topic,
    numbered,
    publish,
    stored,
    subscribe,
    take,
    take_numbers,
    wait_for_backlog,
)
from support.brokers.restored import assert_restored

REGIONS = (EAST, WEST, CENTRAL)
ROUND_ROBIN = pulsar.PartitionsRoutingMode.RoundRobinDistribution

pytestmark = pytest.mark.slow


def all_of_it(data: Path, copy: Path) -> None:
    shutil.rmtree(data)
    shutil.copytree(copy, data)


def the_volume(data: Path, copy: Path) -> None:
    shutil.rmtree(data / "ledgers")
    shutil.copytree(copy / "ledgers", data / "ledgers")


def the_metadata(data: Path, copy: Path) -> None:
    for file in data.glob("metadata.sqlite*"):
        file.unlink()
    for file in copy.glob("metadata.sqlite*"):
        shutil.copy(file, data)


def nothing(data: Path, copy: Path) -> None:
    shutil.rmtree(data)


RESTORES: dict[str, Callable[[Path, Path], None]] = {
    "all of it": all_of_it,
    "the volume": the_volume,
    "the metadata": the_metadata,
    "nothing": nothing,
}


class Copied:
    """Three regions, and a copy of the first one's disk in which each topic has its first twenty messages."""

    def __init__(self, regions: RegionsProcess, root: Path) -> None:
        self.regions = regions
        self.copy = root / "copy"
        self.data = regions.data_dir / EAST / "data"
        self.topics = {what: new_topic("restored") for what in (*RESTORES, "alone", "outside")}
        with client(regions, EAST) as east:
            for topic in self.topics.values():
                publish(east, topic, numbered(range(20)))
                for region in (WEST, CENTRAL):
                    assert stored(regions, region, topic, 20) == list(range(20))
        regions.kill_region(EAST)
        shutil.copytree(self.data, self.copy)
        regions.bring_back(EAST)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copied]:
    root = tmp_path_factory.mktemp("restored")
    with RegionsProcess(REGIONS, root / "data") as up:
        yield Copied(up, root)


@pytest.mark.parametrize("what", RESTORES)
def test_a_region_is_restored_from_an_older_copy(copied: Copied, what: str) -> None:
    """R5: ``what`` was restored: nothing is lost, nothing acknowledged is repeated, and new messages follow."""
    regions, topic = copied.regions, copied.topics[what]
    with client(regions, EAST) as east, client(regions, WEST) as west:
        publish(east, topic, numbered(range(20, 40)))
        there = subscribe(west, topic)
        messages = take(there, 40)
        for message in messages[10:30]:
            there.acknowledge(message)
        there.close()
        assert stored(regions, CENTRAL, topic, 40) == list(range(40))
        regions.kill_region(EAST)
    RESTORES[what](copied.data, copied.copy)
    regions.bring_back(EAST)
    assert_restored(regions, REGIONS, topic, what)


def test_the_metadata_are_restored_and_nobody_can_give_anything_back(copied: Copied) -> None:
    """R5: what was published and acknowledged since is on the volume, in ledgers that the metadata does not name."""
    regions, topic = copied.regions, copied.topics["alone"]
    later, parted = new_topic("later"), new_topic("parted")
    for region in (WEST, CENTRAL):
        regions.kill_region(region)
    with client(regions, EAST) as east:
        consumer = subscribe(east, topic)
        publish(east, topic, numbered(range(20, 40)))
        publish(east, later, numbered(range(5)))
        made = f"/admin/v2/{parted.replace('://', '/')}/partitions"
        assert regions.http(EAST, "PUT", made, 3).status == 204
        publish(east, parted, numbered(range(9)), message_routing_mode=ROUND_ROBIN)
        for message in take(consumer, 40)[10:30]:
            consumer.acknowledge(message)
        consumer.close()
        regions.kill_region(EAST)
    regions.bring_back(EAST)
    with client(regions, EAST) as east:
        publish(east, topic, numbered(range(40, 43)))
        regions.kill_region(EAST)
    the_metadata(copied.data, copied.copy)
    regions.bring_back(EAST)
    with client(regions, EAST) as east:
        publish(east, topic, numbered(range(43, 45)))
        assert stored(regions, EAST, topic, 45) == list(range(45))
        assert stored(regions, EAST, later, 5) == list(range(5))
        assert regions.http(EAST, "GET", made).json["partitions"] == 3
        take_numbers(subscribe(east, parted), range(9))
        take_numbers(subscribe(east, topic), [*range(10), *range(30, 45)])
    for region in (WEST, CENTRAL):
        regions.bring_back(region)
        assert stored(regions, region, topic, 45) == list(range(45))
        assert stored(regions, region, later, 5) == list(range(5))
        wait_for_backlog(regions, region, topic, 0)


def test_a_region_that_was_taken_out_gives_back(copied: Copied) -> None:
    """R5: only a region that the topic has left has what the restored one lost. It is asked all the same, before
    anything is published, and once the topic is back in it, all regions have the same."""
    regions, topic = copied.regions, copied.topics["outside"]
    policy = f"/admin/v2/{topic.replace('://', '/')}/replication"

    def live(told: str, *in_regions: str) -> None:
        answer = regions.http(told, "POST", policy, list(in_regions))
        assert answer.status == 204, answer.text

    regions.kill_region(CENTRAL)
    with client(regions, EAST) as east:
        publish(east, topic, numbered(range(20, 40)))
        assert stored(regions, WEST, topic, 40) == list(range(40))
        live(WEST, WEST)
        live(EAST, EAST, CENTRAL)
        regions.kill_region(EAST)
    regions.bring_back(CENTRAL)
    live(CENTRAL, EAST, CENTRAL)
    assert stored(regions, CENTRAL, topic, 20) == list(range(20))
    the_volume(copied.data, copied.copy)
    regions.bring_back(EAST)
    with client(regions, EAST) as east:
        publish(east, topic, numbered(range(40, 45)))
    for region in REGIONS:
        live(region, *REGIONS)
    for region in REGIONS:
        assert stored(regions, region, topic, 45) == list(range(45)), region


def test_the_living_help_each_other_while_a_region_is_down(copied: Copied) -> None:
    """R6: only one region got the last messages before their origin died: it passes them on to the other."""
    regions, topic = copied.regions, new_topic("ahead")
    with client(regions, EAST) as east, client(regions, WEST) as west:
        publish(east, topic, numbered(range(10)))
        assert stored(regions, CENTRAL, topic, 10) == list(range(10))
        regions.kill_region(CENTRAL)
        publish(east, topic, numbered(range(10, 30)))
        assert stored(regions, WEST, topic, 30) == list(range(30))
        regions.kill_region(EAST)
        regions.bring_back(CENTRAL)
        assert stored(regions, CENTRAL, topic, 30) == list(range(30))
        take_numbers(subscribe(west, topic), range(30))
    regions.bring_back(EAST)
    with client(regions, EAST) as east, client(regions, CENTRAL) as central:
        publish(east, topic, numbered(range(30, 33)))
        take_numbers(subscribe(central, topic), range(30, 33))
    for region in REGIONS:
        assert stored(regions, region, topic, 33) == list(range(33))
