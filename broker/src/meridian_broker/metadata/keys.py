# SPDX-License-Identifier: Apache-2.0
"""Paths of everything in a region's metadata.

Two halves: below ``/geo/`` are values that regions agree on, each with its stamp; below ``/local/`` are values that
belong to this region alone: ledgers, counters, brokers. Every policy, role and member that can be set individually has
its own path, and lists of regions and roles have one path per element (rule R41), so that two people who change
different things never overwrite each other.

Names are escaped as in URLs, so a segment never contains ``/`` and a path is always ASCII.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

from meridian_broker.wire.pulsar.topic_name import TopicName

GEO: Final = "/geo/"
"""Values that regions agree on."""

LOCAL: Final = "/local/"
"""Values of this region alone."""

CLUSTERS: Final = "/geo/clusters"
INTRODUCTIONS: Final = "/geo/introductions"
"""Clusters as regions announce them to each other (``metadata.introductions``)."""
TENANTS: Final = "/geo/tenants"
NAMESPACES: Final = "/geo/namespaces"
PARTITIONED: Final = "/geo/partitioned"
SCHEMAS: Final = "/geo/schemas"
DELETIONS: Final = "/geo/deletions"
TOPIC_POLICIES: Final = "/geo/topic-policies"
PERMISSIONS: Final = "/geo/permissions"
NAMESPACE_PERMISSIONS: Final = f"{PERMISSIONS}/namespaces"
TOPIC_PERMISSIONS: Final = f"{PERMISSIONS}/topics"
TOPICS: Final = "/local/topics"
SCHEMA_VERSIONS: Final = "/local/schema-versions"
SCHEMA_BYTES: Final = "/local/schema-bytes"
LEDGER_IDS: Final = "/local/ledger-ids"
BROKERS: Final = "/local/brokers"
OFFLOADED: Final = "/local/offloaded"
SHADOWS: Final = "/local/shadows"
SHADOW_NEEDS: Final = "/local/shadow-needs"
SOURCE_DELETIONS: Final = "/local/source-deletions"
SETTINGS: Final = "/local/settings"
"""The brokers' settings that were changed at run time."""
ROOM: Final = "/local/room"
"""Written to see whether a store that was full accepts writes again."""
PARTITION: Final = "-partition-"
"""Separates a topic's name from the number of a partition, in paths."""


@lru_cache(maxsize=4096)
def escape(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="=:")


def unescape(segment: str) -> str:
    """The name a segment stands for."""
    return unquote(segment)


def cluster(name: str) -> str:
    return f"{CLUSTERS}/{escape(name)}"


def introduction(name: str) -> str:
    return f"{INTRODUCTIONS}/{escape(name)}"


def tenant(name: str) -> str:
    return f"{TENANTS}/{escape(name)}"


def namespaces_of(tenant_name: str) -> str:
    return f"{NAMESPACES}/{escape(tenant_name)}"


@lru_cache(maxsize=4096)
def namespace(name: str) -> str:
    """``name`` is ``tenant/namespace``. Its policies are below it, see ``metadata.trees``. Cached, because a topic's
    regions are looked up for each message from another region about it."""
    tenant_name, _, short = name.partition("/")
    return f"{namespaces_of(tenant_name)}/{escape(short)}"


def partitioned_topic(topic: TopicName) -> str:
    return f"{PARTITIONED}/{_topic(topic)}"


def partitioned_topics_of(namespace_name: str, domain: str) -> str:
    return f"{PARTITIONED}/{_namespace(namespace_name)}/{domain}"


def deletion(topic: TopicName) -> str:
    """The stamp of the topic's last deletion (R8)."""
    return f"{DELETIONS}/{_topic(topic)}"


@lru_cache(maxsize=4096)
def topic_policies(topic: TopicName) -> str:
    """Policies of a topic; its partitions share them."""
    return f"{TOPIC_POLICIES}/{_topic(topic.base)}"


@lru_cache(maxsize=4096)
def namespace_permissions(name: str) -> str:
    """What roles may do in ``tenant/namespace``: one path below it for each role."""
    return f"{NAMESPACE_PERMISSIONS}/{_namespace(name)}"


@lru_cache(maxsize=4096)
def topic_permissions(topic: TopicName) -> str:
    """What roles may do with a topic, in the same form; its partitions share it."""
    return f"{TOPIC_PERMISSIONS}/{_topic(topic.base)}"


def topic_permissions_of(namespace_name: str) -> str:
    """The folder of the permissions on topics of a namespace."""
    return f"{TOPIC_PERMISSIONS}/{_namespace(namespace_name)}"


def topic(topic: TopicName) -> str:
    """The topic's, or partition's, ledgers in this region."""
    return f"{TOPICS}/{_topic(topic)}"


def topics_of(namespace_name: str, domain: str) -> str:
    return f"{TOPICS}/{_namespace(namespace_name)}/{domain}"


def schemas_of(topic: TopicName) -> str:
    """Schemas belong to the topic, not to its partitions, and do not depend on the domain."""
    base = topic.base
    return f"{SCHEMAS}/{_namespace(base.namespace_name)}/{escape(base.local_name)}"


def schema(topic: TopicName, content_id: str) -> str:
    return f"{schemas_of(topic)}/{content_id}"


def schema_versions(topic: TopicName) -> str:
    """The schema contents that this region numbered 0, 1, 2 ..."""
    base = topic.base
    return f"{SCHEMA_VERSIONS}/{_namespace(base.namespace_name)}/{escape(base.local_name)}"


def schema_bytes(topic: TopicName) -> str:
    """Total size of the schemas in the topic's namespace."""
    return f"{SCHEMA_BYTES}/{_namespace(topic.namespace_name)}"


def broker_epoch(broker_id: str) -> str:
    return f"{BROKERS}/{escape(broker_id)}/epoch"


def behind(broker_id: str) -> str:
    """When other regions fell behind with this region's acknowledgements."""
    return f"{BROKERS}/{escape(broker_id)}/behind"


def shadow(topic: TopicName) -> str:
    """Which topic a shadow is a view of; its partitions share it."""
    return f"{SHADOWS}/{_topic(topic.base)}"


def shadow_needs(source: TopicName) -> str:
    """The folder of what shadows need of a topic, or of all partitions of one."""
    folder = f"{SHADOW_NEEDS}/{_topic(source.base)}"
    return folder if source.partition < 0 else f"{folder}/{source.partition}"


def source_deletion(source: TopicName) -> str:
    """Written by a broker that is about to delete a topic, removed by one that makes a shadow of it."""
    return f"{SOURCE_DELETIONS}/{_topic(source.base)}"


def offloaded(ledger_id: int) -> str:
    """The state of a ledger that has, or is to have, a copy in the object store."""
    return f"{OFFLOADED}/{ledger_id:016d}"


def _namespace(name: str) -> str:
    tenant_name, _, short = name.partition("/")
    return f"{escape(tenant_name)}/{escape(short)}"


def _topic(topic: TopicName) -> str:
    return f"{_namespace(topic.namespace_name)}/{topic.domain}/{escape(topic.local_name)}"
