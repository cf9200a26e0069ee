# SPDX-License-Identifier: Apache-2.0
"""A region whose metadata is in etcd comes back from an older copy of etcd, of its volume, or of both (R1, R5): it
fetches back its entries from the other region, loses nothing and repeats nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.broker_process import BrokerProcess, HttpAnswer, wait_until
from support.brokers.etcd_server import EtcdServer, etcd_missing
from support.brokers.free_ports import free_port
from support.brokers.region_clients import (
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

REGIONS = (EAST, WEST)
RESTORES = {"etcd": {"etcd"}, "the volume": {EAST}, "both": {"etcd", EAST}}

pytestmark = pytest.mark.slow


class TwoRegions:
    """The first region with etcd, the second with the embedded store; has what ``region_clients`` needs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.etcd = EtcdServer(root / "etcd")
        ports = {name: (free_port(), free_port()) for name in REGIONS}
        listed = [
            {"name": name, "service_url": f"pulsar://127.0.0.1:{port}", "admin_url": f"http://127.0.0.1:{admin}"}
            for name, (port, admin) in ports.items()
        ]
        (root / "regions.json").write_text(json.dumps({"regions": listed}))
        (root / "peer.token").write_text("a secret that only these tests know\n")
        self.brokers = {
            name: BrokerProcess(
                name,
                root / name,
                port=port,
                http_port=admin,
                regions_file=root / "regions.json",
                peer_token_file=root / "peer.token",
                metadata_url=f"etcd:{self.etcd.url}" if name == EAST else None,
            )
            for name, (port, admin) in ports.items()
        }

    def service_url(self, region: str) -> str:
        return self.brokers[region].service_url

    def http(self, region: str, method: str, path: str) -> HttpAnswer:
        return self.brokers[region].http(method, path)

    def stop_east(self) -> None:
        self.brokers[EAST].kill()
        self.etcd.kill()

    def start_east(self) -> None:
        self.etcd.start()
        self.brokers[EAST].start()

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.kill()
        self.etcd.close()


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoRegions]:
    if (missing := etcd_missing()) is not None:
        pytest.skip(missing)
    up = TwoRegions(tmp_path_factory.mktemp("restored"))
    try:
        for broker in up.brokers.values():
            broker.start()
        yield up
    finally:
        up.close()


@pytest.fixture(scope="module")
def topics(regions: TwoRegions) -> dict[str, str]:
    """A topic for each restore, with twenty messages in the copies of disk and etcd."""
    named = {what: new_topic("restored") for what in (*RESTORES, "alone", "running")}
    with client(regions, EAST) as east:
        for topic in named.values():
            publish(east, topic, numbered(range(20)))
            assert stored(regions, WEST, topic, 20) == list(range(20))
    regions.stop_east()
    for part in ("etcd", EAST):
        shutil.copytree(regions.root / part, regions.root / f"copy-{part}")
    regions.start_east()
    return named


@pytest.mark.parametrize("what", RESTORES)
def test_a_region_with_etcd_is_restored(regions: TwoRegions, topics: dict[str, str], what: str) -> None:
    """R5: an older copy of ``what`` was restored."""
    topic = topics[what]
    with client(regions, EAST) as east, client(regions, WEST) as west:
        publish(east, topic, numbered(range(20, 40)))
        there = subscribe(west, topic)
        for message in take(there, 40):
            if 10 <= int(message.data()) < 30:
                there.acknowledge(message)
        there.close()
    regions.stop_east()
    for part in RESTORES[what]:
        shutil.rmtree(regions.root / part)
        shutil.copytree(regions.root / f"copy-{part}", regions.root / part)
    regions.start_east()
    assert_restored(regions, REGIONS, topic, what)


def test_etcd_is_restored_and_nobody_can_give_anything_back(regions: TwoRegions, topics: dict[str, str]) -> None:
    """R5: what was published and acknowledged since is on the volume, in ledgers that etcd does not name."""
    topic = topics["alone"]
    regions.brokers[WEST].kill()
    with client(regions, EAST) as east:
        there = subscribe(east, topic)
        publish(east, topic, numbered(range(20, 40)))
        for message in take(there, 40):
            if 10 <= int(message.data()) < 30:
                there.acknowledge(message)
        there.close()
    regions.stop_east()
    shutil.rmtree(regions.root / "etcd")
    shutil.copytree(regions.root / "copy-etcd", regions.root / "etcd")
    regions.start_east()
    with client(regions, EAST) as east:
        publish(east, topic, numbered(range(40, 45)))
        assert stored(regions, EAST, topic, 45) == list(range(45))
        take_numbers(subscribe(east, topic), [*range(10), *range(30, 45)])
    regions.brokers[WEST].start()
    assert stored(regions, WEST, topic, 45) == list(range(45))
    wait_for_backlog(regions, WEST, topic, 0)


def test_etcd_goes_back_under_a_broker_that_runs(regions: TwoRegions, topics: dict[str, str]) -> None:
    """R1, R5: the broker notices at the older etcd's first answer, logs it, and restarts as after a crash: it adopts
    what only its volume knows before it writes anything, and clients notice nothing."""
    topic, later = topics["running"], new_topic("later")
    broker = regions.brokers[EAST]
    with client(regions, EAST) as east:
        consumer = subscribe(east, topic)
        publish(east, topic, numbered(range(20, 40)))
        publish(east, later, numbered(range(5)))
        for message in take(consumer, 40):
            if 10 <= int(message.data()) < 30:
                consumer.acknowledge(message)
        consumer.close()
        regions.etcd.kill()
        shutil.rmtree(regions.root / "etcd")
        shutil.copytree(regions.root / "copy-etcd", regions.root / "etcd")
        regions.etcd.start()
        wait_until(
            lambda: "restarting, as after a crash" in broker.log(), "the broker to notice that etcd was restored"
        )
        publish(east, topic, numbered(range(40, 45)))
    for region in REGIONS:
        assert stored(regions, region, topic, 45) == list(range(45)), region
        assert stored(regions, region, later, 5) == list(range(5)), region
    with client(regions, EAST) as east:
        take_numbers(subscribe(east, topic), [*range(10), *range(30, 45)])
    for region in REGIONS:
        wait_for_backlog(regions, region, topic, 0)
