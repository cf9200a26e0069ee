# SPDX-License-Identifier: Apache-2.0
"""The event topic of synchronized metadata belongs to the brokers: no client reads it, writes to it or displaces
the synchronizer, and no admin request makes it lose events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pulsar
import pytest
from meridian_broker.metadata import keys
from meridian_broker.metadata.sync.events import Changes, Event, encode
from meridian_broker.metadata.sync.stamped import Stamped, canonical
from meridian_broker.positions.clock import Stamp
from meridian_broker.server.broker import BrokerProcess
from support.brokers.broker_inside import broker_inside
from support.brokers.broker_process import RegionsProcess, http, wait_until
from support.brokers.region_clients import connected
from support.contracts.metadata_contract import wait_until as wait_inside

REGIONS = ("us", "eu")
TOPIC = "persistent://public/default/metadata-events"
LETTERS = f"{TOPIC}-metadata-syncer-DLQ"
SETTINGS = {"metadataSyncEventTopic": TOPIC}
NAME = "metadata-syncer"
REST = "/admin/v2/persistent/public/default/metadata-events"
TTL = "/admin/v2/namespaces/public/default/messageTTL"


def is_synced(regions: RegionsProcess) -> bool:
    return all(regions.http(one, "GET", "/meridian/v1/metadata/status").json.get("synced") for one in REGIONS)


def travels(regions: RegionsProcess, seconds: int) -> None:
    """Checks that an event of each region reaches the other."""
    for at, other in (REGIONS, REGIONS[::-1]):
        seconds += 1
        assert regions.http(at, "POST", TTL, seconds).status == 204
        wait_until(
            lambda other=other, text=str(seconds): regions.http(other, "GET", TTL).text == text,
            f"{other} to have the TTL",
        )


@pytest.fixture(autouse=True)
def synced(regions: RegionsProcess) -> None:
    wait_until(lambda: is_synced(regions), "the regions to be in step")


ATTEMPTS: dict[str, Callable[[pulsar.Client, str], Any]] = {
    "publish": lambda client, topic: client.create_producer(topic),
    "publish alone": lambda client, topic: client.create_producer(
        topic, access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing
    ),
    "take the synchronizer's place": lambda client, topic: client.subscribe(
        topic, NAME, consumer_type=pulsar.ConsumerType.Failover
    ),
    "keep the synchronizer out": lambda client, topic: client.subscribe(topic, NAME),
    "listen": lambda client, topic: client.subscribe(topic, "mine"),
    "read": lambda client, topic: client.create_reader(topic, pulsar.MessageId.earliest),
}


@pytest.mark.parametrize("topic", [TOPIC, LETTERS])
@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
def test_no_client_gets_in(regions: RegionsProcess, attempt: Callable[[pulsar.Client, str], Any], topic: str) -> None:
    with connected(regions.service_url("us"), 10) as client:
        with pytest.raises(pulsar.PulsarException) as refused:
            attempt(client, topic)
        assert "NotAllowed" in str(refused.value) or "Operation" in str(refused.value)
    stats = regions.http("us", "GET", f"{REST}/stats").json
    assert list(stats["subscriptions"]) == [NAME]
    assert len(stats["subscriptions"][NAME]["consumers"]) == 1
    travels(regions, 100)


def test_the_admin_api_makes_it_lose_nothing(regions: RegionsProcess) -> None:
    subscription = f"{REST}/subscription/{NAME}"
    travels(regions, 200)
    for method, path, body in (
        ("DELETE", REST, ...),
        ("DELETE", f"{REST}?force=true", ...),
        ("POST", f"{REST}/terminate", ...),
        ("DELETE", f"{REST}/truncate", ...),
        ("POST", f"{subscription}/skip_all", ...),
        ("POST", f"{subscription}/skip/1", ...),
        ("POST", f"{subscription}/resetcursor/1", ...),
        ("POST", f"{subscription}/expireMessages/1", ...),
        ("POST", f"{REST}/all_subscription/expireMessages/1", ...),
        ("POST", f"{subscription}/replicatedSubscriptionStatus", True),
        ("DELETE", f"{subscription}?force=true", ...),
        ("POST", f"{REST}/messageTTL?messageTTL=1", ...),
        ("POST", f"{REST}/maxProducers", 1),
        ("PUT", f"{REST}/partitions", 4),
        ("DELETE", "/admin/v2/namespaces/public/default?force=true", ...),
    ):
        refused = regions.http("us", method, path, body)
        assert refused.status == 409, f"{method} {path}: {refused.status} {refused.text}"
        assert "metadata" in refused.reason
    for method, path in (
        ("PUT", f"{REST}/unload"),
        ("POST", "/admin/v2/namespaces/public/default/clearBacklog"),
        ("POST", f"/admin/v2/namespaces/public/default/unsubscribe/{NAME}"),
    ):
        assert regions.http("us", method, path).status == 204
    wait_until(lambda: is_synced(regions), "the regions to be in step")
    travels(regions, 210)


def test_policies_of_its_namespace_do_not_limit_it(regions: RegionsProcess) -> None:
    for path, value in (("maxProducersPerTopic", 0), ("maxConsumersPerTopic", 1), ("encryptionRequired", True)):
        assert regions.http("us", "POST", f"/admin/v2/namespaces/public/default/{path}", value).status == 204
    quota = {"limitSize": 1, "limitTime": -1, "policy": "consumer_backlog_eviction"}
    assert regions.http("us", "POST", "/admin/v2/namespaces/public/default/backlogQuota", quota).status == 204
    for region in REGIONS:
        assert regions.http(region, "PUT", f"{REST}/unload").status == 204
    wait_until(lambda: is_synced(regions), "the regions to be in step")
    travels(regions, 300)


def test_clients_that_were_connected_before_are_disconnected(regions: RegionsProcess) -> None:
    other = "persistent://public/default/other-events"
    assert regions.http("us", "POST", "/admin/v2/namespaces/public/default/encryptionRequired", False).status == 204
    with contextlib.ExitStack() as stack:
        for region in REGIONS:
            client = stack.enter_context(connected(regions.service_url(region), 10))
            alone = pulsar.ProducerAccessMode.Exclusive
            client.create_producer(other, access_mode=alone if region == "us" else pulsar.ProducerAccessMode.Shared)
            client.subscribe(other, NAME, replicate_subscription_state_enabled=True)
        for region in REGIONS:
            path = f"/admin/v2/brokers/configuration/metadataSyncEventTopic/{quote(other, safe='')}"
            assert regions.http(region, "POST", path).status == 204
        wait_until(lambda: is_synced(regions), "the regions to be in step")
        travels(regions, 400)


async def ask(broker: BrokerProcess, method: str, path: str, body: Any = ...) -> Any:
    answer = await asyncio.to_thread(http, method, f"{broker.listeners.admin_url}{path}", body)
    assert answer.status < 300, answer.text
    return answer.json if answer.text else None


async def test_a_region_speaks_for_itself_only(tmp_path: Path) -> None:
    """A region that holds the shared secret says that another region wrote."""
    secret = tmp_path / "secret"
    secret.write_text("s" * 40, encoding="utf-8")
    secret.chmod(0o600)
    async with broker_inside(
        tmp_path / "data", metadataSyncEventTopic=TOPIC, peerTokenFile=secret, metadataSyncScopes="tenants"
    ) as broker:
        await ask(broker, "PUT", "/admin/v2/clusters/ap", {"serviceUrl": "http://127.0.0.1:9"})
        await ask(broker, "POST", "/admin/v2/tenants/public", {"adminRoles": [], "allowedClusters": ["inside", "ap"]})
        await ask(broker, "POST", "/admin/v2/namespaces/public/default/replication", ["inside", "ap"])
        await wait_inside(
            lambda: broker.metadata_sync.session is not None and broker.metadata_sync.session.topic.is_active
        )
        session = broker.metadata_sync.session
        assert session is not None
        await wait_inside(lambda: "ap" in session.regions())
        path = keys.tenant("forged")
        event = Event(path, Stamped(Stamp(broker.scheduler.now_ms(), 0, "ap"), canonical({})))
        await session.topic.notify(encode(Changes("ap", (event,))))
        await wait_inside(lambda: session.topic.dead_letters == 1)
        assert "says it is from ap" in session.topic.dead[0].reason
        assert session.topic.dead[0].region == "inside"
        assert await broker.metadata_sync.store.get(path) is None
