# SPDX-License-Identifier: Apache-2.0
"""Schemas of topics. Contents are a set that all regions share; the numbers 0, 1, 2 ... are each region's own (R41).

So contents are stored below ``/geo`` under their hash, and this region's numbers for them below ``/local``. A
number is never reused, not even after all schemas of a topic were deleted: stored messages refer to numbers.

Contents may come and go by another region's writes (``metadata.sync``). They get their numbers here, and lose them
as if they had been deleted here, when somebody asks for the newest schema or for all, or adds one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from meridian_broker.metadata import keys
from meridian_broker.metadata.access import Access
from meridian_broker.metadata.errors import Invalid, NotFound, QuotaReached
from meridian_broker.metadata.limits import MAX_OPERATIONS
from meridian_broker.metadata.records import SchemaRecord, decode, encode
from meridian_broker.metadata.store import ABSENT, Check, Delete, Put, Record
from meridian_broker.positions.clock import ZERO, Stamp
from meridian_broker.wire.pulsar.topic_name import TopicName

MAX_SCHEMA_BYTES = 512 << 10
"""Largest definition; as base64 it fits the store's limit."""

FOLLOWED_TOGETHER = 32
"""Schemas of other regions that get their numbers in one step. Each may have half a megabyte."""

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
        numbering, _, _ = await self._followed(topic)
        numbers = range(numbering.first, len(numbering.contents))
        found = [await self._read(topic, numbering.contents[number], number) for number in numbers]
        return [record for record in found if record is not None]

    async def get(self, topic: TopicName, version: int | None = None) -> SchemaRecord:
        """That version, or the newest. :raises NotFound: it does not exist or was deleted."""
        numbering, _ = await self._numbering(topic)
        number = version
        if number is None or not numbering.first <= number < len(numbering.contents):
            numbering, _, there = await self._followed(topic)
            number = numbering.newest(there) if version is None else version
        is_known = numbering.first <= number < len(numbering.contents)
        record = await self._read(topic, numbering.contents[number], number) if is_known else None
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

        :param check: raises if the schema is no longer wanted, for example because its topic was deleted. Called in the
            turn of the loop that sends the write.
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
            if (known := await self._find(topic, content, numbering)) is not None:
                return known
            numbering, version, _ = await self._followed(topic)
            contents, first = numbering.contents, numbering.first
            if content in contents[first:]:
                return await self._find(topic, content, numbering) or await self._again(topic, schema, numbering, check)
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
            ]
            if stored == ABSENT:  # else another region has added it meanwhile
                operations.append(Put(path, encode(made.to_json(), made.stamp)))
            check()
            return made if await self._access.store.transact(checks, operations) else None

        return await self._access.retry(f"adding a schema to {topic.base}", attempt)

    async def delete(self, topic: TopicName) -> int:
        """Delete all; returns the newest version there was, -1 for none. Numbering continues from there."""

        async def attempt() -> int | None:
            numbering, version, _ = await self._followed(topic)
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

    async def _find(self, topic: TopicName, content: str, numbering: _Numbering) -> SchemaRecord | None:
        """The schema, if it is numbered and was not deleted."""
        if content not in numbering.contents[numbering.first :]:
            return None
        return await self._read(topic, content, numbering.contents.index(content, numbering.first))

    async def _again(
        self, topic: TopicName, schema: SchemaRecord, numbering: _Numbering, check: Callable[[], None]
    ) -> SchemaRecord | None:
        """Store again a numbered content that another region has deleted without the others. None: try again.

        :param check: as in ``add``.
        """
        path = keys.schema(topic, schema.content_id)
        number = numbering.contents.index(schema.content_id, numbering.first)
        made = replace(schema, version=number, stamp=self._access.stamp(None))
        put = Put(path, encode(made.to_json(), made.stamp))
        check()
        return made if await self._access.store.transact([Check(path, ABSENT)], [put]) else None

    async def _followed(self, topic: TopicName) -> tuple[_Numbering, int, frozenset[str]]:
        """The numbering, updated with what other regions added and deleted; its version; and the stored contents."""

        async def attempt() -> tuple[_Numbering, int, frozenset[str]] | None:
            numbering, version = await self._numbering(topic)
            there = frozenset(await self._access.store.children(keys.schemas_of(topic)))
            numbered = frozenset(numbering.contents[numbering.first :])
            is_gone = bool(numbered) and not numbered & there
            new = sorted(there - numbered)[: min(FOLLOWED_TOGETHER, MAX_VERSIONS - len(numbering.contents))]
            if not new and not is_gone:
                return numbering, version, there
            await self._follow(topic, numbering, version, new, is_gone=is_gone)
            return None

        return await self._access.retry(f"numbering the schemas of {topic.base}", attempt)

    async def _follow(
        self, topic: TopicName, numbering: _Numbering, version: int, new: list[str], *, is_gone: bool
    ) -> None:
        """:param new: contents without a number. :param is_gone: all that have one were deleted."""
        found = [(await self._access.store.get(keys.schema(topic, content)), content) for content in new]
        read = [(SchemaRecord.from_json(*_decoded(topic, one, content)), content) for one, content in found if one]
        read.sort(key=lambda pair: (pair[0].stamp or ZERO, pair[1]))
        total, total_version = await self._total(topic)
        before, added = (0 if is_gone else numbering.size), sum(record.size for record, _ in read)
        put = numbering.put(
            topic,
            contents=[*numbering.contents, *(content for _, content in read)],
            first=len(numbering.contents) if is_gone else numbering.first,
            size=before + added,
        )
        checks = [Check(keys.schema_versions(topic), version), Check(keys.schema_bytes(topic), total_version)]
        room = _put_total(topic, max(total - numbering.size, 0) + before + added)
        await self._access.store.transact(checks, [put, room])

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

    def newest(self, there: frozenset[str]) -> int:
        """The last number whose content is stored; -1: there is none."""
        numbers = range(len(self.contents) - 1, self.first - 1, -1)
        return next((number for number in numbers if self.contents[number] in there), -1)

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


def _decoded(topic: TopicName, record: Record, content: str) -> tuple[Any, int, Stamp | None]:
    """The arguments of ``SchemaRecord.from_json``."""
    value, stamp = decode(keys.schema(topic, content), record.value)
    return value, -1, stamp


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
