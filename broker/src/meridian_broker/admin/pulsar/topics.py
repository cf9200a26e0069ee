# SPDX-License-Identifier: Apache-2.0
"""``/admin/v2/persistent``: topics. A request for a partitioned topic applies to all its partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from urllib.parse import quote

from aiohttp import web

from meridian_broker.admin.elsewhere.everywhere import ask_all
from meridian_broker.admin.elsewhere.users import shadow_objections, split_objections, topic_objections
from meridian_broker.admin.http.requests import (
    Refused,
    answer,
    answer_names,
    any_topic_of,
    body,
    done,
    flag,
    id_json,
    message_id,
    namespace_of,
    number,
    part,
    properties,
    state,
    topic_of,
)
from meridian_broker.admin.http.state import AdminState
from meridian_broker.admin.http.web_pages import check_no_other_site
from meridian_broker.admin.pulsar import growing, shadows
from meridian_broker.ledgers.finding import last_message
from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.partitioned_topics import MAX_PARTITIONS
from meridian_broker.positions import Stamp
from meridian_broker.topics.lifecycle import termination
from meridian_broker.topics.retention import trimming
from meridian_broker.topics.service import closing, creation, incarnations, kinds, removal, shadow_topics
from meridian_broker.topics.service import partition_growth as growth
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar.topic_name import NON_PERSISTENT, TopicName


async def opened(request: web.Request, *, create: bool = False) -> list[Topic]:
    """The topic in the path, or all its partitions.

    :param create: create it if it is missing, if the namespace allows automatic creation.
    :raises TopicNotFound: it does not exist.
    """
    name = topic_of(request)
    service = state(request).service
    if create:
        await creation.partitions(service.opener, name, create=True)
    record = await state(request).catalog.partitioned.find(name) if name.partition < 0 else None
    if record is None:
        return [await service.opener.topic(name, create=create)]
    return [await service.opener.topic(name.with_partition(index), create=False) for index in range(record.partitions)]


async def opened_one(request: web.Request) -> Topic:
    """The topic in the path, which is not partitioned.

    :raises Refused: it is.
    """
    name = topic_of(request)
    if name.partition < 0 and await state(request).catalog.partitioned.find(name) is not None:
        raise Refused(405, f"{name} is partitioned: ask one of its partitions, {name}-partition-0 and so on")
    return await state(request).service.opener.topic(name, create=False)


# -- which there are -----------------------------------------------------------------------------------------------


async def listed(request: web.Request) -> web.Response:
    """Names of the namespace's topics of that domain, each partition by its own name."""
    namespace, service = namespace_of(request), state(request).service
    await state(request).catalog.namespaces.get(namespace)
    if part(request, "domain") == NON_PERSISTENT:
        return await answer_names(await service.registry.non_persistent.names(namespace))
    return await answer_names(await service.registry.names(namespace))


async def listed_partitioned(request: web.Request) -> web.Response:
    """Names of the namespace's partitioned topics of that domain."""
    namespace, catalog = namespace_of(request), state(request).catalog
    await catalog.namespaces.get(namespace)
    return await answer_names(
        await state(request).service.registry.partitioned_names(namespace, part(request, "domain"))
    )


async def create(request: web.Request) -> web.Response:
    """Create a topic without partitions; the body holds its properties."""
    having = properties(await body(request, default=None))
    opener, name = state(request).service.opener, any_topic_of(request)
    if shadows.is_new_shadow(request, having):
        await shadow_topics.create(opener, name, 0, having, listed=False)
    else:
        await creation.create_plain(opener, name, having)
    return done()


async def delete(request: web.Request) -> web.Response:
    """Delete a topic with its messages; ``?force=true``: also when clients are connected.

    ``?deleteSchema=true``: with its schemas. ``?cascade=true``: with its shadows."""
    name = any_topic_of(request)
    if name.partition < 0 and await state(request).catalog.partitioned.find(name) is not None:
        raise Refused(409, f"{name} is partitioned: delete {request.path}/partitions")
    await _delete(request, name, partitioned=False)
    return done()


async def _delete(request: web.Request, name: TopicName, *, partitioned: bool) -> None:
    """Delete a topic here, then in its other regions, as one deletion (R8).

    A region that is away finds out when it is back (``topics.incarnations``).

    :raises Refused: not forced, and a region uses the topic or cannot be asked; or it was deleted here, but not in
        another region.
    """
    admin = state(request)
    given = request.query.get("stamp")
    if given is not None:
        await removal.delete_as_elsewhere(
            admin.service.opener, name, stamp_elsewhere(admin, given), partitioned=partitioned
        )
    else:
        others = admin.service.parts.regions_of(str(name)) - {admin.region} if name.is_persistent else frozenset()
        path = request.rel_url.raw_path
        forced = flag(request, "force")
        if not flag(request, "cascade"):
            await removal.check_no_shadows(admin.service.opener, name)
        if others and not forced:
            await check_deletion(admin, name, others, path)
        if flag(request, "cascade"):
            await shadows.delete_all(request, name, force=forced)
        await _delete_everywhere(admin, name, others, path, force=forced)
    if flag(request, "deleteSchema") and name.partition < 0:
        await admin.catalog.schemas.delete(name)


async def check_deletion(admin: AdminState, name: TopicName, others: Collection[str], path: str) -> None:
    """:raises Refused: another region uses the topic, has shadows of it or a topic of the other kind by that name, or
    cannot be asked."""
    used, shadowed, split = await asyncio.gather(
        topic_objections(admin, str(name), others, path),
        shadow_objections(admin, str(name), others, path),
        split_objections(admin, str(name), others, path),
    )
    if split is not None:
        raise Refused(422, split)
    if (objection := shadowed or used) is not None:
        raise Refused(412, objection)


async def _delete_everywhere(
    admin: AdminState, name: TopicName, others: Collection[str], path: str, *, force: bool
) -> None:
    """Delete here and, once that is certain, in the other regions at the same time."""
    told: list[asyncio.Task[None]] = []

    def tell(stamp: Stamp) -> None:
        if others:
            asked = f"{path}?stamp={quote(str(stamp), safe='')}"
            told.append(asyncio.create_task(ask_all(admin, others, "DELETE", asked, may_be_away=True)))

    try:
        await removal.delete(admin.service.opener, name, force=force, begun=tell)
    finally:
        for task in told:
            await task


def stamp_elsewhere(admin: AdminState, text: str) -> Stamp:
    """The stamp of a deletion in another region. :raises Refused: it cannot be one."""
    try:
        stamp = Stamp.parse(text)
    except ValueError as error:
        raise Refused(400, str(error)) from None
    ahead_ms = stamp.time_ms - admin.service.parts.scheduler.now_ms()
    if (
        stamp.region == admin.region
        or admin.catalog.cluster(stamp.region) is None
        or ahead_ms > incarnations.CLOCKS_APART_MS
    ):
        raise Refused(412, f"?stamp={text}: not a stamp that another region can have issued")
    return stamp


def _creation(text: str) -> Stamp:
    """:raises Refused: the text is not a stamp."""
    try:
        return Stamp.parse(text)
    except ValueError as error:
        raise Refused(400, f"?created=: {error}") from None


# -- partitions ----------------------------------------------------------------------------------------------------


async def get_partitions(request: web.Request) -> web.Response:
    """The number of a topic's partitions; 0: it is not partitioned.

    ``?incarnation=``: another region asks, and this is the last deletion that it knows of (R8)."""
    name, service = any_topic_of(request), state(request).service
    known = request.query.get("incarnation")
    if known is not None and (order := await incarnations.compare_base(service.opener, name, known)):
        status, which = (412, "a later") if order > 0 else (404, "only an earlier")
        raise Refused(
            status, f"{state(request).region} knows of {which} deletion of {name} than {known or 'none'} (R8)"
        )
    create = flag(request, "checkAllowAutoCreation")
    if create:
        check_no_other_site(request)
    count = await creation.partitions(service.opener, name, create=create)
    record = await state(request).catalog.partitioned.find(name) if count else None
    return answer({"partitions": count, "deleted": False, "properties": dict(record.properties) if record else {}})


async def create_partitioned(request: web.Request) -> web.Response:
    """Create a partitioned topic; the body is the number of partitions.

    ``?incarnation=``: another region asks, and this is the last deletion that it knows of (R8). ``?created=``: its
    stamp of the creation, which decides if this region has an unpartitioned topic of that name."""
    given = await body(request)
    having: dict[str, str] = {}
    if isinstance(given, Mapping):
        having = properties(given.get("properties"))
        given = given.get("partitions")
    name, service = any_topic_of(request), state(request).service
    created = request.query.get("created")
    if created is not None or "incarnation" in request.query:
        shadows.check_not_shadow(request, name, "replicate to")
    await _follow_base(request, name)
    if created is None and shadows.is_new_shadow(request, having):
        await shadow_topics.create(service.opener, name, _count(given), having, listed=False)
    elif created is None or not name.is_persistent:
        await creation.create_partitioned(service.opener, name, _count(given), having)
    else:
        known = request.query.get("incarnation", "")
        await kinds.create_as_told(service.opener, name, _count(given), having, _creation(created), known)
    return done()


async def _follow_base(request: web.Request, name: TopicName) -> None:
    """:raises Refused: another region asks, and we know of a later deletion than it does."""
    known = request.query.get("incarnation")
    opener = state(request).service.opener
    if known is not None and (later := await incarnations.follow_base(opener, name, known)) is not None:
        raise Refused(
            412, f"{name} was deleted ({later.stamp}), and the request knows of {known or 'no deletion'} (R8)"
        )


async def grow(request: web.Request) -> web.Response:
    """Add partitions; the body is the new total, which can only grow.

    ``?incarnation=``: another region asks, and this is the last deletion that it knows of (R8)."""
    name = any_topic_of(request)
    wanted = _count(await body(request))
    shadows.check_not_shadow(request, name, "add partitions to")
    await _follow_base(request, name)
    record = await state(request).catalog.partitioned.get(name)
    if wanted < record.partitions:
        raise Refused(406, f"{name} has {record.partitions} partitions and cannot go back to {wanted}")
    opener = state(request).service.opener
    owners = growing.owners(request)
    if owners is not None:
        await opener.parts.catalog.shadows.refresh()
    await growth.grow(opener, name, wanted, request.query.get("incarnation"), owners)
    await shadow_topics.follow_partitions(opener, name, owners)
    return done()


async def delete_partitioned(request: web.Request) -> web.Response:
    """Delete a partitioned topic with all its partitions; ``?cascade=true``: with its shadows."""
    name = any_topic_of(request)
    if "stamp" not in request.query:
        await state(request).catalog.partitioned.get(name)
    await _delete(request, name, partitioned=True)
    return done()


def _count(value: object) -> int:
    """:raises Refused: a topic cannot have this number of partitions."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused(400, f"the number of partitions is {value!r}: expected a whole number")
    if not 1 <= value <= MAX_PARTITIONS:
        raise Refused(406, f"{value} partitions: expected 1 to {MAX_PARTITIONS}")
    return value


# -- one topic -----------------------------------------------------------------------------------------------------


async def get_properties(request: web.Request) -> web.Response:
    """The topic's properties."""
    name = topic_of(request)
    record = await state(request).catalog.partitioned.find(name) if name.partition < 0 else None
    if record is not None:
        return answer(dict(record.properties))
    topic = await state(request).service.opener.topic(name, create=False)
    return answer({} if topic.metadata is None else dict(topic.metadata.record.properties))


async def set_properties(request: web.Request) -> web.Response:
    """Add properties, or change those of the same names."""
    added = properties(await body(request))
    await _change_properties(request, added, None)
    return done()


async def remove_property(request: web.Request) -> web.Response:
    """Remove one property (``?key=``)."""
    key = request.query.get("key")
    if not key:
        raise Invalid("?key= names the property to remove")
    await _change_properties(request, {}, key)
    return done()


async def _change_properties(request: web.Request, added: Mapping[str, str], removed: str | None) -> None:
    def changed(before: Mapping[str, str]) -> dict[str, str]:
        return {key: value for key, value in {**before, **added}.items() if key != removed}

    name = topic_of(request)
    await shadows.changed_properties(request, name, added, removed)
    partitioned = state(request).catalog.partitioned
    if name.partition < 0 and await partitioned.find(name) is not None:
        await partitioned.change(name, lambda record: replace(record, properties=changed(record.properties)))
        return
    topic = await state(request).service.opener.topic(name, create=False)
    if topic.metadata is not None:
        await topic.metadata.save_properties(changed(topic.metadata.record.properties))


async def trim(request: web.Request) -> web.Response:
    """Free the space of unneeded ledgers now, without waiting for the next check."""
    for topic in await opened(request):
        await trimming.trim(topic)
    return done()


async def truncate(request: web.Request) -> web.Response:
    """Drop everything stored so far, for all subscriptions; ``?allRegions=true`` in every region."""
    admin = state(request)
    topics = await opened(request)
    for topic in topics:
        await trimming.truncate(topic)
    if flag(request, "allRegions"):
        others = admin.service.parts.regions_of(topics[0].name) - {admin.region}
        await ask_all(admin, others, request.method, request.rel_url.raw_path)
    return done()


async def unload(request: web.Request) -> web.Response:
    """Close the topic in an orderly way; it is opened again on demand."""
    name = any_topic_of(request)
    service = state(request).service
    record = await state(request).catalog.partitioned.find(name) if name.partition < 0 else None
    names = [name] if record is None else [name.with_partition(index) for index in range(record.partitions)]
    for each in names:
        if each.is_persistent:
            await closing.unload(service.opener, each)
    if not name.is_persistent:
        service.registry.non_persistent.delete(names, force=True, partitioned=record is not None)
    return done()


async def terminate(request: web.Request) -> web.Response:
    """Accept no more messages to the topic, permanently, in this region; returns the id of the last one."""
    topic = await opened_one(request)
    return answer(id_json(await termination.terminate(topic), topic.partition))


async def terminate_partitions(request: web.Request) -> web.Response:
    """Accept no more messages to a partitioned topic, permanently; returns the id of each partition's last one."""
    await state(request).catalog.partitioned.get(topic_of(request))
    ends = {topic.partition: await termination.terminate(topic) for topic in await opened(request)}
    return answer({str(number): id_json(last, number) for number, last in ends.items()})


async def last_message_id(request: web.Request) -> web.Response:
    """Id of the last message; ``-1:-1`` if there is none."""
    topic = await opened_one(request)
    return answer(id_json(await last_message(topic.log), topic.partition))


async def backlog_size(request: web.Request) -> web.Response:
    """Approximate bytes stored after a message; the body is its id."""
    topic = await opened_one(request)
    return answer(topic.log.bytes_after(message_id(await body(request))))


async def message_id_by_time(request: web.Request) -> web.Response:
    """Id of the first message published at or after a time, in milliseconds since 1970."""
    topic = await opened_one(request)
    found = await topic.position_at(number(part(request, "timestamp"), "timestamp"))
    return answer(id_json(found, topic.partition))
