# SPDX-License-Identifier: Apache-2.0
"""Requests about a partitioned topic in a region of several brokers: the owner of each partition does its part.

The only broker of a region has all partitions and needs none of this.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from aiohttp import web

from meridian_broker.admin.elsewhere.everywhere import ask_all
from meridian_broker.admin.elsewhere.parts import GONE, REPEAT, Part, ask_each, check_unused, done_by
from meridian_broker.admin.http.errors import Handler
from meridian_broker.admin.http.requests import Refused, answer, any_topic_of, body, done, flag, read_body, state
from meridian_broker.admin.pulsar import compacting, expiring, shadows, stats, subscriptions, topics
from meridian_broker.bounds.http import BODY_BYTES
from meridian_broker.metadata.errors import NotFound
from meridian_broker.positions import Stamp
from meridian_broker.topics.service import creation, removal
from meridian_broker.wire.pulsar.topic_name import TopicName, in_path

Spread = Callable[[web.Request, list[TopicName]], Awaitable[web.Response]]
"""Answers a request that concerns these partitions."""

_TOPIC: Final = {"admin": 6, "meridian": 7}
"""Index of the topic's name in a path: ``/admin/v2/domain/tenant/namespace/topic``, or with one part more before it."""


async def spread(request: web.Request, hows: Mapping[Handler, Spread]) -> web.Response | None:
    """The answer to a request about all partitions of a topic; None: it is not such a request."""
    how = hows.get(request.match_info.handler)
    name = any_topic_of(request)
    if how is None or name.partition >= 0:
        return None
    if request.match_info.handler is subscriptions.create:
        await creation.partitions(state(request).service.opener, name, create=True)
    record = await state(request).catalog.partitioned.on_record(name)
    if record is None or (record.deleting is not None and request.match_info.handler is not topics.delete_partitioned):
        return None
    return await how(request, [name.with_partition(number) for number in range(record.partitions)])


async def of_each(
    request: web.Request,
    names: list[TopicName],
    last: str = "",
    advice: str = REPEAT,
    *,
    query: str | None = None,
    told: Callable[[TopicName], object] | None = None,
) -> dict[str, Any]:
    """The answers of the partitions that succeeded, by name.

    :param last: replaces what follows the topic's name in the path.
    :param query: replaces the request's own.
    :param told: the body for each, as JSON; None: the request's own.
    """
    asked = request.rel_url.raw_query_string if query is None else query
    own = b"" if told is not None else await read_body(request, BODY_BYTES)
    parts = [
        Part(
            *(name, request.method, _path(request, name, last, asked)),
            own if told is None else json.dumps(told(name)).encode(),
        )
        for name in names
    ]
    return {str(one.part.topic): one.value for one in done_by(await ask_each(request, parts), advice)}


def _path(request: web.Request, name: TopicName, last: str, query: str) -> str:
    parts = request.rel_url.raw_path.split("/")
    place = _TOPIC[parts[1]]
    parts[place] += f"-partition-{name.partition}"
    path = "/".join([*parts[: place + 1], last] if last else parts)
    return f"{path}?{query}" if query else path


async def write(request: web.Request, names: list[TopicName]) -> web.Response:
    await of_each(request, names)
    return done()


async def _skip(request: web.Request, names: list[TopicName]) -> web.Response:
    """Not idempotent: a partition that has skipped would skip as many messages again."""
    await of_each(
        request, names, advice="check the partitions' backlogs, and repeat it only for those that have not skipped"
    )
    return done()


async def _write_at(request: web.Request, names: list[TopicName]) -> web.Response:
    """If the body is a message id, only the partition that has the message is asked."""
    given = await body(request, default=None)
    chosen = names
    if isinstance(given, Mapping) and "ledgerId" in given:
        number = given.get("partitionIndex", -1)
        chosen = [name for name in names if name.partition == number]
        if not chosen and given["ledgerId"] not in (-1, (1 << 63) - 1):
            raise Refused(412, "message ids differ by partition: add partitionIndex, or use earliest or latest")
    await of_each(request, chosen or names)
    return done()


async def _names(request: web.Request, names: list[TopicName]) -> web.Response:
    every = await of_each(request, names)
    return answer(sorted({name for some in every.values() for name in some}))


async def _merged(request: web.Request, names: list[TopicName]) -> web.Response:
    every = await of_each(request, names)
    return answer({key: value for some in every.values() for key, value in some.items()})


async def _most_urgent(request: web.Request, names: list[TopicName]) -> web.Response:
    every = await of_each(request, names)
    return answer(max(every.values(), key=compacting.urgency))


async def _stats(request: web.Request, names: list[TopicName]) -> web.Response:
    return answer(stats.summed(request, await of_each(request, names, "stats")))


async def _internal_stats(request: web.Request, names: list[TopicName]) -> web.Response:
    every = await of_each(request, names, "internalStats")
    return answer({"metadata": {"partitions": len(every), "deleted": False}, "partitions": every})


async def _terminate(request: web.Request, names: list[TopicName]) -> web.Response:
    every = await of_each(request, names, "terminate")
    return answer({str(one["partitionIndex"]): one for one in every.values()})


async def _delete(request: web.Request, names: list[TopicName]) -> web.Response:
    """One write commits the deletion of all partitions, then their owners delete them. Repeating it completes it."""
    admin, name = state(request), any_topic_of(request)
    record = await admin.catalog.partitioned.on_record(name)
    if record is None:
        raise NotFound(f"partitioned topic {name} does not exist")
    if (given := request.query.get("stamp")) is not None:
        await _delete_as_elsewhere(request, names, topics.stamp_elsewhere(admin, given))
        return done()
    if not flag(request, "cascade"):
        await removal.check_no_shadows(admin.service.opener, name)
    others = admin.service.parts.regions_of(str(name)) - {admin.region} if name.is_persistent else frozenset()
    path = request.rel_url.raw_path
    if record.deleting is None and not flag(request, "force"):
        await check_unused(request, names)
        if others:
            await topics.check_deletion(admin, name, others, path)
    if flag(request, "cascade"):
        await shadows.delete_all(request, name, force=flag(request, "force"))
    stamp = await removal.new_stamp(admin.service.opener, name)
    if record.deleting is not None:
        stamp = Stamp.parse(record.deleting)
    elif name.is_persistent:
        await removal.begin_partitioned(admin.service.opener, name, stamp)
    asked = f"{path}?stamp={quote(str(stamp), safe='')}"
    telling = asyncio.create_task(ask_all(admin, others, "DELETE", asked, may_be_away=True))
    try:
        await _delete_parts(request, names, stamp, "force=true")
    finally:
        await telling
    if flag(request, "deleteSchema"):
        await admin.catalog.schemas.delete(name)
    return done()


async def _delete_as_elsewhere(request: web.Request, names: list[TopicName], stamp: Stamp) -> None:
    """Delete a topic that another region deleted. What was created after that stays."""
    name, partitioned = any_topic_of(request), state(request).catalog.partitioned
    if await removal.is_shadow(state(request).service.opener, name):
        return  # see ``removal.delete_as_elsewhere``
    known = await partitioned.deletion(name)
    if known is None or known.stamp < stamp:
        await partitioned.begin_deletion(name, stamp)
        await _delete_parts(request, names, stamp, f"stamp={quote(str(stamp), safe='')}")


async def _delete_parts(request: web.Request, names: list[TopicName], stamp: Stamp, query: str) -> None:
    """Delete every partition at its owner, then the record."""
    name, admin = any_topic_of(request), state(request)
    shadow = await admin.catalog.shadows.fetch(name)
    every = dict.fromkeys([*names, *await removal.partition_names(admin.service.opener, name)])
    paths = [(one, f"/admin/v2/{in_path(str(one))}?{query}") for one in every]
    said = await ask_each(request, [Part(one, "DELETE", path) for one, path in paths])
    done_by([one for one in said if one.status != GONE])
    await removal.forget_partitions(admin.catalog, name, stamp, shadow)


HOW: Final[Mapping[Handler, Spread]] = {
    topics.unload: write,
    topics.trim: write,
    topics.truncate: write,
    topics.terminate_partitions: _terminate,
    topics.delete_partitioned: _delete,
    compacting.start: write,
    compacting.status: _most_urgent,
    subscriptions.listed: _names,
    subscriptions.create: _write_at,
    subscriptions.delete: write,
    subscriptions.reset_to_time: write,
    subscriptions.reset_to_id: _write_at,
    subscriptions.skip_all: write,
    subscriptions.skip_some: _skip,
    subscriptions.get_replicated: _merged,
    subscriptions.set_replicated: write,
    expiring.by_id: _write_at,
    expiring.by_age: write,
    expiring.by_age_in_all: write,
    stats.partitioned: _stats,
    stats.partitioned_internal: _internal_stats,
}
"""How to combine the partitions' answers, by the handler that answers for one partition."""
