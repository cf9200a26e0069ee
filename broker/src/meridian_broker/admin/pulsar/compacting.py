# SPDX-License-Identifier: Apache-2.0
"""``/admin/v2/persistent/.../compaction``: compact a topic, or all partitions of one, and show the status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from meridian_broker.admin.http.requests import answer, done
from meridian_broker.admin.pulsar.topics import opened
from meridian_broker.topics.compaction.compaction import Status


async def start(request: web.Request) -> web.Response:
    """Start compacting the topic in the background."""
    topics = await opened(request)
    for topic in topics:
        topic.check_own_log("compact")
    compactions = [topic.compaction for topic in topics]
    idle = [one for one in compactions if one.status is not Status.RUNNING]
    for compaction in idle or compactions:  # if none is idle, the first refuses
        compaction.start()
    return done()


async def status(request: web.Request) -> web.Response:
    """Status of the last compaction since the topic was opened; for several partitions, the most urgent one."""
    worst = max((topic.compaction for topic in await opened(request)), key=lambda one: _ORDER.index(one.status))
    return answer({"status": worst.status.value, "lastError": worst.last_error})


def urgency(shown: Mapping[str, Any]) -> int:
    """Urgency of a shown status: the greater, the more attention it needs."""
    return _ORDER.index(Status(shown["status"]))


_ORDER: Final = (Status.SUCCESS, Status.NOT_RUN, Status.RUNNING, Status.ERROR)
