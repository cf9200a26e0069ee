# SPDX-License-Identifier: Apache-2.0
"""``messageid/translate``: a message has a different id in each region; its origin links them."""

from __future__ import annotations

from urllib.parse import quote

from aiohttp import web

from meridian_broker.admin.elsewhere.everywhere import ask, reason
from meridian_broker.admin.http.requests import Refused, answer, flag, id_json, state
from meridian_broker.admin.pulsar.topics import opened_one
from meridian_broker.metadata.errors import Invalid, NotFound
from meridian_broker.positions.position import EARLIEST, Origin, Position, parse_position
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar.topic_name import in_path


async def translate(request: web.Request) -> web.Response:
    """The id here of the message that region ``?from=REGION`` knows as ``?id=L:E``."""
    admin = state(request)
    topic = await opened_one(request)
    region = request.query.get("from", "")
    try:
        position = parse_position(request.query.get("id", ""))
    except ValueError as error:
        raise Invalid(f"?id: {error}") from None
    if admin.catalog.cluster(region) is None:
        raise NotFound(f"region {region!r} is not known here: ?from names the region that the id comes from")
    origin: Origin | None
    if region == admin.region:
        origin = await _origin_here(topic, position)
    else:
        origin = Origin(region, *position)
        if await find_origin(topic, origin) is None and not flag(request, "here"):
            origin = await _ask(request, topic, region, position)
    found = position if region == admin.region else await find_origin(topic, origin)
    if found is None:
        raise NotFound(f"the message {origin} is not stored in {admin.region}: it has not arrived yet, or was trimmed")
    return answer(
        {
            "topic": topic.name,
            "region": admin.region,
            "id": str(found),
            **id_json(found, topic.partition),
            "origin": {"region": origin.region, "id": str(origin.position)},
        }
    )


async def find_origin(topic: Topic, origin: Origin) -> Position | None:
    """Where an entry is stored here; None: it is not. Looks into one ledger, as origins come in order."""
    log = topic.log
    if origin.region == topic.region:
        return origin.position if log.holds(origin.position) else None
    for span in reversed(log.spans()):
        if span.origins_before.get(origin.region, EARLIEST) < origin.position:
            if log.holds(Position(span.ledger_id, 0)):
                index = await log.load_index(span.ledger_id)
                ledger, number = origin.position
                around = Position(ledger, number - 1), Position(ledger, number + 1)
                for _, entry in index.between(origin.region, *around, 1):
                    return Position(span.ledger_id, entry)
            return None
    return None


async def _origin_here(topic: Topic, position: Position) -> Origin:
    """:raises NotFound: no such entry here, or one without an origin known to other regions."""
    if not topic.log.holds(position):
        raise NotFound(f"{topic.name} has no entry {position} in {topic.region}")
    index = await topic.log.load_index(position.ledger)
    place = index.place(position.entry)
    if place is None:
        raise NotFound(f"entry {position} is a marker, or came from a peer that stamps no origins")
    return Origin(place.region, *place.origin)


async def _ask(request: web.Request, topic: Topic, region: str, position: Position) -> Origin:
    """Ask the region that the id comes from which message it means.

    :raises Refused: the region cannot be asked, or does not know.
    """
    path = f"/meridian/v1/topics/{in_path(topic.name)}/messageid/translate"
    query = f"from={quote(region, safe='')}&id={position}&here=true"
    status, said = await ask(state(request), region, "GET", f"{path}?{query}")
    if status != 200:
        raise Refused(status, f"{region} says: {reason(said)}")
    return Origin(str(said["origin"]["region"]), *parse_position(str(said["origin"]["id"])))
