# SPDX-License-Identifier: Apache-2.0
"""Whether a value from another region can be served at its path. One that cannot would fail every reader."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Final

from meridian_broker.metadata.access import check_name
from meridian_broker.metadata.actions import check_actions, check_role, leaf_of
from meridian_broker.metadata.keys import unescape
from meridian_broker.metadata.limits import BadRequest, check_path
from meridian_broker.metadata.partitioned_topics import check_count
from meridian_broker.metadata.records import ClusterRecord, PartitionedTopicRecord, SchemaRecord
from meridian_broker.metadata.schema_catalog import MAX_SCHEMA_BYTES
from meridian_broker.metadata.store import Record
from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.events import Event
from meridian_broker.metadata.sync.stamped import Stamped, to_store
from meridian_broker.metadata.trees import BASE, Tree, fold_namespace, fold_tenant, fold_topic_policies
from meridian_broker.metadata.view import split
from meridian_broker.positions.clock import ZERO

_DEPTH = {
    paths.TENANTS: 4,
    paths.NAMESPACES: 5,
    paths.TOPIC_POLICIES: 7,
    paths.PARTITIONED_TOPICS: 7,
    paths.SCHEMAS: 6,
    paths.CLUSTERS: 4,
}
"""Segments of the path of a tenant, of a namespace, and of a topic."""


REMEMBERED: Final = 1024
REMEMBERED_BYTES: Final = 256
"""Many namespaces have the same few values. It is remembered of this many, if they are no longer than this, that they
can be served."""

_ADDRESSES: Final = ("http://", "https://", "pulsar://", "pulsar+ssl://")
"""How the addresses of a cluster begin, in the order of its record."""


def fault_of(path: str, state: Stamped) -> str | None:
    """Why a state cannot be applied; None: it can. The path is in a scope."""
    scope, segments = paths.scope_of(path), path.split("/")
    if scope == paths.PERMISSIONS:
        return _fault_of_permission(path, state)
    if scope is None or len(segments) < _DEPTH[scope] + (scope in (paths.TOPIC_POLICIES, paths.SCHEMAS)):
        return "no object has such a path"
    if state.value is None:
        return None
    leaf = "".join(f"/{one}" for one in segments[_DEPTH[scope] :])
    try:
        if scope == paths.CLUSTERS:
            return _fault_of_cluster(ClusterRecord.from_json(json.loads(state.value)), segments[3:])
        if scope == paths.SCHEMAS:
            return _fault_of_schema(SchemaRecord.from_json(json.loads(state.value)), segments[6:])
    except Exception as error:  # whatever a value of another region does to a reader
        return _described(error)
    fault = _fault_of_leaf if len(leaf) + len(state.value) <= REMEMBERED_BYTES else _fault_of_leaf.__wrapped__
    return fault(scope, leaf, state.value)


@lru_cache(maxsize=REMEMBERED)
def _fault_of_leaf(scope: str, leaf: str, value: bytes) -> str | None:
    """:param leaf: the path below the tenant, namespace or topic."""
    records = {BASE: Record(b'{"format":1,"value":{}}', 1), leaf: Record(to_store(Stamped(ZERO, value)), 1)}
    tree = Tree("", records)
    try:
        if scope == paths.TENANTS:
            fold_tenant(tree)
        elif scope == paths.PARTITIONED_TOPICS:
            check_count(PartitionedTopicRecord.from_json(json.loads(value)).partitions)
        elif scope == paths.TOPIC_POLICIES:
            fold_topic_policies(Tree("", {leaf: one for leaf, one in records.items() if leaf != BASE}))
        else:
            fold_namespace(tree)
    except Exception as error:  # as above
        return _described(error)
    return None


def _fault_of_permission(path: str, state: Stamped) -> str | None:
    where = split(path)
    role = "" if where is None else where[2].removeprefix("/")
    if where is None or leaf_of(unescape(role)) != where[2]:
        return "no object has such a path"
    try:
        check_role(unescape(role))
        if state.value is not None:
            check_actions(json.loads(state.value))
    except Exception as error:  # as above
        return _described(error)
    return None


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _fault_of_schema(schema: SchemaRecord, below: list[str]) -> str | None:
    if below != [schema.content_id]:
        return "a schema is stored under the hash of another one"
    return f"it has {schema.size} bytes" if schema.size > MAX_SCHEMA_BYTES else None


def _fault_of_cluster(cluster: ClusterRecord, name: list[str]) -> str | None:
    check_name("/".join(map(unescape, name)), "cluster")
    addresses = (
        cluster.service_url,
        cluster.service_url_tls,
        cluster.broker_service_url,
        cluster.broker_service_url_tls,
    )
    for prefixes, address in zip(_ADDRESSES, addresses, strict=True):
        if address and not address.startswith(prefixes):
            return f"{address[:200]!r} is not a cluster address"
    return None


def refusal_of(event: Event) -> str | None:
    """Why an event can be applied in no region; None: it can."""
    if paths.scope_of(event.path) is None:
        return f"{event.path[:200]} is in no scope that regions share"
    try:
        check_path(event.path)
    except BadRequest as error:
        return str(error)
    fault = fault_of(event.path, event.state)
    if fault is not None:
        return f"the value of {event.path[:200]} from {event.source} cannot be served: {fault[:500]}"
    return None
