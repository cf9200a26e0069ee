# SPDX-License-Identifier: Apache-2.0
"""Requests that this region passes on to the topic's other regions, because the caller asked for all of them (R14)."""

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
"""How long another region may take: it may have a long backlog to go through."""
QUESTION_SECONDS: Final = 5.0
"""Time limit for a question that needs no work: not much longer than a user would wait for a region that hangs."""
NOTHING_THERE: Final = (404, 409)
"""The other region has no such subscription, or nothing in its backlog: there is nothing to do."""


async def ask(
    admin: AdminState, region: str, method: str, path: str, body: object = None, *, seconds: float = SECONDS
) -> tuple[int, Any]:
    """One request to another region's admin REST; ``path`` is quoted already. Says the status and the JSON answer.

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
    """The same request to several regions at once. ``{region}`` in the path stands for the one that is asked.

    :param may_be_away: one that cannot be reached learns of it in other ways when it is back.
    :raises Refused: not all of them did it; it says which did not. Asking again does no harm.
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
    """The sentence of a refusal."""
    return str(said.get("reason", "no reason given")) if isinstance(said, dict) else "no reason given"
