# SPDX-License-Identifier: Apache-2.0
"""Cursors of replicators, which Pulsar's admin API addresses like subscriptions: ``pulsar.repl.REGION``.

Their backlog can be dropped, and nothing else. This acts only in the region that is asked: the cursor is that region's.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from meridian_broker.admin.http.requests import Refused, part, state
from meridian_broker.admin.pulsar.topics import opened
from meridian_broker.positions.position import Position
from meridian_broker.topics.backfill import skipping
from meridian_broker.topics.names import REPLICATION_PREFIX
from meridian_broker.topics.topic import Topic

_PREFIX: Final = f"{REPLICATION_PREFIX}."


def remote_of(request: web.Request) -> str | None:
    """The region whose replicator's cursor the path names; None: it names a subscription."""
    name = part(request, "subscription")
    return name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else None


async def skip(request: web.Request, remote: str, count: int | None) -> None:
    """Skip the next entries; None: all that are stored now. For a partitioned topic, this many in each partition."""
    for topic in await opened(request):
        await skipping.skip_entries(topic, remote, state(request).replication, count)


async def expire(request: web.Request, remote: str, seconds: int) -> None:
    """Skip older entries. :raises Refused: nothing waits for the region."""
    topics = await opened(request)
    _check_backlog(request, topics, remote)
    for topic in topics:
        before_ms = topic.scheduler.now_ms() - seconds * 1000
        await skipping.skip_old(topic, remote, state(request).replication, before_ms)


async def skip_upto(request: web.Request, remote: str, places: list[tuple[Topic, Position]]) -> None:
    """Skip everything up to these places. :raises Refused: nothing waits for the region."""
    _check_backlog(request, [topic for topic, _ in places], remote)
    for topic, upto in places:
        await skipping.skip_upto(topic, remote, state(request).replication, upto)


def _check_backlog(request: web.Request, topics: list[Topic], remote: str) -> None:
    replication = state(request).replication
    if not any(skipping.backlog(topic, remote, replication) for topic in topics):
        raise Refused(409, f"nothing waits for {remote} on {topics[0].name}: nothing expires")
