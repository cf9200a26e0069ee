# SPDX-License-Identifier: Apache-2.0
"""``/meridian/v1/describe``: the state of many topics and subscriptions at once, for programs that watch all of them.

With Pulsar's paths, one topic costs a dozen requests, each of which reads the metadata store. Here a thousand topics
take one request, and what was read from the store is remembered until the catalog learns of a change: without changes,
a request reads the store once, to make sure that it still answers.

The answer ends after a time limit, so that one request never blocks the loop; the caller then asks for the rest.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from aiohttp import web

from meridian_broker.admin.figures import lagging
from meridian_broker.admin.figures.backlogs import backlog_of
from meridian_broker.admin.figures.filling import fill, together
from meridian_broker.admin.http.requests import answer, body, state
from meridian_broker.admin.http.state import AdminState
from meridian_broker.admin.meridian.scoping import dispatched
from meridian_broker.admin.pulsar.policy_endpoints import ENDPOINTS
from meridian_broker.bounds.describing import (
    DESCRIBE_MS,
    DESCRIBE_REMEMBERED,
    DESCRIBED_SUBSCRIPTIONS,
    DESCRIBED_TOPICS,
    DESCRIBED_WALK,
)
from meridian_broker.bounds.http import LARGE_BODY_BYTES
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.ledgers.view import LogView
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.errors import Invalid, NotFound
from meridian_broker.metadata.policy_table import BACKLOG_QUOTAS, REPLICATION, TABLE, show
from meridian_broker.metadata.view import Changed
from meridian_broker.topics.errors import TopicError, TopicNotFound
from meridian_broker.topics.snapshots.host import TopicSnapshots
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar.errors import InvalidTopicNameError
from meridian_broker.wire.pulsar.topic_name import TopicName, parse

Json = dict[str, Any]
Value = TypeVar("Value")

_WANTED: Final = (
    f'expected the body {{"topics": [{{"topic": NAME, "subscriptions": [NAME, ...]}}, ...]}}, at most '
    f"{DESCRIBED_TOPICS} topics and {DESCRIBED_SUBSCRIPTIONS} subscriptions"
)


class Remembered:
    """Partition counts and newest schemas, until the catalog sees a change."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._partitions: dict[str, dict[TopicName, int]] = {}
        self._schemas: dict[str, Json | None] = {}
        self._changes = 0
        self.close = catalog.subscribe(self._changed)

    async def partitions(self, topic: TopicName) -> int:
        """0: the topic is not partitioned, or does not exist. :raises MetadataError: the store cannot be read."""
        namespace = topic.namespace_name
        counts = self._partitions.get(namespace)
        if counts is None:
            before = self._changes
            found = await self._catalog.partitioned.all(namespace)
            counts = {name: record.partitions for name, record in found if record.deleting is None}
            self._keep(self._partitions, namespace, counts, before)
        return counts.get(topic, 0)

    async def schema(self, topic: TopicName) -> Json | None:
        """Type and digest of the newest schema. :raises MetadataError: the store cannot be read."""
        key = f"{topic.namespace_name}/{topic.base.local_name}"
        if key not in self._schemas:
            before = self._changes
            try:
                record = await self._catalog.schemas.get(topic)
            except NotFound:
                found = None
            else:
                found = {"type": record.type, "sha256": hashlib.sha256(record.data).hexdigest()}
            self._keep(self._schemas, key, found, before)
            return found
        return self._schemas[key]

    def _keep(self, shelf: dict[str, Value], key: str, value: Value, before: int) -> None:
        """Remember a value, unless something changed while it was read: then it may be outdated."""
        if before == self._changes:
            if len(shelf) >= DESCRIBE_REMEMBERED:
                shelf.pop(next(iter(shelf)))
            shelf[key] = value

    def _changed(self, changed: Changed) -> None:
        self._changes += 1
        if changed.kind == "everything":
            self._partitions.clear()
            self._schemas.clear()
        elif changed.kind == "partitioned":
            self._partitions.pop(changed.name.rpartition("/")[0], None)
        elif changed.kind == "schema":
            self._schemas.pop(changed.name, None)


REMEMBERS: Final = web.AppKey("remembers", Remembered)


async def describe(request: web.Request) -> web.Response:
    """State of many topics, and of the named subscriptions: ``{"topics": [{"topic": .., "subscriptions": [..]}, ..]}``.

    The answer may hold fewer topics than requested, but at least the first one: ask again for the rest."""
    asked = _asked(await body(request, limit=LARGE_BODY_BYTES))
    admin, remembered = state(request), request.app[REMEMBERS]
    clusters = sorted(await admin.catalog.clusters.names())
    until = admin.service.parts.scheduler.monotonic_ms() + DESCRIBE_MS
    described: list[Json] = []
    for text, subscriptions in asked:
        if described and admin.service.parts.scheduler.monotonic_ms() >= until:
            break
        described.append({"topic": text, **await _described(admin, remembered, text, subscriptions)})
        await asyncio.sleep(0)
    return answer({"region": admin.region, "clusters": clusters, "topics": described})


def _asked(given: Any) -> list[tuple[str, list[str]]]:
    """:raises Invalid: the body has another form."""
    topics = given.get("topics") if isinstance(given, Mapping) else None
    if not isinstance(topics, list) or not 0 < len(topics) <= DESCRIBED_TOPICS:
        raise Invalid(_WANTED)
    found: list[tuple[str, list[str]]] = []
    for one in topics:
        name, wanted = (one.get("topic"), one.get("subscriptions", [])) if isinstance(one, Mapping) else (None, None)
        if not isinstance(name, str) or not isinstance(wanted, list) or not all(isinstance(sub, str) for sub in wanted):
            raise Invalid(_WANTED)
        found.append((name, wanted))
    if sum(len(wanted) for _, wanted in found) > DESCRIBED_SUBSCRIPTIONS:
        raise Invalid(_WANTED)
    return found


async def _described(admin: AdminState, remembered: Remembered, text: str, subscriptions: list[str]) -> Json:
    """A problem with one topic is reported for that topic; the others are described."""
    try:
        name = parse(text)
        if not name.is_persistent or name.partition >= 0:
            return {"problem": f"{name} stores no messages or is a single partition: name the whole topic"}
        if admin.catalog.namespace(name.namespace_name) is None:
            return {"namespace": False, "exists": False}
        return await _topic(admin, remembered, name, subscriptions)
    except TopicNotFound:
        return {"namespace": True, "exists": False}
    except (InvalidTopicNameError, TopicError, LedgerError) as error:
        return {"problem": str(error)}


async def _topic(admin: AdminState, remembered: Remembered, name: TopicName, subscriptions: list[str]) -> Json:
    partitions = 0 if str(name) in admin.service.topics else await remembered.partitions(name)
    names = [name.with_partition(index) for index in range(partitions)] or [name]
    topics = [await admin.service.opener.topic(one, create=False) for one in names]
    return {
        "namespace": True,
        "exists": True,
        "partitions": partitions,
        "policies": _policies(admin, name),
        "schema": await remembered.schema(name),
        "fill": _fill(topics),
        "replication": _replication(admin, topics),
        "snapshots": _snapshots(topics),
        "shadow": _shadow(admin, name, topics),
        "subscriptions": {one: await _subscription(admin, topics, one) for one in subscriptions},
    }


def _policies(admin: AdminState, name: TopicName) -> Json:
    """The topic's own policies, each under the last part of the path that sets it."""
    own = admin.catalog.own_policies(name)
    paths = {endpoint.policy: endpoint.topic for endpoint in ENDPOINTS if endpoint.topic}
    shown: Json = {}
    for policy, value in own.items():
        if policy == REPLICATION:
            shown["replication"] = sorted(region for region, is_in_it in value.items() if is_in_it)
        elif policy == BACKLOG_QUOTAS:
            shown["backlogQuota"] = show(policy, value)
        elif policy in paths and TABLE[policy].each != "region":
            shown[paths[policy]] = show(policy, value)
        elif policy in paths and admin.region in value:
            shown[paths[policy]] = TABLE[policy].show(value[admin.region])
    return shown


def _fill(topics: list[Topic]) -> Json:
    shown = fill(topics[0])
    for topic in topics[1:]:
        shown = together(shown, fill(topic))
    return {key: shown[key] for key in ("ready", "reason", "missing")}


def _shadow(admin: AdminState, name: TopicName, topics: list[Topic]) -> Json | None:
    """A shadow's state relative to its source; None: it is not a shadow."""
    record = admin.catalog.shadows.find(name)
    if record is None:
        return None
    views = [topic.log for topic in topics if isinstance(topic.log, LogView)]
    return {
        "source": str(record.source),
        "connected": bool(views) and all(view.is_attached for view in views),
        "holdsSourceLedgers": record.holds,
        "gapEntries": sum(view.skipped_entries for view in views),
        "autoResetBacklogEntries": record.reset_behind,
        "autoResets": sum(view.resets for view in views),
        "backlog": sum(topic.log.distance(topic.needed_from(), topic.log.last_confirmed) for topic in topics),
    }


def _replication(admin: AdminState, topics: list[Topic]) -> Json:
    """Per remote region: the partitions' backlogs added up, otherwise the worst value."""
    shown: dict[str, Json] = {}
    for topic in topics:
        for remote, status in admin.replication.status(topic.name).items():
            one = shown.setdefault(remote, {"connected": True, "backlog": 0, "delaySeconds": 0})
            one["connected"] = one["connected"] and status.connected
            one["backlog"] += status.backlog
            one["delaySeconds"] = max(one["delaySeconds"], status.delay_ms // 1000)
    return shown


def _snapshots(topics: list[Topic]) -> Json:
    """Whether subscriptions move in other regions by snapshots, and the regions that all partitions leave out."""
    taking = [one for topic in topics if isinstance(one := topic.snapshots, TopicSnapshots) and one.takes]
    without = [one.given_up() for one in taking]
    return {"takes": bool(taking), "without": sorted(frozenset.intersection(*without)) if without else []}


async def _subscription(admin: AdminState, topics: list[Topic], name: str) -> Json | None:
    """The subscription across all partitions that have it; None if none has."""
    found = [topic.subscriptions[name] for topic in topics if name in topic.subscriptions]
    if not found:
        return None
    parts = [await _part(admin, subscription) for subscription in found]
    return {
        "replicated": all(part["replicated"] for part in parts),
        "synced": all(part["synced"] for part in parts),
        "markDelete": parts[0]["markDelete"] if len(parts) == 1 else "",
        **{key: sum(part[key] for part in parts) for key in ("backlog", "holes", "consumers")},
        "behind": {region: reason for part in parts for region, reason in part["behind"].items()},
        "scopes": sorted({part["scope"] for part in parts}),
        "witnesses": sorted({part["witness"] for part in parts}),
        "scopeProblem": next((part["scopeProblem"] for part in parts if part["scopeProblem"]), ""),
    }


async def _part(admin: AdminState, subscription: Subscription) -> Json:
    stands = await backlog_of(subscription, walk=DESCRIBED_WALK)
    peers = lagging.peers(admin, subscription)
    scope = dispatched(admin, subscription)
    return {
        "replicated": subscription.durable and subscription.replicated,
        "synced": lagging.is_in_step(peers),
        "markDelete": str(stands.mark_delete),
        "backlog": stands.backlog,
        "holes": len(stands.holes),
        "consumers": len(subscription.consumers),
        "behind": {peer.region: str(peer.reason) for peer in peers if peer.reason},
        "scope": scope["dispatch_scope"],
        "witness": scope.get("witness", ""),
        "scopeProblem": scope.get("scope_reason") or "",
    }
