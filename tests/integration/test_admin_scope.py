# SPDX-License-Identifier: Apache-2.0
"""``/meridian/v1/subscriptions/.../scope`` with two real regions: what is refused and shown, take-over by command."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from typing import Any

import pulsar
import pytest
from meridian_broker.gateway.client import PulsarClientConnection
from meridian_broker.wire.proto import peer_pb2
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from support.brokers.broker_process import RegionsProcess, wait_until
from support.brokers.forked_meridian import meridian_text
from support.brokers.peers import as_region
from support.brokers.region_clients import (
    EXCLUSIVE,
    PATIENCE_MS,
    client,
    new_topic,
    numbered,
    publish,
    rest,
    subscribe,
    take_numbers,
)
from support.protocol.admin_paths import subscription_path, topic_path

EAST, WEST = REGIONS = ("east", "west")
SETTINGS = {"dispatchLeaseSeconds": "2"}


def path(topic: str, name: str = "s") -> str:
    return f"{subscription_path(topic, name)}/scope"


def shown(regions: RegionsProcess, region: str, topic: str) -> dict[str, Any]:
    answer = regions.http(region, "GET", path(topic))
    found: dict[str, Any] = answer.json if answer.status == 200 else {}
    return found


def dispatchers(regions: RegionsProcess, region: str, topic: str) -> dict[str, str]:
    return {one["origin"]: one["dispatched_by"] for one in shown(regions, region, topic).get("shares", ())}


def meridian(regions: RegionsProcess, region: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return meridian_text("subscriptions", *arguments, "--url", regions.admin_url(region))


def test_what_is_refused(regions: RegionsProcess) -> None:
    topic = new_topic("refused")
    with client(regions, EAST) as east:
        own = east.subscribe(topic, "own")
        answer = regions.http(EAST, "POST", path(topic, "own"), {"dispatchScope": "origin"})
        assert answer.status == 412
        assert "not replicated" in answer.text
        consumer = subscribe(east, topic)
        for wrong in (
            {},
            {"dispatchScope": "global"},
            {"takeOver": {"origin": EAST}},
            "origin",
            {"a": 1, "b": 2},
            {"dispatchScop": "origin"},
            {"dispatchScope": "origin", "takeOver": {"origin": EAST, "by": WEST}},
            {"witness": 7},
        ):
            assert regions.http(EAST, "POST", path(topic), wrong).status == 412, wrong
        take_over = {"takeOver": {"origin": EAST, "by": WEST}}
        assert "scope local" in regions.http(EAST, "POST", path(topic), take_over).text
        assert regions.http(EAST, "POST", path(topic), {"dispatchScope": "origin"}).status == 204
        take_over["takeOver"]["by"] = "nowhere"
        answer = regions.http(EAST, "POST", path(topic), take_over)
        assert answer.status == 412
        assert "nowhere is not a region" in answer.text
        assert regions.http(EAST, "POST", path(topic), {"takeOver": {"origin": "mars", "by": EAST}}).status == 412
        assert regions.http(EAST, "GET", path(topic, "none")).status == 404
        consumer.close()
        with pytest.raises(pulsar.PulsarException):
            subscribe(east, topic, kind=EXCLUSIVE, is_read_compacted=True)
        own.close()


def test_a_topic_that_a_region_of_pulsar_has_too_is_refused(regions: RegionsProcess) -> None:
    nowhere = {"serviceUrl": "http://127.0.0.1:1", "brokerServiceUrl": "pulsar://127.0.0.1:1", "kind": "pulsar"}
    assert regions.http(EAST, "PUT", "/admin/v2/clusters/apache", nowhere).status == 204
    for region, allowed in ((EAST, [*REGIONS, "apache"]), (WEST, list(REGIONS))):
        assert regions.http(region, "PUT", "/admin/v2/tenants/mixed", {"allowedClusters": allowed}).status == 204
        policies = {"replication_clusters": allowed}
        assert regions.http(region, "PUT", "/admin/v2/namespaces/mixed/all", policies).status == 204
    topic = "persistent://mixed/all/topic"
    with client(regions, EAST) as east:
        consumer = subscribe(east, topic)
        answer = regions.http(EAST, "POST", path(topic), {"dispatchScope": "origin"})
        assert (answer.status, "Apache Pulsar runs in apache" in answer.text) == (412, True), answer.text
        consumer.close()


def test_two_regions_share_and_one_takes_over_by_command(regions: RegionsProcess) -> None:
    topic = new_topic("shared")
    own = {EAST: EAST, WEST: WEST}
    with client(regions, EAST) as east, client(regions, WEST) as west:
        consumers = {EAST: subscribe(east, topic), WEST: subscribe(west, topic)}
        assert shown(regions, EAST, topic)["dispatch_scope"] == "local"
        done = meridian(regions, WEST, "set-scope", topic, "s", "origin")
        assert done.returncode == 0, done.stderr
        wait_until(
            lambda: all(dispatchers(regions, one, topic) == own for one in REGIONS),
            "each stream to be with its preferred holder",
        )
        assert shown(regions, EAST, topic)["in_force"]
        publish(east, topic, numbered(range(10)))
        publish(west, topic, numbered(range(10, 20)))
        take_numbers(consumers[EAST], range(10))
        take_numbers(consumers[WEST], range(10, 20))

        done = meridian(regions, EAST, "take-over", topic, "s", "--origin", EAST, "--by", WEST)
        assert done.returncode == 0, done.stderr
        moved = {EAST: WEST, WEST: WEST}
        wait_until(
            lambda: all(dispatchers(regions, one, topic) == moved for one in REGIONS), "both streams to be in the west"
        )
        publish(east, topic, numbered(range(20, 30)))
        take_numbers(consumers[WEST], range(20, 30))
        assert rest(consumers[EAST]) == []

        done = meridian(regions, EAST, "take-over", topic, "s", "--origin", EAST, "--by", EAST)
        assert done.returncode == 0, done.stderr
        wait_until(
            lambda: all(dispatchers(regions, one, topic) == own for one in REGIONS),
            "each stream to be with its preferred holder again",
        )
        done = meridian(regions, EAST, "set-scope", topic, "s", "local")
        assert done.returncode == 0, done.stderr
        wait_until(lambda: shown(regions, WEST, topic)["dispatch_scope"] == "local", "the west to know the new scope")
        publish(east, topic, numbered(range(30, 32)))
        found: set[int] = set()

        def both_came() -> bool:
            for consumer in consumers.values():
                found.update(rest(consumer))
            return found == {30, 31}

        wait_until(both_came, "the messages of both regions to arrive")


def test_what_the_dispatching_region_dropped_is_seen_and_taken_over(regions: RegionsProcess) -> None:
    topic = new_topic("dropped")
    with client(regions, EAST) as east, client(regions, WEST) as west:
        consumers = {EAST: subscribe(east, topic), WEST: subscribe(west, topic)}
        assert meridian(regions, EAST, "set-scope", topic, "s", "origin").returncode == 0
        wait_until(
            lambda: dispatchers(regions, WEST, topic) == {EAST: EAST, WEST: WEST},
            "each stream to be with its preferred holder",
        )
        ids = publish(east, topic, numbered(range(5)))

        def owed() -> dict[str, int]:
            return {
                region: one["owed"]
                for region in REGIONS
                for one in shown(regions, region, topic)["shares"]
                if one["origin"] == EAST
            }

        wait_until(lambda: owed() == {EAST: 5, WEST: 5}, "both regions to owe the whole backlog")
        upto = {"ledgerId": ids[2].ledger_id(), "entryId": ids[2].entry_id()}
        expire = f"{topic_path(topic)}/subscription/s/expireMessages"
        for _ in range(5):
            message = consumers[EAST].receive(PATIENCE_MS)
            if int(message.data()) > 2:
                consumers[EAST].acknowledge(message)
        assert regions.http(EAST, "POST", expire, upto).status == 204
        wait_until(lambda: owed() == {EAST: 0, WEST: 3}, "the dropped messages to be owed in the west alone")
        assert rest(consumers[WEST]) == []
        done = meridian(regions, WEST, "status", topic, "s")
        assert "owed" in done.stdout, done.stdout + done.stderr
        assert meridian(regions, WEST, "take-over", topic, "s", "--origin", EAST, "--by", WEST).returncode == 0
        wait_until(lambda: dispatchers(regions, WEST, topic).get(EAST) == WEST, "the west to hold the east's stream")
        take_numbers(consumers[WEST], range(3))


async def test_a_region_of_an_older_version(regions: RegionsProcess) -> None:
    """Its greeting does not mention leases: scope origin is refused, and no longer in force where it was set."""
    old = {"serviceUrl": "http://127.0.0.1:1", "brokerServiceUrl": "pulsar://127.0.0.1:1"}
    assert regions.http(EAST, "PUT", "/admin/v2/clusters/old", old).status == 204
    tenant = regions.http(EAST, "GET", "/admin/v2/tenants/public").json
    tenant["allowedClusters"] = [*REGIONS, "old"]
    assert regions.http(EAST, "POST", "/admin/v2/tenants/public", tenant).status == 204
    assert regions.http(EAST, "PUT", "/admin/v2/namespaces/public/older").status == 204
    replication = "/admin/v2/namespaces/public/older/replication"
    assert regions.http(EAST, "POST", replication, [EAST, "old"]).status == 204
    topic = "persistent://public/older/t"
    with client(regions, EAST) as east:
        await asyncio.to_thread(subscribe, east, topic)

        def set_origin() -> tuple[int, str]:
            answer = regions.http(EAST, "POST", path(topic), {"dispatchScope": "origin"})
            return answer.status, answer.text

        async def told(condition: Callable[[], bool], what: str) -> None:
            await asyncio.to_thread(wait_until, condition, what)

        def is_dialled() -> bool:
            listed = regions.http(EAST, "GET", "/meridian/v1/regions").json["regions"]
            return any(one["name"] == "old" and "progress" in one for one in listed)

        await told(is_dialled, "the new region to be known")
        assert "old has not been reached yet" in set_origin()[1]
        secret = (regions.data_dir / "peer.token").read_bytes().strip()
        connection = await PulsarClientConnection.connect(regions.service_url(EAST), as_region("old", EAST, secret))
        hello = peer_pb2.ProgressHello(region="old", protocol_version=2, next_delta=1)

        def greet(*, leases: bool) -> None:
            hello.leases = leases
            connection.write([encode.simple(pb.BaseCommand.PROGRESS_HELLO, hello)])

        greet(leases=False)
        await told(lambda: "old runs a version without leases" in set_origin()[1], "the greeting")
        greet(leases=True)
        await told(lambda: set_origin()[0] == 204, "the other greeting")
        assert shown(regions, EAST, topic)["in_force"]
        greet(leases=False)
        await told(lambda: not shown(regions, EAST, topic)["in_force"], "the scope not to be in force")
        assert shown(regions, EAST, topic)["scope_reason"] == "old runs a version without leases"
        await connection.close()
    assert regions.http(EAST, "DELETE", "/admin/v2/namespaces/public/older?force=true").status == 204
    tenant["allowedClusters"] = list(REGIONS)
    assert regions.http(EAST, "POST", "/admin/v2/tenants/public", tenant).status == 204
    assert regions.http(EAST, "DELETE", "/admin/v2/clusters/old").status == 204
