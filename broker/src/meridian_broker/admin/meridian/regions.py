# SPDX-License-Identifier: Apache-2.0
"""``/meridian/v1/regions``: the other regions as this one sees them."""

from __future__ import annotations

from heapq import nsmallest
from typing import Any, Final

from aiohttp import web

from meridian_broker.admin.figures.filling import fill
from meridian_broker.admin.figures.turns import in_turns
from meridian_broker.admin.http.requests import answer, state
from meridian_broker.admin.http.state import AdminState

SHOWN: Final = 100
"""Limit on topics that are named as not open."""


async def regions(request: web.Request) -> web.Response:
    """All regions, their addresses, and the state of the links to them."""
    admin = state(request)
    now, apart = admin.service.parts.scheduler.now_ms(), admin.exchange.apart()
    listed = [await _region(admin, name, apart.get(name, {})) for name in sorted(admin.catalog.known_clusters())]
    return answer({"region": admin.region, "clock_ms": now, "regions": listed})


async def _region(admin: AdminState, name: str, apart: dict[str, str]) -> dict[str, Any]:
    cluster = admin.catalog.cluster(name)
    shown: dict[str, Any] = {
        "name": name,
        "service_url": "" if cluster is None else cluster.broker_service_url,
        "admin_url": "" if cluster is None else cluster.service_url,
        "local": name == admin.region,
    }
    link = admin.exchange.links.status().get(name)
    if name == admin.region:
        shown["not_ready"] = await _not_ready(admin)
        shown["not_open"] = await _not_open(admin)
    if link is not None:
        shown["progress"] = {
            "connected": link.connected,
            "problem": None if link.connected else link.problem,
            "connections": link.connections,
            "apart": apart,
        }
        if brokers := _brokers(admin, name):
            shown["progress"]["brokers"] = brokers
        shown["replication"] = await _replication(admin, name)
    return shown


def _brokers(admin: AdminState, region: str) -> dict[str, Any]:
    """The links to single brokers of a region, by broker."""
    return {
        peer.removeprefix(f"{region}/"): {
            "connected": link.connected,
            "problem": None if link.connected else link.problem,
            "connections": link.connections,
        }
        for peer, link in sorted(admin.exchange.links.brokers().items())
        if link.region == region
    }


async def _not_ready(admin: AdminState) -> dict[str, str]:
    """Topics whose copies here are incomplete, each with the reason (R21)."""
    reasons: dict[str, str] = {}
    async for topic in in_turns(admin.service.topics.values()):
        found = fill(topic)
        if not found["ready"]:
            reasons[topic.name] = found["reason"]
    return dict(sorted(reasons.items()))


async def _not_open(admin: AdminState) -> dict[str, Any]:
    """Recorded topics that are not open: the state of their subscriptions is not known yet."""
    unopened = await admin.service.registry.unopened()
    if unopened is None:
        return {"topics": None, "first": []}
    return {"topics": len(unopened), "first": nsmallest(SHOWN, unopened)}


async def _replication(admin: AdminState, remote: str) -> dict[str, Any]:
    walk = in_turns(admin.replication.topics())
    found = [(topic, admin.replication.status(topic).get(remote)) async for topic in walk]
    every = [(topic, status) for topic, status in found if status is not None]
    return {
        "topics": len(every),
        "connected": sum(status.connected for _, status in every),
        "backlog": sum(status.backlog for _, status in every),
        "delay_ms": max((status.delay_ms for _, status in every), default=0),
        "held": {topic: status.hold.value for topic, status in every if status.hold is not None},
    }
