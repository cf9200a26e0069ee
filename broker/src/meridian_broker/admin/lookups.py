# SPDX-License-Identifier: Apache-2.0
"""``/lookup/v2``: which broker serves a topic. One broker serves all topics of its region."""

from __future__ import annotations

from binascii import crc32

from aiohttp import web

from meridian_broker.admin.requests import answer, state, topic_of
from meridian_broker.metadata.policies import boundaries
from meridian_broker.topics.errors import TopicNotFound


async def topic(request: web.Request) -> web.Response:
    """Addresses of the broker that serves the topic."""
    admin = state(request)
    await admin.service.check_exists(topic_of(request))
    return answer(
        {
            "brokerUrl": admin.service_url(),
            "brokerUrlTls": None,
            "httpUrl": admin.admin_url(),
            "httpUrlTls": None,
            "nativeUrl": admin.service_url(),
        }
    )


async def bundle(request: web.Request) -> web.Response:
    """The part of the hash range that the topic falls into."""
    name = topic_of(request)
    namespace = state(request).catalog.namespace(name.namespace_name)
    if namespace is None:
        raise TopicNotFound(f"namespace {name.namespace_name} does not exist")
    borders = boundaries(namespace.bundles)
    place = crc32(str(name).encode())
    upper = next(border for border in borders[1:] if place < int(border, 16) or border == borders[-1])
    return web.Response(text=f"{borders[borders.index(upper) - 1]}_{upper}")
