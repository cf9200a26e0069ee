# SPDX-License-Identifier: Apache-2.0
"""``meridian up --storage bookkeeper``: regions with bookies of their own, or with several brokers, stopped and started
again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.brokers.bookies import START_SECONDS, jars
from support.brokers.region_clients import EARLIEST, PATIENCE_MS, connected
from support.brokers.up_process import UpProcess

EAST, WEST = "us-east", "us-west"
OPTIONS = ("--storage", "bookkeeper", "--bookies", "1", "--bookkeeper-jars", str(jars()))


@pytest.fixture
def regions(tmp_path: Path) -> UpProcess:
    return UpProcess((EAST, WEST), tmp_path / "data", metadata="etcd", options=OPTIONS, start_seconds=2 * START_SECONDS)


def test_what_regions_have_on_bookies_is_there_after_a_restart(regions: UpProcess) -> None:
    with regions:
        with connected(regions.service_url(EAST)) as client:
            producer = client.create_producer("t", batching_enabled=False)
            for number in range(20):
                producer.send(b"%d" % number)
        with connected(regions.service_url(WEST)) as client:  # what one region stored reaches the other one
            consumer = client.subscribe("t", "s", initial_position=EARLIEST)
            for number in range(10):
                message = consumer.receive(PATIENCE_MS)
                assert message.data() == b"%d" % number
                consumer.acknowledge(message)
            consumer.close()
        regions.stop()
        assert json.loads(regions.regions_file.read_text())["storage"] == "bookkeeper"
        assert not list(regions.data_dir.glob("*/data/ledgers"))
        regions.start()
        with connected(regions.service_url(WEST)) as client:
            consumer = client.subscribe("t", "s", initial_position=EARLIEST)
            assert [consumer.receive(PATIENCE_MS).data() for _ in range(10)] == [b"%d" % n for n in range(10, 20)]
        regions.stop()


def test_linked_regions_of_two_brokers(tmp_path: Path) -> None:
    """What is published and acknowledged at one broker of a region counts at every broker of the other region."""
    regions = UpProcess(
        (EAST, WEST), tmp_path / "data", metadata="etcd", brokers=2, options=OPTIONS, start_seconds=2 * START_SECONDS
    )
    with regions:
        east, west = (regions.record(name)["brokers"] for name in (EAST, WEST))
        names = [f"topic-{number}" for number in range(4)]
        for name, broker in zip(names, east * 2, strict=True):
            with connected(broker["service_url"]) as client:
                producer = client.create_producer(name, batching_enabled=False)
                for number in range(4):
                    producer.send(b"%d" % number)
        for found, brokers in (([b"0", b"1"], west), ([b"2", b"3"], east)):
            for name, broker in zip(names, brokers[::-1] * 2, strict=True):
                with connected(broker["service_url"]) as client:
                    consumer = client.subscribe(
                        name, "s", initial_position=EARLIEST, replicate_subscription_state_enabled=True
                    )
                    for expected in found:
                        message = consumer.receive(PATIENCE_MS)
                        assert message.data() == expected
                        consumer.acknowledge(message)
                    consumer.close()
        regions.stop()


def test_a_region_of_two_brokers(tmp_path: Path) -> None:
    region = UpProcess(
        (EAST,), tmp_path / "data", metadata="etcd", brokers=2, options=OPTIONS, start_seconds=2 * START_SECONDS
    )
    names = [f"topic-{number}" for number in range(8)]
    with region:
        brokers = region.record(EAST)["brokers"]
        assert [one["broker_id"] for one in brokers] == ["broker-1", "broker-2"]
        with connected(brokers[1]["service_url"]) as client:
            for name in names:
                client.create_producer(name).send(name.encode())
        region.stop()
        region.start()
        with connected(brokers[0]["service_url"]) as client:
            for name in names:
                consumer = client.subscribe(name, "s", initial_position=EARLIEST)
                message = consumer.receive(PATIENCE_MS)
                assert message.data() == name.encode()
                consumer.acknowledge(message)
        region.stop()
        assert "us-east/broker-2 stopped in" in region.log()
