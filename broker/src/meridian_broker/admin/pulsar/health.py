# SPDX-License-Identifier: Apache-2.0
"""``/admin/v2/brokers``: whether this broker is alive and ready; and ``/meridian/v1/health``: problems inside a broker
that is alive.

A broker whose background work fails keeps serving, so probes do not report it: a restart would not help.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

from aiohttp import web

from meridian_broker.admin.figures.turns import in_turns
from meridian_broker.admin.http.requests import Refused, answer, state
from meridian_broker.admin.http.state import AdminState
from meridian_broker.topics.backfill.gaps import Gap
from meridian_broker.topics.reopening import Run
from meridian_broker.topics.subscriptions.damaged_records import Loss

SHOWN: Final = 100
"""Limit on topics that are named."""


async def health(request: web.Request) -> web.Response:
    """``ok`` once everything is open."""
    check_ready(request)
    return web.Response(text="ok")


async def ready(request: web.Request) -> web.Response:
    """``ok`` once everything is open, and until the broker begins to shut down."""
    check_ready(request)
    return web.Response(text="ok")


async def live(_: web.Request) -> web.Response:
    """``ok`` as long as the event loop runs: an unreachable metadata store or region is no reason for a restart."""
    return web.Response(text="ok")


async def status_page(request: web.Request) -> web.Response:
    """``OK`` for load balancers, once everything is open."""
    check_ready(request)
    return web.Response(text="OK")


async def inside(request: web.Request) -> web.Response:
    """Health of the metadata store, periodic work, files, and topics that keep failing or need an operator."""
    admin = state(request)
    works = [
        {
            "name": work.name,
            "turns": work.turns,
            "failures": work.failures,
            "secondsSinceSuccess": round(work.seconds_since_success, 3),
            "problem": work.problem,
        }
        for work in admin.work()
    ]
    failing = any(work["problem"] is not None for work in works)
    damages = list(admin.ledgers.damages)
    topics = _failing_topics(admin)
    damaged, lost, unread = await _troubled(admin)
    missing = sorted(admin.service.policies.missing)
    some = (topics["topics"], damaged["topics"], lost["topics"], unread["subscriptions"], missing)
    full = admin.ledgers.full
    no_room = admin.metadata_full()
    healthy = not (failing or damages or full or no_room or any(some))
    return answer(
        {
            "healthy": healthy,
            "work": works,
            "damages": damages,
            "full": full,
            "metadataFull": no_room,
            "failingTopics": topics,
            "missingNamespaces": missing[:SHOWN],
            "damagedTopics": damaged,
            "lostRecords": lost,
            "unreadSubscriptions": unread,
        }
    )


async def _troubled(admin: AdminState) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """What is wrong with topics that are open: see the three functions below."""
    now_ms = admin.service.parts.scheduler.monotonic_ms()
    gaps: dict[str, list[Gap]] = {}
    losses: dict[str, list[Loss]] = {}
    runs: list[tuple[str, Run]] = []
    async for topic in in_turns(admin.service.topics.values()):
        if gap := topic.repair.for_a_person():
            gaps[topic.name] = gap
        if loss := topic.subscription_registry.lost_records.recent():
            losses[topic.name] = loss
        runs += [(topic.name, run) for run in topic.unread.all(now_ms)]
    return _damaged_topics(gaps), _lost_records(losses), _unread_subscriptions(runs, now_ms)


def _damaged_topics(gaps: Mapping[str, list[Gap]]) -> dict[str, Any]:
    """Topics with damaged entries that no region has, and how to accept their loss."""
    shown = [(name, gap) for name, some in sorted(gaps.items()) for gap in some[:SHOWN]][:SHOWN]
    first = [
        {"topic": name, "command": f"meridian topics accept-gap {name} --origin {gap.origin} --up-to {gap.upto}"}
        for name, gap in shown
    ]
    return {"topics": len(gaps), "first": first}


def _lost_records(losses: Mapping[str, list[Loss]]) -> dict[str, Any]:
    """Topics whose progress log lost records to disk damage within the last day."""
    first = [
        {
            "topic": name,
            "records": loss.records,
            "subscriptions": loss.subscriptions,
            "isSubscriptionMissing": loss.in_doubt,
            "foundMs": loss.at_ms,
        }
        for name, some in sorted(losses.items())
        for loss in some
    ]
    return {"topics": len(losses), "first": first[:SHOWN]}


def _unread_subscriptions(runs: Sequence[tuple[str, Run]], now_ms: int) -> dict[str, Any]:
    """Subscriptions whose consumers wait because the storage fails a read; the topic's other subscriptions are
    served."""
    first = [
        {
            "topic": name,
            "subscription": run.name,
            "failures": run.failures,
            "reason": run.reason,
            "readAgainInSeconds": round(max(run.opens_ms - now_ms, 0) / 1000, 3),
        }
        for name, run in runs[:SHOWN]
    ]
    return {"subscriptions": len(runs), "first": first}


def _failing_topics(admin: AdminState) -> dict[str, Any]:
    """Topics that fail soon after they are opened, and stay closed for a while each time."""
    now_ms = admin.service.parts.scheduler.monotonic_ms()
    runs = admin.service.opener.failing.all(now_ms)
    first = [
        {
            "topic": run.name,
            "failures": run.failures,
            "reason": run.reason,
            "opensInSeconds": round(max(run.opens_ms - now_ms, 0) / 1000, 3),
        }
        for run in runs[-SHOWN:]
    ]
    return {"topics": len(runs), "first": first}


def check_ready(request: web.Request) -> None:
    """:raises Refused: the broker is starting, or shutting down."""
    if not state(request).ready:
        raise Refused(503, "this broker is starting: ask again in a moment")
    if state(request).gateway.draining:
        raise Refused(503, "this broker is shutting down")


async def broker_version(_: web.Request) -> web.Response:
    """Version of the software."""
    return web.Response(text=software_version())


def software_version() -> str:
    """Version of this distribution."""
    return version("meridian-broker")
