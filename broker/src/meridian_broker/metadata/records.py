# SPDX-License-Identifier: Apache-2.0
"""The region's records as values: clusters, tenants, partitioned topics, schemas; ``topic_records.py`` has the topics.

``to_json``/``from_json`` convert to the form that people and the admin API see, with Pulsar's field names. Fields that
this version does not know are kept in ``extra`` and written back, so that an older broker does not erase what a newer
one set. In the store every value is wrapped with its format number and the stamp of the write, see ``encode``.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions.clock import Stamp
from meridian_broker.positions.formats import unreadable

FORMAT: Final = 1
"""Format of stored values, unless their record says otherwise. Newer formats are refused, older ones are read."""

MERIDIAN: Final = "meridian"
PULSAR: Final = "pulsar"
KINDS: Final = (MERIDIAN, PULSAR)
"""What a region may run."""
KIND: Final = "kind"
REPLICATOR_ROLE: Final = "replicatorRole"

Json = dict[str, Any]
_ENCODE: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_DECODE: Final = json.JSONDecoder().decode
"""Records are UTF-8: ``json.loads`` looks for that in each of them."""


def encode(value: Any, stamp: Stamp | None = None, *, as_format: int = FORMAT) -> bytes:
    """A value in its stored form: format, value, and the stamp of the write."""
    wrapped: Json = {"format": as_format, "value": value}
    if stamp is not None:
        wrapped["stamp"] = list(stamp)
    return _ENCODE(wrapped).encode()


def decode(path: str, data: bytes, *, newest: int = FORMAT) -> tuple[Any, Stamp | None]:
    """The value and its stamp.

    :param newest: the newest format that the caller can read.
    :raises MetadataError: it is of a newer format, or damaged.
    """
    value, stamp, _ = opened(path, data, newest=newest)
    return value, stamp


def opened(path: str, data: bytes, *, newest: int = FORMAT) -> tuple[Any, Stamp | None, Json]:
    """As ``decode``, with everything that is stored beside the value.

    :raises MetadataError: as ``decode``.
    """
    try:
        wrapped = _DECODE(data.decode())
        found = wrapped["format"]
        if found > newest:
            raise MetadataError(unreadable(path, found, newest))
        if found < 1:
            raise ValueError(f"format {found}")
        stamp = wrapped.get("stamp")
        return wrapped["value"], None if stamp is None else Stamp(int(stamp[0]), int(stamp[1]), str(stamp[2])), wrapped
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise MetadataError(f"{path} holds {data[:60]!r}, which no version of Meridian wrote: restore it") from error


def take(source: Mapping[str, Any], key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
    """``source[key]`` when it is of that kind; the default when it is absent or null.

    :raises Invalid: it is something else.
    """
    value = source.get(key)
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise Invalid(f"{key} is {value!r}: expected {_article(kind)}")
    return value


def names(source: Mapping[str, Any], key: str) -> frozenset[str]:
    """A list of names. :raises Invalid: it is something else."""
    value = take(source, key, (list, tuple, set, frozenset), ())
    if not all(isinstance(name, str) and name for name in value):
        raise Invalid(f"{key} is {value!r}: expected a list of names")
    return frozenset(value)


def strings(source: Mapping[str, Any], key: str) -> dict[str, str]:
    """A map of strings. :raises Invalid: it is something else."""
    value = take(source, key, Mapping, {})
    if not all(isinstance(name, str) and isinstance(text, str) for name, text in value.items()):
        raise Invalid(f"{key} is {value!r}: expected an object whose values are strings")
    return dict(value)


def without(source: Mapping[str, Any], *known: str) -> Json:
    """The fields this version does not know."""
    return {key: value for key, value in source.items() if key not in known}


def mapping(source: Any, what: str) -> Mapping[str, Any]:
    """:raises Invalid: the source is not a JSON object."""
    if not isinstance(source, Mapping):
        raise Invalid(f"{what} is {source!r}: expected a JSON object")
    return source


def _article(kind: type | tuple[type, ...]) -> str:
    words = {str: "a string", int: "a whole number", bool: "true or false", list: "a list", Mapping: "an object"}
    return words.get(kind[0] if isinstance(kind, tuple) else kind, "something else")


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """What a region runs, and where its brokers are reached. Pulsar calls it ClusterData."""

    service_url: str = ""
    """Admin REST, ``http://host:port``."""
    service_url_tls: str = ""
    broker_service_url: str = ""
    """Binary protocol, ``pulsar://host:port``."""
    broker_service_url_tls: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    stamp: Stamp | None = None
    kind: str = MERIDIAN
    """What runs there: one of ``KINDS``."""
    replicator_role: str = ""
    """For Apache Pulsar: the role in the tokens with which its brokers connect to this region (R7)."""

    @property
    def is_pulsar(self) -> bool:
        """Apache Pulsar runs there, which knows of origins, progress and leases as little as of metadata events."""
        return self.kind == PULSAR

    def to_json(self) -> Json:
        told: Json = {
            "serviceUrl": self.service_url,
            "serviceUrlTls": self.service_url_tls,
            "brokerServiceUrl": self.broker_service_url,
            "brokerServiceUrlTls": self.broker_service_url_tls,
            **self.extra,
        }
        if self.is_pulsar:
            told |= {KIND: self.kind, REPLICATOR_ROLE: self.replicator_role}
        return told

    @classmethod
    def from_json(cls, source: Any, stamp: Stamp | None = None) -> ClusterRecord:
        """:raises Invalid: a field is not valid."""
        data = mapping(source, "a cluster")
        keys = ("serviceUrl", "serviceUrlTls", "brokerServiceUrl", "brokerServiceUrlTls")
        admin, admin_tls, broker, broker_tls = (take(data, key, str, "") for key in keys)
        kind, role = take(data, KIND, str, MERIDIAN), take(data, REPLICATOR_ROLE, str, "")
        if kind not in KINDS:
            raise Invalid(f"{KIND} is {kind!r}: expected one of {', '.join(KINDS)}")
        return cls(
            *(admin, admin_tls, broker, broker_tls, without(data, *keys, KIND, REPLICATOR_ROLE), stamp, kind, role)
        )


@dataclass(frozen=True, slots=True)
class TenantRecord:
    """The roles that may administer a tenant, and the regions it may use."""

    admin_roles: frozenset[str] = frozenset()
    allowed_clusters: frozenset[str] = frozenset()
    deleting: bool = False
    """Its deletion has begun: nothing new may be made in it."""
    stamp: Stamp | None = None

    def to_json(self) -> Json:
        return {"adminRoles": sorted(self.admin_roles), "allowedClusters": sorted(self.allowed_clusters)}

    @classmethod
    def from_json(cls, source: Any) -> TenantRecord:
        """:raises Invalid: a field is not valid."""
        data = mapping(source, "a tenant")
        return cls(names(data, "adminRoles"), names(data, "allowedClusters"))


@dataclass(frozen=True, slots=True)
class PartitionedTopicRecord:
    """How many partitions a topic has. The number only grows."""

    partitions: int
    properties: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    stamp: Stamp | None = None
    created: Stamp | None = None
    """Stamp of its creation, in whichever region; None if an earlier version created it."""
    deleting: str | None = None
    """Stamp of its deletion, which has begun: nothing of the topic counts any more."""

    def to_json(self) -> Json:
        return {
            "partitions": self.partitions,
            "properties": dict(self.properties),
            **created_json(self.created),
            **({} if self.deleting is None else {"deleting": self.deleting}),
            **self.extra,
        }

    @classmethod
    def from_json(cls, source: Any, stamp: Stamp | None = None) -> PartitionedTopicRecord:
        """:raises Invalid: a field is not valid."""
        data = mapping(source, "a partitioned topic")
        partitions = take(data, "partitions", int, 0)
        extra = without(data, "partitions", "properties", "created", "deleting")
        deleting = take(data, "deleting", str)
        return cls(partitions, strings(data, "properties"), extra, stamp, take_created(data), deleting)


@dataclass(frozen=True, slots=True)
class SchemaRecord:
    """One schema of a topic. ``version`` is this region's own number, the content id is the same everywhere (R41)."""

    type: str
    """As the admin API names it: ``STRING``, ``JSON``, ``AVRO`` ..."""
    data: bytes
    properties: Mapping[str, str] = field(default_factory=dict)
    timestamp_ms: int = 0
    version: int = -1
    """-1: not numbered yet."""
    stamp: Stamp | None = None

    @property
    def content_id(self) -> str:
        """Identity of a schema: its type and definition."""
        return hashlib.sha256(self.type.encode() + b"\x00" + self.data).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of the definition and the properties."""
        return len(self.data) + sum(len(text.encode()) for pair in self.properties.items() for text in pair)

    def to_json(self) -> Json:
        """As stored; the definition is base64, because that of some types is not text."""
        return {
            "type": self.type,
            "data": base64.b64encode(self.data).decode(),
            "properties": dict(self.properties),
            "timestamp": self.timestamp_ms,
        }

    @classmethod
    def from_json(cls, source: Any, version: int = -1, stamp: Stamp | None = None) -> SchemaRecord:
        """:raises Invalid: a field is not valid."""
        data = mapping(source, "a schema")
        try:
            definition = base64.b64decode(take(data, "data", str, ""), validate=True)
        except ValueError:
            raise Invalid("the schema data is not base64") from None
        kind, time_ms = take(data, "type", str, ""), take(data, "timestamp", int, 0)
        return cls(kind, definition, strings(data, "properties"), time_ms, version, stamp)


def take_created(source: Mapping[str, Any]) -> Stamp | None:
    """The stamp of a topic's creation; None: an earlier version created it. :raises Invalid: it is not a stamp."""
    text = take(source, "created", str)
    try:
        return None if text is None else Stamp.parse(text)
    except ValueError as error:
        raise Invalid(f"created: {error}") from None


def created_json(created: Stamp | None) -> Json:
    """The field that ``take_created`` reads."""
    return {} if created is None else {"created": str(created)}
