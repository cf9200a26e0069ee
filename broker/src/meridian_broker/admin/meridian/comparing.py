# SPDX-License-Identifier: Apache-2.0
"""The requests to ``/meridian/v1/metadata`` of brokers, mostly of other regions: where their metadata differs from
ours."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from meridian_broker.admin.http.gatekeeping import ADMITTED
from meridian_broker.admin.http.requests import Refused, answer, body, done, flag, state
from meridian_broker.bounds.http import LARGE_BODY_BYTES
from meridian_broker.gateway.metadata_peers import numbers_json, states_json, summary_json
from meridian_broker.gateway.metadata_session import Session
from meridian_broker.gateway.metadata_standby import HOLD_SECONDS
from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.catching_up import BUCKETS_TOGETHER, PLACES_TOGETHER, STATES_TOGETHER
from meridian_broker.metadata.sync.digests import BUCKETS, PARTS, Place
from meridian_broker.metadata.sync.marks import read_mark
from meridian_broker.metadata.sync.reading import Seen, read_moment

LOOKS: Final = 10
"""How often to check that this broker still applies events, before it says so."""
_OFF: Final = "this region does not synchronize metadata (metadataSyncEventTopic)"


async def digest(request: web.Request) -> web.Response:
    """A digest of this region's metadata, one number for each of 256 buckets, with clock, horizon and marks.

    ``?scopes=``: the scopes that the other region shares, separated by commas."""
    asking, session = _region(request), session_of(request)
    sync = state(request).metadata_sync
    is_replacing = flag(request, "replacing")
    if not is_replacing and not await sync.standing.belongs_to(asking, request.query["identity"]):
        raise Refused(
            409,
            f"{sync.region} has shared metadata with another store of region {asking}: if this store replaces it "
            f"for good, run `meridian regions replace {asking}` at {asking}, else choose another clusterName; "
            f"{sync.region} is compared with this store after that",
        )
    if not session.known.is_ready:
        raise Refused(503, f"{sync.region} is still reading its metadata")
    session.comparisons.asked_by(asking)
    asked = paths.region(asking)
    horizon, mark = await sync.store.get_many([paths.HORIZON, asked])
    scopes = sync.choice.scopes
    if "scopes" in request.query:
        scopes = scopes & frozenset(request.query["scopes"].split(","))
    return answer(
        {
            "region": sync.region,
            "identity": await sync.standing.identity(),
            "scopes": sorted(scopes),
            "shares": sorted(sync.choice.scopes),
            "buckets": numbers_json(session.known.buckets(scopes)),
            "horizon": None if horizon is None else list(read_moment(paths.HORIZON, horizon)),
            "mark": None if mark is None else list(read_mark(asked, mark.value)[0]),
            "heard": list(await session.applier.heard_of_all()),
            "clockMillis": sync.now_ms(),
        }
    )


async def parts(request: web.Request) -> web.Response:
    """The digest numbers of the parts of some buckets: ``{"scopes": [..], "buckets": [number, ..]}``."""
    given = await body(request, limit=LARGE_BODY_BYTES)
    buckets = _list(given, "buckets", BUCKETS_TOGETHER)
    if not all(isinstance(one, int) and 0 <= one < BUCKETS for one in buckets):
        raise Invalid(f"buckets: expected numbers below {BUCKETS}")
    known, scopes = session_of(request).known, _scopes(given)
    return answer({"parts": {str(one): numbers_json(known.parts(scopes, one)) for one in buckets}})


async def listing(request: web.Request) -> web.Response:
    """Paths, stamps and hashes in some places: ``{"scopes": [..], "places": [[bucket, part], ..]}``."""
    given = await body(request, limit=LARGE_BODY_BYTES)
    places = _list(given, "places", PLACES_TOGETHER)
    if not all(isinstance(one, list) and len(one) == 2 and all(isinstance(n, int) for n in one) for one in places):
        raise Invalid(f"places: expected pairs [number below {BUCKETS}, number below {PARTS}]")
    found = session_of(request).known.listing(_scopes(given), [Place(*one) for one in places])
    return answer({"paths": {path: summary_json(one) for path, one in found.items()}})


async def states(request: web.Request) -> web.Response:
    """Values and deletions at some paths: ``{"paths": [path, ..]}``."""
    wanted = _list(await body(request, limit=LARGE_BODY_BYTES), "paths", STATES_TOGETHER)
    sync, known = state(request).metadata_sync, session_of(request).known
    if not all(isinstance(path, str) and sync.choice.is_synced(path) for path in wanted):
        raise Invalid("paths: expected paths in the scopes that this region shares")
    values = await sync.store.get_many(wanted)
    absent = [path for path, one in zip(wanted, values, strict=True) if one is None or known.is_deleted(path)]
    stones = await sync.store.get_many([*map(paths.tombstone, absent)])
    records = dict.fromkeys(map(paths.tombstone, wanted)) | dict(zip(wanted, values, strict=True))
    seen = Seen(records | dict(zip(map(paths.tombstone, absent), stones, strict=True)))
    found = {path: one for path in wanted if (one := seen.state(path)) is not None}
    return web.Response(body=states_json(found), content_type="application/json")


async def compare(request: web.Request) -> web.Response:
    """Ask this region to compare its metadata with those of the requesting region soon."""
    session_of(request).comparisons.soon(_region(request))
    return done()


async def applying(request: web.Request) -> web.Response:
    """Whether this broker applies what other regions write. While it does, the answer takes a second."""
    _region(request)
    topic = session_of(request).topic
    for _ in range(LOOKS):
        if topic.is_applied:
            await asyncio.sleep(HOLD_SECONDS / LOOKS)
    return answer({"applying": topic.is_applied})


async def replace(request: web.Request) -> web.Response:
    """Another store takes over the requesting region's name: ``{"identity": text}``."""
    given = await body(request)
    identity = given.get("identity") if isinstance(given, Mapping) else None
    if not isinstance(identity, str) or not 0 < len(identity) <= 64:
        raise Invalid('expected the body {"identity": text}')
    await state(request).metadata_sync.standing.give(_region(request), identity)
    return done()


def session_of(request: web.Request) -> Session:
    """:raises Refused: metadata is not synchronized."""
    session = state(request).metadata_sync.session
    if session is None:
        raise Refused(412, f"{state(request).region}: {_OFF}")
    return session


def _region(request: web.Request) -> str:
    """The requesting region. :raises Refused: it has not proven that it is a region."""
    if ADMITTED not in request:
        raise Refused(403, "only brokers may make this request")
    return request[ADMITTED].region


def _scopes(given: Any) -> list[str]:
    return sorted(paths.SCOPES.keys() & set(map(str, _list(given, "scopes", len(paths.SCOPES)))))


def _list(given: Any, name: str, most: int) -> list[Any]:
    """:raises Invalid: there is no such list."""
    value = given.get(name) if isinstance(given, Mapping) else None
    if not isinstance(value, list) or len(value) > most:
        raise Invalid(f"{name}: expected a list of at most {most}")
    return value
