# SPDX-License-Identifier: Apache-2.0
"""``/meridian/v1/describe``: the state of many topics and subscriptions at once, for programs that watch all of them.

With Pulsar's paths, one topic costs a dozen requests, each of which reads the metadata store. Here a thousand topics
take one request, and what was read from the store is remembered until the catalog learns of a change: without changes,
a request reads the store once, to make sure that it still answers.

The answer ends after a time limit, so that one request never blocks the loop; the caller then asks for the rest.

In a region of several brokers, any of them answers: each topic or partition has its *share* of an answer, for which the
broker that serves it is asked (``?share=true``).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from aiohttp import web

from meridian_broker.admin.elsewhere.everywhere import reason
from meridian_broker.admin.elsewhere.parts import Part, ask_each
from meridian_broker.admin.figures import lagging
from meridian_broker.admin.figures.backlogs import backlog_of
from meridian_broker.admin.figures.filling import fill, together
from meridian_broker.admin.http.requests import answer, body, flag, state
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
from meridian_broker.topics.errors import TopicElsewhere, TopicError, TopicFenced, TopicNotFound
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
        described.append({"topic": text, **await _described(request, remembered, text, subscriptions)})
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


async def _described(request: web.Request, remembered: Remembered, text: str, subscriptions: list[str]) -> Json:
    """A problem with one topic is reported for that topic; the others are described."""
    admin = state(request)
    try:
        name = parse(text)
        if flag(request, "share"):
            return await _share(admin, await admin.service.opener.topic(name, create=False), subscriptions)
        if not name.is_persistent or name.partition >= 0:
            return {"problem": f"{name} stores no messages or is a single partition: name the whole topic"}
        if admin.catalog.namespace(name.namespace_name) is None:
            return {"namespace": False, "exists": False}
        return await _topic(request, remembered, name, subscriptions)
    except TopicNotFound:
        return {"namespace": True, "exists": False}
    except (InvalidTopicNameError, TopicError, LedgerError) as error:
        return {"problem": str(error)}


async def _topic(request: web.Request, remembered: Remembered, name: TopicName, subscriptions: list[str]) -> Json:
    admin = state(request)
    partitions = 0 if str(name) in admin.service.topics else await remembered.partitions(name)
    names = [name.with_partition(index) for index in range(partitions)] or [name]
    shares = await _shares(request, names, subscriptions)
    return {
        "namespace": True,
        "exists": True,
        "partitions": partitions,
        "policies": _policies(admin, name),
        "schema": await remembered.schema(name),
        "fill": _fill(shares),
        "replication": _replication(shares),
        "snapshots": _snapshots(shares),
        "shadow": _shadow(admin, name, shares),
        "subscriptions": {one: _subscription(shares, one) for one in subscriptions},
    }


async def _shares(request: web.Request, names: list[TopicName], subscriptions: list[str]) -> list[Json]:
    """The shares of a topic's partitions, in their order; of those that are here, and of all others together.

    :raises TopicNotFound: one does not exist.
    :raises TopicError, LedgerError: one cannot be described now.
    """
    admin, found, elsewhere = state(request), dict[TopicName, Json](), list[TopicName]()
    for name in names:
        try:
            topic = await admin.service.opener.topic(name, create=False)
        except TopicElsewhere:
            elsewhere.append(name)
        else:
            found[name] = await _share(admin, topic, subscriptions)
    if elsewhere:
        asked = [(one, {"topics": [{"topic": str(one), "subscriptions": subscriptions}]}) for one in elsewhere]
        path = "/meridian/v1/describe?share=true"
        said = await ask_each(request, [Part(one, "POST", path, json.dumps(what).encode()) for one, what in asked])
        for name, one in zip(elsewhere, said, strict=True):
            if one.status != 200:
                raise TopicFenced(f"{name} cannot be described by its broker: {reason(one.value)}")
            (found[name],) = one.value["topics"]
            if "problem" in found[name]:
                raise TopicFenced(found[name]["problem"])
            if "exists" in found[name]:
                raise TopicNotFound(f"topic {name} does not exist")
    return [found[name] for name in names]


async def _share(admin: AdminState, topic: Topic, subscriptions: list[str]) -> Json:
    """Of a topic without partitions, or of one partition."""
    view, snapshots = topic.log, topic.snapshots
    named = [topic.subscriptions[one] for one in subscriptions if one in topic.subscriptions]
    return {
        "fill": fill(topic),
        "replication": {
            remote: {
                "connected": status.connected,
                "backlog": status.backlog,
                "delaySeconds": status.delay_ms // 1000,
            }
            for remote, status in admin.replication.status(topic.name).items()
        },
        "without": sorted(snapshots.given_up()) if isinstance(snapshots, TopicSnapshots) and snapshots.takes else None,
        "shadow": {
            "connected": view.is_attached,
            "gapEntries": view.skipped_entries,
            "autoResets": view.resets,
            "backlog": view.distance(topic.needed_from(), view.last_confirmed),
        }
        if isinstance(view, LogView)
        else None,
        "subscriptions": {one.name: await _part(admin, one) for one in named},
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


def _fill(shares: Sequence[Json]) -> Json:
    shown = shares[0]["fill"]
    for share in shares[1:]:
        shown = together(shown, share["fill"])
    return {key: shown[key] for key in ("ready", "reason", "missing")}


def _shadow(admin: AdminState, name: TopicName, shares: Sequence[Json]) -> Json | None:
    """A shadow's state relative to its source; None: it is not a shadow."""
    record = admin.catalog.shadows.find(name)
    if record is None:
        return None
    views = [share["shadow"] for share in shares if share["shadow"] is not None]
    return {
        "source": str(record.source),
        "connected": bool(views) and all(view["connected"] for view in views),
        "holdsSourceLedgers": record.holds,
        "autoResetBacklogEntries": record.reset_behind,
        **{key: sum(view[key] for view in views) for key in ("gapEntries", "autoResets", "backlog")},
    }


def _replication(shares: Sequence[Json]) -> Json:
    """Per remote region: the partitions' backlogs added up, otherwise the worst value."""
    shown: dict[str, Json] = {}
    for share in shares:
        for remote, status in share["replication"].items():
            one = shown.setdefault(remote, {"connected": True, "backlog": 0, "delaySeconds": 0})
            one["connected"] = one["connected"] and status["connected"]
            one["backlog"] += status["backlog"]
            one["delaySeconds"] = max(one["delaySeconds"], status["delaySeconds"])
    return shown


def _snapshots(shares: Sequence[Json]) -> Json:
    """Whether subscriptions move in other regions by snapshots, and the regions that all partitions leave out."""
    without = [frozenset(share["without"]) for share in shares if share["without"] is not None]
    return {"takes": bool(without), "without": sorted(frozenset.intersection(*without)) if without else []}


def _subscription(shares: Sequence[Json], name: str) -> Json | None:
    """The subscription across all partitions that have it; None if none has."""
    parts = [share["subscriptions"][name] for share in shares if name in share["subscriptions"]]
    if not parts:
        return None
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
