# SPDX-License-Identifier: Apache-2.0
"""Regions begin to share metadata while running, are cut off, lose brokers and stores, and end equal."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from meridian_broker.cli.metadata import metadata
from meridian_broker.gateway.client import PulsarClientConnection
from meridian_broker.gateway.roles import Producer
from support.brokers.broker_process import RegionsProcess, wait_until
from support.brokers.stand_in_admin import run

pytestmark = pytest.mark.slow

REGIONS = ("us", "eu")
TOPIC = "persistent://public/default/metadata-events"
NAMESPACE = "/admin/v2/namespaces/shop/orders"
TTL = f"{NAMESPACE}/messageTTL"
STATUS = "/meridian/v1/metadata/status"


def get(regions: RegionsProcess, region: str, path: str) -> Any:
    """A region's answer; None: it refuses."""
    answer = regions.http(region, "GET", path)
    return answer.json if answer.status == 200 and answer.text else None


def write(regions: RegionsProcess, region: str, method: str, path: str, body: Any = ...) -> Any:
    answer = regions.http(region, method, path, body)
    assert answer.status < 300, answer.text
    return answer.json if answer.text else None


def status(regions: RegionsProcess, region: str) -> Any:
    return get(regions, region, STATUS)


def wait_in_step(regions: RegionsProcess) -> None:
    wait_until(lambda: all(status(regions, region).get("synced") for region in REGIONS), "the regions to be in step")


def wait_ttl(regions: RegionsProcess, seconds: int) -> None:
    def everywhere() -> bool:
        return all(get(regions, region, TTL) == seconds for region in REGIONS)

    wait_until(everywhere, f"both regions to have a TTL of {seconds} s")


@pytest.fixture(scope="module")
def shared(regions: RegionsProcess) -> RegionsProcess:
    """Sharing is switched on while they run; differences are decided in favour of us."""
    for region, seconds in (("us", 10), ("eu", 20)):
        write(regions, region, "PUT", "/admin/v2/tenants/shop", {"adminRoles": [], "allowedClusters": ["us", "eu"]})
        write(regions, region, "PUT", NAMESPACE, {"replication_clusters": ["us", "eu"]})
        write(regions, region, "POST", TTL, seconds)
    write(regions, "us", "PUT", "/admin/v2/tenants/only-us", {"adminRoles": [], "allowedClusters": ["us"]})
    for region in REGIONS:
        path = f"/admin/v2/brokers/configuration/metadataSyncEventTopic/{quote(TOPIC, safe='')}"
        write(regions, region, "POST", path)
        write(regions, region, "POST", "/admin/v2/brokers/configuration/metadataSyncScopes/tenants,namespaces")

    def waiting() -> bool:
        peers = [status(regions, region).get("peers", {}) for region in REGIONS]
        return [one["differences"] for some in peers for one in some.values()] == [1, 1]

    wait_until(waiting, "both regions to find the difference")
    assert [get(regions, region, TTL) for region in REGIONS] == [10, 20]
    found = CliRunner().invoke(
        metadata, ["adopt", "--from", "us", "--dry-run", "--url", regions.admin_url("eu")], catch_exceptions=False
    )
    assert found.exit_code == 0
    assert "/geo/namespaces/shop/orders/policies/message_ttl_in_seconds" in found.output
    assert [get(regions, region, TTL) for region in REGIONS] == [10, 20]
    adopted = write(regions, "eu", "POST", "/meridian/v1/metadata/adopt", {"region": "us"})
    assert adopted["decided"] == 1
    wait_ttl(regions, 10)
    wait_in_step(regions)
    assert get(regions, "eu", "/admin/v2/tenants/only-us") is not None
    return regions


def test_only_these_settings_change_while_brokers_run(shared: RegionsProcess) -> None:
    configuration = "/admin/v2/brokers/configuration"
    assert get(shared, "us", f"{configuration}/values")["metadataSyncEventTopic"] == TOPIC
    assert shared.http("us", "POST", f"{configuration}/clusterName/eu").status == 412
    assert shared.http("us", "POST", f"{configuration}/metadataSyncScopes/ledgers").status == 412
    assert shared.http("us", "POST", f"{configuration}/metadataSyncEventTopic/no%2Fname").status == 412


def test_a_conflict_of_regions_that_were_apart_is_shown_and_ends_equal(shared: RegionsProcess) -> None:
    shared.kill_region("us")
    write(shared, "eu", "POST", TTL, 30)
    shared.kill_region("eu")
    shared.bring_back("us")
    write(shared, "us", "POST", TTL, 40)
    shared.bring_back("eu")
    wait_ttl(shared, 40)
    wait_in_step(shared)
    found = get(shared, "eu", "/meridian/v1/metadata/conflicts")["conflicts"]
    assert [(one["won"]["value"], one["won"]["region"], one["lost"]["value"]) for one in found] == [(40, "us", 30)]
    assert get(shared, "eu", f"{CONFLICTS}?latest=3") == {"conflicts": found, "count": 1}
    shown = CliRunner().invoke(metadata, ["conflicts", "--url", shared.admin_url("eu")], catch_exceptions=False)
    assert shown.exit_code == 1
    assert "40 of us won over 30 of eu" in shown.output
    write(shared, "eu", "DELETE", f"/meridian/v1/metadata/conflicts?path={quote(found[0]['path'], safe='')}")
    assert get(shared, "eu", "/meridian/v1/metadata/conflicts")["count"] == 0


def exit_code(shared: RegionsProcess, *arguments: str, at: str = "us") -> int:
    found = CliRunner().invoke(metadata, [*arguments, "--url", shared.admin_url(at)], catch_exceptions=False)
    return found.exit_code


def test_commands_report_the_state_by_their_exit_codes(shared: RegionsProcess) -> None:
    assert [exit_code(shared, *one) for one in (["status"], ["diff", "eu"], ["conflicts"])] == [0, 0, 0]
    shared.kill_region("eu")
    assert exit_code(shared, "diff", "eu") == 2
    assert exit_code(shared, "status", at="eu") == 2
    shared.bring_back("eu")
    wait_in_step(shared)
    assert exit_code(shared, "status") == 0


def test_a_confirmed_write_survives_its_broker(shared: RegionsProcess) -> None:
    write(shared, "us", "POST", TTL, 50)
    shared.kill_region("us")
    shared.bring_back("us")
    wait_ttl(shared, 50)


def test_messages_of_clients_become_dead_letters_and_the_next_event_is_applied(shared: RegionsProcess) -> None:
    """Unless it is the chosen event topic, it is a topic like any other."""
    chosen = "/admin/v2/brokers/configuration/metadataSyncEventTopic"
    write(shared, "us", "DELETE", chosen)

    async def publish() -> None:
        connection = await PulsarClientConnection.connect(shared.service_url("us"))
        try:
            producer = await Producer.open(connection, TOPIC)
            await (await producer.send(b"forged"))
            await (await producer.send(bytes((5 << 20) + 3950)))  # a dead letter with all of it would be too large
        finally:
            await connection.close()

    asyncio.run(publish())
    write(shared, "us", "POST", f"{chosen}/{quote(TOPIC, safe='')}")
    wait_in_step(shared)
    write(shared, "us", "POST", TTL, 60)
    wait_ttl(shared, 60)
    for region in REGIONS:
        letters = status(shared, region)["deadLetters"]
        assert letters["count"] == 2
        assert letters["last"][0]["region"] == "us"
        assert "no valid proof" in letters["last"][0]["reason"]
        stats = get(shared, region, "/admin/v2/persistent/public/default/metadata-events-metadata-syncer-DLQ/stats")
        assert stats["msgInCounter"] == 2


def test_a_namespace_that_holds_topics_in_another_region_is_not_deleted(shared: RegionsProcess) -> None:
    write(shared, "us", "PUT", "/admin/v2/namespaces/shop/there", {"replication_clusters": ["eu"]})
    topic = "/admin/v2/persistent/shop/there/t"
    wait_until(lambda: shared.http("eu", "PUT", topic).status == 204, "eu to have the namespace")
    refused = shared.http("us", "DELETE", "/admin/v2/namespaces/shop/there")
    assert refused.status == 409
    assert "in eu" in refused.reason
    write(shared, "eu", "DELETE", topic)
    write(shared, "us", "DELETE", "/admin/v2/namespaces/shop/there")
    wait_until(
        lambda: get(shared, "eu", "/admin/v2/namespaces/shop/there") is None, "the namespace to be deleted in eu"
    )


def test_a_namespace_without_its_tenant_is_not_served(shared: RegionsProcess) -> None:
    write(shared, "us", "PUT", "/admin/v2/tenants/brief", {"adminRoles": [], "allowedClusters": ["us", "eu"]})
    wait_until(lambda: get(shared, "eu", "/admin/v2/tenants/brief") is not None, "eu to have the tenant")
    shared.kill_region("us")
    write(shared, "eu", "PUT", "/admin/v2/namespaces/brief/n")
    shared.kill_region("eu")
    shared.bring_back("us")
    write(shared, "us", "DELETE", "/admin/v2/tenants/brief")
    shared.bring_back("eu")
    for region in REGIONS:
        wait_until(
            lambda region=region: (
                get(shared, region, "/meridian/v1/metadata/conflicts")["hidden"] == ["/geo/namespaces/brief/n"]
            ),
            "the namespace to be hidden",
        )
        assert shared.http(region, "PUT", "/admin/v2/persistent/brief/n/t").status == 404
    write(shared, "us", "PUT", "/admin/v2/tenants/brief", {"adminRoles": [], "allowedClusters": ["us", "eu"]})
    for region in REGIONS:
        wait_until(
            lambda region=region: get(shared, region, "/admin/v2/namespaces/brief/n"),
            f"{region} to show the namespace again",
        )


def peer(regions: RegionsProcess, region: str, other: str) -> Any:
    """What a region reports about another; empty: it has not compared yet."""
    return (status(regions, region) or {}).get("peers", {}).get(other, {})


ORDERS = "/admin/v2/persistent/shop/orders/t"
SCOPES = "/admin/v2/brokers/configuration/metadataSyncScopes"
CONFLICTS = "/meridian/v1/metadata/conflicts"


def test_extending_what_is_shared_decides_nothing_silently(shared: RegionsProcess) -> None:
    """Topic policies differ when regions begin to share them: the named region's win, and after that they are equal."""
    write(shared, "us", "PUT", ORDERS)
    wait_until(lambda: get(shared, "eu", f"{ORDERS}/stats") is not None, "eu to have the topic")
    for region, producers in (("us", 3), ("eu", 4)):
        write(shared, region, "POST", f"{ORDERS}/maxProducers", producers)
    write(shared, "us", "POST", f"{SCOPES}/tenants,namespaces,topicPolicies")

    def is_told() -> bool:
        return "set metadataSyncScopes" in str(peer(shared, "us", "eu").get("problem"))

    wait_until(is_told, "us to report the different scopes")
    write(shared, "us", "POST", TTL, 70)
    wait_ttl(shared, 70)  # what both share still syncs
    write(shared, "eu", "POST", f"{SCOPES}/tenants,namespaces,topicPolicies")
    wait_until(lambda: peer(shared, "eu", "us").get("differences") == 1, "eu to find the difference")
    assert [get(shared, region, f"{ORDERS}/maxProducers") for region in REGIONS] == [3, 4]
    arguments = ["adopt", "--from", "us", "--url", shared.admin_url("eu")]
    found = CliRunner().invoke(metadata, [*arguments, "--dry-run"], catch_exceptions=False)
    assert "/geo/topic-policies/shop/orders/persistent/t/max_producers_per_topic" in found.output
    assert "1 paths differ" in found.output
    CliRunner().invoke(metadata, [*arguments, "--yes"], catch_exceptions=False)
    wait_until(lambda: get(shared, "eu", f"{ORDERS}/maxProducers") == 3, "eu to take over the value of us")
    wait_in_step(shared)


def test_a_policy_of_a_topic_is_set_once_and_ends_with_the_topic(shared: RegionsProcess) -> None:
    write(shared, "eu", "POST", f"{ORDERS}/maxConsumers", 7)
    write(shared, "eu", "POST", f"{ORDERS}/replicateSubscriptionState", True)
    wait_until(lambda: get(shared, "us", f"{ORDERS}/replicateSubscriptionState") is True, "us to have the policy")
    assert get(shared, "us", f"{ORDERS}/maxConsumers") == 7
    write(shared, "us", "DELETE", f"{ORDERS}?force=true")
    wait_until(lambda: get(shared, "eu", f"{ORDERS}/stats") is None, "the topic to be deleted in eu")
    wait_in_step(shared)  # the deletion of its policies arrives by another path
    write(shared, "eu", "PUT", ORDERS)
    write(shared, "eu", "POST", f"{ORDERS}/maxConsumers", 8)
    wait_until(lambda: get(shared, "us", f"{ORDERS}/maxConsumers") == 8, "us to have the new topic's policy")
    for region in REGIONS:
        assert get(shared, region, f"{ORDERS}/maxProducers") is None
    wait_in_step(shared)
    for region in REGIONS:
        assert not get(shared, region, CONFLICTS)["conflicts"]
    write(shared, "us", "DELETE", f"{ORDERS}?force=true")


ALL = "tenants,namespaces,topicPolicies,partitionedTopics,schemas,clusters"


def test_a_schema_that_no_message_uses_reaches_all_regions(shared: RegionsProcess) -> None:
    for region in REGIONS:
        write(shared, region, "POST", f"{SCOPES}/{ALL}")
    path = "/admin/v2/schemas/shop/orders/described/schema"
    for region, name in zip(REGIONS, "ab", strict=True):
        definition = json.dumps({"type": "record", "name": name, "fields": []})
        write(shared, region, "POST", path, {"type": "JSON", "schema": definition, "properties": {}})

    def both() -> bool:
        found = [get(shared, region, f"{path}s") or {} for region in REGIONS]
        return all(len(one.get("getSchemaResponses", ())) == 2 for one in found)

    wait_until(both, "both regions to have both schemas")
    write(shared, "us", "DELETE", path)
    wait_until(lambda: get(shared, "eu", path) is None, "the schemas to be deleted in eu")
    wait_in_step(shared)
    assert not get(shared, "us", CONFLICTS)["conflicts"]


def test_a_region_is_introduced_once_and_then_rules_its_own_record(shared: RegionsProcess) -> None:
    path = "/admin/v2/clusters/ap"

    def address(region: str) -> Any:
        return (get(shared, region, path) or {}).get("brokerServiceUrlTls")

    for region in REGIONS:
        write(shared, region, "POST", f"{SCOPES}/{ALL}")
    wait_until(lambda: "clusters" in get(shared, "us", STATUS)["scopes"], "clusters to be among the scopes in us")
    wait_in_step(shared)
    addresses = ("pulsar+ssl://ap:6651", "https://ap:8443")
    added = run("regions", "add", "ap", *addresses, "--url", shared.admin_url("us"))
    assert "will be in all regions" in added.output, added.output
    wait_until(lambda: address("eu") == "pulsar+ssl://ap:6651", "eu to have the address of region ap")

    def is_told() -> bool:
        found = get(shared, "eu", "/meridian/v1/regions")
        return "must be in regionsFile" in json.dumps(found)

    wait_until(is_told, "eu to refuse a link to ap without TLS")
    write(shared, "us", "POST", path, {"brokerServiceUrlTls": "pulsar+ssl://elsewhere:6651"})
    write(shared, "us", "DELETE", path)
    wait_in_step(shared)
    assert get(shared, "us", path) is None
    assert address("eu") == "pulsar+ssl://ap:6651", "nobody else can redirect its links"
    write(shared, "eu", "DELETE", path)


NUMBERED = "/admin/v2/non-persistent/shop/orders/many/partitions"
STORED = "/admin/v2/persistent/shop/orders/stored/partitions"


def test_the_greater_of_two_partition_numbers_wins(shared: RegionsProcess) -> None:
    """Topics that store messages learn it over their links, others through the event topic."""
    for region in REGIONS:
        write(shared, region, "POST", f"{SCOPES}/{ALL}")
    wait_in_step(shared)

    def numbers(path: str, wanted: int) -> None:
        def everywhere() -> bool:
            found = [get(shared, region, path) or {} for region in REGIONS]
            return all(one.get("partitions") == wanted for one in found)

        wait_until(everywhere, f"both regions to have {wanted} partitions")

    for path in (NUMBERED, STORED):
        write(shared, "us", "PUT", path, 2)
        numbers(path, 2)
    shared.kill_region("us")
    for path in (NUMBERED, STORED):
        write(shared, "eu", "POST", path, 8)
    shared.kill_region("eu")
    shared.bring_back("us")
    for path in (NUMBERED, STORED):
        write(shared, "us", "POST", path, 6)
    shared.bring_back("eu")
    for path in (NUMBERED, STORED):
        numbers(path, 8)
    wait_in_step(shared)
    assert not get(shared, "eu", CONFLICTS)["conflicts"]
    write(shared, "eu", "DELETE", NUMBERED)
    wait_until(lambda: get(shared, "us", NUMBERED) in (None, {"partitions": 0}), "the topic to be deleted in us")
    write(shared, "us", "DELETE", f"{STORED}?force=true")


def test_a_new_store_takes_over_a_regions_name_only_when_told_to(shared: RegionsProcess) -> None:
    for region in REGIONS:
        write(shared, region, "POST", f"{SCOPES}/{ALL}")
    write(shared, "us", "POST", TTL, 90)
    wait_ttl(shared, 90)
    shared.kill_region("eu")
    shutil.rmtree(shared.data_dir / "eu" / "data")
    shared.bring_back("eu")
    write(shared, "eu", "POST", f"{SCOPES}/{ALL}")
    path = f"/admin/v2/brokers/configuration/metadataSyncEventTopic/{quote(TOPIC, safe='')}"
    write(shared, "eu", "POST", path)
    wait_until(lambda: status(shared, "eu")["refusal"], "eu's name to be refused")
    assert "meridian regions replace eu" in status(shared, "eu")["refusal"]
    tenant = {"adminRoles": [], "allowedClusters": ["eu"]}
    assert shared.http("eu", "PUT", "/admin/v2/tenants/new", tenant).status == 503
    assert write(shared, "eu", "POST", "/meridian/v1/regions/eu/replace") == {"region": "eu", "told": ["us"]}
    write(shared, "eu", "PUT", "/admin/v2/tenants/new", tenant)
    wait_ttl(shared, 90)
    wait_until(lambda: get(shared, "us", "/admin/v2/tenants/new") is not None, "us to have the tenant")
    wait_in_step(shared)
