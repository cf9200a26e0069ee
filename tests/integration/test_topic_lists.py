# SPDX-License-Identifier: Apache-2.0
"""The topics of a namespace: pattern consumers find new ones, and watchers are told of them, in every region."""

from __future__ import annotations

import re

import _pulsar
import pulsar
import pytest
from meridian_broker.wire.proto import pulsar_pb2 as pb
from support.brokers.broker_process import RegionsProcess, http, wait_until
from support.brokers.region_clients import PATIENCE_MS, connect
from support.protocol.raw_connection import RawConnection, T
from support.protocol.topic_digest import digest

REGIONS = ("east", "west")

NAMESPACE = "/admin/v2/persistent/public/default"


async def raw(regions: RegionsProcess, region: str) -> RawConnection:
    return await RawConnection.open(int(regions.service_url(region).rpartition(":")[2]))


async def watch(connection: RawConnection, pattern: str, known: str | None = None) -> pb.CommandWatchTopicListSuccess:
    asked = pb.CommandWatchTopicList(
        request_id=1, watcher_id=1, namespace="public/default", topics_pattern=pattern, topics_hash=known
    )
    connection.say(T.WATCH_TOPIC_LIST, asked)
    answer: pb.CommandWatchTopicListSuccess = await connection.hear(T.WATCH_TOPIC_LIST_SUCCESS)
    return answer


async def test_a_watcher_is_told_of_created_and_deleted_topics(regions: RegionsProcess) -> None:
    east = await raw(regions, "east")
    first = await watch(east, "public/default/watched-.*")
    assert (list(first.topic), first.topics_hash) == ([], digest([]))
    assert regions.http("east", "PUT", f"{NAMESPACE}/watched-one").status == 204
    update = await east.hear(T.WATCH_TOPIC_UPDATE)
    name = "persistent://public/default/watched-one"
    assert (list(update.new_topics), list(update.deleted_topics)) == ([name], [])
    assert update.topics_hash == digest([name])
    again = await watch(east, "public/default/watched-.*", update.topics_hash)
    assert (list(again.topic), again.topics_hash) == ([], update.topics_hash)
    assert regions.http("east", "DELETE", f"{NAMESPACE}/watched-one?force=true").status == 204
    update = await east.hear(T.WATCH_TOPIC_UPDATE)
    assert (list(update.deleted_topics), update.topics_hash) == ([name], digest([]))
    east.say(T.WATCH_TOPIC_LIST_CLOSE, pb.CommandWatchTopicListClose(request_id=2, watcher_id=1))
    await east.hear(T.SUCCESS)
    assert regions.http("east", "PUT", f"{NAMESPACE}/watched-two").status == 204
    east.say(T.PING, pb.CommandPing())
    await east.hear(T.PONG)
    await east.close()


async def test_a_watcher_is_told_of_topics_from_another_region(regions: RegionsProcess) -> None:
    west = await raw(regions, "west")
    await watch(west, "public/default/(far|wide)-.*")
    client = connect(regions.service_url("east"))
    client.create_producer("far-one").send(b"m")
    update = await west.hear(T.WATCH_TOPIC_UPDATE)
    assert list(update.new_topics) == ["persistent://public/default/far-one"]
    assert regions.http("east", "PUT", f"{NAMESPACE}/wide-one/partitions", 2).status == 204
    client.create_producer("wide-one", batching_enabled=False).send(b"m")
    heard: set[str] = set()
    while len(heard) < 2:
        heard.update((await west.hear(T.WATCH_TOPIC_UPDATE)).new_topics)
    assert heard == {f"persistent://public/default/wide-one-partition-{index}" for index in range(2)}
    client.close()
    await west.close()


@pytest.fixture
def asked_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client accepts ``pattern_auto_discovery_period`` but does not pass it on: it asks once a minute."""

    def configuration() -> _pulsar.ConsumerConfiguration:
        made = plain()
        made.pattern_auto_discovery_period(1)
        return made

    plain = _pulsar.ConsumerConfiguration
    monkeypatch.setattr(_pulsar, "ConsumerConfiguration", configuration)


@pytest.mark.usefixtures("asked_every_second")
@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_a_pattern_consumer_finds_topics_created_later(regions: RegionsProcess, domain: str) -> None:
    client = connect(regions.service_url("west"))
    first = client.create_producer(f"{domain}://public/default/{domain}-found-1")
    modes = {"persistent": pulsar.RegexSubscriptionMode.PersistentOnly}
    consumer = client.subscribe(
        re.compile(f"{domain}://public/default/{domain}-found-.*"),
        "s",
        regex_subscription_mode=modes.get(domain, pulsar.RegexSubscriptionMode.NonPersistentOnly),
    )
    first.send(b"one")
    assert consumer.receive(PATIENCE_MS).data() == b"one"
    second = client.create_producer(f"{domain}://public/default/{domain}-found-2")
    stats = f"{regions.admin_url('west')}/admin/v2/{domain}/public/default/{domain}-found-2/stats"

    def takes_messages() -> bool:
        found = http("GET", stats).json["subscriptions"].get("s", {"consumers": []})
        return any(one["availablePermits"] > 0 for one in found["consumers"])

    wait_until(takes_messages, "the consumer to find the new topic")
    second.send(b"two")
    assert consumer.receive(PATIENCE_MS).data() == b"two"
    client.close()


def test_both_kinds_of_topics_of_a_namespace_are_listed(regions: RegionsProcess) -> None:
    assert regions.http("east", "PUT", "/admin/v2/namespaces/public/both", {}).status == 204
    for domain in ("persistent", "non-persistent"):
        assert regions.http("east", "PUT", f"/admin/v2/{domain}/public/both/one").status == 204
        assert regions.http("east", "PUT", f"/admin/v2/{domain}/public/both/many/partitions", 2).status == 204
    lists = {
        mode: regions.http("east", "GET", f"/admin/v2/namespaces/public/both/topics?mode={mode}").json
        for mode in ("PERSISTENT", "NON_PERSISTENT", "ALL")
    }
    stored = [f"persistent://public/both/{name}" for name in ("many-partition-0", "many-partition-1", "one")]
    assert lists["PERSISTENT"] == stored
    assert lists["NON_PERSISTENT"] == ["non-persistent://public/both/one"]
    assert lists["ALL"] == [*stored, "non-persistent://public/both/one"]
    parted = regions.http("east", "GET", "/admin/v2/non-persistent/public/both/partitioned").json
    assert parted == ["non-persistent://public/both/many"]
    assert regions.http("east", "DELETE", "/admin/v2/namespaces/public/both?force=true").status == 204
