# SPDX-License-Identifier: Apache-2.0
"""Topics are deleted on request, or by policy when nobody uses them; never otherwise."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import aiohttp
import pulsar
import pytest
from meridian_broker.admin.elsewhere.users import used_elsewhere
from meridian_broker.gateway.roles import Consumer
from meridian_broker.metadata.policy_values import CAUGHT_UP as CAUGHT_UP_MODE
from meridian_broker.metadata.policy_values import InactiveTopics, Retention
from meridian_broker.metadata.rules import Rules
from meridian_broker.positions import Stamp
from meridian_broker.positions.position import EARLIEST
from meridian_broker.replication.entries.source import DeletionNotice
from meridian_broker.topics.service import creation, removal
from meridian_broker.topics.service.incarnations import follow
from meridian_broker.topics.service.removal import delete_as_elsewhere
from meridian_broker.topics.service.service import TopicService
from meridian_broker.topics.service.unused import expire_subscriptions, remove_unused
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.topic_name import TopicName, parse
from support.brokers.broker_inside import broker_inside
from support.brokers.broker_process import BrokerProcess, http, wait_until
from support.brokers.broker_regions import Region, regions, until
from support.brokers.region_clients import PATIENCE_MS
from support.protocol.raw_connection import RawConnection, T

SETTINGS = {"brokerDeleteInactiveTopicsFrequencySeconds": "1"}

NS = "/admin/v2/namespaces/public"
TOPICS = "/admin/v2/persistent/public"
SOON = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 1,
    "deleteWhileInactive": True,
}
CAUGHT_UP = SOON | {"inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up"}


def listed(broker: BrokerProcess, namespace: str) -> set[str]:
    names: list[str] = broker.http("GET", f"{TOPICS}/{namespace}").json
    return {name.rpartition("/")[2] for name in names}


def test_deleting_with_clients_and_with_schemas(broker: BrokerProcess, client: pulsar.Client) -> None:
    broker.http("PUT", f"{NS}/byhand")
    topic = "public/byhand/t"
    producer = client.create_producer(topic, schema=pulsar.schema.StringSchema())
    consumer = client.subscribe(topic, "s")
    producer.send("old")
    assert broker.http("DELETE", f"{TOPICS}/byhand/t").status == 412
    assert consumer.receive(PATIENCE_MS).data() == b"old"
    off = {"allowAutoTopicCreation": False, "topicType": "non-partitioned"}
    assert broker.http("POST", f"{NS}/byhand/autoTopicCreation", off).status == 204
    assert broker.http("DELETE", f"{TOPICS}/byhand/t?force=true").status == 204
    schema = f"/admin/v2/schemas/{topic}/schema"
    assert listed(broker, "byhand") == set()
    assert broker.http("PUT", f"{TOPICS}/byhand/t").status == 204
    assert broker.http("GET", schema).status == 200
    producer.close()  # it would return, and bring its schema along
    consumer.close()
    wait_until(
        lambda: broker.http("DELETE", f"{TOPICS}/byhand/t?force=true&deleteSchema=true").status == 204,
        "the topic and its schema to be deleted",
    )
    broker.http("PUT", f"{TOPICS}/byhand/t")
    assert broker.http("GET", schema).status == 404


async def test_a_producer_that_connects_during_a_deletion_leaves_no_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_inside(tmp_path) as inside:
        await inside.service.opener.topic(parse("t"), create=True)
        schemas, numbered = inside.catalog.schemas, inside.catalog.schemas._numbering
        looked, deleted = asyncio.Event(), asyncio.Event()

        async def slowly(topic: TopicName) -> object:
            found = await numbered(topic)
            if not looked.is_set():
                looked.set()
                await deleted.wait()
            return found

        monkeypatch.setattr(schemas, "_numbering", slowly)
        wire = await RawConnection.open(inside.settings.network.broker_service_port)
        wire.ask_producer("persistent://public/default/t", schema=pb.Schema(name="t", schema_data=b"", type="String"))
        await looked.wait()
        url = f"{inside.listeners.admin_url}{TOPICS}/default/t?force=true&deleteSchema=true"
        assert (await asyncio.to_thread(http, "DELETE", url)).status == 204
        deleted.set()
        assert (await wire.hear(T.ERROR)).error == pb.ServiceNotReady
        assert await schemas.all(parse("t")) == []
        await wire.close()


def test_unused_topics_are_deleted_where_policies_say_so(broker: BrokerProcess, client: pulsar.Client) -> None:
    broker.http("PUT", f"{NS}/idle")
    for name in ("gone", "subscribed", "retained", "used", "kept"):
        client.create_producer(f"public/idle/{name}").close()
    client.subscribe("public/idle/subscribed", "s").close()
    used = client.create_producer("public/idle/used")
    retention = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 10}
    assert broker.http("POST", f"{TOPICS}/idle/retained/retention", retention).status == 204
    assert broker.http("POST", f"{TOPICS}/idle/kept/inactiveTopicPolicies", SOON | {"deleteWhileInactive": False})
    assert broker.http("PUT", f"{TOPICS}/idle/parts/partitions", 2).status == 204
    assert broker.http("POST", f"{NS}/idle/inactiveTopicPolicies", SOON).status == 204
    left = {"subscribed", "retained", "used", "kept"}
    wait_until(lambda: listed(broker, "idle") == left, "the unused topics to be removed")
    assert broker.http("GET", f"{TOPICS}/idle/parts/partitions").json["partitions"] == 2, (
        "the number of partitions stays"
    )
    # Now those whose subscriptions acknowledged everything, too.
    consumer = client.subscribe("public/idle/behind", "s")
    client.create_producer("public/idle/behind").send(b"not read")
    consumer.close()
    assert broker.http("POST", f"{NS}/idle/inactiveTopicPolicies", CAUGHT_UP).status == 204
    used.close()
    left = {"retained", "kept", "behind"}
    wait_until(lambda: listed(broker, "idle") == left, "the topics that were read to the end to be removed")
    consumer = client.subscribe("public/idle/behind", "s")
    assert consumer.receive(PATIENCE_MS).data() == b"not read"
    consumer.close()


def an_hour_passes(service: TopicService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the clock moves."""
    now_ms = service.parts.scheduler.now_ms
    monkeypatch.setattr(service.parts.scheduler, "now_ms", lambda: now_ms() + 3_600_000)


def ruled_by(service: TopicService, rules: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set policies that apply to every topic."""
    monkeypatch.setattr(service.parts.catalog, "rules", lambda *_: rules)


async def opened(service: TopicService, rules: Rules, monkeypatch: pytest.MonkeyPatch) -> Topic:
    """A topic in the default namespace, to which these policies apply."""
    ruled_by(service, rules, monkeypatch)
    return await service.opener.topic(parse("t"), create=True)


async def expire(region: Region) -> None:
    """Delete the subscriptions unused for as long as their topics' policies say."""
    process = region.process
    await expire_subscriptions(process.service.registry, partial(used_elsewhere, process.admin))


async def test_topics_and_subscriptions_possibly_used_in_other_regions_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = Rules(inactive_topics=InactiveTopics(True, CAUGHT_UP_MODE, 60), subscription_expiration_minutes=30)
    async with regions(tmp_path, "us-east", "us-west") as (east, west):
        service, there = east.process.service, west.process.service
        topic = await opened(service, rules, monkeypatch)
        for name, replicated in (("alone", False), ("everywhere", True)):
            topic.subscribing.create_subscription(name, EARLIEST, replicated=replicated)
        await until(lambda: topic.name in there.topics and "everywhere" in there.topics[topic.name].subscriptions)
        await expire(east)
        assert set(topic.subscriptions) == {"alone", "everywhere"}, "they were unused only for a moment"
        an_hour_passes(service, monkeypatch)
        await remove_unused(service.opener)
        assert service.topics[topic.name] is topic
        assert topic.failure is None
        await expire(east)
        assert set(topic.subscriptions) == {"everywhere"}


async def test_a_subscription_that_no_region_uses_expires_in_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R16: inactive means no consumer in any region; an unreachable region prevents the removal."""
    rules = Rules(subscription_expiration_minutes=30)
    async with regions(tmp_path, "us-east", "us-west") as (east, west):
        service, there = east.process.service, west.process.service
        topic = await opened(service, rules, monkeypatch)
        topic.subscribing.create_subscription("s", EARLIEST, replicated=True)
        await until(lambda: topic.name in there.topics and "s" in there.topics[topic.name].subscriptions)
        an_hour_passes(service, monkeypatch)
        consumer = await Consumer.subscribe(await west.connect(), topic.name, "s", replicated=True)
        for _ in range(2):
            await expire(east)
            assert "s" in topic.subscriptions, "it is, or was a moment ago, used in the west"
            await consumer.close()
        an_hour_passes(there, monkeypatch)
        await west.stop()
        await expire(east)
        assert "s" in topic.subscriptions, "the west is unreachable"
        await west.start()
        there = west.process.service
        await until(lambda: topic.name in there.topics and "s" in there.topics[topic.name].subscriptions)
        an_hour_passes(there, monkeypatch)
        await until(lambda: not east.process.exchange.status(topic.name, "s")[0].reason)
        await expire(east)
        assert "s" not in topic.subscriptions
        await until(lambda: "s" not in there.topics[topic.name].subscriptions)


async def test_a_deletion_reported_twice_creates_nothing_and_deletes_nothing_created_since(tmp_path: Path) -> None:
    """R8: a deletion is reported by links and by the request that asks for it. A partition that was created only to be
    deleted was taken for a new topic by the other regions, and stayed."""
    async with regions(tmp_path, "us-east") as (east,):
        service, base = east.process.service, parse("persistent://public/default/told")
        topics = service.parts.catalog.topics
        await service.parts.catalog.partitioned.create(base, 3)
        used = [await service.opener.topic(base.with_partition(number), create=True) for number in (0, 1)]
        stamp = Stamp(service.parts.scheduler.now_ms(), 0, "us-west")
        made: list[str] = []
        topics.on_change = lambda name, is_made: made.append(str(name)) if is_made else None
        await asyncio.gather(
            follow(service.opener, used[0], DeletionNotice(str(stamp), {}, True)),
            delete_as_elsewhere(service.opener, base, stamp, partitioned=True),
        )
        assert made == []
        assert await topics.names("public/default") == []
        assert await service.parts.catalog.partitioned.find(base) is None
        await service.parts.catalog.partitioned.create(base, 1)
        again = await service.opener.topic(base.with_partition(0), create=True)
        await delete_as_elsewhere(service.opener, base, stamp, partitioned=True)
        assert await service.parts.catalog.partitioned.find(base) is not None
        assert service.topics[again.name] is again
        assert again.failure is None
        name = parse("persistent://public/default/alone")
        await service.opener.topic(name, create=True)
        await delete_as_elsewhere(service.opener, name, stamp, partitioned=False)
        alone = await service.opener.topic(name, create=True)
        await delete_as_elsewhere(service.opener, name, stamp, partitioned=False)
        assert service.topics[alone.name] is alone
        assert alone.failure is None


async def test_asking_for_a_topic_that_is_being_deleted_does_not_recreate_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R8: another region asks before it deletes the topic too. Its partitions came back, and stayed, in both."""
    async with regions(tmp_path, "us-east") as (east,), aiohttp.ClientSession() as http:
        service, base = east.process.service, parse("persistent://public/default/asked")
        await creation.create_partitioned(service.opener, base, 2, {})
        partitioned = service.parts.catalog.partitioned
        forget, forgetting, is_asked = partitioned.delete, asyncio.Event(), asyncio.Event()

        async def forget_when_asked(name: TopicName, stamp: Stamp | None = None) -> Stamp:
            forgetting.set()
            await is_asked.wait()
            return await forget(name, stamp)

        monkeypatch.setattr(partitioned, "delete", forget_when_asked)
        deleting = asyncio.create_task(removal.delete(service.opener, base, force=False))
        await forgetting.wait()
        async with http.get(f"{east.admin_url}{TOPICS}/default/asked/partitioned-stats") as answer:
            assert answer.status == 404, await answer.text()
        is_asked.set()
        await deleting
        assert await service.parts.catalog.topics.names("public/default") == []


async def test_retained_topics_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention counts from the last use, whatever the topic stores."""
    rule = InactiveTopics(True, CAUGHT_UP_MODE, 60)
    async with regions(tmp_path, "alone") as (region,):
        service = region.process.service
        topic = await opened(service, Rules(inactive_topics=rule), monkeypatch)
        await remove_unused(service.opener)
        assert service.topics.get(topic.name) is topic, "it was unused only for a moment"
        an_hour_passes(service, monkeypatch)
        for retention in (Retention(-1, -1), Retention(-1, 5), Retention(90, 100)):
            ruled_by(service, Rules(inactive_topics=rule, retention=retention), monkeypatch)
            topic.follow(service.parts.rules(parse(topic.name)))
            await remove_unused(service.opener)
            assert service.topics.get(topic.name) is topic
        ruled_by(service, Rules(inactive_topics=rule, retention=Retention(50, 100)), monkeypatch)
        topic.follow(service.parts.rules(parse(topic.name)))
        await remove_unused(service.opener)
        assert topic.name not in service.topics
        assert await service.parts.catalog.topics.find(parse(topic.name)) is None
