# SPDX-License-Identifier: Apache-2.0
"""How a broker finds out that the one of its region that applies metadata events does so no longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from meridian_broker.gateway import metadata_comparing, metadata_standby
from meridian_broker.gateway.addresses import Addresses, Place
from meridian_broker.gateway.metadata_standby import HOLD_SECONDS, Standby
from meridian_broker.wire.peer_requests import Guard
from meridian_broker.wire.pulsar.topic_name import TopicName
from support.brokers.peers import GUARD, SECRET, as_west, calls_as

TOPIC = "persistent://public/default/metadata-events"
Answer = Callable[[web.Request], Awaitable[web.Response]]


@asynccontextmanager
async def standby(answer: Answer, *, owns: bool = True) -> AsyncIterator[tuple[Standby, web.TCPSite]]:
    """Of a broker whose neighbour owns the topic and answers like this; and where the neighbour listens."""

    async def locate(_topic: TopicName, _listener: str, _is_chosen: bool) -> Place:
        return Place(Addresses(admin_url=address), owns)

    app = web.Application(middlewares=[as_west])
    app[GUARD] = Guard("us-west", b"1" * 32, lambda: (SECRET,), is_one_of_several=True)
    app.router.add_get("/meridian/v1/metadata/applying", answer)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield Standby("us-west", locate, calls_as("us-west", address)), site
    finally:
        await runner.cleanup()


def says(applying: object, status: int = 200) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"applying": applying}, status=status)

    return answer


@pytest.mark.parametrize(
    ("answer", "is_applied"),
    [
        (says(True), True),
        (says(False), False),
        (says(True, 500), False),
        (says(None, 404), True),  # an earlier version, which is alive
        (says("yes"), False),
    ],
)
async def test_the_owner_is_believed(answer: Answer, is_applied: bool) -> None:
    async with standby(answer) as (one, _):
        assert await one.is_applied(TOPIC) is is_applied
    async with standby(answer, owns=False) as (one, _):
        assert await one.is_applied(TOPIC) is False


@pytest.mark.timeout(60)
async def test_the_death_of_its_process_is_noticed_by_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by a timer: here none ends within an hour."""
    monkeypatch.setattr(metadata_standby, "SILENT_SECONDS", 3600.0)
    asked: asyncio.Queue[web.Request] = asyncio.Queue()

    async def hold(request: web.Request) -> web.Response:
        asked.put_nowait(request)
        await asyncio.Event().wait()
        raise AssertionError

    async with standby(hold) as (one, site):
        waiting = asyncio.create_task(one.is_applied(TOPIC))
        request = await asked.get()
        assert not waiting.done()
        assert isinstance(request.transport, asyncio.Transport)
        await site.stop()  # as the kernel does when the process dies
        request.transport.abort()
        assert await waiting is False


async def test_a_broker_that_is_silent_counts_as_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_standby, "SILENT_SECONDS", 0.1)

    async def hold(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with standby(hold) as (one, _):
        assert await one.is_applied(TOPIC) is False


def test_no_wait_is_longer_than_the_promise() -> None:
    """The broker that stands in compares at once with what others have, then tells them to compare with what it has.

    At worst, the owner dies right after it answered, and a comparison with the same region has just ended.
    """
    until_it_is_asked_again = HOLD_SECONDS / 5
    until_a_comparison_begins = metadata_comparing.STANDBY_SECONDS + metadata_comparing.LOOK_SECONDS
    assert until_it_is_asked_again + 2 * until_a_comparison_begins < 2
