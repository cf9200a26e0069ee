# SPDX-License-Identifier: Apache-2.0
"""``stats``, ``internalStats`` and their sums over the partitions of a topic."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from meridian_broker.admin.figures.filling import together
from meridian_broker.admin.http.requests import Refused, answer, any_topic_of, flag, state
from meridian_broker.admin.pulsar.non_persistent import is_non_persistent, non_persistent, non_persistent_stats
from meridian_broker.admin.pulsar.topic_stats import STATS, Json
from meridian_broker.admin.pulsar.topics import opened
from meridian_broker.metadata.errors import NotFound

ADDED: Final = frozenset(
    {
        "msgRateIn",
        "msgThroughputIn",
        "msgRateOut",
        "msgThroughputOut",
        "bytesInCounter",
        "msgInCounter",
        "bytesOutCounter",
        "msgOutCounter",
        "storageSize",
        "backlogSize",
        "offloadedStorageSize",
        "waitingPublishers",
        "msgBacklog",
        "msgBacklogNoDelayed",
        "msgDelayed",
        "unackedMessages",
        "totalMsgExpired",
        "msgRateExpired",
        "nonContiguousDeletedMessagesRanges",
        "msgInCount",
        "bytesInCount",
        "replicationBacklog",
        "msgDropCount",
        "msgDropRate",
    }
)
"""Keys whose values are added up over partitions."""


async def stats(request: web.Request) -> web.Response:
    """Counters, producers, subscriptions and replicators of a topic."""
    await _refuse_partitioned(request, "partitioned-stats")
    if is_non_persistent(request):
        (light,) = await non_persistent(request)
        return answer(non_persistent_stats(request.app[STATS], light))
    (topic,) = await opened(request)
    made = await request.app[STATS].of(
        topic,
        publishers=not flag(request, "excludePublishers"),
        consumers=not flag(request, "excludeConsumers"),
    )
    return answer(made)


async def internal(request: web.Request) -> web.Response:
    """Ledgers and cursors of a topic."""
    await _refuse_partitioned(request, "partitioned-internalStats")
    (topic,) = await opened(request)
    return answer(await request.app[STATS].internal(topic))


async def partitioned(request: web.Request) -> web.Response:
    """The partitions' counters added up, and each partition's unless ``?perPartition=false``."""
    await _need_partitioned(request)
    every: dict[str, Json] = {}
    if is_non_persistent(request):
        every = {one.name: non_persistent_stats(request.app[STATS], one) for one in await non_persistent(request)}
    for topic in [] if is_non_persistent(request) else await opened(request):
        every[topic.name] = await request.app[STATS].of(
            topic,
            publishers=not flag(request, "excludePublishers"),
            consumers=not flag(request, "excludeConsumers"),
        )
    return answer(summed(request, every))


def summed(request: web.Request, every: dict[str, Json]) -> Json:
    """The statistics of a partitioned topic. :param every: those of its partitions, by name."""
    total = _total(list(every.values()))
    total["metadata"] = {"partitions": len(every), "deleted": False}
    total["partitions"] = every if request.query.get("perPartition", "true").lower() != "false" else {}
    return total


async def partitioned_internal(request: web.Request) -> web.Response:
    """Ledgers and cursors of each partition."""
    await _need_partitioned(request)
    every = {topic.name: await request.app[STATS].internal(topic) for topic in await opened(request)}
    return answer({"metadata": {"partitions": len(every), "deleted": False}, "partitions": every})


async def _refuse_partitioned(request: web.Request, instead: str) -> None:
    name = any_topic_of(request)
    if name.partition < 0 and await state(request).catalog.partitioned.find(name) is not None:
        raise Refused(404, f"{name} is partitioned: ask for {instead}")


async def _need_partitioned(request: web.Request) -> None:
    name = any_topic_of(request)
    if name.partition >= 0 or await state(request).catalog.partitioned.find(name) is None:
        raise NotFound(f"partitioned topic {name} does not exist")


def _total(parts: list[Json]) -> Json:
    """Statistics of all partitions as those of one topic."""
    total: Json = {}
    for one in parts:
        for key, value in one.items():
            if key == "publishers":
                total[key] = [*total.get(key, []), *value]
            elif key in ("subscriptions", "replication", "shadowReplication"):
                total[key] = _merge(total.get(key, {}), value)
            elif key == "meridian":
                known = total.get(key, {})
                total[key] = {"missing": [*known.get("missing", ()), *value["missing"]]}
                if "shadow" in value:  # all partitions have it, or none
                    one = {**value["shadow"], "source": value["shadow"]["source"].partition("-partition-")[0]}
                    total[key]["shadow"] = _add_own(known["shadow"], one) if "shadow" in known else one
            elif key in ADDED:
                total[key] = total.get(key, 0) + value
            elif key == "fill":
                total[key] = together(total[key], value) if key in total else value
            else:
                total.setdefault(key, value)
    rate = total.get("msgRateIn", 0)
    total["averageMsgSize"] = total["msgThroughputIn"] / rate if rate else 0.0
    return total


def _merge(before: dict[str, Json], more: dict[str, Json]) -> dict[str, Json]:
    merged = dict(before)
    for name, one in more.items():
        known = merged.get(name)
        merged[name] = dict(one) if known is None else _add(known, one)
    return merged


def _add(known: Json, one: Json) -> Json:
    added: dict[str, Any] = {}
    for key, value in known.items():
        other = one.get(key)
        if key in ADDED:
            added[key] = value + other
        elif key == "meridian":
            added[key] = _add_own(value, other or {})
        elif key == "consumers":
            added[key] = [*value, *(other or [])]
        elif key == "connected":
            added[key] = value and other
        elif key in ("lastAckedTimestamp", "replicationDelayInSeconds"):
            added[key] = max(value, other or 0)
        elif key == "type":
            added[key] = value or other
        else:
            added[key] = value
    return added


_SUMS: Final = frozenset({"gapEntries", "autoResets", "setSize", "setBytes", "lagEntries", "entries", "bytes"})


def _add_own(known: Json, other: Json) -> Json:
    """Meridian's own figures, combined for two partitions."""
    added: dict[str, Any] = {}
    for key, value in known.items():
        more = other.get(key)
        if more is None:
            added[key] = value
        elif key in _SUMS:
            added[key] = value + more
        elif key in ("lagMs", "ageMs"):
            added[key] = max(value, more)
        elif key in ("inSync", "connected"):
            added[key] = value and more
        elif isinstance(value, dict) and isinstance(more, dict):
            added[key] = _add_own(value, more)
        else:
            added[key] = value or more
    return {**other, **added}
