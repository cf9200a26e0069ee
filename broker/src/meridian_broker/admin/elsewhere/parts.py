# SPDX-License-Identifier: Apache-2.0
"""Requests that several brokers of the region must serve: about all partitions of a topic, or a whole namespace.

The broker that gets such a request finds the owner of each part, asks it with the client's own credentials, a few at a
time, and combines the answers. It passes on a request of another region's broker as a broker of its own region. If only
some parts succeeded, the answer says which did not, why, and whether to repeat the request as it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple

from aiohttp import web

from meridian_broker.admin.elsewhere.everywhere import reason
from meridian_broker.admin.http.gatekeeping import ADMITTED
from meridian_broker.admin.http.requests import Refused, state
from meridian_broker.admin.http.state import AdminState
from meridian_broker.gateway.broker_calls import BrokerAway
from meridian_broker.gateway.region_calls import CallFailed
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataError
from meridian_broker.topics.errors import TopicError
from meridian_broker.wire.pulsar.topic_name import TopicName, in_path

SECONDS: Final = 30.0
"""Time limit for one part."""
REPEAT: Final = "repeat the request"
"""Advice for idempotent requests."""
AT_ONCE: Final = 16
"""Parts of one request that are in flight at once."""
SHOWN: Final = 3
"""How many failed parts the answer names."""
GONE: Final = 404
NOTHING_THERE: Final = (404, 409)
"""Ignored if other parts succeeded: this part has no such subscription, or no backlog."""


class Part(NamedTuple):
    """A request to the owner of one topic, or of a bundle."""

    topic: TopicName | None
    """None: this broker is asked, and redirects to the owner."""
    method: str
    path: str
    """Quoted, with its query."""
    body: bytes = b""


class Said(NamedTuple):
    """The answer to a part."""

    part: Part
    status: int
    value: Any
    """The JSON in the answer; None: there is none."""


async def ask_each(request: web.Request, parts: Iterable[Part]) -> list[Said]:
    """Ask the owners of all parts. The answers are in the order of the parts; an unreachable owner counts as a 503."""
    admin, turns = state(request), asyncio.Semaphore(AT_ONCE)
    calls = admin.brokers
    assert calls is not None, "this broker is the only one of its region"

    async def ask(url: str, part: Part) -> tuple[int, bytes]:
        if ADMITTED in request:  # a proof is valid for one request only
            return await admin.calls.ask_at(admin.region, url, part.method, part.path, part.body, seconds=SECONDS)
        authorization = request.headers.get("Authorization")
        return await calls.ask(url, part.method, part.path, part.body, authorization, seconds=SECONDS)

    async def one(part: Part) -> Said:
        async with turns:
            return await _ask(admin, ask, part)

    return list(await asyncio.gather(*map(one, parts)))


async def _ask(admin: AdminState, ask: Callable[[str, Part], Awaitable[tuple[int, bytes]]], part: Part) -> Said:
    locate = admin.gateway.locate
    assert locate is not None, "this broker is the only one of its region"
    try:
        place = None if part.topic is None else await locate(part.topic, "", False)
        url = admin.admin_url()
        if place is not None:
            known = place.addresses
            url = "" if known is None else known.admin_url or known.admin_url_tls or ""
        if not url:
            return Said(part, 503, {"reason": "its broker has no admin address"})
        status, said = await ask(url, part)
    except (BrokerAway, CallFailed, TopicError, MetadataError, LedgerError) as error:
        return Said(part, 503, {"reason": str(error)})
    try:
        return Said(part, status, json.loads(said) if said else None)
    except (ValueError, RecursionError):
        return Said(part, status, None)


async def check_unused(request: web.Request, names: Iterable[TopicName]) -> None:
    """:param names: of topics without partitions, or of partitions; any of them may not exist.

    :raises Refused: one has clients, or its broker cannot be asked.
    """
    said = await ask_each(request, [Part(one, "GET", f"/admin/v2/{in_path(str(one))}/stats") for one in names])
    for one in done_by([one for one in said if one.status != GONE]):
        clients = len(one.value.get("publishers", ()))
        clients += sum(len(each.get("consumers", ())) for each in one.value["subscriptions"].values())
        if clients:
            raise Refused(412, f"{one.part.topic} has {clients} producers and consumers: close them, or use force")


def done_by(said: list[Said], advice: str = REPEAT) -> list[Said]:
    """The parts that succeeded; at least one, unless there are no parts.

    :param advice: what to do if only some succeeded.
    :raises Refused: no part succeeded, or a part failed that had something to do.
    """
    good = [one for one in said if one.status < 300]
    bad = [one for one in said if one.status >= 300]
    if not bad or (good and all(one.status in NOTHING_THERE for one in bad)):
        return good
    if not good and len({one.status for one in bad}) == 1:
        raise Refused(bad[0].status, reason(bad[0].value))
    worst = [one for one in bad if one.status not in NOTHING_THERE] or bad
    named = "; ".join(f"{one.part.topic or one.part.path}: {one.status}, {reason(one.value)}" for one in worst[:SHOWN])
    raise Refused(503, f"done for {len(good)} of {len(said)}, not for all: {named}; {advice}")
