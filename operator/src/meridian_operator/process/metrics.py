# SPDX-License-Identifier: Apache-2.0
"""What Prometheus is told: which replica acts, how its objects are, and what it asks of whom."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Final

import aiohttp
import prometheus_client as prometheus
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

Objects = Mapping[tuple[str, str, str], int]
"""Kind, and status and reason of Ready -> how many objects."""
KUBERNETES: Final = "kubernetes"
"""The API server, among the hosts that are asked."""
NO_ANSWER: Final = "none"
"""In place of an HTTP status."""


class Metrics:
    """All of them.

    :param acts: does this replica hold the Lease?
    :param objects: asked at every scrape.
    """

    def __init__(self, acts: Callable[[], bool], objects: Callable[[], Objects]) -> None:
        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)
        self._calls = prometheus.Counter(
            "meridian_operator_requests",
            "Requests to regions and to Kubernetes, by HTTP status",
            ("host", "method", "status"),
            registry=self.registry,
        )
        self._seconds = prometheus.Histogram(
            "meridian_operator_request_seconds", "From a request to its answer", ("host",), registry=self.registry
        )
        self.registry.register(_Now(acts, objects))

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return prometheus.generate_latest(self.registry)

    def counting(self, host: str | None = None) -> aiohttp.TraceConfig:
        """Counts the requests of a session of aiohttp.

        :param host: what the host is called; None: as in the URL.
        """

        async def started(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
            context.started = time.monotonic()

        async def ended(
            _: aiohttp.ClientSession,
            context: SimpleNamespace,
            asked: aiohttp.TraceRequestEndParams | aiohttp.TraceRequestExceptionParams,
        ) -> None:
            status = str(asked.response.status) if isinstance(asked, aiohttp.TraceRequestEndParams) else NO_ANSWER
            name = host or asked.url.host or ""
            self._calls.labels(name, asked.method, status).inc()
            self._seconds.labels(name).observe(time.monotonic() - context.started)

        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(started)
        trace.on_request_end.append(ended)
        trace.on_request_exception.append(ended)
        return trace


class _Now(Collector):
    """What holds at the moment of the scrape."""

    def __init__(self, acts: Callable[[], bool], objects: Callable[[], Objects]) -> None:
        self._acts = acts
        self._objects = objects

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "meridian_operator_acting", "1 in the replica that holds the Lease", value=float(self._acts())
        )
        family = GaugeMetricFamily(
            "meridian_operator_objects", "Objects by their condition Ready", labels=("kind", "ready", "reason")
        )
        for labels, count in self._objects().items():
            family.add_metric(labels, count)
        yield family
