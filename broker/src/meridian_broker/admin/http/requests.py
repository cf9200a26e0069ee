# SPDX-License-Identifier: Apache-2.0
"""Reads the common parts of requests: the broker's state, names in the path, the query, the body."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from meridian_broker.admin.http.state import AdminState
from meridian_broker.bounds.http import BODY_BYTES
from meridian_broker.metadata.errors import Invalid
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.wire.pulsar.topic_name import PERSISTENT, TopicName, parse

STATE: Final = web.AppKey("state", AdminState)
NAMES_MAX: Final = (1 << 63) - 1
NAMES_AT_ONCE: Final = 2000
"""Names encoded in one turn of the loop."""
READ: Final = web.RequestKey("body", bytes)
"""Where a request keeps its body once it has been read."""


class Refused(Exception):
    """A request that is answered with this status and sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def state(request: web.Request) -> AdminState:
    """The broker's parts."""
    return request.app[STATE]


def done() -> web.Response:
    """The answer to a write."""
    return web.Response(status=204)


def answer(value: Any) -> web.Response:
    """A JSON answer."""
    return web.json_response(value)


async def answer_names(names: list[str]) -> web.Response:
    """A JSON list that may be long."""
    parts = []
    for first in range(0, len(names), NAMES_AT_ONCE):
        parts.append(json.dumps(names[first : first + NAMES_AT_ONCE])[1:-1])
        await asyncio.sleep(0)
    return web.Response(text=f"[{', '.join(parts)}]", content_type="application/json")


def part(request: web.Request, name: str) -> str:
    """A name in the path, unquoted."""
    return request.match_info[name]


def namespace_of(request: web.Request) -> str:
    """``tenant/namespace`` in the path."""
    return f"{part(request, 'tenant')}/{part(request, 'namespace')}"


def any_topic_of(request: web.Request) -> TopicName:
    """The topic in the path, of either domain.

    :raises InvalidTopicNameError: it is not a valid name.
    """
    domain = request.match_info.get("domain", PERSISTENT)
    return parse(f"{domain}://{namespace_of(request)}/{part(request, 'topic')}")


def topic_of(request: web.Request) -> TopicName:
    """The topic in the path, for requests that need stored messages.

    :raises Refused: it is not persistent.
    :raises InvalidTopicNameError: it is not a valid name.
    """
    name = any_topic_of(request)
    if not name.is_persistent:
        raise Refused(405, f"{name} stores no messages: this request is for persistent topics only")
    return name


def flag(request: web.Request, name: str) -> bool:
    """``?name=true``. :raises Refused: it is neither true nor false."""
    return truth(request.query.get(name, "false"), f"?{name}")


def truth(text: str, what: str) -> bool:
    """:raises Refused: it is neither true nor false."""
    if text.lower() not in ("true", "false"):
        raise Refused(400, f"{what} is {text!r}: expected true or false")
    return text.lower() == "true"


def number(text: str, what: str, least: int = 0) -> int:
    """A whole number. :raises Refused: the text is not one, or it is out of bounds."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 20 and least <= int(text) <= NAMES_MAX):
        raise Refused(400, f"{what} is {text!r}: expected a whole number of at least {least}")
    return int(text)


async def read_body(request: web.Request, limit: int) -> bytes:
    """The raw body; it can be read again.

    :param limit: its maximum size in bytes.
    :raises Refused: it is compressed, too large, or incomplete.
    """
    if (coding := request.headers.get("Content-Encoding", "identity")) != "identity":
        raise Refused(415, f"the body has Content-Encoding {coding[:40]!r}: send it without")
    data = bytearray(request.get(READ, b""))
    try:
        while len(data) <= limit and (some := await request.content.readany()):
            data += some
    except (ConnectionError, web.RequestPayloadError) as error:
        raise Refused(400, f"the body ended early: {error}") from None
    if len(data) > limit:
        raise Refused(413, f"the body has more than {limit} bytes, the limit of this request")
    request[READ] = bytes(data)
    return bytes(data)


async def body(request: web.Request, default: Any = ..., limit: int = BODY_BYTES) -> Any:
    """The body as JSON; ``default`` when it is empty.

    :param limit: its maximum size in bytes.
    :raises Refused: it is not JSON, compressed, or too large.
    """
    data = await read_body(request, limit)
    if not data.strip() and default is not ...:
        return default
    try:
        value = json.loads(data)
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()  # fails on a lone surrogate
        return value
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from None


async def names(request: web.Request, what: str) -> list[str]:
    """A body that is a list of names. :raises Invalid: it is something else."""
    value = await body(request)
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise Invalid(f"{what}: expected a list of names")
    return value


def properties(value: Any) -> dict[str, str]:
    """A map of strings; null is empty. :raises Invalid: it is something else."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(each, str) for pair in value.items() for each in pair):
        raise Invalid("properties: expected an object whose values are strings")
    return dict(value)


def message_id(value: Any) -> Position:
    """A message id as the admin API writes it. :raises Invalid: it is something else."""
    if value == "earliest":
        return EARLIEST
    if value == "latest":
        return LATEST
    if isinstance(value, Mapping):
        ledger, entry = value.get("ledgerId"), value.get("entryId")
        if isinstance(ledger, int) and isinstance(entry, int) and not isinstance(ledger, bool):
            position = Position(ledger, entry)
            if position in (EARLIEST, LATEST) or (0 <= ledger <= NAMES_MAX and -1 <= entry <= NAMES_MAX):
                return position
    raise Invalid(f'{value!r} is not a message id: expected {{"ledgerId": .., "entryId": ..}}, "earliest" or "latest"')


def is_excluded(given: object) -> bool:
    """Whether an id means the end of its message and excludes the message itself. Pulsar's documentation calls that
    ``isExcluded``, its tools ``excluded``. A batch is one entry: the id of a message inside it does not exclude the
    others."""
    if not isinstance(given, Mapping) or True not in (given.get("excluded"), given.get("isExcluded")):
        return False
    inside = given.get("batchIndex", -1)
    return not (isinstance(inside, int) and inside >= 0)


def id_json(position: Position, partition: int = -1) -> dict[str, int]:
    """A message id as the admin API writes it."""
    return {"ledgerId": position.ledger, "entryId": position.entry, "partitionIndex": partition}
