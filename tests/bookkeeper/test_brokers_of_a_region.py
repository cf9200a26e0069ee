# SPDX-License-Identifier: Apache-2.0
"""Two brokers of one region on real bookies: one is suspended, killed or stopped, and the other one takes over."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from meridian_broker.wire.proto import pulsar_pb2 as pb
from support.brokers import region_clients
from support.brokers.bookies import Bookies
from support.brokers.bookkeeper_region import Region, everything, published, received, running
from support.brokers.broker_process import BrokerProcess, wait_until
from support.brokers.region_clients import EARLIEST, SHARED, connected
from support.brokers.s3_server import CREDENTIALS, S3Server, s3_missing
from support.protocol.raw_connection import RawConnection, T

LEASE_SECONDS = 10.0
"""The default."""


def test_a_broker_suspended_past_its_lease_writes_nothing_and_its_clients_go_to_the_new_owner(region: Region) -> None:
    first = region.owner("orders", region.brokers["a"])
    assert first is not None
    assert region.owner("orders", region.brokers["b"]) is first
    other = next(one for one in region.brokers.values() if one is not first)
    with connected(first.service_url) as old_client, connected(other.service_url) as new_client:
        bodies = published(old_client, "orders", 60)
        consumer = old_client.subscribe("orders", "s", SHARED, initial_position=EARLIEST)
        assert sorted(received(consumer, 40), key=int) == bodies[:40]
        consumer.close()
        producer = old_client.create_producer("orders", batching_enabled=False, send_timeout_millis=0)
        late: dict[bytes, pulsar.Result] = {}
        os.kill(first.pid, signal.SIGSTOP)
        try:
            for number in range(20):
                body = b"late-%d" % number
                producer.send_async(body, lambda result, _, body=body: late.setdefault(body, result))
            region.taken_by(other, "orders")
            consumer = new_client.subscribe("orders", "s", SHARED)
            assert sorted(received(consumer, 20), key=int) == bodies[40:]
        finally:
            os.kill(first.pid, signal.SIGCONT)
        assert sorted(received(consumer, 20)) == sorted(b"late-%d" % number for number in range(20))
        wait_until(lambda: len(late) == 20, "all messages sent meanwhile to get receipts")
        assert set(late.values()) == {pulsar.Result.Ok}
        wait_until(
            lambda: "the lease on this broker's bundles ended" in first.log(),
            "the first owner to notice that its lease ended",
        )
        assert sorted(everything(new_client, "orders")) == sorted([*bodies, *late])


def exported(broker: BrokerProcess, taken: dict[str, Any]) -> list[str]:
    """The topics in an export, sorted."""
    found: list[str] = []
    for partition in range(taken["partitions"]["topics"]):
        stream = broker.http("GET", f"/meridian/v1/export/{taken['snapshot']}/topics?partition={partition}").body
        found += pa.ipc.open_stream(stream).read_all()["topic"].to_pylist()
    return sorted(found)


async def looked_up(port: int, names: list[str], dead: str) -> tuple[set[tuple[int, str]], float]:
    """The answers to a lookup of each topic, on one connection, and for how many seconds they named a dead broker.

    They do so while it still counts as alive because it was reached a moment ago.
    """
    wire, began, named_dead = await RawConnection.open(port), time.monotonic(), 0.0
    found: set[tuple[int, str]] = set()
    for name in names:
        while True:
            wire.say(T.LOOKUP, pb.CommandLookupTopic(topic=f"persistent://public/default/{name}", request_id=1))
            answer = await wire.hear(T.LOOKUP_RESPONSE)
            if answer.brokerServiceUrl != dead:
                break
            named_dead = time.monotonic() - began
        found.add((answer.response, answer.brokerServiceUrl))
    await wire.close()
    return found, named_dead


def test_the_topics_of_a_killed_broker_are_served_by_the_other_one(region: Region) -> None:
    names = [f"topic-{number}" for number in range(8)]
    with connected(region.url) as client, ThreadPoolExecutor() as beside:
        bodies = {name: published(client, name, 5) for name in names}
        assert {region.owner(name, region.brokers["a"]) for name in names} == set(region.brokers.values())
        victim, other = region.brokers["a"], region.brokers["b"]
        orphans = [name for name in names if region.owner(name, other) is victim]
        victim.kill()
        began = time.monotonic()
        found = beside.submit(asyncio.run, looked_up(other.port, orphans, victim.service_url))
        refused = 0
        while (answer := other.http("POST", "/meridian/v1/export")).status != 200:
            assert answer.status == 503
            assert "the topics of bundle public/default/0x" in answer.json["reason"]
            refused += 1
        assert refused
        assert exported(other, answer.json) == [f"persistent://public/default/{name}" for name in names]
        for name in names:
            region.taken_by(other, name)
        assert time.monotonic() - began < 10 * LEASE_SECONDS
        answers, named_dead = found.result()
        assert answers == {(pb.CommandLookupTopicResponse.Connect, other.service_url)}
        assert named_dead < LEASE_SECONDS / 2, "after that, lookups wait"
        for name in names:
            consumer = client.subscribe(name, "s", SHARED, initial_position=EARLIEST)
            assert received(consumer, 5) == bodies[name]
            consumer.close()
        victim.start()
        assert region.owner("topic-0", victim) is other  # it takes no bundle back


def test_a_broker_that_stops_hands_its_topics_over_while_clients_publish_and_consume(region: Region) -> None:
    first = region.owner("orders", region.brokers["a"])
    assert first is not None
    other = next(one for one in region.brokers.values() if one is not first)
    with connected(region.url) as client:
        consumer = client.subscribe("orders", "s", SHARED, initial_position=EARLIEST)
        producer = client.create_producer("orders", batching_enabled=False, send_timeout_millis=0)
        results: dict[bytes, pulsar.Result] = {}
        sent: list[bytes] = []

        def send(count: int) -> None:
            for _ in range(count):
                body = b"%d" % len(sent)
                sent.append(body)
                producer.send_async(body, lambda result, _, body=body: results.setdefault(body, result))

        send(100)
        got = received(consumer, 100)
        send(50)
        assert first.stop() == 0
        send(50)
        producer.flush()
        got += received(consumer, 100)
        assert sorted(got, key=int) == sent
        assert set(results.values()) == {pulsar.Result.Ok}
        assert region.owner("orders", other) is other
        with pytest.raises(pulsar.Timeout):
            consumer.receive(500)


def test_clients_of_a_broker_that_stops_are_told_the_next_owner(region: Region) -> None:
    first = region.owner("orders", region.brokers["a"])
    assert first is not None
    other = next(one for one in region.brokers.values() if one is not first)

    async def told(name: str) -> dict[int, str]:
        wire = await RawConnection.open(first.port)
        await wire.producer(name, producer_name="p")
        wire.say(
            T.SUBSCRIBE,
            pb.CommandSubscribe(topic=name, subscription="s", consumer_id=1, request_id=9, subType="Shared"),
        )
        await wire.hear(T.SUCCESS)
        stopping = asyncio.create_task(asyncio.to_thread(first.stop))
        said = [await wire.hear_any() for _ in range(2)]
        assert await stopping == 0
        await wire.close()
        return {command[0]: command.message.assignedBrokerServiceUrl for command in said}

    url = other.service_url
    assert asyncio.run(told("persistent://public/default/orders")) == {T.CLOSE_CONSUMER: url, T.CLOSE_PRODUCER: url}


def test_a_client_at_the_wrong_broker_is_refused_at_once_and_looks_the_topic_up_again(region: Region) -> None:
    """The C++ client and those built on it never ask again, unless the broker also closes the consumer."""
    first = region.owner("orders", region.brokers["a"])
    other = next(one for one in region.brokers.values() if one is not first)

    async def said(client_version: str, answers: int) -> list[int]:
        wire = await RawConnection.open(other.port, client_version)
        name = "persistent://public/default/orders"
        wire.say(
            T.SUBSCRIBE,
            pb.CommandSubscribe(topic=name, subscription="s", consumer_id=1, request_id=9, subType="Shared"),
        )
        found = [await wire.hear_any() for _ in range(answers)]
        await wire.close()
        return [command[0] for command in found]

    began = time.monotonic()
    assert asyncio.run(said("Pulsar-CPP-v3.9.0", 2)) == [T.CLOSE_CONSUMER, T.ERROR]
    assert asyncio.run(said("Pulsar-Java-v4.1.0", 1)) == [T.ERROR]
    assert time.monotonic() - began < 10.0  # the broker's patience with a topic that is about to be served


def test_without_etcd_brokers_serve_until_their_leases_end_and_go_on_when_it_is_back(
    region: Region, bookies: Bookies
) -> None:
    results: dict[bytes, pulsar.Result] = {}
    with connected(region.url) as client:
        producer = client.create_producer("orders", batching_enabled=False, send_timeout_millis=0)
        producer.send(b"before")
        bookies.etcd.kill()
        try:
            until, number = time.monotonic() + LEASE_SECONDS / 2, 0
            while time.monotonic() < until:
                producer.send(b"%d" % number)
                number += 1
            for broker in region.brokers.values():
                wait_until(
                    lambda broker=broker: ": the lease on this broker's bundles ended" in broker.log(),
                    "the broker to report that its lease ended",
                )
            producer.send_async(b"late", lambda result, _: results.setdefault(b"late", result))
            stats = "/admin/v2/persistent/public/default/orders/stats"
            assert 200 not in [broker.http("GET", stats).status for broker in region.brokers.values()]
            assert not results
        finally:
            bookies.etcd.start()
            bookies.until_registered()
        wait_until(
            lambda: results == {b"late": pulsar.Result.Ok},
            "the late message to get its receipt",
            120.0,
        )
        assert set(everything(client, "orders")) == {b"before", *(b"%d" % one for one in range(number)), b"late"}


def test_bundles_are_split_and_go_where_they_are_sent(region: Region) -> None:
    a, b = region.brokers.values()
    names = sorted(f"127.0.0.1:{one.http_port}" for one in (a, b))
    assert a.http("GET", "/admin/v2/brokers").json == b.http("GET", "/admin/v2/brokers").json == names
    leader = a.http("GET", "/admin/v2/brokers/leaderBroker").json
    assert leader == b.http("GET", "/admin/v2/brokers/leaderBroker").json
    assert leader == {"brokerId": f"127.0.0.1:{a.http_port}", "serviceUrl": a.admin_url}
    first = region.owner("orders", a)
    assert first is not None
    other = next(one for one in region.brokers.values() if one is not first)
    namespace = "/admin/v2/namespaces/public/default"
    bundle = other.http("GET", "/lookup/v2/topic/persistent/public/default/orders/bundle").text

    def settled() -> None:
        """Wait until the broker has the acknowledgements, which clients hold back for 0.1 s."""
        stats = "/admin/v2/persistent/public/default/orders/stats"
        wait_until(
            lambda: not first.http("GET", stats).json["subscriptions"]["s"]["msgBacklog"],
            "the acknowledgements to be applied",
        )

    with connected(first.service_url) as client:
        consumer = client.subscribe("orders", "s", SHARED)
        producer = client.create_producer("orders", batching_enabled=False)
        producer.send(b"1")
        assert received(consumer, 1) == [b"1"]
        settled()
        answer = other.http("PUT", f"{namespace}/{bundle}/split")
        assert (answer.status, answer.headers["Location"]) == (307, f"{first.admin_url}{namespace}/{bundle}/split")
        assert first.http("PUT", f"{namespace}/{bundle}/split").status == 204
        assert first.http("PUT", f"{namespace}/{bundle}/split").status == 404
        wait_until(
            lambda: other.http("GET", f"{namespace}/bundles").json["numBundles"] == 5,
            "the other broker to know that the bundle was split",
        )
        half = other.http("GET", "/lookup/v2/topic/persistent/public/default/orders/bundle").text
        assert set(half.split("_")) & set(bundle.split("_")) and half != bundle
        places = first.http("GET", f"{namespace}/{half}/topicHashPositions").json
        assert list(places["topicHashPositions"]) == ["persistent://public/default/orders"]
        transfer = f"{namespace}/{half}/unload?destinationBroker="
        assert first.http("PUT", f"{transfer}nobody:1").status == 412
        assert first.http("PUT", f"{transfer}127.0.0.1:{other.http_port}").status == 204
        region.taken_by(other, "orders")

        def owned() -> set[str]:
            path = f"/admin/v2/brokers/{region.name}/127.0.0.1:{other.http_port}/ownedNamespaces"
            return set(first.http("GET", path).json)

        def reported() -> set[str]:
            return set(other.http("GET", "/admin/v2/broker-stats/load-report").json["bundles"])

        wait_until(
            lambda: f"public/default/{half}" in owned() == reported(), "the first owner to know what the other one owns"
        )
        assert other.http("PUT", f"{transfer}127.0.0.1:{other.http_port}").status == 412
        producer.send(b"2")
        assert received(consumer, 1) == [b"2"]
        settled()
        assert other.http("PUT", f"{namespace}/{half}/unload").status == 204
        producer.send(b"3")
        assert received(consumer, 1) == [b"3"]


def test_requests_about_all_partitions_or_a_whole_namespace_reach_every_broker(region: Region) -> None:
    a, b = region.brokers.values()
    path = "/admin/v2/persistent/public/default/many"
    assert a.http("PUT", f"{path}/partitions", 8).status == 204
    with connected(region.url) as client:
        producer = client.create_producer(
            "many", batching_enabled=False, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
        )
        assert a.http("PUT", f"{path}/subscription/s", "earliest").status == 204
        assert b.http("PUT", f"{path}/subscription/s", "earliest").status == 409
        for number in range(24):
            producer.send(b"%d" % number)
        assert {region.owner(f"many-partition-{number}", a) for number in range(8)} == {a, b}
        for broker in (a, b):
            stats = broker.http("GET", f"{path}/partitioned-stats").json
            assert (stats["msgInCounter"], len(stats["partitions"])) == (24, 8)
            assert stats["subscriptions"]["s"]["msgBacklog"] == 24
            assert broker.http("GET", f"{path}/subscriptions").json == ["s"]
        assert b.http("POST", f"{path}/subscription/s/skip/1").status == 204
        assert a.http("GET", f"{path}/partitioned-stats").json["subscriptions"]["s"]["msgBacklog"] == 16
        assert a.http("POST", "/admin/v2/namespaces/public/default/clearBacklog").status == 204
        assert b.http("GET", f"{path}/partitioned-stats").json["subscriptions"]["s"]["msgBacklog"] == 0
        assert b.http("POST", f"{path}/subscription/nobody/skip_all").status == 404
        assert a.http("PUT", "/admin/v2/namespaces/public/default/unload").status == 204
        assert b.http("POST", "/admin/v2/namespaces/public/default/unsubscribe/s").status == 204
        assert a.http("GET", f"{path}/subscriptions").json == []
        producer.send(b"more")
        assert a.http("DELETE", f"{path}/partitions").status == 412
    wait_until(lambda: a.http("DELETE", f"{path}/partitions").status == 204, "the topic to have no clients")
    assert b.http("GET", "/admin/v2/persistent/public/default").json == []
    assert b.http("DELETE", f"{path}/partitions").status == 404
    for name in ("t1", "t2", "t3", "t4"):
        owner = region.owner(name, a)
        assert owner is not None and owner.http("PUT", f"/admin/v2/persistent/public/default/{name}").status == 204
    assert a.http("DELETE", "/admin/v2/namespaces/public/default?force=true").status == 204
    for broker in (a, b):
        assert broker.http("GET", "/meridian/v1/health").json["healthy"]


def test_partitions_are_added_at_their_owners(region: Region) -> None:
    a, b = region.brokers.values()
    path = "/admin/v2/persistent/public/default/growing"
    assert a.http("PUT", f"{path}/partitions", 2).status == 204
    assert a.http("PUT", f"{path}/subscription/s", "earliest").status == 204
    coordinator = region.owner("growing", a)
    assert coordinator is not None
    other = next(one for one in (a, b) if one is not coordinator)
    sent_on = other.http("POST", f"{path}/partitions", 8)
    assert (sent_on.status, sent_on.headers["Location"].partition("?")[0]) == (
        307,
        f"{coordinator.admin_url}{path}/partitions",
    )
    assert coordinator.http("POST", f"{path}/partitions", 8).status == 204
    assert {region.owner(f"growing-partition-{number}", a) for number in range(8)} == {a, b}
    for broker in (a, b):
        assert broker.http("GET", f"{path}/partitions").json["partitions"] == 8
        for number in range(8):
            assert broker.http("GET", f"{path}-partition-{number}/subscriptions").json == ["s"]
    with connected(region.url) as client:
        producer = client.create_producer(
            "growing", batching_enabled=False, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
        )
        bodies = [b"%d" % number for number in range(24)]
        for body in bodies:
            producer.send(body)
        consumer = client.subscribe("growing", "s", SHARED)
        assert sorted(received(consumer, 24), key=int) == bodies
    assert coordinator.http("POST", f"{path}/partitions", 4).status == 406
    assert coordinator.http("POST", "/admin/v2/persistent/public/default/nothing/partitions", 4).status in (307, 404)


def test_requests_about_a_topic_are_sent_to_its_owner(region: Region) -> None:
    first = region.owner("orders", region.brokers["a"])
    assert first is not None
    other = next(one for one in region.brokers.values() if one is not first)
    path = "/admin/v2/persistent/public/default/orders"
    assert first.http("PUT", path).status == 204
    assert other.http("GET", f"{path}/stats").json["storageSize"] == 0  # urllib follows 307 for GET
    answer = other.http("PUT", f"{path}/subscription/s")
    assert (answer.status, answer.headers["Location"]) == (307, f"{first.admin_url}{path}/subscription/s")
    assert other.http("GET", f"{path}/partitions").json["partitions"] == 0


def test_a_broker_that_serves_a_region_alone_does_not_run_beside_others(bookies: Bookies, tmp_path: Path) -> None:
    region = Region(bookies, tmp_path)
    one, alone = region.brokers["a"], region.broker("alone", {"startTimeoutSeconds": "1"})
    try:
        alone.start()
        with connected(alone.service_url) as client:
            bodies = published(client, "orders", 5)
        one.start()
        wait_until(lambda: not alone.is_running(), "the broker that ran alone to end")
        assert "has started (epoch" in alone.log()
        with connected(one.service_url) as client:
            consumer = client.subscribe("orders", "s", SHARED, initial_position=EARLIEST)
            assert received(consumer, 5) == bodies
        alone.kill()
        alone.start(wait=False)
        wait_until(lambda: not alone.is_running(), "the broker to refuse to run")
        assert "is served by several brokers (a), and this one has no brokerId" in alone.log()
        assert region.owner("orders", one) is one
        assert one.stop() == 0
        alone.kill()
        alone.start()
        with connected(alone.service_url) as client:
            assert published(client, "orders", 5)
    finally:
        one.kill()
        alone.kill()


@pytest.mark.skipif(s3_missing() is not None, reason=str(s3_missing()))
def test_a_topic_that_moves_while_it_is_offloaded_is_read_from_what_both_brokers_copied(
    bookies: Bookies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    settings = {
        "managedLedgerMaxEntriesPerLedger": "20",
        "managedLedgerOffloadDeletionLagMs": "0",
        "retentionCheckIntervalInSeconds": "1",
    }
    bodies = [b"%03d" % number * 3000 for number in range(210)]
    with (
        S3Server(tmp_path / "s3") as server,
        running(Region(bookies, tmp_path, {**server.settings, **settings})) as region,
        connected(region.url) as client,
    ):
        a, b = region.brokers.values()
        first = region.owner("orders", a)
        assert first is not None
        other = b if first is a else a
        client.subscribe("orders", "s").close()
        region_clients.publish(client, "orders", bodies)

        def offloaded(broker: BrokerProcess) -> list[bool]:
            answer = broker.http("GET", "/admin/v2/persistent/public/default/orders/internalStats")
            return [one["offloaded"] for one in answer.json["ledgers"]] if answer.status == 200 else [False]

        def move(broker: BrokerProcess, to: BrokerProcess) -> None:
            bundle = broker.http("GET", "/lookup/v2/topic/persistent/public/default/orders/bundle").text.strip('"')
            path = f"/admin/v2/namespaces/public/default/{bundle}/unload?destinationBroker=127.0.0.1:{to.http_port}"
            assert broker.http("PUT", path).status == 204
            region.taken_by(to, "orders")

        assert first.http("PUT", "/admin/v2/namespaces/public/default/offloadThreshold", 0).status == 204
        wait_until(lambda: any(offloaded(first)), "the first ledger to be copied")
        server.pause()  # while a copy is under way
        move(first, other)
        server.resume()
        wait_until(lambda: all(offloaded(other)[:-1]), "the rest to be copied by the next owner")
        assert everything(client, "orders") == bodies
        move(other, first)
        assert everything(client, "orders") == bodies
        indexes = {path.parent.parent.name for path in server.objects() if path.name == "index"}
        assert len(indexes) >= 10
