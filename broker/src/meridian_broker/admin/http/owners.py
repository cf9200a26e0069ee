# SPDX-License-Identifier: Apache-2.0
"""Redirects requests about a topic that another broker of the region serves, as in Pulsar: 307, and the client repeats
the request there. A region's only broker serves every topic and runs none of this."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Final

from aiohttp import web

from meridian_broker.admin.http.errors import Handler
from meridian_broker.admin.http.requests import Refused, any_topic_of, flag, namespace_of, state
from meridian_broker.gateway.addresses import Place

AT_OWNER: Final = web.AppKey("at_owner", Collection[Handler])
"""The handlers that need the topic in the path, or its partitions, to be open."""
ANYWHERE: Final = web.AppKey("anywhere", Collection[Handler])
"""Of those, the handlers that need only the partitions."""
AUTHORITATIVE: Final = "authoritative"


async def place_of(request: web.Request, listener: str = "") -> Place | None:
    """The broker that serves the topic in the path; None: this one.

    :raises TopicError, MetadataError: the owner cannot be determined now.
    """
    locate = state(request).gateway.locate
    if locate is None:
        return None
    return await locate(any_topic_of(request), listener, flag(request, AUTHORITATIVE))


def redirect(request: web.Request, place: Place) -> web.HTTPTemporaryRedirect:
    """The answer that sends the client there. :raises Refused: the broker has no address for it."""
    base = None
    if place.addresses is not None:
        base = place.addresses.admin_url_tls if request.secure else place.addresses.admin_url
    if base is None:
        raise Refused(503, "the broker that serves the topic has no address for this client: see advertisedListeners")
    url = request.rel_url if place.owns else request.rel_url.update_query({AUTHORITATIVE: "true"})
    to = base + url.raw_path_qs
    return web.HTTPTemporaryRedirect(to, text=to)  # other regions' brokers use the body, which is proven


Spread = Callable[[web.Request], Awaitable[web.Response | None]]
SPREAD: Final[web.AppKey[Spread]] = web.AppKey("spread")
"""Answers requests about all partitions of a topic, which several brokers may serve; None: it is not one."""


@web.middleware
async def at_owner(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let only the owner of a topic answer requests that need it open, and the owners of its partitions their part."""
    if (
        state(request).gateway.locate is None
        or request.match_info.handler not in request.app[AT_OWNER]
        or state(request).catalog.namespace(namespace_of(request)) is None  # no broker serves it
    ):
        return await handler(request)
    if (answer := await request.app[SPREAD](request)) is not None:
        return answer
    if request.match_info.handler not in request.app[ANYWHERE] and (place := await place_of(request)) is not None:
        raise redirect(request, place)
    return await handler(request)
