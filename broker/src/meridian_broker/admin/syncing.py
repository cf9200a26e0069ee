# SPDX-License-Identifier: Apache-2.0
"""``/meridian/v1/subscriptions``: how a subscription stands here, and what the other regions have of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from meridian_broker.admin.backlogs import Standing, standing
from meridian_broker.admin.requests import Refused, answer, body, done, part, state
from meridian_broker.admin.state import AdminState
from meridian_broker.admin.subscriptions import named, replicate
from meridian_broker.metadata.errors import Invalid
from meridian_broker.positions.clock import ZERO
from meridian_broker.topics.administration import damage as claim_unacked
from meridian_broker.topics.subscription import Subscription

FAULTS: Final = 1000
"""Entries that one call may lose."""


async def status(request: web.Request) -> web.Response:
    """Progress of a subscription by origin region, and how far each other region is synced, per partition."""
    found = await named(request)
    shown = {}
    for subscription in found:
        shown[subscription.topic.name] = _status(state(request), subscription, await standing(subscription))
    head = {
        "subscription": part(request, "subscription"),
        "region": state(request).region,
        "synced": all(one["synced"] for one in shown.values()),
    }
    if len(shown) == 1:
        return answer(head | next(iter(shown.values())))
    return answer(head | {"backlog": sum(one["backlog"] for one in shown.values()), "partitions": shown})


async def mode(request: web.Request) -> web.Response:
    """Keep the subscription's progress the same in all regions or not; the body is ``{"replicated": bool}``."""
    given = await body(request)
    wanted = given.get("replicated") if isinstance(given, Mapping) else None
    if not isinstance(wanted, bool):
        raise Invalid('the body is {"replicated": true} or {"replicated": false}')
    await replicate(request, wanted)
    return done()


async def damage(request: web.Request) -> web.Response:
    """For tests of the verification only: lose messages on purpose. The body is ``{"entries": number}``."""
    if not state(request).faults:
        raise Refused(405, "this loses messages: only a broker with faultInjectionEnabled=true does it")
    given = await body(request)
    entries = given.get("entries") if isinstance(given, Mapping) else None
    if not isinstance(entries, int) or not 0 < entries <= FAULTS:
        raise Invalid(f'the body is {{"entries": number}}, at most {FAULTS}')
    lost = {}
    for subscription in await named(request):
        lost[subscription.topic.name] = [str(position) for position in await claim_unacked(subscription, entries)]
    return answer({"claimed": lost})


def _status(admin: AdminState, subscription: Subscription, stands: Standing) -> dict[str, Any]:
    topic = subscription.topic
    progress = subscription.progress
    exact = subscription.durable and subscription.replicated
    peers = admin.exchange.status(topic.name, subscription.name) if exact else ()
    return {
        "topic": topic.name,
        "mode": "exact" if exact else "local",
        "durable": subscription.durable,
        "replicated": subscription.replicated,
        "epoch": "" if progress.epoch == ZERO else str(progress.epoch),
        "mark_delete": str(stands.mark_delete),
        "backlog": stands.backlog,
        "holes": len(stands.holes),
        "acked_beyond_mark_delete": [[str(after), str(upto)] for after, upto in stands.holes[:100]],
        "floors": {region: str(floor) for region, floor in sorted(progress.floors().items())},
        "set_size": progress.count_detail(),
        "consumers": len(subscription.consumers),
        "waits_for_barrier": subscription.barrier,
        "synced": all(not peer.reason and not peer.pending for peer in peers),
        "peers": [
            {
                "region": peer.region,
                "connected": peer.connected,
                "last_sent": peer.last_sent,
                "last_applied": peer.last_applied,
                "pending": peer.pending,
                "reason": peer.reason,
            }
            for peer in peers
        ],
    }
