# SPDX-License-Identifier: Apache-2.0
"""Partitioned topics and their numbers of partitions, which regions agree on.

A topic and a partitioned topic of the same name exclude each other (``topic_catalog.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from meridian_broker.metadata import keys
from meridian_broker.metadata.access import Access, check_namespace
from meridian_broker.metadata.deletions import Deletion, Deletions
from meridian_broker.metadata.errors import AlreadyExists, Contended, Invalid, NotFound
from meridian_broker.metadata.policies_of_topics import forget_own_policies, forget_policies
from meridian_broker.metadata.records import PartitionedTopicRecord, decode, encode
from meridian_broker.metadata.store import ABSENT, Check, Delete, MetadataFull, Put, VersionConflict
from meridian_broker.metadata.topic_listing import Listing, inhabited, list_topics
from meridian_broker.positions.clock import Stamp
from meridian_broker.wire.pulsar.topic_name import PERSISTENT, TopicName

MAX_PARTITIONS = 10_000
"""Most partitions of one topic."""


class PartitionedTopics:
    """See the module's text. One per catalog."""

    def __init__(self, access: Access, deletions: Deletions) -> None:
        self._access = access
        self._deletions = deletions

    async def find(self, topic: TopicName) -> PartitionedTopicRecord | None:
        """The topic's record; None: it is not partitioned, or does not exist."""
        record = await self.on_record(topic)
        return None if record is None or record.deleting is not None else record

    async def on_record(self, topic: TopicName) -> PartitionedTopicRecord | None:
        """Like ``find``, but includes a topic whose deletion has begun."""
        value, stamp, version = await self._access.value(keys.partitioned_topic(topic))
        return PartitionedTopicRecord.from_json(value, stamp) if version else None

    async def get(self, topic: TopicName) -> PartitionedTopicRecord:
        """:raises NotFound: the partitioned topic does not exist."""
        record = await self.find(topic)
        if record is None:
            raise NotFound(f"partitioned topic {topic} does not exist")
        return record

    async def names(self, namespace: str, domain: str = PERSISTENT) -> list[TopicName]:
        """The partitioned topics of ``tenant/namespace``."""
        return await list_topics(self._access, namespace, domain, keys.partitioned_topics_of(namespace, domain))

    async def listing(self, namespace: str, domain: str = PERSISTENT) -> Listing:
        """As ``names``."""
        folder = keys.partitioned_topics_of(namespace, domain)
        return Listing(domain, namespace, await self._access.store.children(folder))

    async def namespaces(self) -> frozenset[str]:
        """Those with partitioned topics."""
        return await inhabited(self._access, keys.PARTITIONED)

    async def all(self, namespace: str) -> list[tuple[TopicName, PartitionedTopicRecord]]:
        """The persistent ones of ``tenant/namespace``, including those whose deletion has begun."""
        tenant, _, short = check_namespace(namespace).partition("/")
        records = await self._access.store.scan(keys.partitioned_topics_of(namespace, PERSISTENT) + "/")
        return [
            (
                TopicName(PERSISTENT, tenant, short, keys.unescape(path.rpartition("/")[2])),
                PartitionedTopicRecord.from_json(*decode(path, record.value)),
            )
            for path, record in records
        ]

    async def deletion(self, topic: TopicName) -> Deletion | None:
        """The last deletion of the partitioned topic, or of a topic of that name."""
        return await self._deletions.find(topic.base)

    async def create(
        self,
        topic: TopicName,
        partitions: int,
        properties: Mapping[str, str] | None = None,
        created: Stamp | None = None,
        also: Sequence[Check] = (),
    ) -> PartitionedTopicRecord:
        """
        :param created: the stamp of its creation in another region; None: it is created here and now.
        :param also: must hold at the same time.
        :raises Overtaken: something in ``also`` does not.
        :raises AlreadyExists: there is a topic of that name, partitioned or not.
        :raises NotFound: its namespace does not exist.
        :raises Invalid: the number is out of range, or the name is that of a partition.
        """
        if topic.partition >= 0:
            raise Invalid(f"{topic} is the name of a partition, so a partitioned topic cannot have it")
        path, plain = keys.partitioned_topic(topic), keys.topic(topic)
        record = PartitionedTopicRecord(check_count(partitions), dict(properties or {}))

        async def attempt() -> PartitionedTopicRecord | None:
            namespace = await self._access.base_of_namespace(topic.namespace_name)
            if await self._access.store.get(path) is not None:
                raise AlreadyExists(f"partitioned topic {topic} exists already")
            if await self._access.store.get(plain) is not None:
                raise AlreadyExists(f"topic {topic} exists already, without partitions")
            stamp = self._access.stamp(None)
            made = replace(record, created=created or stamp, stamp=stamp)
            checks = [
                Check(keys.namespace(topic.namespace_name), namespace.version),
                Check(path, ABSENT),
                Check(plain, ABSENT),
                *also,
            ]
            done = await self._access.store.transact(checks, [Put(path, encode(made.to_json(), stamp))])
            if done is None:
                await self._access.expect(also)
            return made if done else None

        return await self._access.retry(f"creating {topic}", attempt)

    async def number(self, topic: TopicName) -> tuple[int, int]:
        """How many partitions the topic has, and the version of its record.

        :raises NotFound: the partitioned topic does not exist.
        """
        record, version = await self._current(topic)
        return record.partitions, version

    async def begin_growth(self, topic: TopicName) -> tuple[int, int]:
        """Rewrite the record unchanged, so that changes begun on its previous version fail. Returns what ``number``
        does.

        :raises NotFound: the partitioned topic does not exist.
        """
        path = keys.partitioned_topic(topic)

        async def attempt() -> tuple[int, int] | None:
            record, version = await self._current(topic)
            try:
                value = encode(record.to_json(), record.stamp)
                return record.partitions, await self._access.store.put(path, value, expected=version)
            except VersionConflict:
                return None

        return await self._access.retry(f"growing {topic}", attempt)

    async def _current(self, topic: TopicName) -> tuple[PartitionedTopicRecord, int]:
        """:raises NotFound: there is none, or its deletion has begun."""
        value, stamp, version = await self._access.value(keys.partitioned_topic(topic))
        if not version:
            raise NotFound(f"partitioned topic {topic} does not exist")
        record = PartitionedTopicRecord.from_json(value, stamp)
        if record.deleting is not None:
            raise NotFound(f"partitioned topic {topic} is being deleted")
        return record, version

    async def grow(self, topic: TopicName, partitions: int, since: int | None = None) -> PartitionedTopicRecord:
        """Raise the number of partitions to this one; nothing happens if it is this one already.

        :param since: the version that the record must still have.
        :raises Contended: it has another version.
        :raises NotFound: the partitioned topic does not exist.
        :raises Invalid: it has more partitions: the number never shrinks.
        """
        path = keys.partitioned_topic(topic)
        check_count(partitions)

        async def attempt() -> PartitionedTopicRecord | None:
            record, version = await self._current(topic)
            if partitions == record.partitions:
                return record
            if partitions < record.partitions:
                raise Invalid(f"{topic} has {record.partitions} partitions and cannot go back to {partitions}")
            if since not in (None, version):
                raise Contended(f"{topic} was changed while partitions were added to it: repeat the request")
            stamp = self._access.stamp(record.stamp)
            grown = replace(record, partitions=partitions, stamp=stamp)
            written = await self._access.store.transact(
                [Check(path, version)], [Put(path, encode(grown.to_json(), stamp))]
            )
            return grown if written else None

        return await self._access.retry(f"growing {topic}", attempt)

    async def change(
        self,
        topic: TopicName,
        changing: Callable[[PartitionedTopicRecord], PartitionedTopicRecord],
        also: Sequence[Check] = (),
    ) -> None:
        """Change its properties; ``changing`` may run several times, and must not change the number of partitions.

        :param also: must hold at the same time.
        :raises Overtaken: something in ``also`` does not.
        :raises NotFound: the partitioned topic does not exist.
        """
        path = keys.partitioned_topic(topic)

        async def attempt() -> bool | None:
            value, before, version = await self._access.value(path)
            if not version:
                raise NotFound(f"partitioned topic {topic} does not exist")
            wanted = changing(PartitionedTopicRecord.from_json(value, before))
            put = Put(path, encode(wanted.to_json(), self._access.stamp(before)))
            if await self._access.store.transact([Check(path, version), *also], [put]):
                return True
            await self._access.expect(also)
            return None

        await self._access.retry(f"changing {topic}", attempt)

    async def begin_deletion(self, topic: TopicName, stamp: Stamp, also: Sequence[Check] = ()) -> None:
        """Make it count as deleted from now on, even if ``delete`` is never reached.

        :param also: must hold at the same time.
        :raises Overtaken: something in ``also`` does not.
        :raises NotFound: it does not exist.
        :raises MetadataFull: the deletion did not begin.
        """
        try:
            await self.change(topic, lambda record: replace(record, deleting=str(stamp)), also)
        except MetadataFull:  # etcd also refuses the very write that filled it, after executing it
            record = await self.on_record(topic)
            if record is None or record.deleting != str(stamp):
                raise

    async def take_back(self, topic: TopicName) -> None:
        """Remove the partition count, without recording a deletion."""
        await self._access.store.delete(keys.partitioned_topic(topic))

    async def forget(self, topic: TopicName) -> None:
        """As ``delete``, but without recording the deletion: as ``Topics.forget``."""
        await forget_own_policies(self._access, topic)
        await self.take_back(topic)

    async def delete(self, topic: TopicName, stamp: Stamp | None = None) -> Stamp:
        """Remove the partition count; delete the partitions (as topics) first. Returns the deletion's stamp.

        :raises NotFound: the partitioned topic does not exist.
        """
        path = keys.partitioned_topic(topic)

        async def attempt() -> Stamp | None:
            _, _, version = await self._access.value(path)
            if not version:
                raise NotFound(f"partitioned topic {topic} does not exist")
            check, put, mark = await self._deletions.marking(topic, stamp)
            done = await self._deletions.write([Check(path, version), check], [Delete(path), put], topic, mark)
            return mark if done else None

        deleted = await self._access.retry(f"deleting {topic}", attempt)
        await forget_policies(self._access, topic, deleted)
        return deleted


def check_count(partitions: int) -> int:
    """:raises Invalid: no topic can have so many."""
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise Invalid(f"{partitions} partitions: expected 1 to {MAX_PARTITIONS}")
    return partitions
