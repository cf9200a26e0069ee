# SPDX-License-Identifier: Apache-2.0
"""Meridian's own requests about a subscription of a partitioned topic, in a region of several brokers: as Pulsar's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from meridian_broker.admin.http.errors import Handler
from meridian_broker.admin.http.requests import answer, body, flag, part, state
from meridian_broker.admin.meridian import scoping, syncing, uniting
from meridian_broker.admin.pulsar import spread as pulsar
from meridian_broker.admin.pulsar.spread import Spread, of_each
from meridian_broker.bounds.http import LARGE_BODY_BYTES
from meridian_broker.wire.pulsar.topic_name import TopicName

Json = dict[str, Any]

_HEAD: Final = ("subscription", "region", "synced")


async def spread(request: web.Request) -> web.Response | None:
    """The answer to a request about all partitions of a topic; None: it is not such a request."""
    return await pulsar.spread(request, HOW)


async def _status(request: web.Request, names: list[TopicName]) -> web.Response:
    async def here() -> Json:
        parts = await of_each(request, names, query="")
        shown = _partitions(request, parts)
        if "partitions" not in shown:
            return shown
        return {
            **shown,
            "synced": all(one["synced"] for one in parts.values()),
            "backlog": sum(one["backlog"] for one in parts.values()),
        }

    if flag(request, "allRegions"):
        return answer(await syncing.status_everywhere(request, here, here))
    return answer(await here())


async def _scope(request: web.Request, names: list[TopicName]) -> web.Response:
    return answer(_partitions(request, await of_each(request, names)))


def _partitions(request: web.Request, parts: Mapping[str, Json]) -> Json:
    """The form in which one broker shows several partitions, or a single one."""
    if len(parts) == 1:
        return next(iter(parts.values()))
    shown = {name: {key: value for key, value in one.items() if key not in _HEAD} for name, one in parts.items()}
    return {"subscription": part(request, "subscription"), "region": state(request).region, "partitions": shown}


async def _mode(request: web.Request, names: list[TopicName]) -> web.Response:
    """Each partition is handled on its own. Before any is changed, a dry run of all must succeed."""
    given = await body(request)
    if isinstance(given, Mapping) and not given.get("dryRun"):
        await of_each(request, names, told=lambda _: {**given, "dryRun": True})
    parts = await of_each(request, names)
    counts: dict[str, Json] = {}
    for one in parts.values():
        for region, count in one["regions"].items():
            counts[region] = _added(counts.get(region), count)
    return answer(next(iter(parts.values())) | {"regions": counts})


def _added(one: Json | None, other: Json) -> Json:
    if one is None or "problem" in other:
        return other
    return one if "problem" in one else {key: one[key] + other[key] for key in one}


async def _progress(request: web.Request, names: list[TopicName]) -> web.Response:
    parts = await of_each(request, names)
    topics = {name: told for one in parts.values() for name, told in one["topics"].items()}
    return answer({"region": state(request).region, "topics": topics})


async def _preview(request: web.Request, names: list[TopicName]) -> web.Response:
    """Each partition's owner gets that partition's progress only."""
    given = await body(request, limit=LARGE_BODY_BYTES)
    uniting.check_preview(given)

    def told(name: TopicName) -> Json:
        progress = {topic: text for topic, text in given["progress"].items() if topic == str(name)}
        return {**given, "progress": progress}

    parts = await of_each(request, names, told=told)
    return answer({key: sum(one[key] for one in parts.values()) for key in ("skips", "again")})


async def _damage(request: web.Request, names: list[TopicName]) -> web.Response:
    parts = await of_each(request, names)
    return answer({"claimed": {topic: lost for one in parts.values() for topic, lost in one["claimed"].items()}})


HOW: Final[Mapping[Handler, Spread]] = {
    **pulsar.HOW,
    syncing.status: _status,
    syncing.damage: _damage,
    scoping.get_scope: _scope,
    scoping.set_scope: pulsar.write,
    uniting.mode: _mode,
    uniting.progress: _progress,
    uniting.preview: _preview,
}
"""How to combine the partitions' answers, by the handler that answers for one partition."""
