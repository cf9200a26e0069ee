# SPDX-License-Identifier: Apache-2.0
"""The HTTP listener: Pulsar's admin API, lookups, Meridian's own API, health and metrics."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from meridian_broker.admin.state import AdminState

STATE = web.AppKey("state", AdminState)


async def _health(request: web.Request) -> web.Response:
    if not request.app[STATE].ready:
        return web.json_response({"reason": "this broker is starting: ask again in a moment"}, status=503)
    return web.Response(text="ok")


class AdminServer:
    """A running listener. ``await start(...)``, then ``await close()``."""

    def __init__(self, state: AdminState, runner: web.AppRunner) -> None:
        self.state = state
        self._runner = runner

    @classmethod
    async def start(cls, state: AdminState, host: str, port: int) -> AdminServer:
        """:raises OSError: the address is taken."""
        app = web.Application()
        app[STATE] = state
        app.router.add_get("/admin/v2/brokers/health", _health)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, host, port).start()
        return cls(state, runner)

    @property
    def port(self) -> int:
        """The port it listens on."""
        address: Any = self._runner.addresses[0]
        return int(address[1])

    async def close(self) -> None:
        await self._runner.cleanup()
