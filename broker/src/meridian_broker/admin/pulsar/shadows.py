# SPDX-License-Identifier: Apache-2.0
"""``.../shadowTopics``: the shadows of a topic (PIP-180).

Pulsar's clients create a shadow with a property that names its source, and then write the list of the source's shadows:
PUT, GET and DELETE are as in Pulsar. POST is the proposal's: one request creates a shadow and lists it; so is DELETE
with ``?topic=``, which deletes one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from aiohttp import web

from meridian_broker.admin.elsewhere.parts import GONE, Part, ask_each, check_unused, done_by
from meridian_broker.admin.http.access import check_administers
from meridian_broker.admin.http.requests import (
    Refused,
    answer,
    any_topic_of,
    body,
    done,
    flag,
    properties,
    state,
    truth,
)
from meridian_broker.bounds.http import LARGE_BODY_BYTES
from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.shadow_topics import HOLDS, RESETS, SOURCE, checked_reset
from meridian_broker.topics.service import removal, shadow_topics
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.topic_name import TopicName, in_path

MOST: Final = 10_000
"""Names in one list."""
FIELDS: Final = frozenset({"topic", "holdSourceLedgers", "autoResetBacklogEntries", "properties"})
"""Of the object that describes a new shadow."""
SHOWN: Final = 5
"""How many shadows a refusal names."""


async def listed(request: web.Request) -> web.Response:
    """The list of the topic's shadows. ``?all=true``: also those that are not in the list."""
    name, shadows = await _source(request), state(request).catalog.shadows
    return answer(shadow_topics.listed(shadows, name, unlisted=flag(request, "all")))


async def set_list(request: web.Request) -> web.Response:
    """Replace the list of the topic's shadows, which must exist already."""
    name, given = await _source(request), await body(request, None, LARGE_BODY_BYTES)
    if not (given is None or (isinstance(given, list) and all(isinstance(one, str) for one in given))):
        raise Refused(400, "expected a list of names of shadow topics")
    if not given:
        raise Refused(412, "no shadow topics are named: to empty the list, delete it")
    if len(given) > MOST:
        raise Refused(412, f"{len(given)} names: a list has at most {MOST}")
    check_others(request, given)
    await shadow_topics.set_list(state(request).service.opener, name, given)
    return done()


async def create(request: web.Request) -> web.Response:
    """Create a shadow of the topic. The body is its name, or an object.

    The object has ``topic`` and, if wanted, ``holdSourceLedgers``, ``autoResetBacklogEntries`` and ``properties``."""
    source = await _source(request, ": create it, or publish a message to it, before its shadow")
    given = await body(request)
    having: dict[str, str] = {}
    if isinstance(given, Mapping):
        if unknown := sorted(set(given) - FIELDS):
            raise Refused(400, f"{', '.join(map(repr, unknown))[:200]}: expected only {', '.join(sorted(FIELDS))}")
        having = _properties_of(given, source)
        given = given.get("topic")
    if not isinstance(given, str):
        raise Refused(400, 'expected the name of the shadow, or {"topic": name, "holdSourceLedgers": true}')
    opener = state(request).service.opener
    shadow = topic_name.parse(given)
    check_others(request, [given])
    await shadow_topics.create(opener, shadow, None, {**having, SOURCE: str(source)}, listed=True)
    return done()


def _properties_of(given: Mapping[str, Any], source: TopicName) -> dict[str, str]:
    """Those that describe a new shadow. A field counts more than the property that means the same.

    :raises Refused, Invalid: a value is not valid, or names another source.
    """
    having = {HOLDS: "true", **properties(given.get("properties"))}
    if SOURCE in having and topic_name.parse(having[SOURCE]) != source:
        raise Refused(412, f"property {SOURCE} is {having[SOURCE]!r}, and the path names {source}: leave it out")
    if "holdSourceLedgers" in given:
        holds = given["holdSourceLedgers"]
        if not isinstance(holds, bool):
            raise Refused(400, f"holdSourceLedgers is {holds!r}: expected true or false")
        having[HOLDS] = str(holds).lower()
    if "autoResetBacklogEntries" in given:
        behind = given["autoResetBacklogEntries"]
        if not isinstance(behind, int) or isinstance(behind, bool):
            raise Refused(400, f"autoResetBacklogEntries is {behind!r}: expected a whole number")
        having.pop(RESETS, None)
        having |= {RESETS: str(behind)} if behind else {}
    return having


async def remove(request: web.Request) -> web.Response:
    """Empty the list of shadows, but keep them. ``?topic=``: delete this shadow instead.

    ``&force=true``: also when clients are connected to it."""
    source, named = await _source(request), request.query.get("topic")
    opener = state(request).service.opener
    if named is None:
        await shadow_topics.set_list(opener, source, [])
        return done()
    shadow = topic_name.parse(named)
    check_others(request, [named])
    record = opener.parts.catalog.shadows.find(shadow)
    is_of_source = record is not None and record.source == source and record.shadow == shadow
    if not is_of_source or await removal.is_ordinary(opener, shadow):
        shadows = ", ".join(str(one.shadow) for one in opener.parts.catalog.shadows.of(source)[:SHOWN])
        raise Refused(404, f"{shadow} is not a shadow of {source}, which has {shadows or 'none'}")
    await _delete(request, shadow, force=flag(request, "force"))
    return done()


async def delete_all(request: web.Request, source: TopicName, *, force: bool) -> None:
    """Delete all shadows of a topic before the topic itself, whichever broker serves them.

    :raises TopicInUse, Refused: the requester's role does not administer one; or ``force`` is not given, and clients
        are connected to one or to the topic, or a broker cannot be asked. None was deleted, unless clients connected
        just now.
    """
    opener = state(request).service.opener
    await shadow_topics.as_stored(opener)
    of_source = opener.parts.catalog.shadows.of(source)
    records = [one for one in of_source if not await removal.is_ordinary(opener, one.shadow)]
    check_others(request, [str(one.shadow) for one in records])
    if state(request).brokers is None:
        await shadow_topics.delete_shadows(opener, source, force=force)
        return
    if not force:
        whole = [source, *(one.shadow for one in records)]
        await check_unused(
            request, [part for one in whole for part in await removal.partition_names(opener, one) or [one]]
        )
    for record in records:
        await _delete(request, record.shadow, force=force)


async def _delete(request: web.Request, shadow: TopicName, *, force: bool) -> None:
    admin = state(request)
    if admin.brokers is None:
        await removal.delete(admin.service.opener, shadow, force=force)
        return
    is_partitioned = await admin.catalog.partitioned.on_record(shadow) is not None
    path = f"/admin/v2/{in_path(str(shadow))}{'/partitions' if is_partitioned else ''}?force={str(force).lower()}"
    done_by([one for one in await ask_each(request, [Part(shadow, "DELETE", path)]) if one.status != GONE])
    await removal.forget_remains(admin.service.opener, shadow)


async def _source(request: web.Request, advice: str = "") -> TopicName:
    """The topic in the path. :raises Refused: it does not exist, or is a partition, or stores nothing."""
    name, catalog = any_topic_of(request), state(request).catalog
    if not name.is_persistent:
        raise Refused(412, f"{name} stores no messages: shadows and their sources are persistent topics")
    if name.partition >= 0:
        raise Refused(412, f"{name} is a partition: its whole topic, {name.base}, has shadows")
    if await catalog.partitioned.find(name) is None and await catalog.topics.find(name) is None:
        raise Refused(404, f"topic {name} does not exist{advice}")
    if state(request).brokers is not None:  # another broker may have made one just now
        await catalog.shadows.refresh()
    return name


async def changed_properties(request: web.Request, name: TopicName, added: Mapping[str, str], gone: str | None) -> None:
    """Apply a change of properties to a shadow, before they are written.

    :raises Refused: a topic cannot become a shadow, or stop being one, or be one of another topic.
    """
    opener = state(request).service.opener
    record = opener.parts.catalog.shadows.find(name)
    wanted: Any = None if gone == SOURCE else added.get(SOURCE)
    if record is None:
        if wanted is not None:
            raise Refused(412, f"{name} exists already: only a new topic becomes a shadow, by the property {SOURCE}")
        return
    if gone == SOURCE or (wanted is not None and wanted != str(record.source)):
        raise Refused(412, f"{name} is permanently a shadow of {record.source}: delete it, and create another one")
    changed: dict[str, Any] = {}
    if gone == HOLDS or HOLDS in added:
        changed["holds"] = gone == HOLDS or truth(added[HOLDS], HOLDS)
    if gone == RESETS or RESETS in added:
        changed["reset_behind"] = 0 if gone == RESETS else checked_reset(str(added[RESETS]))
    if changed:
        await shadow_topics.change(opener, record.shadow, **changed)


def check_not_shadow(request: web.Request, name: TopicName, doing: str) -> None:
    """:raises Refused: the topic is a shadow, and ``doing`` that is up to its source."""
    record = state(request).catalog.shadows.find(name)
    if record is not None:
        raise Refused(405, f"{name} is a shadow of {record.source}, and read only: {doing} {record.source}")


def is_new_shadow(request: web.Request, having: Mapping[str, str]) -> bool:
    """Whether these properties make a new topic a shadow.

    :raises Invalid: they are contradictory.
    :raises Refused: the requester's role does not administer the source.
    """
    for name in (HOLDS, RESETS):
        if name in having and SOURCE not in having:
            raise Invalid(f"property {name} is for shadows only: set their source in {SOURCE}")
    if SOURCE in having:
        check_others(request, [having[SOURCE]])
    return SOURCE in having


def check_others(request: web.Request, topics: Iterable[str]) -> None:
    """Whoever creates, lists or deletes shadows must administer both sides: the topic in the path, and these.

    :raises Refused: the requester's role does not.
    :raises InvalidTopicNameError: one of them is not a topic name.
    """
    for tenant in sorted({topic_name.parse(one).tenant for one in topics}):
        check_administers(request, tenant)
