# SPDX-License-Identifier: Apache-2.0
"""The HTTP listener: Pulsar's admin API, lookups, Meridian's own API, health and metrics."""

from __future__ import annotations

import ssl
import time
from typing import Any, Final

from aiohttp import web

from meridian_broker.admin.errors import no_web_pages, refusals
from meridian_broker.admin.export import Exports
from meridian_broker.admin.gatekeeping import PEER_CALLS, gatekeeper
from meridian_broker.admin.rates import Rates
from meridian_broker.admin.requests import EXPORTS, STATE, STATS
from meridian_broker.admin.routes import ROUTES
from meridian_broker.admin.state import AdminState
from meridian_broker.admin.topic_stats import TopicStats

BODY_BYTES: Final = 2 << 20
"""Largest body: the largest schema, quoted as JSON, fits."""
PATIENCE: Final = 2.0
"""Seconds that requests under way have when the broker ends."""


class AdminServer:
    """What is behind the listeners. ``await start(...)``, ``listen`` once or more, then ``await close()``."""

    def __init__(self, state: AdminState, runner: web.AppRunner, exports: Exports, host: str) -> None:
        self.state = state
        self._runner = runner
        self._exports = exports
        self._host = host

    @classmethod
    async def start(cls, state: AdminState, host: str) -> AdminServer:
        """Nobody is let in before ``listen``."""
        exports = Exports(state)
        app = web.Application(middlewares=[refusals, no_web_pages, gatekeeper], client_max_size=BODY_BYTES)
        app[STATE] = state
        app[EXPORTS] = exports
        app[STATS] = TopicStats(state, Rates(time.monotonic))
        app[PEER_CALLS] = {route.handler: route.peers for route in ROUTES if route.peers is not None}
        for route in ROUTES:
            app.router.add_route(route.method, route.path, route.handler)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=PATIENCE)
        await runner.setup()
        return cls(state, runner, exports, host)

    async def listen(self, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Serve on one more port; 0 lets the system choose. Says which it is. :raises OSError: it is taken."""
        await web.TCPSite(self._runner, self._host, port, ssl_context=tls).start()
        address: Any = self._runner.addresses[-1]
        return int(address[1])

    async def close(self) -> None:
        await self._exports.close()
        await self._runner.cleanup()
