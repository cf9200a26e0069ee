# SPDX-License-Identifier: Apache-2.0
"""``/lookup/v2``: which broker serves a topic, and which bundle it belongs to."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from meridian_broker.admin.http.owners import place_of, redirect
from meridian_broker.admin.http.requests import Refused, answer, any_topic_of, state
from meridian_broker.admin.pulsar import dealing

LISTENER_HEADER: Final = "X-Pulsar-ListenerName"


async def topic(request: web.Request) -> web.Response:
    """Addresses of the broker that serves the topic, for the listener that the client names."""
    admin = state(request)
    admin.service.registry.check_lives_here(any_topic_of(request))
    listener = request.headers.get(LISTENER_HEADER) or request.query.get("listenerName", "")
    place = await place_of(request, listener)
    if place is not None and not place.owns:
        raise redirect(request, place)
    addresses = admin.gateway.addresses(listener) if place is None else place.addresses
    if addresses is None:
        raise Refused(503, f"the broker advertises no listener {listener!r}: see advertisedListeners")
    return answer(
        {
            "brokerUrl": addresses.service_url,
            "brokerUrlTls": addresses.service_url_tls,
            "httpUrl": addresses.admin_url,
            "httpUrlTls": addresses.admin_url_tls,
            "nativeUrl": addresses.service_url,
        }
    )


async def bundle(request: web.Request) -> web.Response:
    """The part of the hash range that the topic falls into."""
    name = any_topic_of(request)
    return web.Response(text=(await dealing.of(state(request), name.namespace_name)).of(name).range)
