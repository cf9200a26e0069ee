# SPDX-License-Identifier: Apache-2.0
"""The HTTP port for probes and Prometheus. Standby replicas answer too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from meridian_operator.process.metrics import Metrics


@asynccontextmanager
async def served(port: int, metrics: Metrics) -> AsyncIterator[int]:
    """Serve ``/healthz`` and ``/metrics`` on all addresses. Yields the port.

    :param port: 0 picks any free port.
    """

    async def alive(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def measured(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application(client_max_size=1024)
    app.router.add_get("/healthz", alive)
    app.router.add_get("/metrics", measured)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
