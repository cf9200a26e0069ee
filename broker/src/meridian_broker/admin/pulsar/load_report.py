# SPDX-License-Identifier: Apache-2.0
"""``/admin/v2/broker-stats/load-report``: what this broker carries, by bundle, as Pulsar's tools read it."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from meridian_broker.admin.figures.rates import Rates
from meridian_broker.admin.figures.turns import in_turns
from meridian_broker.admin.http.requests import answer
from meridian_broker.admin.http.state import AdminState
from meridian_broker.admin.pulsar.dealing import known
from meridian_broker.admin.pulsar.health import software_version
from meridian_broker.gateway.addresses import Addresses
from meridian_broker.topics.service.traffic import traffic
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar import topic_name

_MIB: Final = 1 << 20
_COUNTED: Final = ("topics", "producerCount", "consumerCount")
_RATES: Final = ("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut")


class LoadReports:
    """Makes the reports, and remembers what rates are computed from."""

    def __init__(self, admin: AdminState, rates: Rates) -> None:
        self._admin = admin
        self._rates = rates
        self._began = time.monotonic()

    async def make(self) -> dict[str, Any]:
        """The report as of now."""
        bundles = await self._bundles()
        cores = os.cpu_count() or 1
        cpu = _usage(100 * self._rate("cpu", time.process_time_ns()) / 1e9, 100 * cores)
        memory = _memory()
        addresses = asdict(self._admin.gateway.addresses("") or Addresses())
        return {
            "webServiceUrl": addresses["admin_url"],
            "webServiceUrlTls": addresses["admin_url_tls"],
            "pulsarServiceUrl": addresses["service_url"],
            "pulsarServiceUrlTls": addresses["service_url_tls"],
            "persistentTopicsEnabled": True,
            "nonPersistentTopicsEnabled": True,
            "cpu": cpu,
            "memory": memory,
            "directMemory": _usage(0, 0),
            "bandwidthIn": _usage(0, 0),
            "bandwidthOut": _usage(0, 0),
            **{key: sum(one[key] for one in bundles.values()) for key in _RATES},
            "lastUpdate": self._admin.service.parts.scheduler.now_ms(),
            "lastStats": bundles,
            "numTopics": sum(one["topics"] for one in bundles.values()),
            "numBundles": len(bundles),
            "numProducers": sum(one["producerCount"] for one in bundles.values()),
            "numConsumers": sum(one["consumerCount"] for one in bundles.values()),
            "bundles": sorted(bundles),
            "lastBundleGains": [],
            "lastBundleLosses": [],
            "brokerVersionString": software_version(),
            "protocols": {},
            "advertisedListeners": {},
            "loadReportType": "LocalBrokerData",
            "reportedUsage": 0.0 if self._admin.owner is None else self._admin.owner.usage,
            "maxResourceUsage": max(one["usage"] / one["limit"] for one in (cpu, memory) if one["limit"]),
        }

    async def _bundles(self) -> dict[str, dict[str, float]]:
        counts: dict[str, Counter[str]] = {}
        owner = self._admin.owner
        for bundle in () if owner is None else owner.owned():
            counts[str(bundle)] = Counter()
        async for topic in in_turns(self._admin.service.topics.values()):
            name = topic_name.parse(topic.name)
            if (bundles := known(self._admin, name.namespace_name)) is not None:
                counts.setdefault(str(bundles.of(name)), Counter()).update(_counts(topic))
        return {
            bundle: {
                **{key: count[key] for key in _COUNTED},
                **{key: self._rate(f"{bundle} {key}", count[key]) for key in _RATES},
                "cacheSize": 0,
            }
            for bundle, count in sorted(counts.items())
        }

    def _rate(self, what: str, value: int) -> float:
        return self._rates.rate(("load", what), value, time.monotonic() - self._began)


LOAD: Final = web.AppKey("load", LoadReports)


async def report(request: web.Request) -> web.Response:
    """This broker's load: CPU, memory, and the rates and counts of each of its bundles."""
    return answer(await request.app[LOAD].make())


def _counts(topic: Topic) -> dict[str, int]:
    carried = traffic(topic)
    return {
        "topics": 1,
        "producerCount": sum(one.from_source is None for one in topic.producers.values()),
        "consumerCount": sum(len(one.consumers) for one in topic.subscriptions.values()),
        "msgRateIn": carried.messages_in,
        "msgThroughputIn": carried.bytes_in,
        "msgRateOut": carried.messages_out,
        "msgThroughputOut": carried.bytes_out,
    }


def _memory() -> dict[str, float]:
    """Resident memory of this process, and the machine's memory, in MiB."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return _usage(0, 0)  # not Linux
    page = os.sysconf("SC_PAGE_SIZE")
    return _usage(pages * page / _MIB, os.sysconf("SC_PHYS_PAGES") * page / _MIB)


def _usage(used: float, limit: float) -> dict[str, float]:
    return {"usage": used, "limit": limit}
