# SPDX-License-Identifier: Apache-2.0
"""Meridian's own API and the replication part of statistics, with two real regions and a third that is down."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from typing import Any

import pulsar
import pytest
from meridian_broker.gateway.region_calls import CallFailed
from prometheus_client.parser import text_string_to_metric_families
from support.brokers.broker_process import RegionsProcess, wait_until
from support.brokers.forked_meridian import meridian
from support.brokers.peers import calls_as
from support.brokers.region_clients import PATIENCE_MS

REGIONS = ("east", "west")

BASE = "/admin/v2/persistent/public/default"
OWN = "/meridian/v1"


def metric(regions: RegionsProcess, region: str, name: str, **labels: str) -> float | None:
    for family in text_string_to_metric_families(regions.http(region, "GET", "/metrics").text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return float(sample.value)
    return None


def stats(regions: RegionsProcess, region: str, topic: str) -> dict[str, Any]:
    answer = regions.http(region, "GET", f"{BASE}/{topic}/stats")
    found: dict[str, Any] = answer.json
    return found if answer.status == 200 else {}


def entries(regions: RegionsProcess, region: str, topic: str) -> int:
    answer = regions.http(region, "GET", f"{BASE}/{topic}/internalStats")
    return int(answer.json["numberOfEntries"]) if answer.status == 200 else 0


def publish(client: pulsar.Client, topic: str, count: int) -> list[str]:
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(f"message {number}".encode()) for number in range(count)]
    producer.close()
    return [f"{one.ledger_id()}:{one.entry_id()}" for one in ids]


def test_regions_and_their_links(regions: RegionsProcess) -> None:
    shown = regions.http("east", "GET", f"{OWN}/regions").json
    assert shown["region"] == "east"
    assert abs(shown["clock_ms"] - time.time() * 1000) < 60_000
    east, west = shown["regions"]
    assert (east["name"], east["local"], west["name"], west["local"]) == ("east", True, "west", False)
    assert west["admin_url"] == regions.admin_url("west")
    assert west["service_url"] == regions.service_url("west")

    def link() -> bool:
        found: bool = regions.http("east", "GET", f"{OWN}/regions").json["regions"][1]["progress"]["connected"]
        return found

    wait_until(link, "the progress link to west to be up")
    assert metric(regions, "east", "meridian_progress_link_up", remote_cluster="west") == 1


def test_a_message_id_is_translated_by_its_origin(regions: RegionsProcess, clients: dict[str, pulsar.Client]) -> None:
    here = publish(clients["east"], "carried", 3)
    wait_until(lambda: entries(regions, "west", "carried") == 3, "east's messages to be in west")
    there = publish(clients["west"], "carried", 2)
    wait_until(lambda: entries(regions, "east", "carried") == 5, "west's messages to be in east")
    path = f"{OWN}/topics/persistent/public/default/carried/messageid/translate"

    def translate(at: str, source: str, message: str) -> dict[str, Any]:
        answer = regions.http(at, "GET", f"{path}?from={source}&id={message}")
        assert answer.status == 200, answer.text
        found: dict[str, Any] = answer.json
        return found

    for origin, other, ids in (("east", "west", here), ("west", "east", there)):
        for message in ids:
            found = translate(other, origin, message)
            assert found["origin"] == {"region": origin, "id": message}
            # The message's position in that region translates back to its position here.
            assert translate(origin, other, found["id"])["id"] == message
            assert translate(origin, origin, message)["id"] == message
    reader = clients["west"].create_reader("carried", pulsar.MessageId.earliest)
    first = reader.read_next(PATIENCE_MS).message_id()
    assert translate("east", "west", f"{first.ledger_id()}:{first.entry_id()}")["id"] == here[0]
    reader.close()
    command = ["topics", "translate-id", "carried", here[1], "--from", "east", "--json"]
    told = meridian(*command, "--url", regions.admin_url("west"))
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["id"] == translate("west", "east", here[1])["id"]
    assert regions.http("west", "GET", f"{path}?from=east&id=1:1").status == 404
    assert regions.http("west", "GET", f"{path}?from=nowhere&id=1:1").status == 404
    assert regions.http("west", "GET", f"{path}?from=east&id=first").status == 412
    absent = path.replace("carried", "none")
    assert regions.http("west", "GET", f"{absent}?from=east&id=1:1").status == 404
    volatile = path.replace("persistent", "non-persistent")
    assert "stores no messages" in regions.http("west", "GET", f"{volatile}?from=east&id=1:1").reason


async def test_a_region_whose_network_drops_everything_is_given_up_soon() -> None:
    """Connections are neither refused nor accepted, as with a listener whose queue is full."""
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        there = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(CallFailed, match=f"^{there} did not accept a connection within 4 s$"):
            await calls_as("east", there).ask("far", "GET", "/admin/v2/clusters", seconds=30)


def test_a_region_known_only_from_the_api_is_not_asked_without_tls(regions: RegionsProcess) -> None:
    """Otherwise anybody who can write a cluster record could be the man in the middle between two regions."""
    assert regions.http("east", "PUT", f"{BASE}/unheard").status == 204
    far = {"serviceUrl": regions.admin_url("west"), "brokerServiceUrl": regions.service_url("west")}
    assert regions.http("east", "PUT", "/admin/v2/clusters/far", far).status == 204
    path = f"{OWN}/topics/persistent/public/default/unheard/messageid/translate?from=far&id=1:1"
    answer = regions.http("east", "GET", path)
    assert answer.status == 503
    assert "far cannot be asked: not connecting to region far: without TLS" in answer.reason
    wait_until(
        lambda: "progress link to far is down: not connecting to region far" in regions.log("east"),
        "the reason to be logged",
    )
    assert regions.http("east", "DELETE", "/admin/v2/clusters/far").status == 204


def test_a_subscription_is_followed_in_every_region(regions: RegionsProcess, clients: dict[str, pulsar.Client]) -> None:
    publish(clients["east"], "followed", 4)
    subscription = f"{BASE}/followed/subscription/work"
    status = f"{OWN}/subscriptions/persistent/public/default/followed/work/status"
    assert regions.http("east", "GET", status).status == 404
    assert regions.http("east", "PUT", f"{subscription}?replicated=true", "earliest").status == 204
    wait_until(lambda: regions.http("west", "GET", status).status == 200, "west to have the subscription")
    consumer = clients["east"].subscribe(
        "followed", "work", pulsar.ConsumerType.Shared, replicate_subscription_state_enabled=True
    )
    received = [consumer.receive(PATIENCE_MS) for _ in range(4)]
    for number in (0, 2):
        consumer.acknowledge(received[number])

    def standing(region: str) -> tuple[Any, ...]:
        found = regions.http(region, "GET", status).json
        return found["backlog"], found["holes"], found["mode"], found["synced"]

    for region in ("east", "west"):
        wait_until(
            lambda region=region: standing(region) == (2, 1, "exact", True), f"{region} to apply the acknowledgements"
        )
    wait_until(
        lambda: regions.http("east", "GET", status).json["peers"][0]["pending"] == 0,
        "west to confirm the acknowledgements",
    )
    east = regions.http("east", "GET", status).json
    (peer,) = east["peers"]
    assert (peer["region"], peer["connected"], peer["pending"], peer["reason"]) == ("west", True, 0, "")
    assert peer["last_applied"] >= 1
    assert east["floors"]["east"] == east["mark_delete"]
    assert east["set_size"] >= 1
    assert stats(regions, "west", "followed")["subscriptions"]["work"]["isReplicated"]
    consumer.close()


def test_the_replicated_flag_is_set_by_both_apis(regions: RegionsProcess, clients: dict[str, pulsar.Client]) -> None:
    publish(clients["east"], "flagged", 2)
    path = f"{BASE}/flagged/subscription/work"
    regions.http("east", "PUT", path, "earliest")
    name = "persistent://public/default/flagged"
    assert regions.http("east", "GET", f"{path}/replicatedSubscriptionStatus").json == {name: False}
    assert regions.http("east", "POST", f"{path}/replicatedSubscriptionStatus", True).status == 204
    assert regions.http("east", "GET", f"{path}/replicatedSubscriptionStatus").json == {name: True}
    west = f"{path}/replicatedSubscriptionStatus"
    wait_until(
        lambda: regions.http("west", "GET", west).text == f'{{"{name}": true}}', "west to have the replicated flag"
    )
    mode = f"{OWN}/subscriptions/persistent/public/default/flagged/work/mode"
    assert regions.http("east", "POST", mode, {"replicated": "yes"}).status == 412
    assert regions.http("east", "POST", mode, {"replicated": False}).json["done"]
    assert regions.http("east", "GET", f"{path}/replicatedSubscriptionStatus").json == {name: False}
    assert regions.http("east", "POST", f"{path}/replicatedSubscriptionStatus", "perhaps").status == 400
    regions.http("east", "PUT", "/admin/v2/namespaces/public/alone", {"replication_clusters": ["east"]})
    alone = "/admin/v2/persistent/public/alone/t"
    regions.http("east", "PUT", alone)
    regions.http("east", "PUT", f"{alone}/subscription/work")
    refused = regions.http("east", "POST", f"{alone}/subscription/work/replicatedSubscriptionStatus", True)
    assert refused.status == 412


def test_a_region_that_is_down_is_shown_as_down(regions: RegionsProcess, clients: dict[str, pulsar.Client]) -> None:
    publish(clients["east"], "alone", 1)
    wait_until(lambda: entries(regions, "west", "alone") == 1, "the first message to be in west")
    wait_until(
        lambda: stats(regions, "east", "alone")["replication"]["west"]["connected"], "the replicator to be connected"
    )
    regions.http("east", "PUT", f"{BASE}/alone/subscription/work?replicated=true", "earliest")
    unreplicated = "meridian_unreplicated_entries"
    wait_until(lambda: metric(regions, "east", unreplicated, remote_cluster="west") == 0, "all topics to be in west")
    regions.kill_region("west")
    publish(clients["east"], "alone", 5)

    def waits() -> bool:
        found = stats(regions, "east", "alone")["replication"]["west"]
        return bool(found["replicationBacklog"] == 5 and not found["connected"])

    wait_until(waits, "the backlog to be shown")
    labels = {"topic": "persistent://public/default/alone", "remote_cluster": "west"}
    assert metric(regions, "east", "pulsar_replication_backlog", **labels) == 5
    assert metric(regions, "east", "pulsar_replication_connected_count", **labels) == 0
    assert metric(regions, "east", unreplicated, remote_cluster="west") == 5
    link_up = "meridian_progress_link_up"
    wait_until(lambda: metric(regions, "east", link_up, remote_cluster="west") == 0, "the other link to be down")
    west = regions.http("east", "GET", f"{OWN}/regions").json["regions"][1]
    assert west["progress"]["problem"]
    assert west["replication"]["backlog"] == 5
    status = regions.http("east", "GET", f"{OWN}/subscriptions/persistent/public/default/alone/work/status").json
    assert not status["synced"]
    assert status["peers"][0]["reason"]
    regions.bring_back("west")
    wait_until(
        lambda: metric(regions, "east", unreplicated, remote_cluster="west") == 0, "all topics to be in west again"
    )
    assert entries(regions, "west", "alone") == 6


def test_metrics_count_what_clients_do(regions: RegionsProcess, clients: dict[str, pulsar.Client]) -> None:
    topic = "persistent://public/default/measured"
    consumer = clients["east"].subscribe("measured", "work", pulsar.ConsumerType.Shared)
    publish(clients["east"], "measured", 6)
    received = [consumer.receive(PATIENCE_MS) for _ in range(6)]
    for message in received[:2]:
        consumer.acknowledge(message)

    def count(name: str, **labels: str) -> float | None:
        return metric(regions, "east", name, topic=topic, **labels)

    wait_until(
        lambda: count("pulsar_subscription_back_log", subscription="work") == 4, "the acknowledgements to be applied"
    )
    assert count("pulsar_subscription_unacked_messages", subscription="work") == 4
    assert count("pulsar_in_messages_total") == count("pulsar_out_messages_total") == 6
    assert (count("pulsar_in_bytes_total") or 0) > 0 < (count("pulsar_out_bytes_total") or 0)
    assert (count("pulsar_subscriptions_count"), count("pulsar_consumers_count")) == (1, 1)
    reader = clients["east"].create_reader("measured", pulsar.MessageId.earliest)
    for _ in range(6):
        reader.read_next(PATIENCE_MS)
    assert count("pulsar_out_messages_total") == 12
    reader.close()
    wait_until(lambda: count("pulsar_consumers_count") == 1, "the reader to be gone")
    assert count("pulsar_out_messages_total") == 12
    assert (metric(regions, "east", "pulsar_topics_count", namespace="public/default") or 0) >= 1
    assert (metric(regions, "east", "meridian_ledger_appends_total") or 0) >= 6
    assert (metric(regions, "east", "meridian_ledger_sync_seconds_count") or 0) > 0
    assert (metric(regions, "east", "process_resident_memory_bytes") or 0) > 0
    came = "meridian_replicated_in_messages_total"
    wait_until(lambda: metric(regions, "west", came, topic=topic) == 6, "the messages to be in west")
    # As in Pulsar, messages from another region count like those that clients send.
    there = regions.http("west", "GET", f"{BASE}/measured/stats").json
    assert there["msgInCounter"] == metric(regions, "west", "pulsar_in_messages_total", topic=topic) == 6
    assert there["bytesInCounter"] == metric(regions, "west", "pulsar_in_bytes_total", topic=topic)
    assert there["bytesInCounter"] > 0 < there["msgRateIn"]
    consumer.close()


def test_a_topic_chooses_its_regions(regions: RegionsProcess, clients: dict[str, pulsar.Client]) -> None:
    """The namespace is in both regions; this topic is in the east alone until its policy says otherwise."""
    path = f"{BASE}/homebody"
    assert regions.http("east", "PUT", path).status == 204
    assert regions.http("east", "GET", f"{path}/replication").status == 204
    assert regions.http("east", "GET", f"{path}/replication?applied=true").json == ["east", "west"]
    assert regions.http("east", "POST", f"{path}/replication", ["west"]).status == 412
    assert regions.http("east", "POST", f"{path}/replication", ["east", "nowhere"]).status == 403
    assert regions.http("east", "POST", f"{path}/replication", "east").status == 412
    assert regions.http("east", "POST", f"{path}/replication", ["east"]).status == 204
    assert regions.http("east", "GET", f"{path}/replication").json == ["east"]
    wait_until(lambda: not stats(regions, "east", "homebody")["replication"], "the replicator to stop")
    publish(clients["east"], "homebody", 3)
    assert entries(regions, "west", "homebody") == 0
    assert regions.http("east", "POST", f"{path}/replication", ["west", "east"]).status == 204
    wait_until(lambda: entries(regions, "west", "homebody") == 3, "the messages published before to arrive as well")
    assert regions.http("east", "DELETE", f"{path}/replication").status == 204
    assert regions.http("east", "GET", f"{path}/replication").status == 204
