# SPDX-License-Identifier: Apache-2.0
"""Calls to a region of several brokers: any broker may be asked, and redirects the caller to the one that knows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from aiohttp import web
from meridian_broker.gateway.region_calls import CallFailed, RegionCalls
from meridian_broker.wire.peer_requests import Guard
from support.brokers.free_ports import free_port
from support.brokers.peers import GUARD, SECRET, as_west, calls_as, identity, now_ms

Answer = Callable[[web.Request], Awaitable[web.Response]]
PATH = "/admin/v2/persistent/t/n/topic/stats?x=1"


@asynccontextmanager
async def broker(run: int, answer: Answer, guarded: bool = True) -> AsyncIterator[str]:
    """A broker of us-west at this address."""
    app = web.Application(middlewares=[as_west] if guarded else [])
    app[GUARD] = Guard("us-west", bytes([run]) * 32, lambda: (SECRET,))
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def known(request: web.Request) -> web.Response:
    return web.json_response([request.method, request.raw_path, (await request.read()).decode()])


def sends_to(base: str) -> Answer:
    async def answer(request: web.Request) -> web.Response:
        to = base + request.raw_path
        return web.Response(status=307, headers={"Location": to}, text=to)

    return answer


async def test_the_caller_is_redirected_to_the_owner() -> None:
    async with broker(1, known) as owner, broker(2, sends_to(owner)) as other:
        calls = calls_as("us-east", other)
        for _ in range(2):  # each of the two brokers is greeted once
            status, said = await calls.ask("us-west", "POST", PATH, {"a": 1}, seconds=30)
            assert (status, said) == (200, b'["POST", "' + PATH.encode() + b'", "{\\"a\\": 1}"]')


async def test_the_redirect_target_is_covered_by_the_proof() -> None:
    async def forged(request: web.Request) -> web.Response:
        answer = await sends_to(owner)(request)
        answer.headers["Location"] = "http://127.0.0.1:1/elsewhere"  # as somebody in between might write
        return answer

    async with broker(1, known) as owner, broker(2, forged) as other:
        status, _ = await calls_as("us-east", other).ask("us-west", "GET", PATH, seconds=30)
        assert status == 200
    async with broker(1, known, guarded=False) as stranger, broker(2, sends_to(stranger)) as other:
        with pytest.raises(CallFailed, match="did not prove that it is that region"):
            await calls_as("us-east", other).ask("us-west", "GET", PATH, seconds=30)


async def test_a_redirect_loop_between_owners_is_an_error() -> None:
    async with AsyncExitStack() as stack:
        first: list[str] = []

        async def back(request: web.Request) -> web.Response:
            return await sends_to(first[0])(request)

        second = await stack.enter_async_context(broker(1, back))
        first.append(await stack.enter_async_context(broker(2, sends_to(second))))
        with pytest.raises(CallFailed, match="redirect loop"):
            await calls_as("us-east", second).ask("us-west", "GET", PATH, seconds=30)


async def test_a_region_has_several_addresses() -> None:
    nobody = free_port()
    async with broker(1, known) as one:
        both = f"http://127.0.0.1:{nobody},{one.removeprefix('http://')}"
        status, _ = await calls_as("us-east", both).ask("us-west", "GET", PATH, seconds=30)
        assert status == 200
    with pytest.raises(CallFailed, match=f"{nobody} does not accept connections.*; http"):
        await calls_as("us-east", both).ask("us-west", "GET", PATH, seconds=30)


async def test_one_of_several_brokers_passes_requests_on_within_its_region() -> None:
    def region_calls() -> RegionCalls:
        return RegionCalls(identity("us-west"), lambda _: None, None, now_ms)

    async def answered(**several: bool) -> int:
        app = web.Application(middlewares=[as_west])
        app[GUARD] = Guard("us-west", bytes(32), lambda: (SECRET,), **several)
        app.router.add_route("*", "/{tail:.*}", known)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            at = f"http://127.0.0.1:{runner.addresses[0][1]}"
            return (await region_calls().ask_at("us-west", at, "GET", PATH, b"", seconds=30))[0]
        finally:
            await runner.cleanup()

    assert await answered(is_one_of_several=True) == 200
    with pytest.raises(CallFailed):
        await answered()
