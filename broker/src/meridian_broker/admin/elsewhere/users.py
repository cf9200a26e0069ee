# SPDX-License-Identifier: Apache-2.0
"""Checks whether other regions use a topic or subscription, before it is deleted as unused (R16)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from meridian_broker.admin.elsewhere.everywhere import ask
from meridian_broker.admin.http.requests import Refused
from meridian_broker.admin.http.state import AdminState
from meridian_broker.wire.pulsar.topic_name import in_path, parse

SECONDS: Final = 5.0
"""A region that takes longer to answer counts as unreachable."""
SHOWN: Final = 20
"""How many shadows of a topic a refusal names."""


async def objections(admin: AdminState, topic: str, subscription: str) -> str | None:
    """Why a replicated subscription may not be deleted: consumers in other regions, or regions that cannot be asked."""
    reasons = await _reasons(admin, topic, subscription, _consumers)
    stays = f"subscription {subscription!r} of {topic} was not deleted"
    return f"{stays}: {reasons}. Disconnect its clients, or use force" if reasons else None


async def used_elsewhere(admin: AdminState, topic: str, subscription: str, within_ms: int) -> str | None:
    """Why a subscription may not expire: another region used it within ``within_ms``, or cannot be asked (R16)."""
    return await _reasons(admin, topic, subscription, partial(_recent_users, within_ms=within_ms)) or None


async def _reasons(admin: AdminState, topic: str, subscription: str, count: Callable[[Mapping[str, Any]], int]) -> str:
    path = f"/meridian/v1/subscriptions/{in_path(topic)}/{quote(subscription, safe='')}/status"
    others = sorted(admin.service.parts.regions_of(topic) - {admin.region})
    said = await asyncio.gather(*(_asked(admin, region, path, count, "consumers") for region in others))
    return "; ".join(one for one in said if one)


async def topic_objections(admin: AdminState, topic: str, others: Collection[str], path: str) -> str | None:
    """Why a topic may not be deleted: clients in other regions, or regions that cannot be asked.

    :param path: of the request that deletes it.
    """
    base = path.removesuffix("/partitions")
    stats = f"{base}/stats" if base == path else f"{base}/partitioned-stats"
    said = await asyncio.gather(*(_asked(admin, region, stats, _clients, "clients") for region in sorted(others)))
    reasons = [one for one in said if one]
    return f"{topic} was not deleted: {'; '.join(reasons)}. Disconnect its clients, or use force" if reasons else None


async def shadow_objections(admin: AdminState, topic: str, others: Collection[str], path: str) -> str | None:
    """Why a topic may not be deleted: shadows that other regions have of it. Each region knows only its own.

    :param path: of the request that deletes it.
    """
    shadows = f"{path.removesuffix('/partitions')}/shadowTopics?all=true"
    said = await asyncio.gather(*(_shadows(admin, region, shadows) for region in sorted(others)))
    having = "; ".join(one for one in said if one)
    return f"{topic} was not deleted: {having}: delete these there first" if having else None


async def _shadows(admin: AdminState, region: str, path: str) -> str:
    """What a region has. ``topic_objections`` names those that cannot be asked; earlier versions refuse to say."""
    try:
        async with asyncio.timeout(SECONDS):
            status, said = await ask(admin, region, "GET", path)
    except (Refused, TimeoutError):
        return ""
    if status != 200 or not isinstance(said, list) or not said:
        return ""
    more = f" and {len(said) - SHOWN} more" if len(said) > SHOWN else ""
    return f"{region} has shadows, {', '.join(map(str, said[:SHOWN]))}{more}"


async def split_objections(admin: AdminState, topic: str, others: Collection[str], path: str) -> str | None:
    """Why a topic may not be deleted: other regions use its name for a partitioned topic and this one does not, or vice
    versa.

    :param path: of the request that deletes it.
    """
    base = path.removesuffix("/partitions")
    if parse(topic).partition >= 0:
        return None
    said = await asyncio.gather(*(_of_other_kind(admin, region, base, base != path) for region in sorted(others)))
    having = ", ".join(one for one in said if one)
    kind = "without" if base != path else "with"
    return (
        f"{topic} was not deleted: {having} uses the name for a topic {kind} partitions. "
        "Wait until the regions resolve that, or use force: that region then keeps its topic under another name"
        if having
        else None
    )


async def _of_other_kind(admin: AdminState, region: str, base: str, partitioned: bool) -> str:
    """The region, if it has a topic of the other kind. ``topic_objections`` names those that cannot be asked."""
    try:
        async with asyncio.timeout(SECONDS):
            status, said = await ask(admin, region, "GET", f"{base}/partitions")
            if status != 200 or not isinstance(said, Mapping) or (said.get("partitions", 0) > 0) == partitioned:
                return ""
            _, stats = await ask(admin, region, "GET", f"{base}/{'stats' if partitioned else 'partitioned-stats'}")
    except (Refused, TimeoutError):
        return ""
    return "" if isinstance(stats, Mapping) and _is_shadow(stats) else region


async def _asked(
    admin: AdminState, region: str, path: str, count: Callable[[Mapping[str, Any]], int], what: str
) -> str:
    """Why a region objects; empty: it does not."""
    try:
        async with asyncio.timeout(SECONDS):
            status, said = await ask(admin, region, "GET", path)
    except Refused as refused:
        return str(refused)
    except TimeoutError:
        return f"{region} cannot be asked: it does not answer"
    if status == 404:
        return ""
    if status != 200 or not isinstance(said, Mapping):
        return f"{region} cannot be asked: it answered with status {status}"
    if _is_shadow(said):
        return ""
    using = count(said)
    return f"{region} has {using} {what} of it" if using else ""


def _is_shadow(stats: Mapping[str, Any]) -> bool:
    """Whether these are a shadow's statistics: it stays in its region, whatever others do with topics of its name."""
    return (stats.get("meridian") or {}).get("shadow") is not None


def _consumers(said: Mapping[str, Any]) -> int:
    parts = said.get("partitions")
    return sum(map(_consumers, parts.values())) if isinstance(parts, Mapping) else int(said.get("consumers", 0))


def _recent_users(said: Mapping[str, Any], within_ms: int) -> int:
    parts = said.get("partitions")
    if isinstance(parts, Mapping):
        return sum(_recent_users(part, within_ms) for part in parts.values())
    return max(_consumers(said), int(said.get("idle_ms", 0) < within_ms))


def _clients(said: Mapping[str, Any]) -> int:
    parts = said.get("partitions")
    if isinstance(parts, Mapping) and parts:
        return sum(map(_clients, parts.values()))
    subscriptions = said.get("subscriptions", {}).values()
    return len(said.get("publishers", ())) + sum(len(one.get("consumers", ())) for one in subscriptions)
