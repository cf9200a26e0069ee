# SPDX-License-Identifier: Apache-2.0
"""Connections of tests that act as the broker of a region."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from aiohttp import web
from meridian_broker.gateway.client_options import ClientOptions, peer_options
from meridian_broker.gateway.peer_identity import PeerIdentity
from meridian_broker.gateway.region_calls import RegionCalls
from meridian_broker.gateway.tls import ContextSource
from meridian_broker.wire.peer_requests import PROOF_HEADER, SCHEME, Call, Guard

SECRET = b"a secret that only these tests know"


def identity(region: str, *secrets: bytes) -> PeerIdentity:
    """A region that knows these secrets, by default the tests' own."""
    return PeerIdentity(region, lambda: secrets or (SECRET,), os.urandom)


def as_region(region: str, to: str, secret: bytes = SECRET, base: ClientOptions | None = None) -> ClientOptions:
    """The client side of a connection from ``region`` to ``to``."""
    return peer_options(identity(region, secret), base).towards(to)


def as_broker(region: str, own: str, to: str, secret: bytes = SECRET) -> ClientOptions:
    """The client side of a connection from broker ``own`` of a region to its broker ``to``."""
    return peer_options(replace(identity(region, secret), broker=own)).within(to)


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def calls_as(region: str, admin_url: str, secret: bytes = SECRET, tls: ContextSource | None = None) -> RegionCalls:
    """The admin API at ``admin_url``, called as region ``region``."""
    return RegionCalls(identity(region, secret), lambda _: ("", admin_url), tls, now_ms)


async def status_as(region: str, to: str, admin_url: str, method: str, path: str, secret: bytes = SECRET) -> int:
    """The answer of ``to`` when ``region`` calls it."""
    status, _ = await calls_as(region, admin_url, secret).ask(to, method, path, seconds=30)
    return status


@web.middleware
async def as_west(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """A test's server that authenticates as region ``us-west`` and accepts calls of authenticated regions only."""
    guard = request.app[GUARD]
    asked = guard.read(request.headers["Authorization"])
    assert request.headers["Authorization"].startswith(SCHEME)
    if not guard.is_current(asked, now_ms()):
        return web.Response(status=401, headers={"WWW-Authenticate": guard.challenge(asked, b"", now_ms())})
    call = Call(request.method, request.raw_path, await request.read())
    admitted = guard.admit(asked, call, b"", now_ms())
    response = await handler(request)
    assert isinstance(response, web.Response)
    body = response.body if isinstance(response.body, bytes) else b""
    response.headers[PROOF_HEADER] = guard.answer(admitted, response.status, body)
    return response


GUARD = web.AppKey("guard", Guard)
