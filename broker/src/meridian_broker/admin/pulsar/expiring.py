# SPDX-License-Identifier: Apache-2.0
"""``expireMessages``: an operator drops entries, without an acknowledgement (R14).

In this region alone, as each region applies its own drops; with ``?allRegions=true`` in every region of the topic."""

from __future__ import annotations

from urllib.parse import quote

from aiohttp import web

from meridian_broker.admin.elsewhere.everywhere import ask, ask_all, reason
from meridian_broker.admin.http.requests import Refused, body, done, flag, is_excluded, number, part, state
from meridian_broker.admin.pulsar import replicators
from meridian_broker.admin.pulsar.subscriptions import named, places
from meridian_broker.admin.pulsar.topics import opened
from meridian_broker.positions import Cause
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.topics.context import TopicContext
from meridian_broker.topics.cursors import drops
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.wire.pulsar.topic_name import in_path

ALL_REGIONS = "allRegions"


async def by_age(request: web.Request) -> web.Response:
    """Expire messages older than this many seconds; with ``?allRegions=true`` in every region.

    For ``pulsar.repl.REGION``: skip the entries that have waited that long for that region.
    """
    seconds = number(part(request, "seconds"), "the age in seconds")
    if (remote := replicators.remote_of(request)) is not None:
        await replicators.expire(request, remote, seconds)
        return done()
    found = await named(request)
    _check_backlog(request, found)
    await _drop_old(found, seconds)
    await _elsewhere(request, found[0].topic)
    return done()


async def by_age_in_all(request: web.Request) -> web.Response:
    """Expire messages older than this many seconds for all subscriptions; with ``?allRegions=true`` in every region."""
    seconds = number(part(request, "seconds"), "the age in seconds")
    topics = await opened(request)
    await _drop_old([one for topic in topics for one in topic.subscriptions.values()], seconds)
    await _elsewhere(request, topics[0])
    return done()


async def by_id(request: web.Request) -> web.Response:
    """Expire messages up to this one, inclusive unless excluded; with ``?allRegions=true`` in every region.

    For ``pulsar.repl.REGION``: skip the entries that wait for that region, up to the message.
    """
    given = await body(request)
    if (remote := replicators.remote_of(request)) is not None:
        waiting = places(await opened(request), given)
        await replicators.skip_upto(request, remote, [(one, _upto(one, given, place)) for one, place in waiting])
        return done()
    found = {subscription.topic.name: subscription for subscription in await named(request)}
    chosen = places([one.topic for one in found.values()], given)
    _check_backlog(request, [found[topic.name] for topic, _ in chosen])
    for topic, place in chosen:
        await drops.drop_upto(topic, [found[topic.name].cursor], Cause.TTL, _upto(topic, given, place))
        await drops.durable(topic)
    if flag(request, ALL_REGIONS):
        for topic, place in chosen:
            await _id_elsewhere(request, topic, place, excluded=is_excluded(given))
    return done()


def _upto(topic: TopicContext, given: object, place: Position) -> Position:
    """The last position to expire."""
    return topic.log.before(place) if is_excluded(given) and place not in (EARLIEST, LATEST) else place


def _check_backlog(request: web.Request, found: list[Subscription]) -> None:
    """:raises Refused: nothing could expire here, and other regions are not meant."""
    if not flag(request, ALL_REGIONS) and not any(subscription.backlog() for subscription in found):
        raise Refused(409, f"subscription {found[0].name!r} has no backlog on {found[0].topic.name}: nothing expires")


async def _drop_old(subscriptions: list[Subscription], seconds: int) -> None:
    by_topic: dict[str, list[Subscription]] = {}
    for subscription in subscriptions:
        by_topic.setdefault(subscription.topic.name, []).append(subscription)
    for ones in by_topic.values():
        topic = ones[0].topic
        await drops.drop_old(topic, [one.cursor for one in ones], topic.scheduler.now_ms() - seconds * 1000)
        await drops.durable(topic)


async def _elsewhere(request: web.Request, topic: TopicContext) -> None:
    if flag(request, ALL_REGIONS):
        admin = state(request)
        others = admin.service.parts.regions_of(topic.name) - {admin.region}
        await ask_all(admin, others, request.method, request.rel_url.raw_path)


async def _id_elsewhere(request: web.Request, topic: TopicContext, place: Position, *, excluded: bool) -> None:
    """The message has another id in each region: ask for it, then expire everything up to it there."""
    admin = state(request)
    path = in_path(topic.name)
    name = quote(part(request, "subscription"), safe="")
    problems = []
    for region in sorted(admin.service.parts.regions_of(topic.name) - {admin.region}):
        there = {"ledgerId": place.ledger, "entryId": place.entry}
        try:
            if place not in (EARLIEST, LATEST):
                query = f"from={quote(admin.region, safe='')}&id={place}"
                status, there = await ask(
                    admin, region, "GET", f"/meridian/v1/topics/{path}/messageid/translate?{query}"
                )
                if status != 200:
                    problems.append(f"{region} does not know the message ({status}: {reason(there)})")
                    continue
            wanted = {"ledgerId": there["ledgerId"], "entryId": there["entryId"], "isExcluded": excluded}
            where = f"/admin/v2/{path}/subscription/{name}/expireMessages"
            status, said = await ask(admin, region, "POST", where, wanted)
        except Refused as refused:
            problems.append(str(refused))
            continue
        if status >= 300 and status not in (404, 409):
            problems.append(f"{region} answered {status}: {reason(said)}")
    if problems:
        raise Refused(503, f"done in {admin.region}, but not everywhere: {'; '.join(problems)}; repeat the request")
