# SPDX-License-Identifier: Apache-2.0
"""The HTTP listener: Pulsar's admin API, lookups, Meridian's own API, health and metrics."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from aiohttp import web

from meridian_broker.admin.export.export import EXPORTS, Exports
from meridian_broker.admin.figures.rates import Rates
from meridian_broker.admin.http.access import TENANTS
from meridian_broker.admin.http.connections import HttpConnection, within_limits
from meridian_broker.admin.http.errors import refusals
from meridian_broker.admin.http.gatekeeping import EXPORT_CALLS, PEER_CALLS, gatekeeper, proven_answers
from meridian_broker.admin.http.owners import ANYWHERE, AT_OWNER, SPREAD, at_owner
from meridian_broker.admin.http.requests import STATE
from meridian_broker.admin.http.reserved import HARMLESS, keeps_events
from meridian_broker.admin.http.state import AdminState
from meridian_broker.admin.http.web_pages import HOSTS, no_web_pages
from meridian_broker.admin.meridian.describing import REMEMBERS, Remembered
from meridian_broker.admin.meridian.spread import spread
from meridian_broker.admin.metrics.scraping import SCRAPES, Scrapes
from meridian_broker.admin.pulsar.health import live, ready
from meridian_broker.admin.pulsar.load_report import LOAD, LoadReports
from meridian_broker.admin.pulsar.topic_stats import STATS, TopicStats
from meridian_broker.admin.routes import HARMLESS_ROUTES, OWNERS_ROUTES, PARTITIONS_ROUTES, ROUTES, TENANTS_ROUTES
from meridian_broker.bounds.http import PROBES
from meridian_broker.gateway.places import Hall, Places
from meridian_broker.gateway.tls_listeners import TlsListener, TlsListeners

PATIENCE: Final = 2.0
"""Seconds that requests in progress get when the broker stops."""
PROBE_PLACES: Final = Places(total=PROBES, per_address=PROBES // 2)
BACKLOG: Final = 1024


class AdminServer:
    """The application behind the listeners. ``await start(...)``, ``listen`` once or more, then ``await close()``."""

    def __init__(self, state: AdminState, exports: Exports, host: str, hall: Hall) -> None:
        self.state = state
        self._exports = exports
        self._remembered = Remembered(state.catalog)
        self._host = host
        self._hall = hall
        self._runners: dict[Hall, web.AppRunner] = {}
        self._listeners: list[asyncio.Server | TlsListener] = []

    @classmethod
    async def start(cls, state: AdminState, host: str, places: Places, names: frozenset[str]) -> AdminServer:
        """No connection is accepted before ``listen``.

        :param names: by which this broker is known, in lower case.
        """
        server = cls(state, Exports(state), host, Hall(places, time.monotonic, "idle HTTP connections"))
        doors = [within_limits, proven_answers, refusals, no_web_pages, gatekeeper, keeps_events, at_owner]
        app = web.Application(middlewares=doors)
        app[HOSTS] = names
        app[EXPORTS] = server._exports
        app[REMEMBERS] = server._remembered
        app[SCRAPES] = Scrapes()
        app[STATS] = TopicStats(state, Rates(time.monotonic))
        app[LOAD] = LoadReports(state, Rates(time.monotonic))
        app[EXPORT_CALLS] = frozenset(route.handler for route in ROUTES if route.exports)
        app[AT_OWNER] = OWNERS_ROUTES
        app[ANYWHERE] = PARTITIONS_ROUTES
        app[HARMLESS] = HARMLESS_ROUTES
        app[SPREAD] = spread
        app[TENANTS] = TENANTS_ROUTES
        app[PEER_CALLS] = {route.handler: route.peers for route in ROUTES if route.peers is not None}
        for route in ROUTES:
            app.router.add_route(route.method, route.path, route.handler)
        await server._serve(app, server._hall)
        return server

    async def _serve(self, app: web.Application, hall: Hall) -> None:
        app[STATE] = self.state
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=PATIENCE)
        await runner.setup()
        self._runners[hall] = runner

    async def listen(self, port: int, tls: TlsListeners | None = None) -> int:
        """Serve on one more port; 0 lets the system choose. Returns the port. :raises OSError: it is taken."""
        return await self._listen(self._hall, port, tls)

    async def listen_for_probes(self, port: int) -> int:
        """Serve ``/ready`` and ``/live`` and nothing else, with places that no other port shares.

        :raises OSError: the port is taken.
        """
        app = web.Application(middlewares=[within_limits, refusals])
        app.router.add_get("/ready", ready)
        app.router.add_get("/live", live)
        hall = Hall(PROBE_PLACES, time.monotonic, "idle probes")
        await self._serve(app, hall)
        return await self._listen(hall, port, None)

    async def _listen(self, hall: Hall, port: int, tls: TlsListeners | None) -> int:
        loop, server = asyncio.get_running_loop(), self._runners[hall].server
        assert server is not None

        def accept() -> HttpConnection:
            return HttpConnection(hall, server, loop)

        listener: asyncio.Server | TlsListener
        if tls is None:
            listener = await loop.create_server(accept, self._host, port, backlog=BACKLOG)
        else:
            listener = await tls.listen(accept, self._host, port, backlog=BACKLOG)
            await listener.start_serving()
        self._listeners.append(listener)
        return int(listener.sockets[0].getsockname()[1])

    async def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._remembered.close()
        await self._exports.close()
        for runner in self._runners.values():
            await runner.cleanup()
