# SPDX-License-Identifier: Apache-2.0
"""Requests that this region forwards to the topic's other regions, because they concern all of them (R14)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote

from meridian_broker.admin.http.requests import Refused
from meridian_broker.admin.http.state import AdminState
from meridian_broker.gateway.region_calls import CallFailed

SECONDS: Final = 30.0
"""Time limit for another region, which may have a long backlog to go through."""
QUESTION_SECONDS: Final = 5.0
"""Time limit for a question that needs no work: not much longer than a user would wait for a region that hangs."""
NOTHING_THERE: Final = (404, 409)
"""The other region has no such subscription, or nothing in its backlog: there is nothing to do."""


async def ask(
    admin: AdminState, region: str, method: str, path: str, body: object = None, *, seconds: float = SECONDS
) -> tuple[int, Any]:
    """Send one request to another region's admin API. Returns the status, and the JSON in the answer.

    :param path: already quoted.
    :raises Refused: the region cannot be reached.
    """
    try:
        status, said = await admin.calls.ask(region, method, path, body, seconds=seconds)
    except CallFailed as error:
        raise Refused(503, f"{region} cannot be asked: {error}") from None
    try:
        return status, json.loads(said) if said else None
    except (ValueError, RecursionError):
        return status, None


async def ask_all(
    admin: AdminState,
    regions: Iterable[str],
    method: str,
    path: str,
    body: object = None,
    *,
    may_be_away: bool = False,
) -> None:
    """Send the same request to several regions at once. ``{region}`` in the path stands for the region asked.

    :param may_be_away: ignore regions that cannot be reached, because they learn of the change when they are back.
    :raises Refused: not all regions did it; the message says which. The request may be repeated.
    """

    async def problem(region: str) -> str:
        try:
            status, said = await ask(admin, region, method, path.replace("{region}", quote(region, safe="")), body)
        except Refused as refused:
            return "" if may_be_away else str(refused)
        return f"{region} answered {status}: {reason(said)}" if status >= 300 and status not in NOTHING_THERE else ""

    problems = [one for one in await asyncio.gather(*map(problem, sorted(regions))) if one]
    if problems:
        raise Refused(503, f"done in {admin.region}, but not everywhere: {'; '.join(problems)}; repeat the request")


def reason(said: Any) -> str:
    """The reason in a refusal's JSON."""
    return str(said.get("reason", "no reason given")) if isinstance(said, dict) else "no reason given"
