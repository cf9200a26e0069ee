# SPDX-License-Identifier: Apache-2.0
"""Every path that is answered, in one table: for the server and for the OpenAPI document."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from meridian_broker.admin.export import requests
from meridian_broker.admin.export.relaying import CONTENT_TYPE
from meridian_broker.admin.http.errors import Handler
from meridian_broker.admin.http.requests import answer
from meridian_broker.admin.http.route import Route
from meridian_broker.admin.meridian import (
    comparing,
    describing,
    gaps,
    metadata_sync,
    regions,
    scoping,
    snapshots,
    syncing,
    translating,
    uniting,
)
from meridian_broker.admin.metrics import scraping
from meridian_broker.admin.openapi import document
from meridian_broker.admin.pulsar import (
    brokers,
    bundles,
    clusters,
    compacting,
    expiring,
    growing,
    health,
    load_report,
    lookups,
    namespaces,
    offloading,
    permissions,
    policies,
    schemas,
    shadows,
    stats,
    subscriptions,
    tenants,
    topics,
)


def _get(path: str, handler: Handler, content: str = "application/json", *, peers: str | None = None) -> Route:
    return Route("GET", path, handler, 200, content, peers)


def _write(method: str, path: str, handler: Handler, *, peers: str | None = None) -> Route:
    """Writes are answered with an empty 204."""
    return Route(method, path, handler, 204, peers=peers)


async def openapi(_: web.Request) -> web.Response:
    """This document."""
    return answer(document(ROUTES))


_CLUSTER: Final = "/admin/v2/clusters/{cluster}"
_TENANT: Final = "/admin/v2/tenants/{tenant}"
_NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
_BUNDLE: Final = f"{_NAMESPACE}/{{bundle:0x[0-9a-fA-F]+_0x[0-9a-fA-F]+|LARGEST}}"
_TOPICS: Final = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}"
_TOPIC: Final = f"{_TOPICS}/{{topic}}"
_SUBSCRIPTION: Final = f"{_TOPIC}/subscription/{{subscription}}"
_SCHEMAS: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
_LOOKUP: Final = "/lookup/v2/topic/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"
_BROKERS: Final = "/admin/v2/brokers"
_OWN: Final = "/meridian/v1"
_METADATA: Final = f"{_OWN}/metadata"
_NAMED: Final = "{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"
_OWN_TOPIC: Final = f"{_OWN}/topics/{_NAMED}"
_OWN_SUBSCRIPTION: Final = f"{_OWN}/subscriptions/{_NAMED}/{{subscription}}"


def _policies(level: str, base: str) -> list[Route]:
    return [
        _get(f"{base}/{path}", handler)
        if method == "GET"
        else _write(method, f"{base}/{path}", handler, peers="region" if everywhere else None)
        for of, method, path, handler, everywhere in (*policies.handlers(), *offloading.handlers())
        if of == level
    ]


_TOPIC_POLICIES: Final = _policies("topic", _TOPIC)

ROUTES: Final[tuple[Route, ...]] = (
    _get("/admin/v2/clusters", clusters.listed),
    _get(_CLUSTER, clusters.get),
    _write("PUT", _CLUSTER, clusters.create),
    _write("POST", _CLUSTER, clusters.update),
    _write("DELETE", _CLUSTER, clusters.delete),
    _get("/admin/v2/tenants", tenants.listed),
    _get(_TENANT, tenants.get),
    _write("PUT", _TENANT, tenants.create),
    _write("POST", _TENANT, tenants.update),
    _write("DELETE", _TENANT, tenants.delete),
    _get("/admin/v2/namespaces/{tenant}", namespaces.listed),
    _get(_NAMESPACE, namespaces.get),
    _write("PUT", _NAMESPACE, namespaces.create),
    _write("DELETE", _NAMESPACE, namespaces.delete),
    _get(f"{_NAMESPACE}/replication", namespaces.get_replication),
    _write("POST", f"{_NAMESPACE}/replication", namespaces.set_replication),
    _get(f"{_NAMESPACE}/allowedClusters", namespaces.get_allowed_clusters),
    _write("POST", f"{_NAMESPACE}/allowedClusters", namespaces.set_allowed_clusters),
    *_policies("namespace", _NAMESPACE),
    _get(f"{_NAMESPACE}/bundles", bundles.listed),
    _write("PUT", f"{_BUNDLE}/unload", bundles.unload),
    _write("PUT", f"{_BUNDLE}/split", bundles.split),
    _get(f"{_BUNDLE}/topicHashPositions", bundles.positions),
    _get(f"{_NAMESPACE}/permissions", permissions.of_namespace),
    _write("POST", f"{_NAMESPACE}/permissions/{{role}}", permissions.grant_in_namespace),
    _write("DELETE", f"{_NAMESPACE}/permissions/{{role}}", permissions.revoke_in_namespace),
    _get(f"{_NAMESPACE}/topics", namespaces.get_topics, peers=""),
    _write("PUT", f"{_NAMESPACE}/unload", namespaces.unload),
    _write("POST", f"{_NAMESPACE}/clearBacklog", namespaces.clear_backlog),
    _write("POST", f"{_NAMESPACE}/clearBacklog/{{subscription}}", namespaces.clear_backlog),
    _write("POST", f"{_NAMESPACE}/unsubscribe/{{subscription}}", namespaces.unsubscribe),
    _get(_TOPICS, topics.listed),
    _get(f"{_TOPICS}/partitioned", topics.listed_partitioned),
    _write("PUT", _TOPIC, topics.create),
    _write("DELETE", _TOPIC, topics.delete, peers="stamp"),
    _get(f"{_TOPIC}/partitions", topics.get_partitions, peers=""),
    _write("PUT", f"{_TOPIC}/partitions", topics.create_partitioned, peers="incarnation"),
    _write("POST", f"{_TOPIC}/partitions", topics.grow, peers=""),
    _write("DELETE", f"{_TOPIC}/partitions", topics.delete_partitioned, peers="stamp"),
    _get(f"{_TOPIC}/stats", stats.stats, peers=""),
    _get(f"{_TOPIC}/partitioned-stats", stats.partitioned, peers=""),
    _get(f"{_TOPIC}/internalStats", stats.internal),
    _get(f"{_TOPIC}/partitioned-internalStats", stats.partitioned_internal),
    _get(f"{_TOPIC}/properties", topics.get_properties),
    _write("PUT", f"{_TOPIC}/properties", topics.set_properties),
    _write("DELETE", f"{_TOPIC}/properties", topics.remove_property),
    _get(f"{_TOPIC}/permissions", permissions.of_topic),
    _write("POST", f"{_TOPIC}/permissions/{{role}}", permissions.grant_on_topic),
    _write("DELETE", f"{_TOPIC}/permissions/{{role}}", permissions.revoke_on_topic),
    _get(f"{_TOPIC}/shadowTopics", shadows.listed, peers="all"),
    _write("PUT", f"{_TOPIC}/shadowTopics", shadows.set_list),
    _write("POST", f"{_TOPIC}/shadowTopics", shadows.create),
    _write("DELETE", f"{_TOPIC}/shadowTopics", shadows.remove),
    _write("PUT", f"{_TOPIC}/unload", topics.unload),
    _write("POST", f"{_TOPIC}/trim", topics.trim),
    _write("DELETE", f"{_TOPIC}/truncate", topics.truncate, peers=""),
    *_TOPIC_POLICIES,
    Route("POST", f"{_TOPIC}/terminate", topics.terminate),
    Route("POST", f"{_TOPIC}/terminate/partitions", topics.terminate_partitions),
    _get(f"{_TOPIC}/compaction", compacting.status),
    _write("PUT", f"{_TOPIC}/compaction", compacting.start),
    _get(f"{_TOPIC}/offload", offloading.status),
    _write("PUT", f"{_TOPIC}/offload", offloading.start),
    _get(f"{_TOPIC}/lastMessageId", topics.last_message_id),
    Route("PUT", f"{_TOPIC}/backlogSize", topics.backlog_size),
    _get(f"{_TOPIC}/messageid/{{timestamp}}", topics.message_id_by_time),
    _get(f"{_TOPIC}/subscriptions", subscriptions.listed),
    _write("PUT", _SUBSCRIPTION, subscriptions.create),
    _write("DELETE", _SUBSCRIPTION, subscriptions.delete),
    _write("POST", f"{_SUBSCRIPTION}/resetcursor", subscriptions.reset_to_id),
    _write("POST", f"{_SUBSCRIPTION}/resetcursor/{{timestamp}}", subscriptions.reset_to_time),
    _get(f"{_SUBSCRIPTION}/position/{{number}}", subscriptions.peek),
    _write("POST", f"{_SUBSCRIPTION}/skip_all", subscriptions.skip_all),
    _write("POST", f"{_SUBSCRIPTION}/skip/{{count}}", subscriptions.skip_some),
    _write("POST", f"{_SUBSCRIPTION}/expireMessages", expiring.by_id, peers=""),
    _write("POST", f"{_SUBSCRIPTION}/expireMessages/{{seconds}}", expiring.by_age, peers=""),
    _write("POST", f"{_TOPIC}/all_subscription/expireMessages/{{seconds}}", expiring.by_age_in_all, peers=""),
    _get(f"{_SUBSCRIPTION}/replicatedSubscriptionStatus", subscriptions.get_replicated),
    _write("POST", f"{_SUBSCRIPTION}/replicatedSubscriptionStatus", subscriptions.set_replicated),
    _get(f"{_SCHEMAS}/schema", schemas.newest),
    Route("POST", f"{_SCHEMAS}/schema", schemas.add),
    Route("DELETE", f"{_SCHEMAS}/schema", schemas.delete),
    _get(f"{_SCHEMAS}/schema/{{version}}", schemas.of_version),
    _get(f"{_SCHEMAS}/schemas", schemas.every),
    _get(_BROKERS, brokers.listed),
    _get(f"{_BROKERS}/health", health.health, "text/plain"),
    _get(f"{_BROKERS}/ready", health.ready, "text/plain"),
    _get(f"{_BROKERS}/version", health.broker_version, "text/plain"),
    _get(f"{_BROKERS}/leaderBroker", brokers.leader),
    _get(f"{_BROKERS}/configuration", brokers.changeable_settings),
    _get(f"{_BROKERS}/configuration/values", brokers.changed_settings),
    _get(f"{_BROKERS}/configuration/runtime", brokers.settings),
    _write("POST", f"{_BROKERS}/configuration/{{setting}}/{{value:.*}}", brokers.change_setting),
    _write("DELETE", f"{_BROKERS}/configuration/{{setting}}", brokers.reset_setting),
    _get(f"{_BROKERS}/{{cluster}}", brokers.of_cluster),
    _get(f"{_BROKERS}/{{cluster}}/{{broker}}/ownedNamespaces", brokers.owned_namespaces),
    _get("/admin/v2/broker-stats/load-report", load_report.report),
    _get(_LOOKUP, lookups.topic),
    _get(f"{_LOOKUP}/bundle", lookups.bundle, "text/plain"),
    _get("/status.html", health.status_page, "text/plain"),
    _get("/metrics", scraping.metrics, "text/plain"),
    _get("/metrics/", scraping.metrics, "text/plain"),
    Route("POST", f"{_OWN}/export", requests.take, exports=True),
    Route("DELETE", f"{_OWN}/export/{{snapshot}}", requests.end, 204, exports=True),
    Route("GET", f"{_OWN}/export/{{snapshot}}/{{table}}", requests.table, content=CONTENT_TYPE, exports=True),
    Route("POST", f"{_OWN}/describe", describing.describe),
    _get(f"{_OWN}/regions", regions.regions),
    _get(f"{_OWN}/health", health.inside),
    _get(f"{_METADATA}/status", metadata_sync.status),
    _get(f"{_METADATA}/diff", metadata_sync.diff),
    _get(f"{_METADATA}/conflicts", metadata_sync.conflicts),
    _write("DELETE", f"{_METADATA}/conflicts", metadata_sync.dismiss),
    Route("POST", f"{_METADATA}/restamp", metadata_sync.restamp),
    Route("POST", f"{_METADATA}/adopt", metadata_sync.adopt),
    Route("POST", f"{_OWN}/regions/{{region}}/replace", metadata_sync.replace),
    _get(f"{_METADATA}/digest", comparing.digest, peers="identity"),
    _get(f"{_METADATA}/applying", comparing.applying, peers=""),
    _write("POST", f"{_METADATA}/compare", comparing.compare, peers=""),
    Route("POST", f"{_METADATA}/parts", comparing.parts, peers=""),
    Route("POST", f"{_METADATA}/listing", comparing.listing, peers=""),
    Route("POST", f"{_METADATA}/states", comparing.states, peers=""),
    _write("POST", f"{_METADATA}/replace", comparing.replace, peers=""),
    _get(f"{_OWN_TOPIC}/messageid/translate", translating.translate, peers=""),
    _get(f"{_OWN_TOPIC}/growth", growing.begun, peers=""),
    _write("PUT", f"{_OWN_TOPIC}/growth", growing.prepare, peers=""),
    _get(f"{_OWN_TOPIC}/gaps", gaps.listed),
    Route("POST", f"{_OWN_TOPIC}/gaps/accept", gaps.accept),
    _get(f"{_OWN_TOPIC}/snapshots", snapshots.show),
    Route("POST", f"{_OWN_TOPIC}/snapshots/without", snapshots.without),
    _get(f"{_OWN_SUBSCRIPTION}/status", syncing.status, peers=""),
    Route("POST", f"{_OWN_SUBSCRIPTION}/mode", uniting.mode),
    _get(f"{_OWN_SUBSCRIPTION}/progress", uniting.progress, peers=""),
    Route("POST", f"{_OWN_SUBSCRIPTION}/preview", uniting.preview, peers=""),
    _get(f"{_OWN_SUBSCRIPTION}/scope", scoping.get_scope),
    _write("POST", f"{_OWN_SUBSCRIPTION}/scope", scoping.set_scope),
    Route("POST", f"{_OWN_SUBSCRIPTION}/damage", syncing.damage),
    _get(f"{_OWN}/openapi.json", openapi),
)
"""The first match answers: paths with a fixed last part come before those with a variable one."""

PARTITIONS_ROUTES: Final = frozenset(
    {topics.terminate_partitions, topics.delete_partitioned, stats.partitioned, stats.partitioned_internal}
)
"""Handlers about all partitions of a topic, never about an unpartitioned one."""

HARMLESS_ROUTES: Final = frozenset(
    {
        topics.create,
        topics.unload,
        topics.trim,
        topics.backlog_size,
        subscriptions.create,
        compacting.start,
        offloading.start,
        gaps.accept,
        uniting.preview,
        permissions.grant_on_topic,
        permissions.revoke_on_topic,
    }
)
"""Handlers that write, or seem to, without making a topic lose messages that a subscription is owed."""

_ANYWHERE: Final = frozenset(
    {
        *(route.handler for route in _TOPIC_POLICIES),
        topics.get_partitions,
        topics.create_partitioned,
        permissions.of_topic,
        permissions.grant_on_topic,
        permissions.revoke_on_topic,
    }
)
"""Handlers about a topic's metadata, whichever broker serves the topic."""

OWNERS_ROUTES: Final = frozenset(
    route.handler
    for route in ROUTES
    if route.path.startswith((_TOPIC, _OWN_TOPIC, _OWN_SUBSCRIPTION)) and route.handler not in _ANYWHERE
)
"""The handlers that need the topic in the path to be open: only the broker that serves it can answer."""

TENANTS_ROUTES: Final = frozenset(
    route.handler for route in ROUTES if "{tenant}" in route.path and not route.path.startswith(_TENANT)
)
"""Handlers about something within the tenant in the path, not about the tenant itself."""
