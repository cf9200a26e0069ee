# SPDX-License-Identifier: Apache-2.0
"""Is this broker alive, ready, and which version is it."""

from __future__ import annotations

from aiohttp import web

from meridian_broker.admin.requests import Refused, state


async def health(request: web.Request) -> web.Response:
    """``ok`` once everything is open."""
    await ready(request)
    return web.Response(text="ok")


async def ready(request: web.Request) -> web.Response:
    """200 with an empty body once everything is open."""
    if not state(request).ready:
        raise Refused(503, "this broker is starting: ask again in a moment")
    if state(request).gateway.draining:
        raise Refused(503, "this broker is shutting down")
    return web.Response(text="ok")
