# SPDX-License-Identifier: Apache-2.0
"""Another region's admin REST API, as replicators use it for partitions: the real client, and a server that handles
these requests like ``admin/pulsar/topics.py``."""

from __future__ import annotations

import json
from asyncio import Lock as AsyncioLock
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import unquote

from meridian_broker.admin.http.errors import STATUSES
from meridian_broker.gateway.remote_admin import DELETED_LATER, RemoteAdmin, RemoteAdminFailed
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions import Stamp
from meridian_broker.topics.errors import TopicError
from meridian_broker.topics.service import creation, incarnations, kinds, partition_growth
from meridian_broker.wire.pulsar import topic_name
from simulation.loop import Future, Lock
from yarl import URL

if TYPE_CHECKING:
    from meridian_broker.gateway.region_calls import RegionCalls
    from meridian_broker.topics.service.service import TopicService
    from simulation.stage import Broker

ANSWER_US: Final = 10_000_000
FEWER: Final = 406


class _Locks(dict[tuple[str, str], AsyncioLock]):
    """Locks of the world's loop instead of asyncio's."""

    def setdefault(self, key: tuple[str, str], _: AsyncioLock | None = None) -> AsyncioLock:
        return super().setdefault(key, cast("AsyncioLock", Lock()))


class SimRemoteAdmin(RemoteAdmin):
    """The admin API of one broker, or a client of another one's."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(cast("RegionCalls", None))  # there is no HTTP
        self._broker = broker
        self._locks = _Locks()

    async def _ask(self, method: str, region: str, path: str, number: int | None) -> tuple[int, str]:
        asked, world = URL(path), self._broker.world
        target = world.regions[region].reached("")
        if target is None or not world.network.can_dial(self._broker.region, region):
            raise RemoteAdminFailed(f"{region} cannot be reached")
        connection = world.network.connect(self._broker, target)
        answered: Future[tuple[int, str]] = Future()

        async def answer() -> None:
            found = await _answer(target.service, method, asked, number)
            connection.send(1, lambda: answered.resolve(found))

        connection.on_closed[0] = lambda: answered.fail(RemoteAdminFailed(f"{region}: the connection broke"))
        connection.send(0, lambda: target.spawn(answer(), "answer another region's question"))
        world.loop.after(ANSWER_US, self._broker, lambda: answered.fail(RemoteAdminFailed(f"{region} does not answer")))
        try:
            return await answered
        finally:
            connection.close(0)


async def _answer(service: TopicService, method: str, asked: URL, number: int | None) -> tuple[int, str]:
    try:
        return await _do(service, method, asked, number)
    except (TopicError, LedgerError, MetadataError) as error:
        return next(status for kind, status in STATUSES if isinstance(error, kind)), str(error)


async def _do(service: TopicService, method: str, asked: URL, number: int | None) -> tuple[int, str]:
    path = unquote(asked.path).removeprefix("/admin/v2/persistent/").removesuffix("/partitions")
    name, known = topic_name.parse(f"persistent://{path}"), asked.query["incarnation"]
    if method == "GET":
        if order := await incarnations.compare_base(service.opener, name, known):
            return DELETED_LATER if order > 0 else 404, "another deletion"
        return 200, json.dumps({"partitions": await creation.partitions(service.opener, name, create=False)})
    assert number is not None
    if await incarnations.follow_base(service.opener, name, known) is not None:
        return DELETED_LATER, "it was deleted later"
    if method == "POST":
        if number < (await service.parts.catalog.partitioned.get(name)).partitions:
            return FEWER, "it has more"
        await partition_growth.grow(service.opener, name, number, known)
        return 204, ""
    created = asked.query.get("created")  # brokers of earlier versions do not know when they created it
    if created is None:
        await creation.create_partitioned(service.opener, name, number, {})
    else:
        await kinds.create_as_told(service.opener, name, number, {}, Stamp.parse(created), known)
    return 204, ""
