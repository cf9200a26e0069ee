# SPDX-License-Identifier: Apache-2.0
"""Asking another region's REST API for as many partitions as here: once, growing only, undoing nobody's changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from meridian_broker.gateway.region_calls import RegionCalls
from meridian_broker.gateway.remote_admin import OtherDeletion, RemoteAdmin, RemoteAdminFailed
from meridian_broker.wire.peer_requests import Guard
from support.brokers.peers import GUARD, SECRET, as_west, calls_as, identity, now_ms

TOPIC = "persistent://tenant/ns/a topic"
PATH = "/admin/v2/persistent/tenant/ns/a%20topic/partitions"


class Rest:
    """The part of the admin API that is used here. ``count`` is the topic's number of partitions; 0: no topic."""

    def __init__(self) -> None:
        self.count = 0
        self.asked: list[str] = []
        self.taken_meanwhile = 0
        self.incarnations: list[str] = []
        self.deleted = False
        self.nonsense = b""

    async def answer(self, request: web.Request) -> web.Response:
        assert request.rel_url.raw_path == PATH
        self.asked.append(request.method)
        self.incarnations.append(request.query["incarnation"])
        if self.deleted:
            return web.json_response({"reason": "deleted since"}, status=412)
        if self.nonsense and request.method == "GET":
            return web.Response(body=self.nonsense)
        if request.method == "GET":
            return web.json_response({"partitions": self.count}) if self.count else web.Response(status=404)
        if request.method == "PUT" and self.taken_meanwhile:
            self.count, self.taken_meanwhile = self.taken_meanwhile, 0
            return web.Response(status=409)
        self.count = int(await request.text())
        return web.Response(status=204)


@asynccontextmanager
async def rest() -> AsyncIterator[tuple[Rest, RemoteAdmin]]:
    one = Rest()
    app = web.Application(middlewares=[as_west])
    app[GUARD] = Guard("us-west", bytes(32), lambda: (SECRET,))
    app.router.add_route("*", "/{tail:.*}", one.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"

    def place(region: str) -> tuple[str, str] | None:
        return ("pulsar://unused", url) if region == "us-west" else None

    try:
        yield one, RemoteAdmin(RegionCalls(identity("us-east"), place, None, now_ms))
    finally:
        await runner.cleanup()


async def test_a_missing_topic_is_created_once_however_many_partitions_ask() -> None:
    async with rest() as (one, admin):
        await asyncio.gather(*(admin.ensure_partitions("us-west", TOPIC, 8) for _ in range(8)))
        assert (one.count, one.asked) == (8, ["GET", "PUT"])
        admin.forget("us-west", TOPIC)
        await admin.ensure_partitions("us-west", TOPIC, 8)
        assert one.asked == ["GET", "PUT", "GET"]


@pytest.mark.parametrize("nonsense", [b"[" * 200_000, b'{"partitions": 1e999}', b"1" * 5000, b"\xff", b"[]"])
async def test_an_answer_that_is_not_a_number_of_partitions_is_an_error(nonsense: bytes) -> None:
    async with rest() as (one, admin):
        one.nonsense = nonsense
        await admin.ensure_partitions("us-west", TOPIC, 8)
        assert (one.count, one.asked) == (8, ["GET", "PUT"])


async def test_counts_grow_and_never_shrink() -> None:
    async with rest() as (one, admin):
        one.count = 3
        await admin.ensure_partitions("us-west", TOPIC, 5)
        assert (one.count, one.asked) == (5, ["GET", "POST"])
        one.count = 16
        admin.forget("us-west", TOPIC)
        await admin.ensure_partitions("us-west", TOPIC, 6)
        assert one.count == 16


@pytest.mark.parametrize("theirs", [4, 2])
async def test_another_region_may_create_it_first(theirs: int) -> None:
    async with rest() as (one, admin):
        one.taken_meanwhile = theirs
        await admin.ensure_partitions("us-west", TOPIC, 4)
        assert one.count == 4


async def test_a_topic_that_was_deleted_there_is_not_recreated() -> None:
    """R8: the request names the deletion we know of, and the remote knows of a later one."""
    async with rest() as (one, admin):
        one.deleted = True
        with pytest.raises(OtherDeletion, match=r"us-west knows of a later .*deleted since"):
            await admin.ensure_partitions("us-west", TOPIC, 4, "5.0@us-east")
        assert (one.count, one.asked, one.incarnations) == (0, ["GET"], ["5.0@us-east"])


async def test_knowledge_of_the_remote_ends_with_the_connection_and_with_the_topic() -> None:
    """A region that returns may have been restored from an older copy, and what is created after a deletion is another
    topic: each request says which one it means."""
    async with rest() as (one, admin):
        link = object()
        for _ in range(2):
            await admin.ensure_partitions("us-west", TOPIC, 4, connection=link)
        assert one.asked == ["GET", "PUT"]
        one.count = 0
        await admin.ensure_partitions("us-west", TOPIC, 4, connection=object())
        assert (one.count, one.asked) == (4, ["GET", "PUT"] * 2)
        await admin.ensure_partitions("us-west", TOPIC, 6, "5.0@us-east", connection=link)
        assert one.asked[4:] == ["GET", "POST"]
        assert one.incarnations[4:] == ["5.0@us-east"] * 2


async def test_a_failed_request_is_an_error_that_names_the_region() -> None:
    async with rest() as (_, admin):
        with pytest.raises(RemoteAdminFailed, match="mars cannot be asked: it has no admin URL"):
            await admin.ensure_partitions("mars", TOPIC, 4)
    gone = RemoteAdmin(calls_as("us-east", "http://127.0.0.1:1"))
    with pytest.raises(RemoteAdminFailed, match=r"us-west cannot be asked: http://\S+ does not accept"):
        await gone.ensure_partitions("us-west", TOPIC, 4)
