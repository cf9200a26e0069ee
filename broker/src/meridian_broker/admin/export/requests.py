# SPDX-License-Identifier: Apache-2.0
"""The requests of the export (``docs/export.md``)."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from meridian_broker.admin.export.export import EXPORTS
from meridian_broker.admin.export.missing_bundles import parse_bundle
from meridian_broker.admin.http.requests import Refused, answer, body, done, number, part
from meridian_broker.bounds.http import LARGE_BODY_BYTES
from meridian_broker.metadata.errors import Invalid


async def take(request: web.Request) -> web.Response:
    """Take a snapshot."""
    exports = request.app[EXPORTS]
    asked = await body(request, default={}, limit=LARGE_BODY_BYTES)
    topics = asked.get("topics") if isinstance(asked, Mapping) else 0
    if topics is not None and not isinstance(topics, str):
        raise Invalid('expected an empty body or {"topics": pattern}')
    bundles = asked.get("bundles")
    try:
        if bundles is None:
            return answer(await exports.take(topics, request.headers.get("Authorization")))
        if not isinstance(bundles, list) or not all(isinstance(one, str) for one in bundles):
            raise Invalid("bundles: expected a list of names")
        return answer(await exports.take_part(topics, map(parse_bundle, bundles)))
    except ValueError as error:
        raise Refused(412, str(error)) from None


async def end(request: web.Request) -> web.Response:
    """End a snapshot before it expires."""
    exports, name = request.app[EXPORTS], part(request, "snapshot")
    if (keeper := exports.keeper(name)) is not None:
        await exports.end_at(keeper, name, request.headers.get("Authorization"))
    exports.end(name)
    return done()


async def table(request: web.Request) -> web.StreamResponse:
    """Stream one partition of one table."""
    exports = request.app[EXPORTS]
    if (keeper := exports.keeper(part(request, "snapshot"))) is not None:
        return await exports.pass_on(request, keeper)
    name = part(request, "table")
    partition = number(request.query.get("partition", "0"), "partition")
    after = number(request.query.get("after", "0"), "after")
    snapshot = exports.find(part(request, "snapshot"), name, partition)
    return await exports.stream(request, snapshot, name, partition, after)
