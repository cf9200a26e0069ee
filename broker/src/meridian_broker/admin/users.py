# SPDX-License-Identifier: Apache-2.0
"""Who uses a topic or a subscription in the other regions: what may go only when nobody does asks here first (R16)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from meridian_broker.admin.everywhere import ask
from meridian_broker.admin.requests import Refused
from meridian_broker.admin.state import AdminState

SECONDS: Final = 5.0
"""A region that takes longer to answer cannot be asked."""


async def objections(admin: AdminState, topic: str, subscription: str) -> str | None:
    """Why a replicated subscription may not go: consumers in other regions, or regions that cannot be asked."""
    below = topic.replace("://", "/", 1)
    domain, tenant, namespace, local = below.split("/", 3)
    path = f"/meridian/v1/subscriptions/{domain}/{tenant}/{namespace}/{quote(local, safe='')}"
    others = sorted(admin.service.regions_of(topic) - {admin.region})
    said = await asyncio.gather(
        *(_consumers(admin, region, f"{path}/{quote(subscription, safe='')}") for region in others)
    )
    reasons = [one for one in said if one]
    if not reasons:
        return None
    return f"subscription {subscription!r} of {topic} stays: {'; '.join(reasons)}. Close them, or force"


async def _consumers(admin: AdminState, region: str, path: str) -> str:
    try:
        async with asyncio.timeout(SECONDS):
            status, said = await ask(admin, region, "GET", f"{path}/status")
    except Refused as refused:
        return str(refused)
    except TimeoutError:
        return f"{region} cannot be asked: it does not answer"
    if status == 404:
        return ""
    if status != 200 or not isinstance(said, Mapping):
        return f"{region} cannot be asked: it answered {status}"
    count = _count(said)
    return f"{region} has {count} consumers of it" if count else ""


def _count(said: Mapping[str, Any]) -> int:
    parts = said.get("partitions")
    return sum(map(_count, parts.values())) if isinstance(parts, Mapping) else int(said.get("consumers", 0))
