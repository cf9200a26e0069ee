# SPDX-License-Identifier: Apache-2.0
"""``/meridian/v1/topics/.../gaps``: entries that other regions can no longer send, and giving them up (R4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from meridian_broker.admin.figures.lagging import gap_json
from meridian_broker.admin.http.access import ROLE
from meridian_broker.admin.http.requests import answer, body
from meridian_broker.admin.pulsar.topics import opened_one
from meridian_broker.metadata.errors import Invalid
from meridian_broker.positions.position import parse_position
from meridian_broker.topics.backfill.gaps import Accepted


async def listed(request: web.Request) -> web.Response:
    """Other regions' entries that are missing here, and those accepted as lost."""
    topic = await opened_one(request)
    missing = [gap_json(gap, topic) for gap in topic.gaps.all()]
    accepted = [accepted_json(one) for one in reversed(topic.gaps.accepted)]
    return answer({"topic": topic.name, "region": topic.region, "missing": missing, "accepted": accepted})


async def accept(request: web.Request) -> web.Response:
    """Give up a region's missing entries; the body is ``{"origin": REGION, "upto": "L:E", "force": bool}``."""
    given = await body(request)
    if not isinstance(given, Mapping) or not isinstance(given.get("origin"), str):
        raise Invalid('expected the body {"origin": REGION, "upto": "LEDGER:ENTRY"}, as .../gaps shows them')
    try:
        upto = parse_position(str(given.get("upto")))
    except ValueError as error:
        raise Invalid(f"upto: {error}") from None
    topic = await opened_one(request)
    by = str(request.get(ROLE) or f"somebody at {request.remote}")
    accepted, names = await topic.gaps.accept(given["origin"], upto, by, forced=given.get("force") is True)
    return answer(accepted_json(accepted) | {"topic": topic.name, "region": topic.region, "subscriptions": names})


def accepted_json(accepted: Accepted) -> dict[str, Any]:
    """An accepted gap."""
    return {
        "origin": accepted.origin,
        "after": str(accepted.after),
        "upto": str(accepted.upto),
        "accepted_at": accepted.at_ms,
        "by": accepted.by,
    }
