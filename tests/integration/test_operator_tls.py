# SPDX-License-Identifier: Apache-2.0
"""The operator and regions that serve TLS: it believes the authorities that it is given, and tells others nothing."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.regions.client import RegionClient
from meridian_operator.regions.directory import Region, Tokens
from meridian_operator.regions.observing import Observer
from support.brokers.broker_process import BrokerProcess
from support.brokers.certificates import Authority, Pair, served
from support.brokers.free_ports import free_port

NAME = TopicName.parse("persistent://public/default/orders")


async def seen(url: str, trusted: Path, directory: Path) -> RegionSeen:
    """What the operator sees of a region there."""
    (directory / "default").write_text("a-token")
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=trusted))
    async with aiohttp.ClientSession(connector=connector) as http:
        observer = Observer(RegionClient(Region("east", url), http, Tokens(directory)))
        try:
            return await observer.see(NAME)
        finally:
            await observer.close()


@asynccontextmanager
async def recorder(pair: Pair) -> AsyncIterator[tuple[str, list[str]]]:
    """A server of TLS: its address, and the tokens of the requests that came."""
    tokens: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        tokens.append(request.headers.get("Authorization", ""))
        return web.Response(status=404)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        yield f"https://127.0.0.1:{runner.addresses[0][1]}", tokens
    finally:
        await runner.cleanup()


async def test_a_region_is_asked_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    https = free_port()
    settings = served(authority.issue("east"), free_port(), https)
    with BrokerProcess("east", tmp_path / "east", settings=settings):
        found = await seen(f"https://127.0.0.1:{https}", authority.trusted, tmp_path)
    assert found.reachable and found.known_regions == {"east"}


@pytest.mark.parametrize("wrong", ["authority", "name"])
async def test_a_region_that_cannot_show_who_it_is_learns_nothing(tmp_path: Path, wrong: str) -> None:
    """Not even the token: what asked for it may be anybody."""
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    pair = stranger.issue("false") if wrong == "authority" else authority.issue("other", "elsewhere.svc")
    async with recorder(pair) as (url, tokens):
        found = await seen(url, authority.trusted, tmp_path)
        assert not found.reachable
        assert f"the certificate of {url} is not trusted" in found.problem
        assert "tls.caSecret" in found.problem
        assert not tokens
        await seen(url, stranger.trusted, tmp_path)
        assert set(tokens) == ({"Bearer a-token"} if wrong == "authority" else set()), "or the above proves nothing"
