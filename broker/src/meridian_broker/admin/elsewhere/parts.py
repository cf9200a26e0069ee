# SPDX-License-Identifier: Apache-2.0
"""Requests of which several brokers of the region have a part: about all partitions of a topic, or a whole namespace.

The broker that is asked finds the owner of each part, asks it with the client's own credentials, a few at a time, and
puts the answers together. If only some of the parts were done, the answer says which were not, why, and whether the
request may be repeated as it is.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from aiohttp import web

from meridian_broker.admin.elsewhere.everywhere import reason
from meridian_broker.admin.http.requests import Refused, state
from meridian_broker.admin.http.state import AdminState
from meridian_broker.gateway.broker_calls import BrokerAway, BrokerCalls
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataError
from meridian_broker.topics.errors import TopicError
from meridian_broker.wire.pulsar.topic_name import TopicName

SECONDS: Final = 30.0
"""How long one part may take."""
REPEAT: Final = "repeat the request"
"""Advice where a part that was done is not done twice."""
AT_ONCE: Final = 16
"""Parts of one request that are under way at the same time."""
SHOWN: Final = 3
"""Failed parts that are named."""
NOTHING_THERE: Final = (404, 409)
"""Nothing is to be done for this part, if others did theirs: it has no such subscription, or no backlog."""


class Part(NamedTuple):
    """What to ask the owner of one topic, or of a bundle."""

    topic: TopicName | None
    """None: this broker is asked, and redirects."""
    method: str
    path: str
    """Quoted, with its query."""
    body: bytes = b""


class Said(NamedTuple):
    """The answer to it."""

    part: Part
    status: int
    value: Any
    """The JSON in it; None: there is none."""


async def ask_each(request: web.Request, parts: Iterable[Part]) -> list[Said]:
    """Ask the owners of all parts. The answers have the order of the parts; who cannot be asked is a 503."""
    admin, turns = state(request), asyncio.Semaphore(AT_ONCE)
    calls = admin.brokers
    assert calls is not None, "this broker is the only one of its region"

    async def one(part: Part) -> Said:
        async with turns:
            return await _ask(admin, calls, part, request.headers.get("Authorization"))

    return list(await asyncio.gather(*map(one, parts)))


async def _ask(admin: AdminState, calls: BrokerCalls, part: Part, authorization: str | None) -> Said:
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
        status, said = await calls.ask(url, part.method, part.path, part.body, authorization, seconds=SECONDS)
    except (BrokerAway, TopicError, MetadataError, LedgerError) as error:
        return Said(part, 503, {"reason": str(error)})
    try:
        return Said(part, status, json.loads(said) if said else None)
    except (ValueError, RecursionError):
        return Said(part, status, None)


def done_by(said: list[Said], advice: str = REPEAT) -> list[Said]:
    """The parts that were done, at least one unless there are none at all.

    :param advice: what to do where only some were done.
    :raises Refused: none was, or some failed although there was something to do.
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
