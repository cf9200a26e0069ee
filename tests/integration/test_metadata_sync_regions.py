# SPDX-License-Identifier: Apache-2.0
"""Real brokers of regions without a common store keep tenants, namespaces and policies equal through an event topic."""

from __future__ import annotations

import contextlib
import itertools
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from support.brokers.broker_process import BrokerProcess, RegionsProcess, wait_until
from support.brokers.etcd_server import EtcdServer
from support.brokers.regions_with_stores import started

REGIONS = ("us", "eu")
TOPIC = "persistent://public/default/metadata-events"
SETTINGS = {"metadataSyncEventTopic": TOPIC}
METRIC = re.compile(r"^meridian_metadata_(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')


def get(regions: RegionsProcess, region: str, path: str) -> Any:
    """A region's answer; None: it refuses."""
    answer = regions.http(region, "GET", path)
    return answer.json if answer.status == 200 else None


def write(regions: RegionsProcess, region: str, method: str, path: str, body: Any = ...) -> None:
    answer = regions.http(region, method, path, body)
    assert answer.status < 300, answer.text


def status(regions: RegionsProcess, region: str) -> Any:
    return get(regions, region, "/meridian/v1/metadata/status")


def is_synced(regions: RegionsProcess) -> bool:
    """A region about to apply new settings reports nothing about it."""
    return all((status(regions, region) or {}).get("synced") for region in REGIONS)


@pytest.fixture(autouse=True)
def synced(regions: RegionsProcess) -> None:
    wait_until(lambda: is_synced(regions), "the regions to be in step")


def test_what_is_created_in_one_region_appears_in_the_other(regions: RegionsProcess) -> None:
    tenant = {"adminRoles": ["admin"], "allowedClusters": ["eu", "us"]}
    write(regions, "us", "PUT", "/admin/v2/tenants/shop", tenant)
    write(regions, "us", "PUT", "/admin/v2/namespaces/shop/orders", {"replication_clusters": ["us", "eu"]})
    write(regions, "us", "POST", "/admin/v2/namespaces/shop/orders/messageTTL", 60)
    path = "/admin/v2/namespaces/shop/orders"
    wait_until(lambda: (get(regions, "eu", path) or {}).get("message_ttl_in_seconds") == 60, "eu to have the policy")
    assert get(regions, "eu", "/admin/v2/tenants/shop") == tenant
    assert get(regions, "eu", path)["replication_clusters"] == ["eu", "us"]
    write(regions, "eu", "DELETE", path)
    wait_until(lambda: get(regions, "us", path) is None, "the namespace to be deleted in us")
    assert status(regions, "us")["conflicts"] == 0


def test_metrics_agree_with_the_status(regions: RegionsProcess) -> None:
    tenant = {"adminRoles": ["admin"], "allowedClusters": ["eu", "us"]}
    before = status(regions, "eu")["applied"]
    write(regions, "us", "PUT", "/admin/v2/tenants/counted", tenant)
    wait_until(lambda: get(regions, "eu", "/admin/v2/tenants/counted") is not None, "eu to have the tenant")

    def metrics(region: str) -> dict[tuple[str, str], float]:
        """By name without prefix, and verdict or other region; this region's own label is the same everywhere."""
        found: dict[tuple[str, str], float] = {}
        for name, labels, value in METRIC.findall(regions.http(region, "GET", "/metrics").text):
            given = dict(LABEL.findall(labels))
            found[name, given.get("verdict") or given.get("remote_cluster") or ""] = float(value)
        return found

    def agree() -> bool:
        """Counting goes on while both are read: repeat until nothing was counted in between."""
        told, there = status(regions, "eu"), metrics("eu")
        counts = [told[name] for name in ("published", "outbox", "conflicts", "parked")]
        events = [there["events_total", name] for name in ("applied", "stale", "duplicate")]
        return [there[name, ""] for name in ("published_total", "outbox", "conflicts", "parked")] == counts and (
            events == [told[name] for name in ("applied", "stale", "duplicate")]
        )

    wait_until(agree, "metrics and status to agree")
    there = metrics("eu")
    assert there["events_total", "applied"] > before
    assert 0 <= there["lag_seconds", "us"] < 60 and abs(there["clock_offset_seconds", "us"]) < 60
    wait_until(lambda: metrics("us")["published_total", ""] > 0, "us to count what it sent")


def test_a_forced_deletion_that_another_region_refuses_deletes_nothing(regions: RegionsProcess) -> None:
    """Regions are asked first. What is deleted along with the topics is no reason to refuse."""
    tenant = {"adminRoles": ["admin"], "allowedClusters": ["eu", "us"]}
    write(regions, "us", "PUT", "/admin/v2/tenants/fair", tenant)
    path, topics = "/admin/v2/namespaces/fair/mixed", "/admin/v2/persistent/fair/mixed"
    write(regions, "us", "PUT", path, {"replication_clusters": ["eu"]})
    wait_until(lambda: get(regions, "eu", path) is not None, "eu to have the namespace")
    write(regions, "eu", "PUT", f"{topics}/there")
    write(regions, "us", "POST", f"{path}/replication", ["us"])
    wait_until(lambda: get(regions, "eu", f"{path}/replication") == ["us"], "eu to have the policy")
    write(regions, "us", "PUT", f"{topics}/here")
    write(regions, "us", "PUT", f"{topics}/parted/partitions", 2)
    before = get(regions, "us", topics)
    assert len(before) == 3
    refused = regions.http("us", "DELETE", f"{path}?force=true")
    assert refused.status == 409 and "there in eu: delete these first" in refused.text
    assert get(regions, "us", topics) == before
    write(regions, "us", "POST", f"{path}/replication", ["us", "eu"])
    wait_until(lambda: len(get(regions, "eu", topics) or ()) == 4, "eu to have all four topics")
    wait_until(lambda: len(get(regions, "us", topics) or ()) == 4, "us to have all four topics")
    write(regions, "us", "DELETE", f"{path}?force=true")
    wait_until(lambda: get(regions, "eu", path) is None, "the namespace to be deleted in eu")


def test_a_dead_event_topic_delays_no_write(regions: RegionsProcess) -> None:
    """What was written meanwhile is sent through the topic that replaces it."""
    setting, ended = "/admin/v2/brokers/configuration/metadataSyncEventTopic", "persistent/public/default/ended"
    write(regions, "us", "PUT", f"/admin/v2/{ended}")
    for region in REGIONS:
        wait_until(
            lambda region=region: regions.http(region, "POST", f"/admin/v2/{ended}/terminate").status == 200,
            f"the topic to be terminated in {region}",
        )
    for region in REGIONS:
        write(regions, region, "POST", f"{setting}/{quote('persistent://public/default/ended', safe='')}")
    tenant = {"adminRoles": [], "allowedClusters": ["us"]}
    write(regions, "us", "PUT", "/admin/v2/tenants/early", tenant)

    def has_compared() -> bool:
        shown = [status(regions, region) for region in REGIONS]
        return all(peer["problem"] is None for one in shown for peer in one["peers"].values())

    wait_until(
        lambda: "terminated" in " ".join(status(regions, "us")["problems"]), "us to report the terminated topic", 20
    )
    wait_until(has_compared, "the regions to be compared")
    write(regions, "us", "PUT", "/admin/v2/tenants/late", tenant)
    wait_until(lambda: status(regions, "us")["outbox"] == 2, "us to have two events in its outbox")
    assert get(regions, "eu", "/admin/v2/tenants/late") is None
    other = quote("persistent://public/default/other-events", safe="")
    for region in REGIONS:
        write(regions, region, "POST", f"{setting}/{other}")
    wait_until(lambda: get(regions, "eu", "/admin/v2/tenants/late"), "eu to have the tenant")
    wait_until(lambda: is_synced(regions), "the regions to be in step")


def test_regions_with_different_kinds_of_stores(etcd_server: EtcdServer, tmp_path: Path) -> None:
    """Two on etcd, one on SQLite: what each creates appears in all."""
    url = f"etcd:{etcd_server.url}"
    with contextlib.ExitStack() as stack:
        regions = started(tmp_path, {"ap": None, "eu": url, "us": url}, SETTINGS, stack)
        brokers = [*regions.values()]
        for one in brokers:
            tenant = {"adminRoles": [one.region], "allowedClusters": [*regions]}
            assert one.http("PUT", f"/admin/v2/tenants/of-{one.region}", tenant).status == 204
            policies = {"replication_clusters": [*regions], "message_ttl_in_seconds": 9}
            assert one.http("PUT", f"/admin/v2/namespaces/of-{one.region}/n", policies).status == 204
        for one, maker in itertools.product(brokers, brokers):
            path = f"/admin/v2/namespaces/of-{maker.region}/n"

            def has_it(one: BrokerProcess = one, path: str = path) -> bool:
                answer = one.http("GET", path)
                return answer.status == 200 and answer.json.get("message_ttl_in_seconds") == 9

            wait_until(has_it, f"{one.region} to have {path}")
            assert one.http("GET", f"/admin/v2/tenants/of-{maker.region}").json["adminRoles"] == [maker.region]


def test_regions_that_share_an_etcd_send_and_apply_each_change_once(etcd_server: EtcdServer, tmp_path: Path) -> None:
    """Each has its own key prefix, so only the region that made a change sends it."""
    url = f"etcd:{etcd_server.url}"
    with contextlib.ExitStack() as stack:
        regions = started(tmp_path, {"one": url, "two": url, "three": None}, SETTINGS, stack)

        def shown(region: str) -> Any:
            return regions[region].http("GET", "/meridian/v1/metadata/status").json

        def are_synced() -> bool:
            return all(shown(region).get("synced") for region in regions)

        wait_until(are_synced, "the regions to be in step")
        tenant = {"adminRoles": [], "allowedClusters": [*regions]}
        assert regions["one"].http("PUT", "/admin/v2/tenants/shared", tenant).status == 204
        assert regions["one"].http("PUT", "/admin/v2/namespaces/shared/n", {}).status == 204

        def have(seconds: int | None) -> bool:
            answers = [one.http("GET", "/admin/v2/namespaces/shared/n") for one in regions.values()]
            found = [one.json.get("message_ttl_in_seconds") for one in answers if one.status == 200]
            return found == [seconds] * len(regions)

        wait_until(lambda: have(None) and are_synced(), "all regions to have the namespace")
        before = {region: shown(region) for region in regions}
        assert regions["one"].http("POST", "/admin/v2/namespaces/shared/n/messageTTL", 7).status == 204
        wait_until(lambda: have(7) and are_synced(), "all regions to have the policy")

        def more(figure: str) -> list[int]:
            return [shown(region)[figure] - before[region][figure] for region in regions]

        assert more("applied") == [0, 1, 1]
        assert more("published")[1:] == more("conflicts")[1:] == [0, 0]


def test_a_partitioned_shadow_stays_in_its_region(regions: RegionsProcess) -> None:
    """The other region may have a topic of that name."""
    topics = "/admin/v2/persistent/public/default"
    for region in REGIONS:
        scopes = "tenants,namespaces,topicPolicies,partitionedTopics"
        write(regions, region, "POST", f"/admin/v2/brokers/configuration/metadataSyncScopes/{scopes}")

    def is_followed() -> bool:
        return all("partitionedTopics" in (status(regions, region) or {})["scopes"] for region in REGIONS)

    wait_until(is_followed, "both regions to have the new scopes")  # until then they are in sync about less
    wait_until(lambda: is_synced(regions), "the regions to be in step")
    write(regions, "us", "PUT", f"{topics}/orders/partitions", 2)
    shadow = {"topic": "persistent://public/default/view"}
    write(regions, "us", "POST", f"{topics}/orders/shadowTopics", shadow)
    assert get(regions, "us", f"{topics}/view/partitions")["partitions"] == 2
    write(regions, "us", "PUT", "/admin/v2/non-persistent/public/default/later/partitions", 3)

    def has_later() -> bool:
        found = get(regions, "eu", "/admin/v2/non-persistent/public/default/later/partitions")
        return found is not None and found["partitions"] == 3

    wait_until(has_later, "eu to have the topic that was created later")
    assert (get(regions, "eu", f"{topics}/view/partitions") or {"partitions": 0})["partitions"] == 0
    write(regions, "eu", "PUT", f"{topics}/view/partitions", 5)
    wait_until(lambda: is_synced(regions), "the regions to be in step")
    assert get(regions, "us", f"{topics}/view/partitions")["partitions"] == 2
    write(regions, "eu", "DELETE", f"{topics}/view/partitions")
    wait_until(lambda: is_synced(regions), "the regions to be in step")
    assert get(regions, "us", f"{topics}/orders/shadowTopics") == ["persistent://public/default/view"]
    assert get(regions, "us", f"{topics}/view/partitions")["partitions"] == 2, "it was deleted with eu's topic"
    write(regions, "us", "PUT", f"{topics}/plain")
    write(regions, "us", "POST", f"{topics}/plain/shadowTopics", "persistent://public/default/plain-view")
    write(regions, "us", "PUT", f"{topics}/plain-view/subscription/s", "earliest")
    for path, body in ((f"{topics}/plain-view", {}), (f"{topics}/plain-view/partitions", 3)):
        write(regions, "eu", "PUT", path, body)
        wait_until(lambda: is_synced(regions), "the regions to be in step")
        write(regions, "eu", "DELETE", path)
        kept = get(regions, "us", f"{topics}/plain-view/stats")
        assert kept is not None and set(kept["subscriptions"]) == {"s"}, "it was deleted with eu's topic"
    # Partitions that the other region adds to the source reach the shadow.
    write(regions, "eu", "POST", f"{topics}/orders/partitions", 3)
    wait_until(lambda: get(regions, "us", f"{topics}/view/partitions")["partitions"] == 3, "the shadow to follow")


def test_deleting_a_shadow_leaves_what_another_region_set_on_a_topic_of_its_name(regions: RegionsProcess) -> None:
    """They go by name; a shadow exists in one region only, and what was set there ends with it."""
    topics = "/admin/v2/persistent/public/default"
    for region in REGIONS:
        scopes = "tenants,namespaces,topicPolicies,permissions"
        write(regions, region, "POST", f"/admin/v2/brokers/configuration/metadataSyncScopes/{scopes}")

    def is_followed() -> bool:
        return all("permissions" in (status(regions, region) or {})["scopes"] for region in REGIONS)

    wait_until(is_followed, "both regions to have the new scopes")
    for kind, partitions in (("plain", 0), ("parted", 2)):
        source, view, path = f"of-{kind}", f"view-{kind}", "/partitions" if partitions else ""
        body = (partitions,) if partitions else ()
        write(regions, "us", "PUT", f"{topics}/{source}{path}", *body)
        write(regions, "us", "POST", f"{topics}/{source}/shadowTopics", f"persistent://public/default/{view}")
        write(regions, "eu", "PUT", f"{topics}/{view}{path}", *body)
        write(regions, "eu", "POST", f"{topics}/{view}/maxProducers", 7)
        write(regions, "eu", "POST", f"{topics}/{view}/permissions/of-eu", ["consume"])
        write(regions, "us", "POST", f"{topics}/{view}/maxConsumers", 8)
        write(regions, "us", "POST", f"{topics}/{view}/permissions/of-us", ["consume"])

        def has(view: str, *, of_us: bool) -> bool:
            roles = {"of-eu", "of-us"} if of_us else {"of-eu"}
            return all(
                get(regions, region, f"{topics}/{view}/permissions").keys() == roles for region in REGIONS
            ) and get(regions, "eu", f"{topics}/{view}/maxConsumers") == (8 if of_us else None)

        wait_until(lambda view=view: has(view, of_us=True), "both regions to have all of it")
        write(regions, "us", "DELETE", f"{topics}/{view}{path}")
        wait_until(lambda: is_synced(regions), "the regions to be in step")
        wait_until(lambda view=view: has(view, of_us=False), "what us had set to be gone, and eu's to be left")
        assert get(regions, "eu", f"{topics}/{view}/maxProducers") == 7
