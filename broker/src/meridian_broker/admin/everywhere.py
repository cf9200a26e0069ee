# SPDX-License-Identifier: Apache-2.0
"""Requests that this region passes on to the topic's other regions, because the caller asked for all of them (R14)."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from yarl import URL

from meridian_broker.admin.requests import Refused
from meridian_broker.admin.state import AdminState

SECONDS: Final = 30.0
"""How long another region may take: it may have a long backlog to go through."""
QUESTION_SECONDS: Final = 5.0
"""How long it may take to say what it has at hand: one that hangs is not waited for much longer than a person waits."""
CONNECT_SECONDS: Final = 4.0
"""How long it may take to take the connection, as long as TCP tries three times. Where a network loses every packet,
nobody answers at all, and whoever asked us waits for that."""
NOTHING_THERE: Final = (404, 409)
"""The other region has no such subscription, or nothing in its backlog: there is nothing to do."""


async def ask(
    admin: AdminState, region: str, method: str, path: str, body: object = None, *, seconds: float = SECONDS
) -> tuple[int, Any]:
    """One request to another region's admin REST; ``path`` is quoted already. Says the status and the JSON answer.

    :raises Refused: the region cannot be reached.
    """
    cluster, tls = admin.catalog.cluster(region), admin.client_tls
    where = None if cluster is None else cluster.service_url if tls is None else cluster.service_url_tls
    if not where:
        raise Refused(503, f"{region} cannot be asked: it has no admin URL")
    url = URL(where.rstrip("/") + path, encoded=True)
    headers = {} if admin.peer_token is None else {"Authorization": f"Bearer {admin.peer_token}"}
    timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(method, url, json=body, headers=headers, ssl=True if tls is None else tls()) as response,
        ):
            text = await response.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise Refused(503, f"{region} cannot be asked: {where} {_silence(error, seconds)}") from None
    try:
        return response.status, json.loads(text) if text else None
    except ValueError:
        return response.status, None


def _silence(error: Exception, seconds: float) -> str:
    """Why nobody answered, for people: the library's own texts are for its authors."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return f"does not take connections within {CONNECT_SECONDS:.0f} s"
    if isinstance(error, TimeoutError):
        return f"does not answer within {seconds:.0f} s"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return f"does not take connections: {os.strerror(number) if number and number > 0 else error.os_error}"
    return f"broke off: {error or type(error).__name__}"


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

    :param may_be_away: one that cannot be reached hears of it by other ways when it is back.
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
        raise Refused(503, f"done in {admin.region}, but not everywhere: {'; '.join(problems)}; ask again")


def reason(said: Any) -> str:
    """The sentence of a refusal."""
    return str(said.get("reason", "no reason given")) if isinstance(said, dict) else "no reason given"
