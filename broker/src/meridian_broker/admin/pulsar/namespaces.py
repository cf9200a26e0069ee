# SPDX-License-Identifier: Apache-2.0
"""``/admin/v2/namespaces``: namespaces, their policies, and operations on all their topics."""

from __future__ import annotations

import asyncio
from collections.abc import Set
from typing import Any, Final
from urllib.parse import quote

from aiohttp import web

from meridian_broker.admin.elsewhere.everywhere import QUESTION_SECONDS, ask, reason
from meridian_broker.admin.figures.turns import in_turns
from meridian_broker.admin.http.requests import (
    Refused,
    answer,
    answer_names,
    body,
    done,
    flag,
    names,
    namespace_of,
    part,
    state,
)
from meridian_broker.admin.http.reserved import refuse_namespace_of_events
from meridian_broker.admin.http.state import AdminState
from meridian_broker.admin.pulsar import dealing, permissions, whole_namespaces
from meridian_broker.admin.pulsar.clusters import check_allowed
from meridian_broker.admin.pulsar.subscriptions import check_elsewhere
from meridian_broker.metadata import keys, policies
from meridian_broker.metadata.errors import NotEmpty, NotFound
from meridian_broker.metadata.policies import NamespaceRecord
from meridian_broker.topics.errors import TopicNotFound
from meridian_broker.topics.service import closing, removal
from meridian_broker.topics.subscriptions.administration import remove_subscriptions, skip
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.errors import InvalidTopicNameError
from meridian_broker.wire.pulsar.topic_name import NON_PERSISTENT, TopicName

AGAIN_SECONDS: Final = 0.1
"""Between two requests to a region that is still deleting topics."""


async def listed(request: web.Request) -> web.Response:
    """Namespaces of a tenant."""
    return answer(sorted(await state(request).catalog.namespaces.names(part(request, "tenant"))))


async def get(request: web.Request) -> web.Response:
    """All policies of a namespace."""
    shown, name = (await _record(request)).to_json(), namespace_of(request)
    shown[permissions.POLICY] = await permissions.as_policy(request, name)
    return answer(shown | {policies.BUNDLES: await dealing.shown(state(request), name)})


async def create(request: web.Request) -> web.Response:
    """Create a namespace; the body holds its first policies."""
    given = permissions.without_policy(await body(request, default=None))
    record = NamespaceRecord.from_json(_with_bundles(state(request), {} if given is None else given))
    await check_allowed(state(request), part(request, "tenant"), record.replication_clusters)
    await state(request).catalog.namespaces.create(namespace_of(request), record)
    return done()


def _with_bundles(admin: AdminState, given: Any) -> Any:
    """The policies, with the default number of bundles if none is given; 0 counts as none, as in Pulsar."""
    if not isinstance(given, dict):
        return given
    bundles = given.get(policies.BUNDLES)
    if bundles is not None and not (isinstance(bundles, dict) and bundles.get("numBundles") in (None, 0)):
        return given
    return given | {policies.BUNDLES: {"numBundles": admin.default_bundles()}}


async def delete(request: web.Request) -> web.Response:
    """Delete an empty namespace; ``?force=true`` with its topics."""
    await delete_namespace(request, namespace_of(request), force=flag(request, "force"))
    return done()


async def delete_namespace(request: web.Request, name: str, *, force: bool) -> None:
    """:raises NotFound: it does not exist.
    :raises NotEmpty: it has topics, and ``force`` is not given; or another region has some that stay there, and nothing
        was deleted.
    """
    admin = state(request)
    catalog = admin.catalog
    await catalog.namespaces.get(name)
    refuse_namespace_of_events(request, name)
    shadows = [one for one in catalog.shadows.all() if one.source.namespace_name == name]
    if outside := sorted(str(one.shadow) for one in shadows if one.shadow.namespace_name != name):
        raise NotEmpty(
            f"topics of namespace {name} have shadows elsewhere, {', '.join(outside[:3])}: delete these first"
        )
    if force:
        await _check_empty_elsewhere(admin, name, may_be_away=True, but=await _bases(admin, name))
    if force and admin.brokers is not None:
        await whole_namespaces.delete_topics(request, name)
    if force:
        parted = [*await catalog.partitioned.names(name), *await catalog.partitioned.names(name, NON_PERSISTENT)]
        plain = [topic_name.parse(one) for one in await admin.service.registry.non_persistent.names(name)]
        for topic in [*(one.shadow for one in shadows), *parted, *plain, *await catalog.topics.names(name)]:
            try:
                await removal.delete(admin.service.opener, topic, force=True)
            except (NotFound, TopicNotFound):
                continue  # a partition was deleted with its topic
        await _become_empty_elsewhere(admin, name)
    else:
        await _check_empty_elsewhere(admin, name, may_be_away=False)
    await catalog.namespaces.delete(name)


async def _become_empty_elsewhere(admin: AdminState, name: str) -> None:
    """Wait until the other regions have deleted what was deleted here. Raises as ``_check_empty_elsewhere`` does."""
    loop = asyncio.get_running_loop()
    until = loop.time() + QUESTION_SECONDS
    while True:
        try:
            return await _check_empty_elsewhere(admin, name, may_be_away=True)
        except NotEmpty:
            if loop.time() >= until:
                raise
        await asyncio.sleep(AGAIN_SECONDS)


async def _bases(admin: AdminState, name: str) -> Set[TopicName]:
    """The namespace's topics here, a partitioned one by its own name."""
    return {
        *await admin.catalog.partitioned.names(name),
        *(topic.base for topic in await admin.catalog.topics.names(name)),
    }


async def _check_empty_elsewhere(
    admin: AdminState, name: str, *, may_be_away: bool, but: Set[TopicName] = frozenset()
) -> None:
    """If regions share this namespace, it is deleted in all of them, and must be empty there.

    :param but: these topics are about to be deleted here, and with that in their other regions.
    :raises NotEmpty: a region has topics in it. :raises Refused: a region cannot be asked.
    """
    session = admin.metadata_sync.session
    if session is None or not admin.metadata_sync.choice.is_synced(keys.namespace(name)):
        return
    path = f"/admin/v2/namespaces/{quote(name)}/topics?mode=ALL"
    for region in sorted(session.regions() - {admin.region}):
        try:
            status, said = await ask(admin, region, "GET", path, seconds=QUESTION_SECONDS)
        except Refused:
            if may_be_away:
                continue
            raise
        if status not in (200, 404):
            raise Refused(503, f"{region} answered {status} when asked for the topics of {name}: {reason(said)}")
        stay = [str(one) for one in said or () if not _goes(admin, region, str(one), but)] if status == 200 else []
        if stay:
            raise NotEmpty(f"namespace {name} holds {', '.join(stay[:3])} in {region}: delete these first")


def _goes(admin: AdminState, region: str, topic: str, deleted: Set[TopicName]) -> bool:
    """Whether a topic of another region is deleted with those deleted here."""
    try:
        base = topic_name.parse(topic).base
    except InvalidTopicNameError:
        return False
    return base.is_persistent and base in deleted and region in admin.service.parts.regions_of(str(base))


# -- policies ------------------------------------------------------------------------------------------------------


async def get_replication(request: web.Request) -> web.Response:
    """Clusters that the namespace's topics live in."""
    return answer(sorted((await _record(request)).replication_clusters))


async def set_replication(request: web.Request) -> web.Response:
    """Let the namespace's topics live in exactly these clusters."""
    wanted = await names(request, "replication clusters")
    await check_allowed(state(request), part(request, "tenant"), wanted)
    return await _set(request, policies.REPLICATION_CLUSTERS, wanted)


async def get_allowed_clusters(request: web.Request) -> web.Response:
    """Clusters that the namespace may be replicated to."""
    return answer(sorted((await _record(request)).allowed_clusters))


async def set_allowed_clusters(request: web.Request) -> web.Response:
    """Set the clusters that the namespace may be replicated to."""
    wanted = await names(request, "allowed clusters")
    await check_allowed(state(request), part(request, "tenant"), wanted)
    return await _set(request, policies.ALLOWED_CLUSTERS, wanted)


# -- all topics at once --------------------------------------------------------------------------------------------


async def get_topics(request: web.Request) -> web.Response:
    """Names of the namespace's topics, each partition by its own name."""
    await _record(request)
    mode = request.query.get("mode", "PERSISTENT").upper()
    namespace, service = namespace_of(request), state(request).service
    names = [] if mode == "NON_PERSISTENT" else await service.registry.names(namespace)
    return await answer_names(
        names if mode == "PERSISTENT" else names + await service.registry.non_persistent.names(namespace)
    )


async def unload(request: web.Request) -> web.Response:
    """Close all topics of the namespace; each is opened again when needed."""
    if state(request).brokers is not None:
        await whole_namespaces.unload(request)
        return done()
    for topic in await _open_topics(request):
        try:
            await closing.unload(state(request).service.opener, topic_name.parse(topic.name))
        except TopicNotFound:
            continue  # deleted meanwhile
    return done()


async def clear_backlog(request: web.Request) -> web.Response:
    """Acknowledge everything for all subscriptions, or the named one, in all topics of the namespace."""
    wanted = request.match_info.get("subscription")
    if state(request).brokers is not None:
        await whole_namespaces.clear_backlog(request, wanted)
        return done()
    for topic in await _all_topics(request):
        for subscription in list(topic.subscriptions.values()):
            if subscription.durable and wanted in (None, subscription.name):
                await skip(subscription, None)
    return done()


async def unsubscribe(request: web.Request) -> web.Response:
    """Delete a subscription from all topics of the namespace."""
    name = part(request, "subscription")
    if state(request).brokers is not None:
        await whole_namespaces.unsubscribe(request, name)
        return done()
    found = [topic.subscriptions[name] for topic in await _all_topics(request) if name in topic.subscriptions]
    for subscription in found:
        subscription.registry.check_unused(name)
    for subscription in found:
        await check_elsewhere(request, [subscription])
    await remove_subscriptions(found)
    return done()


# -- shared --------------------------------------------------------------------------------------------------------


async def _record(request: web.Request) -> NamespaceRecord:
    return await state(request).catalog.namespaces.get(namespace_of(request))


async def _set(request: web.Request, policy: str, value: Any) -> web.Response:
    await state(request).catalog.namespaces.set_policy(namespace_of(request), policy, value)
    return done()


async def _open_topics(request: web.Request) -> list[Topic]:
    await _record(request)
    prefix = f"persistent://{namespace_of(request)}/"
    walk = in_turns(state(request).service.topics.items())
    return [topic async for name, topic in walk if name.startswith(prefix)]


async def _all_topics(request: web.Request) -> list[Topic]:
    """All topics but the one that carries metadata events."""
    await _record(request)
    service, sync = state(request).service, state(request).metadata_sync
    names = await service.registry.names(namespace_of(request))
    found = [name for name in names if not sync.carries_events(name)]
    return [await service.opener.topic(topic_name.parse(name), create=False) async for name in in_turns(found)]
