# SPDX-License-Identifier: Apache-2.0
"""Another region, which does not know the open topics, deletes their namespace: the topics lose nothing."""

from __future__ import annotations

import logging

import aiohttp
import pytest
from meridian_broker.metadata import keys
from meridian_broker.metadata.policies import NamespaceRecord
from meridian_broker.metadata.policy_table import parse_level
from meridian_broker.metadata.store import Delete, Put
from meridian_broker.positions.position import EARLIEST
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.topics.service import rounds, unused
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar.topic_name import parse
from support.brokers.broker_regions import until

NAMESPACE = "public/orders"
TOPICS = [parse(f"persistent://{NAMESPACE}/{name}") for name in ("kept", "subscribed", "unused")]
LONG_AGO_MS = 1
RULES = {
    "retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
    "message_ttl_in_seconds": 0,
}
HARSH = {
    "message_ttl_in_seconds": 1,
    "subscription_expiration_time_minutes": 1,
    "inactive_topic_policies": {
        "deleteWhileInactive": True,
        "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
        "maxInactiveDurationSeconds": 1,
    },
    "backlog_quota_map": {"message_age": {"limitTime": 1, "policy": "consumer_backlog_eviction"}},
}


async def nobody(*_: object) -> None:
    return None


async def published(inside: BrokerProcess, rules: dict[str, object]) -> list[Topic]:
    """Topics with two ledgers of old messages; one of them has a subscription that is owed the messages."""
    regions = frozenset(("inside",))
    await inside.catalog.namespaces.create(NAMESPACE, NamespaceRecord(regions, own=parse_level(rules)))
    topics = [await inside.service.opener.topic(name, create=True) for name in TOPICS]
    for topic in topics[:2]:
        for count in (1, 2):
            topic.log.append_own([(0, 1, 0, 0, LONG_AGO_MS, b"", b"x")], lambda *_: None, [0])
            await until(lambda topic=topic, count=count: topic.log.entries == count)
            await topic.log.roll()
    topics[1].subscribing.create_subscription("s", EARLIEST, replicated=False)
    return topics


async def everything_due(inside: BrokerProcess) -> None:
    """Run everything that may remove part of a topic."""
    service = inside.service
    await service.policies.follow()
    await rounds.trim_all(service)
    await rounds.expire_all(service)
    await rounds.check_quotas(service)
    await unused.expire_subscriptions(service.registry, nobody)
    await unused.remove_unused(service.opener)
    await rounds.trim_all(service)


def in_a_year(topics: list[Topic], monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = topics[0].scheduler
    later = scheduler.now_ms() + 365 * 86_400_000
    monkeypatch.setattr(scheduler, "now_ms", lambda: later)


@pytest.mark.parametrize("what", [keys.namespace(NAMESPACE), keys.tenant("public")])
async def test_nothing_is_removed_until_the_namespace_is_back(
    inside: BrokerProcess, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topics = await published(inside, RULES | HARSH)
    kept = [(topic.log.entries, len(topic.log.spans())) for topic in topics]
    store = inside._metadata
    found = [*await store.scan(what + "/")]
    record = await store.get(what)
    assert record is not None
    found.append((what, record))
    with caplog.at_level(logging.WARNING):
        assert await store.transact([], [Delete(path) for path, _ in found])
        await until(lambda: inside.catalog.namespace(NAMESPACE) is None)
        in_a_year(topics, monkeypatch)
        for _ in range(2):
            await everything_due(inside)
    assert [inside.service.topics.get(str(name)) for name in TOPICS] == topics
    assert [(topic.log.entries, len(topic.log.spans())) for topic in topics] == kept
    subscription = topics[1].subscriptions["s"]
    assert subscription.backlog() == 2
    assert topics[0].rules.retention.time_minutes == -1
    said = [one for one in caplog.messages if NAMESPACE in one]
    assert len(said) == 1 and "is missing" in said[0]
    url = f"http://127.0.0.1:{inside.settings.network.web_service_port}/meridian/v1/health"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        health = await answer.json()
    assert (health["healthy"], health["missingNamespaces"]) == (False, [NAMESPACE])
    assert await store.transact([], [Put(path, one.value) for path, one in found])
    await until(lambda: inside.catalog.namespace(NAMESPACE) is not None)
    await everything_due(inside)
    assert subscription.backlog() == 0 or "s" not in topics[1].subscriptions
    assert inside.service.policies.missing == frozenset()
