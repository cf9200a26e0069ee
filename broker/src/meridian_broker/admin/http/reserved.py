# SPDX-License-Identifier: Apache-2.0
"""Requests that would make the event topic of synchronized metadata lose events are refused, for every role.

An event that is lost is found by the next comparison of two regions, except a deletion that all regions are said to
have heard of. So nothing but the brokers moves, cuts or limits that topic while it carries events. To get rid of it,
choose another one first."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from aiohttp import web

from meridian_broker.admin.http.errors import Handler
from meridian_broker.admin.http.requests import Refused, any_topic_of, state

HARMLESS: Final = web.AppKey("harmless", Collection[Handler])
"""Handlers that write without losing messages."""
CONFLICT: Final = 409


def refuse_events(request: web.Request, topic: str) -> None:
    """:raises Refused: the topic carries the metadata events of this region."""
    if state(request).metadata_sync.carries_events(topic):
        raise Refused(
            CONFLICT,
            f"{topic} carries the metadata events of this region: choose another topic first (metadataSyncEventTopic), "
            "or none",
        )


def refuse_namespace_of_events(request: web.Request, namespace: str) -> None:
    """:raises Refused: the topic that carries the metadata events of this region is in this namespace."""
    chosen = state(request).metadata_sync.choice.topic
    if chosen.startswith(f"persistent://{namespace}/"):
        refuse_events(request, chosen)


@web.middleware
async def keeps_events(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse what would make the event topic lose events."""
    is_write = request.method not in ("GET", "HEAD")
    if is_write and "topic" in request.match_info and request.match_info.handler not in request.app[HARMLESS]:
        refuse_events(request, str(any_topic_of(request)))
    return await handler(request)
