# SPDX-License-Identifier: Apache-2.0
"""``/admin/v2/non-persistent``: topics that store nothing."""

from __future__ import annotations

from aiohttp import web

from meridian_broker.admin.http.requests import any_topic_of, part, state
from meridian_broker.admin.pulsar.topic_stats import Json, TopicStats
from meridian_broker.topics.nonpersistent.topic import NonPersistentSubscription, NonPersistentTopic
from meridian_broker.wire.pulsar.topic_name import NON_PERSISTENT


def is_non_persistent(request: web.Request) -> bool:
    """Whether the path is about a non-persistent topic."""
    return part(request, "domain") == NON_PERSISTENT


async def non_persistent(request: web.Request) -> list[NonPersistentTopic]:
    """The topic in the path, or those of its partitions that are in use.

    :raises TopicNotFound: it does not exist.
    """
    name, service = any_topic_of(request), state(request).service
    record = await state(request).catalog.partitioned.find(name) if name.partition < 0 else None
    if record is None:
        return [await service.registry.non_persistent.topic(name, create=False)]
    names = [str(name.with_partition(index)) for index in range(record.partitions)]
    topics = service.registry.non_persistent.topics
    return [topics[one] for one in names if one in topics]


def non_persistent_stats(stats: TopicStats, topic: NonPersistentTopic) -> Json:
    """``stats``, with Pulsar's names."""
    age = (topic.scheduler.now_ms() - topic.created_ms) / 1000
    rate_in = stats.rates.rate((topic.name, "in"), topic.messages_in, age)
    bytes_in = stats.rates.rate((topic.name, "bytes in"), topic.bytes_in, age)
    subscriptions = {one.name: _subscription(stats, one) for one in topic.subscriptions.values()}
    return {
        "msgRateIn": rate_in,
        "msgThroughputIn": bytes_in,
        "msgRateOut": sum(one["msgRateOut"] for one in subscriptions.values()),
        "msgThroughputOut": sum(one["msgThroughputOut"] for one in subscriptions.values()),
        "bytesInCounter": topic.bytes_in,
        "msgInCounter": topic.messages_in,
        "bytesOutCounter": sum(one["bytesOutCounter"] for one in subscriptions.values()),
        "msgOutCounter": sum(one["msgOutCounter"] for one in subscriptions.values()),
        "averageMsgSize": bytes_in / rate_in if rate_in else 0.0,
        "msgDropRate": stats.rates.rate((topic.name, "dropped"), topic.dropped, age),
        "msgDropCount": topic.dropped,
        "storageSize": 0,
        "backlogSize": 0,
        "ownerBroker": stats.state.admin_url().partition("://")[2],
        "publishers": [stats.producer(one) for one in topic.producers.values()],
        "subscriptions": subscriptions,
        "replication": {},
    }


def _subscription(stats: TopicStats, subscription: NonPersistentSubscription) -> Json:
    consumers = [stats.consumer(one) for one in subscription.consumers]
    topic = subscription.topic
    age = (topic.scheduler.now_ms() - topic.created_ms) / 1000
    return {
        "msgRateOut": sum(one["msgRateOut"] for one in consumers),
        "msgThroughputOut": sum(one["msgThroughputOut"] for one in consumers),
        "bytesOutCounter": subscription.bytes_out,
        "msgOutCounter": subscription.messages_out,
        "msgBacklog": 0,
        "unackedMessages": 0,
        "type": subscription.type.name,
        "activeConsumerName": subscription.active.name if subscription.active is not None else None,
        "msgDropRate": stats.rates.rate((topic.name, subscription.name, "dropped"), subscription.dropped, age),
        "msgDropCount": subscription.dropped,
        "consumers": consumers,
        "durable": False,
        "replicated": False,
    }
