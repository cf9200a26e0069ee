# SPDX-License-Identifier: Apache-2.0
"""The two requests of the export (``docs/export.md``)."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from meridian_broker.admin.export.export import EXPORTS
from meridian_broker.admin.http.requests import Refused, answer, body, number, part
from meridian_broker.metadata.errors import Invalid


async def take(request: web.Request) -> web.Response:
    """Take a snapshot."""
    asked = await body(request, default={})
    topics = asked.get("topics") if isinstance(asked, Mapping) else 0
    if topics is not None and not isinstance(topics, str):
        raise Invalid('expected the body {"topics": pattern}, and may be empty')
    try:
        return answer(await request.app[EXPORTS].take(topics))
    except ValueError as error:
        raise Refused(412, str(error)) from None


async def table(request: web.Request) -> web.StreamResponse:
    """Stream one partition of one table."""
    exports = request.app[EXPORTS]
    name = part(request, "table")
    partition = number(request.query.get("partition", "0"), "partition")
    after = number(request.query.get("after", "0"), "after")
    snapshot = exports.find(part(request, "snapshot"), name, partition)
    return await exports.stream(request, snapshot, name, partition, after)
