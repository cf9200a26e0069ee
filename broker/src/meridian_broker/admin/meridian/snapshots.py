# SPDX-License-Identifier: Apache-2.0
"""``/meridian/v1/topics/.../snapshots``: the snapshots of a topic's replicated subscriptions (PIP-33), and going on
without a lost region."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from aiohttp import web

from meridian_broker.admin.http.requests import answer, body
from meridian_broker.admin.pulsar.topics import opened_one
from meridian_broker.metadata.errors import Invalid
from meridian_broker.topics.errors import NotAllowed
from meridian_broker.topics.snapshots.host import TopicSnapshots
from meridian_broker.topics.topic import Topic

SHOWN: Final = 20
"""Limit on subscriptions shown whose progress some region is not told."""


async def show(request: web.Request) -> web.Response:
    """The topic's mode, the outcome of its snapshots, and why none can be taken now."""
    return answer(snapshots_json(await opened_one(request)))


async def without(request: web.Request) -> web.Response:
    """Take snapshots without the regions in the body, ``{"regions": [NAME, ...]}``; an empty list undoes that."""
    given = await body(request)
    regions = given.get("regions") if isinstance(given, dict) else None
    if not isinstance(regions, list) or not all(isinstance(name, str) for name in regions):
        raise Invalid('expected the body {"regions": [NAME, ...]}: the regions to go on without; [] includes all again')
    topic = await opened_one(request)
    if not isinstance(topic.snapshots, TopicSnapshots):
        raise NotAllowed(f"{topic.name} has no other regions")
    topic.snapshots.give_up(frozenset(regions))
    return answer(snapshots_json(topic))


def snapshots_json(topic: Topic) -> dict[str, Any]:
    """A topic's snapshots as the admin API shows them."""
    snapshots = topic.snapshots
    found: dict[str, Any] = {"topic": topic.name, "region": topic.region, "mode": topic.rules.subscription_sync}
    if not isinstance(snapshots, TopicSnapshots):
        return found | {"problem": f"{topic.name} has no other regions", "takes": False}
    controller, last = snapshots.controller, snapshots.last
    held = {name: why for name in topic.subscriptions if (why := snapshots.held_back(name))}
    found |= {
        "takes": snapshots.takes,
        "problem": snapshots.problem(),
        "without": sorted(snapshots.given_up()),
        "heldBack": len(held),
        "heldBackFirst": dict(islice(held.items(), SHOWN)),
        "refusedMarkers": snapshots.refused,
        "refusal": snapshots.refusal,
    }
    if last is not None:
        positions = {place.region: str(place.position) for place in last.places}
        found["last"] = {"at": snapshots.last_ms, "position": str(last.position), "elsewhere": positions}
    if controller is not None:
        counts = controller.counts
        found |= {
            "pending": controller.pending,
            "complete": counts.completed,
            "timedOut": counts.timed_out,
            "failed": counts.failed,
            "lastMs": counts.last_ms,
            "updates": controller.updates_written,
        }
    return found
