# SPDX-License-Identifier: Apache-2.0
"""Topics and partitions of this region, and the ledgers they have here (local).

A topic and a partitioned topic of the same name exclude each other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace

from meridian_broker.metadata import keys
from meridian_broker.metadata.access import Access
from meridian_broker.metadata.deletions import Deletion, Deletions
from meridian_broker.metadata.errors import AlreadyExists, NotFound, Overtaken
from meridian_broker.metadata.limits import MAX_OPERATIONS
from meridian_broker.metadata.policies_of_topics import forget_own_policies, forget_policies
from meridian_broker.metadata.records import PartitionedTopicRecord
from meridian_broker.metadata.store import ABSENT, Check, Delete, Put, VersionConflict
from meridian_broker.metadata.topic_listing import Listing, inhabited, list_topics
from meridian_broker.metadata.topic_records import TopicRecord
from meridian_broker.positions.clock import Stamp
from meridian_broker.positions.position import Position
from meridian_broker.wire.pulsar.topic_name import PERSISTENT, TopicName

TOGETHER = (MAX_OPERATIONS - 3) // 2
"""Partitions recorded in one transaction, with two checks each and three that they share."""
ASIDE = "-set-aside-"
"""Separates a topic's name from the time at which a copy of it was quarantined (R8)."""


class Topics:
    """Topics and partitions of this region, with their ledgers. Read and written by the topic's owner."""

    def __init__(self, access: Access, deletions: Deletions) -> None:
        self._access = access
        self._deletions = deletions
        self.on_change: Callable[[TopicName, bool], None] | None = None
        """Called for each topic that is created (True) or deleted (False) through this catalog."""

    async def find(self, topic: TopicName) -> tuple[TopicRecord, int] | None:
        """The record and its version; None when the topic does not exist here."""
        path = keys.topic(topic)
        found = await self._access.store.get(path)
        return None if found is None else (TopicRecord.decode(path, found.value), found.version)

    async def get(self, topic: TopicName) -> tuple[TopicRecord, int]:
        """:raises NotFound: the topic does not exist here."""
        found = await self.find(topic)
        if found is None:
            raise NotFound(f"topic {topic} does not exist in {self._access.region}")
        return found

    async def incarnation(self, topic: TopicName) -> str:
        """The incarnation that the topic would get if it were created now (R8)."""
        return (await self._deletions.incarnation(topic))[0]

    async def deletion(self, topic: TopicName) -> Deletion | None:
        """Its last deletion here; None: there was none."""
        return await self._deletions.find(topic)

    async def newest_deletion(self, topic: TopicName) -> Stamp | None:
        """Stamp of the newest deletion of the topic or one of its partitions; None if there was none."""
        return await self._deletions.newest(topic)

    async def names(self, namespace: str, domain: str = PERSISTENT) -> list[TopicName]:
        """The topics of ``tenant/namespace``; each partition is a topic of its own."""
        return await list_topics(self._access, namespace, domain, keys.topics_of(namespace, domain))

    async def listing(self, namespace: str, domain: str = PERSISTENT) -> Listing:
        """As ``names``."""
        return Listing(domain, namespace, await self._access.store.children(keys.topics_of(namespace, domain)))

    async def namespaces(self) -> frozenset[str]:
        """Those with topics on record."""
        return await inhabited(self._access, keys.TOPICS)

    async def watch(self, namespace: str, domain: str = PERSISTENT) -> AsyncIterator[list[tuple[TopicName, bool]]]:
        """The topics of a namespace whose records are written (True) or deleted (False), by any broker of the region.

        The first item is empty, see ``MetadataStore.watch``.
        """
        folder = keys.topics_of(namespace, domain) + "/"
        tenant, _, local = namespace.partition("/")
        async for changes in self._access.store.watch(folder):
            found = [(one.path.removeprefix(folder), one.record is not None) for one in changes]
            yield [(TopicName(domain, tenant, local, keys.unescape(name)), exists) for name, exists in found]

    async def follow(self, topic: TopicName) -> AsyncIterator[TopicRecord | None]:
        """The topic's record, at once and whenever a broker of the region writes it; None while there is none.

        Of records written in quick succession, all but the last may be skipped.
        """
        path = keys.topic(topic)
        async for changes in self._access.store.watch(path):
            own = [change for change in changes if change.path == path]
            if changes and not own:
                continue  # only topics whose names begin with this one's changed
            record = own[-1].record if own else await self._access.store.get(path)
            yield None if record is None else TopicRecord.decode(path, record.value)

    async def partitions(self, base: TopicName) -> list[TopicName]:
        """The recorded partitions, by number, including those beyond the topic's number of partitions."""
        folder, found = keys.topic(base), list[TopicName]()
        for path, _ in await self._access.store.scan(folder + keys.PARTITION):
            name = base._replace(local_name=keys.unescape(path.rpartition("/")[2]))
            if name.partition >= 0 and name.base == base:
                found.append(name)
        return sorted(found, key=lambda name: name.partition)

    async def create(
        self,
        topic: TopicName,
        record: TopicRecord | None = None,
        *,
        growing_to: int = 0,
        is_found: bool = False,
        also: Sequence[Check] = (),
    ) -> tuple[TopicRecord, int]:
        """Create it with its incarnation filled in; returns the record and its version.

        :param growing_to: number of partitions that its partitioned topic is about to have.
        :param is_found: its ledgers are on the volume, so it may be recorded before its partitioned topic.
        :param also: must hold at the same time.
        :raises Overtaken: something in ``also`` does not.
        :raises AlreadyExists: a topic or partitioned topic of that name exists.
        :raises NotFound: its namespace does not exist, or its partitioned topic has no such partition.
        """
        path, partitioned = keys.topic(topic), keys.partitioned_topic(topic)

        async def attempt() -> tuple[TopicRecord, int] | None:
            namespace = await self._access.base_of_namespace(topic.namespace_name)
            if await self._access.store.get(path) is not None:
                raise AlreadyExists(f"topic {topic} exists already")
            if await self._access.store.get(partitioned) is not None:
                raise AlreadyExists(f"topic {topic} is partitioned: only its partitions are topics")
            incarnation, checks = await self._deletions.incarnation(topic)
            if topic.partition >= 0 and not is_found:
                checks.append(await self._check_partition(topic, growing_to))
            made = replace(record or TopicRecord(), incarnation=incarnation)
            if topic.partition < 0 and made.created is None:
                made = replace(made, created=self._access.stamp(None))
            checks += [
                Check(keys.namespace(topic.namespace_name), namespace.version),
                Check(path, ABSENT),
                Check(partitioned, ABSENT),
            ]
            if not await self._access.store.transact([*checks, *also], [Put(path, made.encode())]):
                await self._access.expect(also)
                return None
            found = await self._access.store.get(path)
            if found is None:
                return None  # created, and deleted again right away: create it again
            return replace(TopicRecord.decode(path, found.value), stamp=None), found.version

        made = await self._access.retry(f"creating {topic}", attempt)
        if self.on_change is not None:
            self.on_change(topic, True)
        return made

    async def _check_partition(self, topic: TopicName, growing_to: int) -> Check:
        """The check on its partitioned topic for the transaction that creates a partition."""
        path = keys.partitioned_topic(topic.base)
        value, stamp, version = await self._access.value(path)
        record = PartitionedTopicRecord.from_json(value, stamp) if version else None
        if record is None or record.deleting is not None:
            raise NotFound(f"{topic.base} is not, or no longer, a partitioned topic: {topic} cannot be created")
        if topic.partition >= max(record.partitions, growing_to):
            raise NotFound(f"{topic.base} has {record.partitions} partitions, not {topic.partition + 1}")
        return Check(path, version)

    async def create_partitions(self, base: TopicName, record: TopicRecord) -> None:
        """Record all missing partitions of a partitioned topic, many in one transaction.

        Partitions with a concurrent change are skipped; they are created when they are opened.

        :param record: their initial record; each gets its incarnation.
        """
        partitioned, _, version = await self._access.value(keys.partitioned_topic(base))
        if not version:
            raise NotFound(f"partitioned topic {base} does not exist")
        there = set(await self.partitions(base))
        count = PartitionedTopicRecord.from_json(partitioned).partitions
        names = [name for name in map(base.with_partition, range(count)) if name not in there]
        namespace = await self._access.base_of_namespace(base.namespace_name)
        common = [
            Check(keys.partitioned_topic(base), version),
            Check(keys.namespace(base.namespace_name), namespace.version),
        ]
        incarnations, deletions = await self._deletions.incarnations(base, names)
        for begin in range(0, len(names), TOGETHER):
            some = names[begin : begin + TOGETHER]
            checks = [*common, deletions[base], *(deletions[name] for name in some)]
            checks += [Check(keys.topic(name), ABSENT) for name in some]
            puts = [Put(keys.topic(name), replace(record, incarnation=incarnations[name]).encode()) for name in some]
            if await self._access.store.transact(checks, puts) and self.on_change is not None:
                for name in some:
                    self.on_change(name, True)

    async def put(self, topic: TopicName, record: TopicRecord, expected: int, also: Sequence[Check] = ()) -> int:
        """Replace the record at version ``expected``, if every check in ``also`` holds at the same time; returns the
        new version.

        :raises VersionConflict: another broker wrote it, so the caller no longer owns the topic.
        :raises Overtaken: the version is still there, and something in ``also`` does not hold.
        """
        path, value = keys.topic(topic), record.encode(record.stamp)
        if not also:
            return await self._access.store.put(path, value, expected=expected)
        done = await self._access.store.transact([Check(path, expected), *also], [Put(path, value)])
        if done is None:
            found = await self._access.store.get(path)
            if found is not None and found.version == expected:
                raise Overtaken(f"{topic} was not changed, because something else was: repeat the request")
            raise VersionConflict(f"{path} is not at version {expected} any more")
        return done.version

    async def delete(
        self, topic: TopicName, stamp: Stamp | None = None, ends: Mapping[str, Position] | None = None
    ) -> Stamp:
        """Delete its record; the caller deletes its ledgers. Returns the deletion's stamp (R8).

        :param stamp: the stamp of the same deletion in another region, so that both lead to the same incarnation.
        :param ends: see ``Deletion``.
        :raises NotFound: it does not exist here.
        """
        path = keys.topic(topic)

        async def attempt() -> Stamp | None:
            found = await self._access.store.get(path)
            if found is None:
                raise NotFound(f"topic {topic} does not exist in {self._access.region}")
            check, put, mark = await self._deletions.marking(topic, stamp, ends)
            checks = [Check(path, found.version), check]
            done = await self._deletions.write(checks, [Delete(path), put], topic, mark)
            return mark if done else None

        deleted = await self._access.retry(f"deleting {topic}", attempt)
        if topic.partition < 0:
            await forget_policies(self._access, topic, deleted)
        if self.on_change is not None:
            self.on_change(topic, False)
        return deleted

    async def forget(self, topic: TopicName) -> None:
        """As ``delete``, but without recording the deletion: no other region has heard of the topic, and one that has
        another topic of that name would follow it (R8)."""
        if topic.partition < 0:
            await forget_own_policies(self._access, topic)
        await self.take_back(topic)

    async def take_back(self, topic: TopicName) -> None:
        """Remove a topic that should not have been created, without recording a deletion."""
        await self._access.store.delete(keys.topic(topic))
        if self.on_change is not None:
            self.on_change(topic, False)

    async def aside(self, topic: TopicName) -> list[TopicRecord]:
        """Quarantined copies of the topic: their ledgers still carry the topic's name."""
        return [
            TopicRecord.decode(path, record.value)
            for path, record in await self._access.store.scan(keys.topic(topic) + ASIDE)
        ]

    async def move(self, topic: TopicName, to: TopicName, why: Mapping[str, str], stamp: Stamp | None) -> None:
        """Rename a topic in this region, with everything it holds (R8).

        :param why: properties that record the reason.
        :param stamp: the stamp of its deletion in another region; None: it was not deleted.
        :raises NotFound: it does not exist here.
        """
        old, new = keys.topic(topic), keys.topic(to)

        async def attempt() -> bool | None:
            found = await self._access.store.get(old)
            if found is None:
                raise NotFound(f"topic {topic} does not exist in {self._access.region}")
            incarnation, checks = await self._deletions.incarnation(to)
            record = TopicRecord.decode(old, found.value)
            moved = replace(record, incarnation=incarnation, properties={**record.properties, **why})
            checks += [Check(old, found.version), Check(new, ABSENT)]
            operations: list[Put | Delete] = [Delete(old), Put(new, moved.encode(record.stamp))]
            if stamp is None:
                return True if await self._access.store.transact(checks, operations) else None
            check, put, mark = await self._deletions.marking(topic, stamp)
            return await self._deletions.write([*checks, check], [*operations, put], topic, mark) or None

        await self._access.retry(f"quarantining {topic}", attempt)
        if stamp is not None and topic.partition < 0:
            await forget_policies(self._access, topic, stamp)
        if self.on_change is not None:
            self.on_change(topic, False)
            self.on_change(to, True)

    async def mark_deleted(self, topic: TopicName, stamp: Stamp) -> None:
        """Record a deletion in another region: a topic created later under this name has that incarnation (R8)."""

        async def attempt() -> bool | None:
            _, known, _ = await self._access.value(keys.deletion(topic))
            if known is not None and known >= stamp:
                return True
            check, put, mark = await self._deletions.marking(topic, stamp)
            return await self._deletions.write([check], [put], topic, mark) or None

        await self._access.retry(f"marking {topic} as deleted", attempt)
