# SPDX-License-Identifier: Apache-2.0
"""One name for a topic with partitions and one without, created in two regions at the same time or while apart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pulsar
import pytest
from support.brokers.broker_process import wait_until
from support.brokers.linked_regions import LinkedRegions
from support.brokers.region_clients import PATIENCE_MS, connected

REGIONS = ("us", "eu")
TOPICS = "/admin/v2/persistent/public/default"
PARTITIONS = 3


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinkedRegions]:
    with LinkedRegions(REGIONS, tmp_path_factory.mktemp("regions")) as linked:
        for region in REGIONS:
            wait_until(lambda region=region: _is_linked(linked, region), "the links to come up")
        yield linked


@pytest.fixture
def clients(regions: LinkedRegions) -> Iterator[dict[str, pulsar.Client]]:
    with connected(regions.service_url("us")) as us, connected(regions.service_url("eu")) as eu:
        yield {"us": us, "eu": eu}


def listed(regions: LinkedRegions, region: str, name: str) -> set[str]:
    """A region's topics of that name, and those whose names begin with it and a dash."""
    found = {one.rpartition("/")[2] for one in regions.http(region, "GET", TOPICS).json}
    return {one for one in found if one == name or one.startswith(f"{name}-")}


def partitioned(name: str) -> set[str]:
    return {f"{name}-partition-{index}" for index in range(PARTITIONS)}


def aside(regions: LinkedRegions, region: str, name: str) -> set[str]:
    return {one for one in listed(regions, region, name) if "-set-aside-" in one}


def stored(client: pulsar.Client, topic: str, count: int) -> set[bytes]:
    """The messages of a topic, partitioned or not, once there are ``count``, or when patience ends."""
    found: set[bytes] = set()
    names = client.get_topic_partitions(topic)
    readers = [client.create_reader(name, pulsar.MessageId.earliest) for name in names]
    until = time.monotonic() + PATIENCE_MS / 1000
    while True:
        for reader in readers:
            while reader.has_message_available():
                found.add(reader.read_next(PATIENCE_MS).data())
        if len(found) >= count or time.monotonic() >= until:
            break
    for reader in readers:
        reader.close()
    return found


def publish(client: pulsar.Client, name: str, *messages: bytes) -> None:
    producer = client.create_producer(name)
    for message in messages:
        producer.send(message)
    producer.close()


def cut(regions: LinkedRegions) -> None:
    """Cut the link both ways, and wait until both regions notice."""
    regions.cut("us", "eu")
    regions.cut("eu", "us")
    for region in REGIONS:
        wait_until(lambda region=region: not _is_linked(regions, region), "the links to break")


def _is_linked(regions: LinkedRegions, region: str) -> bool:
    others = [one for one in regions.http(region, "GET", "/meridian/v1/regions").json["regions"] if not one["local"]]
    return any(one["progress"]["connected"] or one["replication"]["connected"] for one in others)


def test_the_answer_comes_when_the_other_region_knows(
    regions: LinkedRegions, clients: dict[str, pulsar.Client]
) -> None:
    for number in range(20):
        name = f"known-{number}"
        assert regions.http("us", "PUT", f"{TOPICS}/{name}/partitions", PARTITIONS).status == 204
        assert regions.http("eu", "GET", f"{TOPICS}/{name}/partitions").json["partitions"] == PARTITIONS
        clients["eu"].create_producer(name).close()
        wait_until(lambda name=name: listed(regions, "eu", name) == partitioned(name), "eu to have all partitions")


def test_both_at_once_come_to_one_kind_and_lose_nothing(
    regions: LinkedRegions, clients: dict[str, pulsar.Client]
) -> None:
    """Whichever wins, each message that has a receipt is in the topic or in a quarantined copy."""
    receipts: dict[str, list[bytes]] = {}

    def produce(name: str) -> None:
        receipts[name] = []
        try:
            producer = clients["eu"].create_producer(name, send_timeout_millis=3000)
            for number in range(2):
                producer.send(b"%d" % number)
                receipts[name].append(b"%d" % number)
            producer.close()
        except pulsar.PulsarException:
            return  # the topic has partitions by now

    names = [f"at-once-{number}" for number in range(10)]
    with ThreadPoolExecutor(len(names)) as threads:
        producing = []
        for name in names:
            producing.append(threads.submit(produce, name))
            assert regions.http("us", "PUT", f"{TOPICS}/{name}/partitions", PARTITIONS).status in (204, 409)
        for one in producing:
            one.result()
    for name in names:
        both = (partitioned(name), {name})

        def settled(name: str = name, both: tuple[set[str], set[str]] = both) -> bool:
            left = [listed(regions, region, name) - aside(regions, region, name) for region in REGIONS]
            return left[0] == left[1] and left[0] in both

        wait_until(settled, f"both regions to have one kind of {name}")
        copies = [name, *aside(regions, "eu", name)]

        def is_stored(name: str = name, copies: list[str] = copies) -> bool:
            return set(receipts[name]) <= set[bytes]().union(*(stored(clients["eu"], copy, 0) for copy in copies))

        wait_until(is_stored, f"{receipts[name]} to be found in {copies}")


@pytest.mark.parametrize("first", ["with", "without"])
def test_the_earlier_creation_counts_once_regions_meet(
    regions: LinkedRegions, clients: dict[str, pulsar.Client], first: str
) -> None:
    name = f"apart-{first}"
    cut(regions)
    try:

        def make_partitioned() -> None:
            assert regions.http("us", "PUT", f"{TOPICS}/{name}/partitions", PARTITIONS).status == 204
            publish(clients["us"], name, b"us 1", b"us 2")

        def make_plain() -> None:
            consumer = clients["eu"].subscribe(name, "s")
            publish(clients["eu"], name, b"eu 1", b"eu 2")
            consumer.close()

        for make in (make_partitioned, make_plain) if first == "with" else (make_plain, make_partitioned):
            make()
        for region, path in (("us", f"{name}/partitions"), ("eu", name)):
            refused = regions.http(region, "DELETE", f"{TOPICS}/{path}")
            assert refused.status == 422, refused.text
            assert "partitions" in refused.reason
    finally:
        regions.heal()
    winner = partitioned(name) if first == "with" else {name}
    for region in REGIONS:
        wait_until(
            lambda region=region: listed(regions, region, name) - aside(regions, region, name) == winner,
            f"the earlier creation to count in {region}",
        )
    loser, kept = ("eu", {b"eu 1", b"eu 2"}) if first == "with" else ("us", {b"us 1", b"us 2"})
    copies = aside(regions, loser, name)
    found: set[bytes] = set()
    for copy in copies:
        found |= stored(clients[loser], copy, 1)
        why = regions.http(loser, "GET", f"{TOPICS}/{copy}/properties").json["meridian.setAside"]
        assert "created earlier" in why
    assert found == kept
    assert aside(regions, "us" if loser == "eu" else "eu", name) == set()
    for region in REGIONS:  # the topic stays usable in both
        publish(clients[region], name, f"later {region}".encode())
    expected = {b"later us", b"later eu"} | ({b"us 1", b"us 2"} if first == "with" else {b"eu 1", b"eu 2"})
    for region in REGIONS:
        assert stored(clients[region], name, 4) == expected
    before = {region: listed(regions, region, name) for region in REGIONS}
    regions.kill_region(loser)  # the copies' ledgers still carry the topic's name
    regions.bring_back(loser)
    assert {region: listed(regions, region, name) for region in REGIONS} == before
    assert {one for copy in copies for one in stored(clients[loser], copy, 1)} == kept
    assert stored(clients[loser], name, 4) == expected
    if first == "with":  # a subscription of the quarantined copy misses nothing of the winning topic
        consumer = clients["eu"].subscribe(name, "s")
        received: set[bytes] = set()
        while len(received) < 4:
            received.add(consumer.receive(PATIENCE_MS).data())
        assert received == expected
        consumer.close()


@pytest.mark.parametrize("by", ["us", "eu"])
def test_a_forced_deletion_takes_nothing_of_the_other_kind(
    regions: LinkedRegions, clients: dict[str, pulsar.Client], by: str
) -> None:
    name = f"forced-{by}"
    cut(regions)
    try:
        assert regions.http("us", "PUT", f"{TOPICS}/{name}/partitions", PARTITIONS).status == 204
        publish(clients["us"], name, b"us 1", b"us 2")
        publish(clients["eu"], name, b"eu 1", b"eu 2")
        path = f"{name}/partitions" if by == "us" else name
        assert regions.http(by, "DELETE", f"{TOPICS}/{path}?force=true").status == 204
    finally:
        regions.heal()
    other = "eu" if by == "us" else "us"
    wait_until(lambda: listed(regions, by, name) == set(), "the topic to be gone where it was deleted")
    wait_until(
        lambda: listed(regions, other, name) == aside(regions, other, name) != set(), "the other kind to be quarantined"
    )
    found: set[bytes] = set()
    for copy in aside(regions, other, name):
        found |= stored(clients[other], copy, 1)
    assert found == {f"{other} 1".encode(), f"{other} 2".encode()}


def test_a_region_that_is_away_holds_nobody_up(regions: LinkedRegions, clients: dict[str, pulsar.Client]) -> None:
    name = "away"
    cut(regions)
    regions.kill_region("eu")
    try:
        began = time.monotonic()
        assert regions.http("us", "PUT", f"{TOPICS}/{name}/partitions", PARTITIONS).status == 204
        assert time.monotonic() - began < 10
        publish(clients["us"], name, b"1")
    finally:
        regions.heal()
        regions.bring_back("eu")
    wait_until(lambda: listed(regions, "eu", name) == partitioned(name), "eu to have the partitions")
