# SPDX-License-Identifier: Apache-2.0
"""Topics that leave a region out: clients may not publish there; and the regions that a topic can have."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pulsar
import pytest
from support.brokers.broker_process import wait_until
from support.brokers.linked_regions import LinkedRegions
from support.brokers.region_clients import PATIENCE_MS, connected

REGIONS = ("us", "eu")
NS = "/admin/v2/namespaces/public"
TOPICS = "/admin/v2/persistent/public"
LOOKUP = "/lookup/v2/topic/persistent/public"


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinkedRegions]:
    with LinkedRegions(REGIONS, tmp_path_factory.mktemp("regions")) as linked:
        yield linked


def namespace(regions: LinkedRegions, name: str, *clusters: str) -> None:
    for region in REGIONS:
        answer = regions.http(region, "PUT", f"{NS}/{name}", {"replication_clusters": list(clusters)})
        assert answer.status == 204, answer.text


def test_clients_are_refused_outside_the_namespaces_regions(regions: LinkedRegions) -> None:
    namespace(regions, "only-us", "us")
    with connected(regions.service_url("us")) as us, connected(regions.service_url("eu")) as eu:
        us.create_producer("public/only-us/t").close()
        acts: list[Callable[[], object]] = [
            lambda: eu.create_producer("public/only-us/t"),
            lambda: eu.subscribe("public/only-us/t", "s"),
            lambda: eu.create_reader("public/only-us/t", pulsar.MessageId.earliest),
            lambda: eu.create_producer("public/only-us/t-partition-0"),
        ]
        for act in acts:
            with pytest.raises(pulsar.NotAllowedError):
                act()
        assert regions.http("us", "GET", f"{LOOKUP}/only-us/t").status == 200
        refused = regions.http("eu", "GET", f"{LOOKUP}/only-us/t")
        assert refused.status == 412
        assert "exists in us but not in eu" in refused.reason
        assert regions.http("eu", "GET", f"{TOPICS}/only-us").json == []
        # Once the region is added, its clients are admitted.
        for region in REGIONS:
            assert regions.http(region, "POST", f"{NS}/only-us/replication", list(REGIONS)).status == 204
        wait_until(lambda: regions.http("eu", "GET", f"{LOOKUP}/only-us/t").status == 200, "eu to serve the topic")
        consumer = eu.subscribe("public/only-us/t", "s")
        us.create_producer("public/only-us/t").send(b"1")
        assert consumer.receive(PATIENCE_MS).data() == b"1"


def test_a_namespace_without_regions_belongs_to_this_region(regions: LinkedRegions) -> None:
    assert regions.http("eu", "PUT", f"{NS}/nowhere").status == 204
    with connected(regions.service_url("eu")) as eu:
        eu.create_producer("public/nowhere/t").close()


def test_a_topic_gets_no_region_that_has_another_number_of_its_partitions(regions: LinkedRegions) -> None:
    namespace(regions, "apart", "us")
    assert regions.http("eu", "POST", f"{NS}/apart/replication", ["eu"]).status == 204
    for name, here, there, status in (
        ("as-many", 2, 2, 204),
        ("fewer", 3, 2, 412),
        ("more", 2, 3, 412),
        ("none-there", 2, 0, 412),
        ("none-here", 0, 2, 412),
        ("neither", 0, 0, 204),
        ("absent", 2, None, 204),
    ):
        for region, partitions in (("us", here), ("eu", there)):
            if partitions is not None:
                path = f"{TOPICS}/apart/{name}"
                made = regions.http(region, "PUT", *((f"{path}/partitions", partitions) if partitions else (path,)))
                assert made.status == 204, made.text
        answer = regions.http("us", "POST", f"{TOPICS}/apart/{name}/replication", list(REGIONS))
        assert answer.status == status, f"{name}: {answer.text}"
        if status == 412:
            assert "with different partitions" in answer.reason


def test_an_unreachable_region_is_not_added(regions: LinkedRegions) -> None:
    namespace(regions, "alone", "us")
    assert regions.http("us", "PUT", f"{TOPICS}/alone/t").status == 204
    regions.kill_region("eu")
    try:
        answer = regions.http("us", "POST", f"{TOPICS}/alone/t/replication", list(REGIONS))
        assert (answer.status, "eu cannot be asked" in answer.reason) == (503, True)
        assert regions.http("us", "POST", f"{TOPICS}/alone/t/replication", ["us"]).status == 204
    finally:
        regions.bring_back("eu")
