# SPDX-License-Identifier: Apache-2.0
"""Answers ``/metrics``. The text is rendered in a thread, for all who ask at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from meridian_broker.admin.export.export import EXPORTS
from meridian_broker.admin.http.requests import state
from meridian_broker.admin.metrics.reading import Reading, filled, read
from meridian_broker.admin.metrics.table import COUNTERS, GAUGES, SNAPSHOT_MS, TOPIC


class _Read(Collector):
    """A reading as a collector."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def collect(self) -> Iterable[Metric]:
        for name, (text, labels) in GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=labels)
            yield filled(gauge, self._reading.values.get(name, {}))
        for name, (text, labels) in COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=labels)
            yield filled(counter, self._reading.values.get(name, {}))
        took = SummaryMetricFamily(SNAPSHOT_MS, "Milliseconds that complete snapshots took", labels=TOPIC)
        for of, (count, sum_ms) in self._reading.snapshots.items():
            took.add_metric(of, count, sum_ms)
        yield took
        yield from self._reading.families


async def metrics(request: web.Request) -> web.Response:
    """Metrics of this broker as Prometheus text."""

    async def text() -> bytes:
        reading = await read(state(request))
        reading.put("meridian_export_snapshots", (), request.app[EXPORTS].count)
        return await asyncio.to_thread(_text, reading)

    body = await request.app[SCRAPES].take(text)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


class Scrapes:
    """One scrape at a time: a request that arrives during one gets the same text.

    Anybody may ask, and the numbers of 100,000 topics take hundreds of megabytes.
    """

    def __init__(self) -> None:
        self._under_way: asyncio.Future[bytes | None] | None = None
        """The scrape in progress; its result is None if it failed."""

    async def take(self, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """The text from ``make``, called for this caller or another one."""
        while (others := self._under_way) is not None:
            if (text := await asyncio.shield(others)) is not None:
                return text
        mine = self._under_way = asyncio.get_running_loop().create_future()
        made: bytes | None = None
        try:
            made = await make()
            return made
        finally:
            self._under_way = None
            mine.set_result(made)


SCRAPES: Final = web.AppKey("scrapes", Scrapes)


def _text(reading: Reading) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Read(reading))
    ProcessCollector(registry=registry)
    return generate_latest(registry)
