# SPDX-License-Identifier: Apache-2.0
"""Requests about all topics of a namespace in a region of several brokers: the owner of each does its part."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from aiohttp import web

from meridian_broker.admin.elsewhere.parts import Part, Said, ask_each, done_by
from meridian_broker.admin.http.requests import namespace_of, state
from meridian_broker.admin.pulsar import dealing, shadows
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.topic_name import TopicName, in_path

GONE: Final = 404


async def unload(request: web.Request) -> None:
    """Have every owner give up its bundles. :raises Refused: not all did."""
    admin, namespace = state(request), namespace_of(request)
    bundles = await dealing.of(admin, namespace)
    parts = []
    for bundle in bundles.every():
        if admin.owner is not None and admin.owner.view.owner(bundle) is not None:
            path = f"/admin/v2/namespaces/{'/'.join(map(_quoted, namespace.split('/')))}/{bundle.range}/unload"
            parts.append(Part(None, "PUT", path))
    done_by(await ask_each(request, parts))


async def clear_backlog(request: web.Request, wanted: str | None) -> None:
    """Clear the backlog of all subscriptions, or of the named one. :raises Refused: not all did."""
    topics = await _topics(request, namespace_of(request))
    if wanted is None:
        listed = _there(await ask_each(request, [Part(one, "GET", f"{_path(one)}/subscriptions") for one in topics]))
        found = [(one.part.topic, name) for one in listed if one.part.topic is not None for name in one.value or ()]
    else:
        found = [(one, wanted) for one in topics]
    paths = [(one, f"{_path(one)}/subscription/{_quoted(name)}/skip_all") for one, name in found]
    _there(await ask_each(request, [Part(one, "POST", path) for one, path in paths]))


async def unsubscribe(request: web.Request, name: str) -> None:
    """Delete a subscription from the topics that have it. :raises Refused: not all did."""
    topics = await _topics(request, namespace_of(request))
    paths = [(one, f"{_path(one)}/subscription/{_quoted(name)}") for one in topics]
    _there(await ask_each(request, [Part(one, "DELETE", path) for one, path in paths]))


async def delete_topics(request: web.Request, namespace: str) -> None:
    """Delete all topics, also those with clients. :raises Refused: not all are gone."""
    for source in {one.source for one in state(request).catalog.shadows.all()}:
        if source.namespace_name == namespace:
            await shadows.delete_all(request, source, force=True)
    partitioned = await state(request).catalog.partitioned.names(namespace)
    whole = [Part(one, "DELETE", f"{_path(one)}/partitions?force=true") for one in partitioned]
    _there(await ask_each(request, whole))
    _there(
        await ask_each(
            request, [Part(one, "DELETE", f"{_path(one)}?force=true") for one in await _topics(request, namespace)]
        )
    )


async def _topics(request: web.Request, namespace: str) -> list[TopicName]:
    """All topics but the one that carries metadata events."""
    await state(request).catalog.namespaces.get(namespace)
    names = await state(request).service.registry.names(namespace)
    return [topic_name.parse(name) for name in names if not state(request).metadata_sync.carries_events(name)]


def _there(said: list[Said]) -> list[Said]:
    """Those that succeeded; topics and subscriptions that do not exist are left out.

    :raises Refused: others did not do it.
    """
    return done_by([one for one in said if one.status != GONE])


def _path(topic: TopicName) -> str:
    return f"/admin/v2/{in_path(str(topic))}"


def _quoted(name: str) -> str:
    return quote(name, safe="")
