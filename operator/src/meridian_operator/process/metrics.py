# SPDX-License-Identifier: Apache-2.0
"""Metrics for Prometheus: which replica acts, the state of its objects, and its requests by host."""

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
"""(kind, status of Ready, reason of Ready) -> number of objects."""
KUBERNETES: Final = "kubernetes"
"""Value of label ``host`` for the API server."""
NO_ANSWER: Final = "none"
"""Value of label ``status`` when no answer came."""


class Metrics:
    """The operator's metrics.

    :param acts: whether this replica holds the Lease.
    :param objects: called at every scrape.
    :param expiries: region -> when its token expires, in seconds since 1970; called at every scrape.
    """

    def __init__(
        self,
        acts: Callable[[], bool],
        objects: Callable[[], Objects],
        expiries: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)
        self._calls = prometheus.Counter(
            "meridian_operator_requests",
            "Requests to regions and to Kubernetes, by HTTP status",
            ("host", "method", "status"),
            registry=self.registry,
        )
        self._seconds = prometheus.Histogram(
            "meridian_operator_request_seconds", "Time from a request to its answer", ("host",), registry=self.registry
        )
        self.registry.register(_Now(acts, objects, expiries))

    def text(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return prometheus.generate_latest(self.registry)

    def counting(self, host: str | None = None) -> aiohttp.TraceConfig:
        """Counts the requests of an aiohttp session.

        :param host: value of label ``host``; None: the host in the URL.
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
    """Gauges computed at each scrape."""

    def __init__(
        self, acts: Callable[[], bool], objects: Callable[[], Objects], expiries: Callable[[], Mapping[str, int]]
    ) -> None:
        self._acts = acts
        self._objects = objects
        self._expiries = expiries

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
        tokens = GaugeMetricFamily(
            "meridian_operator_token_expiry_timestamp_seconds",
            "When the operator's token for a region expires, in seconds since 1970; absent if it does not expire",
            labels=("region",),
        )
        for region, until in self._expiries().items():
            tokens.add_metric((region,), until)
        yield tokens
