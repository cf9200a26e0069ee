# SPDX-License-Identifier: Apache-2.0
"""The operator and regions that serve TLS: it trusts only the authorities it is given, and sends nothing to others."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.regions.client import RegionClient
from meridian_operator.regions.directory import Authorities, Region, Tokens
from meridian_operator.regions.observing import Observer
from support.brokers.broker_process import BrokerProcess
from support.brokers.certificates import Authority, Pair, served
from support.brokers.free_ports import free_port

NAME = TopicName.parse("persistent://public/default/orders")


async def seen(url: str, trusted: Path, directory: Path) -> RegionSeen:
    """What the operator observes of a region at that address."""
    (directory / "default").write_text("a-token")
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=trusted))
    async with aiohttp.ClientSession(connector=connector) as http:
        observer = Observer(RegionClient(Region("east", url), http, Tokens(directory)))
        try:
            return await observer.see(NAME)
        finally:
            await observer.close()


@asynccontextmanager
async def observing(url: str, directory: Path) -> AsyncIterator[Observer]:
    """An observer of region ``east`` at that address, with authorities from a directory."""
    async with aiohttp.ClientSession() as http:
        region = RegionClient(Region("east", url), http, Tokens(None), Authorities(directory))
        observer = Observer(region, sleep=lambda _: asyncio.sleep(0))
        try:
            yield observer
        finally:
            await observer.close()


@asynccontextmanager
async def recorder(pair: Pair) -> AsyncIterator[tuple[str, list[str]]]:
    """A TLS server: its address, and the tokens of the requests it received."""
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
async def test_a_region_that_cannot_prove_its_identity_learns_nothing(tmp_path: Path, wrong: str) -> None:
    """Not even the token: the server may be anybody."""
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


@pytest.mark.parametrize("named", ["east", "default"])
async def test_a_region_has_authorities_of_its_own_or_the_default_ones(tmp_path: Path, named: str) -> None:
    """Its own alone: the default authorities do not vouch for it."""
    mine, others, directory = Authority(tmp_path, "mine"), Authority(tmp_path, "others"), tmp_path / "authorities"
    directory.mkdir()
    (directory / "default").write_bytes(others.trusted.read_bytes())
    (directory / named).write_bytes(mine.trusted.read_bytes())
    async with recorder(mine.issue("server")) as (url, tokens), observing(url, directory) as observer:
        await observer.see(NAME)
        assert tokens, "it is trusted"
    async with recorder(others.issue("another")) as (url, tokens), observing(url, directory) as observer:
        assert f"the certificate of {url} is not trusted" in (await observer.see(NAME)).problem
        assert not tokens


async def test_replaced_authorities_are_used_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meridian_operator.regions.observing.PROBE_SECONDS", 0.0)
    before, after, directory = Authority(tmp_path, "before"), Authority(tmp_path, "after"), tmp_path / "authorities"
    directory.mkdir()
    file = directory / "east"
    async with recorder(after.issue("server")) as (url, tokens), observing(url, directory) as observer:
        for wrong in (before.trusted.read_bytes(), b"not a certificate", b""):
            file.write_bytes(wrong)
            seen = await observer.see(NAME)
            assert not tokens and seen.reason == "RegionUnreachable"
        assert f"the certificate authorities in {file} cannot be used" in seen.problem
        file.write_bytes(after.trusted.read_bytes())
        seen = await observer.see(NAME)
        assert tokens, seen.problem
