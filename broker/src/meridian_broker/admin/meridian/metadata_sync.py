# SPDX-License-Identifier: Apache-2.0
"""``/meridian/v1/metadata``: how this region's metadata differs from that of the others, and what people decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from meridian_broker.admin.http.requests import Refused, answer, body, done, number, part, state
from meridian_broker.admin.http.state import AdminState
from meridian_broker.admin.meridian.comparing import session_of
from meridian_broker.gateway.event_topic import EventTopic
from meridian_broker.gateway.metadata_peers import MAX_TIME_MS
from meridian_broker.gateway.metadata_session import Session
from meridian_broker.metadata import keys
from meridian_broker.metadata.errors import Invalid, NotFound
from meridian_broker.metadata.store import MetadataStore, Record
from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.catching_up import Comparison
from meridian_broker.metadata.sync.conflicts import Conflict, Shown
from meridian_broker.metadata.sync.conflicts import from_store as conflict_of
from meridian_broker.metadata.sync.converging import Verdict
from meridian_broker.metadata.sync.digests import Summary
from meridian_broker.metadata.sync.marks import read_mark
from meridian_broker.metadata.sync.parked import from_parked
from meridian_broker.metadata.sync.reading import read, with_tombstones
from meridian_broker.metadata.sync.stamped import Stamped
from meridian_broker.metadata.sync.standing import PeerState

SHOWN: Final = 1000
"""Paths listed in one answer; the rest are only counted."""

EVER: Final = (MAX_TIME_MS, 0)
"""No stamp is later."""

Json = dict[str, Any]


async def status(request: web.Request) -> web.Response:
    """Whether and how metadata is synchronized, and the state with each other region."""
    admin = state(request)
    sync, choice = admin.metadata_sync, admin.metadata_sync.choice
    shown: Json = {
        "region": admin.region,
        "topic": choice.topic,
        "scopes": sorted(choice.scopes),
        "enabled": bool(choice.topic),
        "refusal": choice.refusal,
    }
    session = sync.session
    return answer(shown if session is None else shown | await figures(admin, session))


async def figures(admin: AdminState, session: Session) -> Json:
    """The figures of ``status``."""
    kept, owed = session.kept, session.owed
    verdicts = session.applier.counts.verdicts
    expelled = await session.applier.expelled()
    peers = {
        region: await _peer(admin, session, region, peer) | {"expelled": region in expelled}
        for region, peer in session.comparisons.peers.items()
    }
    problems = [one for one in (session.topic.problem, session.publish_problem) if one]
    if kept.parked_paths:
        problems.append(f"{kept.parked_paths} timestamps are in the future: see `meridian metadata conflicts`")
    return {
        "active": session.topic.is_active,
        "problems": problems,
        "synced": not problems and not owed and all(one["problem"] is None for one in peers.values()),
        "published": session.publisher.published,
        "applied": verdicts[Verdict.APPLIED],
        "stale": verdicts[Verdict.STALE],
        "duplicate": verdicts[Verdict.DUPLICATE],
        "outbox": owed,
        "parked": kept.parked_paths,
        "conflicts": len(kept.conflicts),
        "deadLetters": _dead(session.topic),
        "values": session.known.values,
        "tombstones": session.known.deletions,
        "peers": peers,
    }


def _dead(topic: EventTopic) -> Json:
    last = [{"position": one.position, "region": one.region, "reason": one.reason} for one in topic.dead]
    return {"count": topic.dead_letters, "last": last}


async def _peer(admin: AdminState, session: Session, region: str, peer: PeerState) -> Json:
    now_ms, latest = admin.metadata_sync.now_ms(), session.applier.latest.get(region)
    mark = await admin.metadata_sync.store.get(paths.region(region))
    heard_ms = None if mark is None else read_mark(paths.region(region), mark.value)[0][0]
    return {
        "joined": peer.is_joined,
        "differences": peer.differences,
        "problem": peer.problem,
        "lagMillis": None if latest is None else max(0, latest.applied_ms - latest.written_ms),
        "heardMillisAgo": None if heard_ms is None else max(0, now_ms - heard_ms),
        "comparedMillisAgo": None if peer.compared_ms is None else max(0, now_ms - peer.compared_ms),
        "taken": peer.taken,
        "clockOffsetMillis": peer.clock_offset_ms,
    }


async def diff(request: web.Request) -> web.Response:
    """The paths in which this region and ``?region=`` differ now, with both states."""
    region = request.query.get("region", "")
    session = _with(request, region)
    comparison, peer = await session.comparisons.compare(region)
    differing = comparison.paths()
    shown = await _compared(request, comparison, peer, differing)
    return answer({"region": state(request).region, "other": region} | shown)


async def _compared(request: web.Request, comparison: Comparison, peer: Any, differing: list[str]) -> Json:
    wanted = differing[:SHOWN]
    theirs = await peer.states(wanted) if wanted else {}
    seen = await read(state(request).metadata_sync.store, with_tombstones(wanted))
    undecided = set(comparison.differences(comparison.digest.scopes))
    listed = [
        {
            "path": path,
            "both": path in undecided,
            "here": _state(seen.state(path)) or _summary(comparison.here.get(path)),
            "there": _state(theirs.get(path)) or _summary(comparison.there.get(path)),
        }
        for path in wanted
    ]
    return {"count": len(differing), "differences": len(undecided & set(differing)), "paths": listed}


async def conflicts(request: web.Request) -> web.Response:
    """Concurrent writes of two regions, states with a timestamp in the future, and namespaces that lost their tenant.

    ``?latest=``: only this many concurrent writes, those with the latest winners."""
    session, store = session_of(request), state(request).metadata_sync.store
    wanted = sorted(session.kept.conflicts)
    records = await _records(store, paths.conflict, wanted[:SHOWN])
    count = len(records) + len(wanted[SHOWN:])
    found = [(path, conflict_of(path, record.value)) for path, record in records]
    if "latest" in request.query:
        found = sorted(found, key=lambda one: one[1].won.stamp)[-number(request.query["latest"], "?latest", 1) :]
        listed = [_conflict(path, one) for path, one in reversed(found)]
        return answer({"conflicts": listed, "count": count})
    listed = [_conflict(path, one) for path, one in found]
    due = await session.kept.parked(EVER)
    waiting = [
        {"path": path, "state": _state(from_parked(path, record.value))}
        for path, record in await _records(store, paths.parked, due[:SHOWN])
    ]
    tenants = set(await store.children(keys.TENANTS))
    orphans = [one for one in await store.children(keys.NAMESPACES) if one not in tenants]
    hidden = [
        f"{keys.NAMESPACES}/{one}/{name}"
        for one in orphans
        for name in await store.children(f"{keys.NAMESPACES}/{one}")
    ]
    return answer({"conflicts": listed, "count": count, "parked": waiting, "hidden": hidden[:SHOWN]})


async def _records(store: MetadataStore, where: Callable[[str], str], some: Sequence[str]) -> list[tuple[str, Record]]:
    """What is stored for these paths; some may have been deleted a moment ago."""
    found = await store.get_many([where(path) for path in some])
    return [(path, record) for path, record in zip(some, found, strict=True) if record is not None]


async def dismiss(request: web.Request) -> web.Response:
    """Forget the conflict at ``?path=``, once somebody has reviewed it. The value at the path stays."""
    path = request.query.get("path", "")
    if paths.scope_of(path) is None or not await state(request).metadata_sync.store.delete(paths.conflict(path)):
        raise NotFound(f"no conflict at {path[:200]!r}: see /meridian/v1/metadata/conflicts")
    return done()


async def restamp(request: web.Request) -> web.Response:
    """Make this region's value at a path win in every region, whatever its stamp: ``{"path": path}``."""
    given = await body(request)
    path = given.get("path") if isinstance(given, Mapping) else None
    if not isinstance(path, str):
        raise Invalid('expected the body {"path": path}, as in /meridian/v1/metadata/conflicts')
    session_of(request)
    return answer({"path": path, "state": _state(await state(request).metadata_sync.recording.restamp(path))})


async def adopt(request: web.Request) -> web.Response:
    """Resolve differences from before synchronization: ``{"region": other, "side": region, "dryRun": bool}``.

    The winning side is this region or the other one; by default, the other one."""
    given = await body(request)
    if not isinstance(given, Mapping) or not isinstance(given.get("region"), str):
        raise Invalid('expected the body {"region": other region, "side": region, "dryRun": true or false}')
    region, here = given["region"], state(request).region
    side, is_dry = given.get("side", region), given.get("dryRun", False)
    if side not in (region, here) or not isinstance(is_dry, bool):
        raise Invalid(f"side: expected {region} or {here}; dryRun: expected true or false")
    session = _with(request, region)
    shown: Json = {"region": here, "other": region, "side": side, "dryRun": is_dry}
    comparison, peer, undecided = await session.comparisons.undecided(region)
    shown |= await _compared(request, comparison, peer, undecided)
    if not is_dry:
        shown["decided"] = await session.comparisons.adopt(region, side)
    return answer(shown)


async def replace(request: web.Request) -> web.Response:
    """This region's store takes over its name from an earlier store, after it has caught up with the other regions."""
    region, admin = part(request, "region"), state(request)
    if region != admin.region:
        raise Refused(412, f"this is region {admin.region}: ask the new region {region} itself")
    return answer({"region": region, "told": await session_of(request).comparisons.replace()})


def _with(request: web.Request, region: str) -> Session:
    """:raises NotFound: the region does not share metadata with this one."""
    session = session_of(request)
    if region not in session.regions() - {state(request).region}:
        raise NotFound(f"{region[:100]!r} is not another region of {session.topic.topic}")
    return session


def _state(one: Stamped | None) -> Json | None:
    if one is None:
        return None
    value = None if one.value is None else one.value.decode()
    return {"stamp": str(one.stamp), "generation": one.generation, "deleted": value is None, "value": value}


def _summary(one: Summary | None) -> Json | None:
    if one is None:
        return None
    return {"stamp": str(one.stamp), "generation": one.generation, "deleted": not one.content, "value": None}


def _conflict(path: str, one: Conflict) -> Json:
    lost = _shown(one.lost) | {"caller": one.caller or None}
    return {"path": path, "won": _shown(one.won), "lost": lost}


def _shown(one: Shown) -> Json:
    return {"stamp": str(one.stamp), "region": one.stamp.region, "deleted": one.is_deletion, "value": one.value}
