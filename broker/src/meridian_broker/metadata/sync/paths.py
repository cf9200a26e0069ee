# SPDX-License-Identifier: Apache-2.0
"""Which paths travel between regions, and where a region keeps what it knows about them.

A *scope* is a kind of object that regions keep equal. Nothing below ``/local/`` is in any: ledgers, brokers, leases
and counters belong to one region. What is kept about a path lies below ``/local/sync/``, followed by the path itself.
"""

from __future__ import annotations

from typing import Final

from meridian_broker.metadata import keys
from meridian_broker.wire.pulsar.topic_name import NON_PERSISTENT

TENANTS: Final = "tenants"
NAMESPACES: Final = "namespaces"
"""With their policies."""
TOPIC_POLICIES: Final = "topicPolicies"
PARTITIONED_TOPICS: Final = "partitionedTopics"
"""Those that store no messages. Links announce the others, together with what is in them (R15)."""

SCHEMAS: Final = "schemas"
"""A set of contents for each topic (R41); its numbers are each region's own."""

PERMISSIONS: Final = "permissions"
"""Of roles, on namespaces and on topics: a path for each role and object."""

CLUSTERS: Final = "clusters"
"""Names and addresses of regions (``metadata.introductions``)."""

SCOPES: Final = {
    TENANTS: keys.TENANTS,
    NAMESPACES: keys.NAMESPACES,
    TOPIC_POLICIES: keys.TOPIC_POLICIES,
    PARTITIONED_TOPICS: keys.PARTITIONED,
    SCHEMAS: keys.SCHEMAS,
    PERMISSIONS: keys.PERMISSIONS,
    CLUSTERS: keys.INTRODUCTIONS,
}
"""Every scope, and the folder that holds it."""

_DOMAIN: Final = f"/{NON_PERSISTENT}/"

SYNC: Final = keys.LOCAL + "sync/"
OUTBOX: Final = SYNC + "outbox"
TOMBSTONES: Final = SYNC + "tombstones"
PARKED: Final = SYNC + "parked"
CONFLICTS: Final = SYNC + "conflicts"
REGIONS: Final = SYNC + "regions"
JOINED: Final = SYNC + "joined"
"""The regions whose differences from this one were decided, one path for each, and in which scopes."""
IDENTITY: Final = SYNC + "identity"
"""Identity of the store, drawn once."""
OWNERS: Final = SYNC + "owners"
"""By region, the identity of the store that shares metadata under the region's name."""
MARK: Final = SYNC + "mark"
"""No write that commits from now on has a stamp up to this one."""
PRESENT: Final = SYNC + "present"
"""Since when, in milliseconds, this region has written marks without a long pause."""
HORIZON: Final = SYNC + "horizon"
"""Every region has heard of everything up to this moment, and its tombstones may be gone."""


def scope_of(path: str) -> str | None:
    """The scope of a path; None: it never leaves its region."""
    for scope, folder in SCOPES.items():
        if path.startswith(folder + "/"):
            return scope if scope != PARTITIONED_TOPICS or _DOMAIN in path else None
    return None


def parent_of(path: str) -> str | None:
    """The path without which this one means nothing (R42); None: it stands by itself.

    Policies and permissions belong to their namespace, as what a topic has does, a namespace to its tenant, a role to
    its tenant.
    """
    scope, segments = scope_of(path), path.split("/")
    if scope == TENANTS and len(segments) > 4:
        return "/".join(segments[:4])
    if scope == NAMESPACES:
        return "/".join(segments[:5]) if len(segments) > 5 else f"{keys.TENANTS}/{segments[3]}"
    if scope in (TOPIC_POLICIES, PARTITIONED_TOPICS, SCHEMAS) and len(segments) > 4:
        return f"{keys.NAMESPACES}/{segments[3]}/{segments[4]}"
    if scope == PERMISSIONS and len(segments) > 5:
        return f"{keys.NAMESPACES}/{segments[4]}/{segments[5]}"
    return None


def tombstone(path: str) -> str:
    return TOMBSTONES + path


def parked(path: str) -> str:
    return PARKED + path


def conflict(path: str) -> str:
    return CONFLICTS + path


def outbox(anchor: str) -> str:
    """The entry of the transactions whose first path, in order, is ``anchor``."""
    return OUTBOX + anchor


def joined(name: str) -> str:
    return f"{JOINED}/{keys.escape(name)}"


def owner(name: str) -> str:
    return f"{OWNERS}/{keys.escape(name)}"


def region(name: str) -> str:
    return f"{REGIONS}/{keys.escape(name)}"
