# SPDX-License-Identifier: Apache-2.0
"""``/admin/v2/persistent/.../subscription``: subscriptions of a topic, or of all partitions of a partitioned one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from aiohttp import web

from meridian_broker.admin.elsewhere.users import objections
from meridian_broker.admin.figures.turns import in_turns
from meridian_broker.admin.http.requests import (
    Refused,
    answer,
    answer_names,
    body,
    done,
    flag,
    is_excluded,
    message_id,
    number,
    part,
    properties,
    state,
    topic_of,
    truth,
)
from meridian_broker.admin.pulsar import replicators
from meridian_broker.admin.pulsar.non_persistent import is_non_persistent, non_persistent
from meridian_broker.admin.pulsar.shadows import check_not_shadow
from meridian_broker.admin.pulsar.topics import opened
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.topics import validation
from meridian_broker.topics.context import TopicContext
from meridian_broker.topics.directory.listing import in_order
from meridian_broker.topics.errors import SubscriptionExists, SubscriptionNotFound
from meridian_broker.topics.names import COMPACTION_SUBSCRIPTION
from meridian_broker.topics.subscriptions.administration import (
    make_subscription,
    move_subscription,
    move_subscription_to_time,
    remove_subscriptions,
    replicate_subscription,
    skip,
)
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar import topic_name

T = TypeVar("T", bound=TopicContext)


async def named(request: web.Request) -> list[Subscription]:
    """The subscription in the path, of the topic or of all partitions that have it.

    :raises SubscriptionNotFound: none has.
    """
    return [subscription for _, subscription in await by_topic(request)]


async def by_topic(request: web.Request) -> list[tuple[Topic, Subscription]]:
    """As ``named``, each with its topic."""
    topics = await opened(request)
    name = part(request, "subscription")
    found = [(topic, topic.subscriptions[name]) for topic in topics if name in topic.subscriptions]
    if not found:
        raise SubscriptionNotFound(f"there is no subscription {name!r} on {topics[0].name}")
    return found


async def listed(request: web.Request) -> web.Response:
    """Names of the topic's subscriptions."""
    scheduler = state(request).service.parts.scheduler
    if is_non_persistent(request):
        found = await non_persistent(request)
        return await answer_names(await in_order({name for topic in found for name in topic.subscriptions}, scheduler))
    topics = await opened(request)
    names: set[str] = set()
    async for topic in in_turns(topics):
        names.update(topic.subscriptions)
    if any(topic.compaction.view is not None for topic in topics):
        names.add(COMPACTION_SUBSCRIPTION)
    return await answer_names(await in_order(names, scheduler))


async def create(request: web.Request) -> web.Response:
    """Create a subscription, and its topic as a consumer would.

    The body is the id of its next message; empty: the latest."""
    given = await body(request, default=None)
    name = part(request, "subscription")
    said = request.query.get("replicated")
    having = properties(given.get("properties")) if isinstance(given, Mapping) else {}
    validation.subscription(name, having.items())
    topics = await opened(request, create=True)
    if all(name in topic.subscriptions for topic in topics):
        raise SubscriptionExists(f"subscription {name!r} exists already on {topics[0].name}")
    targets = [(topic, LATEST) for topic in topics] if given is None else places(topics, given)
    for topic, place in targets:
        if name not in topic.subscriptions:
            rules = state(request).service.parts.rules(topic_name.parse(topic.name))
            wanted = rules.replicate_subscriptions if said is None else truth(said, "?replicated")
            await make_subscription(topic.subscribing, name, place, replicated=wanted, properties=having)
    return done()


async def delete(request: web.Request) -> web.Response:
    """Delete a subscription, a replicated one in all regions; ``?force=true`` also when it has consumers.

    Consumers count in all regions, and a region that cannot be asked forbids it as well (R16). Deleting the
    subscription of compaction deletes the compacted view."""
    if part(request, "subscription") == COMPACTION_SUBSCRIPTION:
        await _forget_view(await opened(request))
        return done()
    found = await named(request)
    forced = flag(request, "force")
    if not forced:
        for subscription in found:
            subscription.registry.check_unused(subscription.name)
        await check_elsewhere(request, found)
    await remove_subscriptions(found, forced=forced)
    return done()


async def check_elsewhere(request: web.Request, found: list[Subscription]) -> None:
    """:raises Refused: a replicated subscription has consumers in another region, or one cannot be asked (R16)."""
    replicated = [
        subscription for subscription in found if subscription.durable and subscription.record.is_known_elsewhere
    ]
    if replicated:
        name = topic_name.parse(replicated[0].topic.name)
        asked = str(name if len(found) == 1 else name.base)
        objection = await objections(state(request), asked, replicated[0].name)
        if objection is not None:
            raise Refused(412, objection)


async def _forget_view(topics: list[Topic]) -> None:
    having = [topic.compaction for topic in topics if topic.compaction.view is not None]
    if not having:
        raise SubscriptionNotFound(f"{topics[0].name} was never compacted")
    for compaction in having:
        await compaction.forget()


async def reset_to_time(request: web.Request) -> web.Response:
    """Move the subscription to the first message published at or after a time, in milliseconds since 1970."""
    time_ms = number(part(request, "timestamp"), "timestamp")
    for subscription in await named(request):
        await move_subscription_to_time(subscription, time_ms)
    return done()


async def reset_to_id(request: web.Request) -> web.Response:
    """Move the subscription to a message: it becomes the next one or, if excluded, the last acknowledged one."""
    given = await body(request)
    found = {subscription.topic.name: subscription for subscription in await named(request)}
    excluded = is_excluded(given)
    for topic, place in places([one.topic for one in found.values()], given):
        if excluded and place not in (EARLIEST, LATEST):
            place = Position(place.ledger, place.entry + 1)
        await move_subscription(found[topic.name], place)
    return done()


async def peek(_: web.Request) -> web.Response:
    """Refused: peeking is not supported yet. Pulsar's tools would take 404 for an empty backlog and print nothing."""
    raise Refused(501, "messages cannot be peeked at yet: use a reader, or `meridian consume --no-ack`")


async def skip_all(request: web.Request) -> web.Response:
    """Acknowledge everything stored so far. For ``pulsar.repl.REGION``: skip everything that waits for that region."""
    if (remote := replicators.remote_of(request)) is not None:
        await replicators.skip(request, remote, None)
        return done()
    for subscription in await named(request):
        await skip(subscription, None)
    return done()


async def skip_some(request: web.Request) -> web.Response:
    """Acknowledge the next entries; for a partitioned topic, this many in each partition.

    For ``pulsar.repl.REGION``: skip the next entries that wait for that region.
    """
    count = number(part(request, "count"), "the number of messages", 1)
    if (remote := replicators.remote_of(request)) is not None:
        await replicators.skip(request, remote, count)
        return done()
    for subscription in await named(request):
        await skip(subscription, count)
    return done()


async def get_replicated(request: web.Request) -> web.Response:
    """Whether the subscription's progress is kept the same in all regions, per topic or partition."""
    return answer({one.topic.name: one.replicated for one in await named(request)})


async def set_replicated(request: web.Request) -> web.Response:
    """Keep the subscription's progress the same in all regions, or stop doing so; the body is true or false."""
    given = await body(request)
    await replicate(request, truth(given if isinstance(given, str) else str(given), "the body"))
    return done()


async def replicate(request: web.Request, wanted: bool) -> None:
    """:raises Refused: the topic lives in this region alone."""
    if wanted:
        check_not_shadow(request, topic_of(request), "replicate subscriptions of")
    found = await named(request)
    if wanted and not state(request).service.parts.is_in_other_regions(found[0].topic.name):
        raise Refused(412, f"{found[0].topic.name} exists in this region only: replicate its namespace first")
    for subscription in found:
        await replicate_subscription(subscription, wanted)


def places(topics: list[T], given: object) -> list[tuple[T, Position]]:
    """The topics that a message id refers to, and its position in each.

    :raises Refused: an id of one message, for several partitions.
    """
    place = message_id(given)
    if place in (EARLIEST, LATEST):
        return [(topic, place) for topic in topics]
    partition = given.get("partitionIndex", -1) if isinstance(given, Mapping) else -1
    if len(topics) == 1 and partition in (-1, topics[0].partition):
        return [(topics[0], place)]
    chosen = [topic for topic in topics if topic.partition == partition and partition >= 0]
    if not chosen:
        raise Refused(412, "message ids differ by partition: add partitionIndex, or use earliest or latest")
    return [(chosen[0], place)]
