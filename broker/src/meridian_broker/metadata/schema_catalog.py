# SPDX-License-Identifier: Apache-2.0
"""Schemas of topics. Contents are a set that all regions share; the numbers 0, 1, 2 ... are each region's own (R41).

So contents are stored below ``/geo`` under their hash, and this region's numbers for them below ``/local``. A
number is never reused, not even after all schemas of a topic were deleted: stored messages refer to numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from meridian_broker.metadata import keys
from meridian_broker.metadata.access import Access
from meridian_broker.metadata.errors import Invalid, NotFound, QuotaReached
from meridian_broker.metadata.limits import MAX_OPERATIONS
from meridian_broker.metadata.records import SchemaRecord, encode
from meridian_broker.metadata.store import Check, Delete, Put
from meridian_broker.wire.pulsar.topic_name import TopicName

MAX_SCHEMA_BYTES = 512 << 10
"""Largest definition; as base64 it fits the store's limit."""

MAX_VERSIONS = 2048
"""Most schemas of one topic, deleted ones included."""


@dataclass(frozen=True, slots=True)
class SchemaQuota:
    """Bytes that schemas may take in the store, about; 0: any number."""

    of_topic: int
    of_namespace: int


class Schemas:
    """A topic's schemas; a partition's are its topic's."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def all(self, topic: TopicName) -> list[SchemaRecord]:
        """All that were not deleted, oldest first."""
        contents, first = await self._numbered(topic)
        found = [await self._read(topic, contents[number], number) for number in range(first, len(contents))]
        return [record for record in found if record is not None]

    async def get(self, topic: TopicName, version: int | None = None) -> SchemaRecord:
        """That version, or the newest. :raises NotFound: it does not exist or was deleted."""
        contents, first = await self._numbered(topic)
        number = len(contents) - 1 if version is None else version
        record = await self._read(topic, contents[number], number) if first <= number < len(contents) else None
        if record is None:
            raise NotFound(f"topic {topic.base} has no schema{'' if version is None else f' of version {version}'}")
        return record

    async def add(
        self,
        topic: TopicName,
        schema: SchemaRecord,
        check: Callable[[], None] = lambda: None,
        quota: SchemaQuota | None = None,
    ) -> SchemaRecord:
        """Assign a number; a schema that exists already keeps its number. Returns it with version and stamp.

        The caller checks compatibility with the other schemas first.

        :param check: raises when the schema is not wanted any more, for example because its topic was deleted. Called
            in the turn of the loop that sends the write.
        :param quota: None: another region has it already, so it is stored regardless of the quota.
        :raises NotFound: the namespace does not exist.
        :raises Invalid: it is too large, or there are too many.
        :raises QuotaReached: there is no room for it.
        """
        size = schema.size
        if size > MAX_SCHEMA_BYTES:
            raise Invalid(f"a schema of {size} bytes, properties included: the limit is {MAX_SCHEMA_BYTES}")
        content = schema.content_id
        path = keys.schema(topic, content)

        async def attempt() -> SchemaRecord | None:
            numbering, version = await self._numbering(topic)
            contents, first = numbering.contents, numbering.first
            if content in contents[first:]:
                number = contents.index(content, first)
                return await self._read(topic, content, number)
            if len(contents) >= MAX_VERSIONS:
                raise Invalid(f"topic {topic.base} has {MAX_VERSIONS} schemas, the limit")
            namespace = await self._access.base_of_namespace(topic.namespace_name)
            total, total_version = await self._total(topic)
            if quota is not None:
                _check_room(topic, quota, numbering.size + size, total + size)
            _, stamp, stored = await self._access.value(path)
            made = replace(schema, version=len(contents), stamp=self._access.stamp(stamp))
            checks = [
                Check(keys.namespace(topic.namespace_name), namespace.version),
                Check(keys.schema_versions(topic), version),
                Check(keys.schema_bytes(topic), total_version),
                Check(path, stored),
            ]
            operations = [
                numbering.put(topic, contents=[*contents, content], size=numbering.size + size),
                _put_total(topic, total + size),
                Put(path, encode(made.to_json(), made.stamp)),
            ]
            check()
            return made if await self._access.store.transact(checks, operations) else None

        return await self._access.retry(f"adding a schema to {topic.base}", attempt)

    async def delete(self, topic: TopicName) -> int:
        """Delete all; returns the newest version there was, -1 for none. Numbers go on from there."""

        async def attempt() -> int | None:
            numbering, version = await self._numbering(topic)
            contents, first = numbering.contents, numbering.first
            if first == len(contents):
                return len(contents) - 1 if contents else -1
            some = contents[first : first + MAX_OPERATIONS - 3]
            checks = [Check(keys.schema_versions(topic), version)]
            operations: list[Put | Delete] = [Delete(keys.schema(topic, each)) for each in some]
            first += len(some)
            if first < len(contents):
                operations.append(numbering.put(topic, first=first))
            else:
                total, total_version = await self._total(topic)
                checks.append(Check(keys.schema_bytes(topic), total_version))
                operations += [
                    numbering.put(topic, first=first, size=0),
                    _put_total(topic, max(total - numbering.size, 0)),
                ]
            if not await self._access.store.transact(checks, operations):
                return None
            return len(contents) - 1 if first == len(contents) else None

        return await self._access.retry(f"deleting the schemas of {topic.base}", attempt)

    async def _numbered(self, topic: TopicName) -> tuple[list[str], int]:
        """Content ids by number, and the first number that is not deleted."""
        numbering, _ = await self._numbering(topic)
        return numbering.contents, numbering.first

    async def _numbering(self, topic: TopicName) -> tuple[_Numbering, int]:
        value, _, version = await self._access.value(keys.schema_versions(topic))
        found: dict[str, Any] = value or {}
        return _Numbering(
            list(found.get("contents", [])), int(found.get("first", 0)), int(found.get("bytes", 0))
        ), version

    async def _total(self, topic: TopicName) -> tuple[int, int]:
        """Bytes of all schemas in the namespace, and the record's version."""
        value, _, version = await self._access.value(keys.schema_bytes(topic))
        return int((value or {}).get("bytes", 0)), version

    async def _read(self, topic: TopicName, content: str, number: int) -> SchemaRecord | None:
        value, stamp, version = await self._access.value(keys.schema(topic, content))
        return SchemaRecord.from_json(value, number, stamp) if version else None


class _Numbering(NamedTuple):
    """The schemas of a topic that this region numbered."""

    contents: list[str]
    first: int
    """The first number that is not deleted."""
    size: int
    """Bytes of those that are not deleted."""

    def put(
        self, topic: TopicName, *, contents: list[str] | None = None, first: int | None = None, size: int | None = None
    ) -> Put:
        """Write it, with these changes."""
        value = {
            "contents": self.contents if contents is None else contents,
            "first": self.first if first is None else first,
            "bytes": self.size if size is None else size,
        }
        return Put(keys.schema_versions(topic), encode(value))


def _put_total(topic: TopicName, total: int) -> Put:
    return Put(keys.schema_bytes(topic), encode({"bytes": total}))


def _check_room(topic: TopicName, quota: SchemaQuota, of_topic: int, of_namespace: int) -> None:
    for limit, size, what, setting in (
        (quota.of_topic, of_topic, f"topic {topic.base}", "maxSchemaBytesPerTopic"),
        (quota.of_namespace, of_namespace, f"namespace {topic.namespace_name}", "maxSchemaBytesPerNamespace"),
    ):
        if 0 < limit < size:
            raise QuotaReached(
                f"{what} would have {size} bytes of schemas, the limit is {limit}: delete schemas, or raise {setting}"
            )
