# SPDX-License-Identifier: Apache-2.0
"""Topics: how many partitions they have (agreed between regions), and which ledgers they have here (local).

A topic and a partitioned topic of the same name exclude each other. Deleting one leaves the stamp of the deletion:
it is the incarnation of whatever is created under that name later (R8). Creating leaves none, so that two regions that
create the same topic at the same time mean the same topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from meridian_broker.metadata import keys
from meridian_broker.metadata.access import Access, check_namespace
from meridian_broker.metadata.errors import AlreadyExists, Invalid, NotFound
from meridian_broker.metadata.limits import MAX_OPERATIONS
from meridian_broker.metadata.policies import TopicPolicies
from meridian_broker.metadata.records import PartitionedTopicRecord, TopicRecord, decode, encode, positions
from meridian_broker.metadata.store import ABSENT, Check, Delete, MetadataFull, Put
from meridian_broker.metadata.topic_listing import Listing, list_topics
from meridian_broker.metadata.trees import Tree, fold_topic_policies, unfold_topic_policies
from meridian_broker.positions.clock import Stamp
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.wire.pulsar.topic_name import PERSISTENT, TopicName

MAX_PARTITIONS = 10_000
"""Most partitions of one topic."""
TOGETHER = (MAX_OPERATIONS - 3) // 2
"""Partitions put on record in one transaction, with two checks each and three that they share."""
ASIDE = "-set-aside-"
"""Between the name of a topic and the time at which a copy of it was set aside (R8)."""


class Deletion(NamedTuple):
    """The last deletion of a topic, as this region knows it (R8)."""

    stamp: Stamp
    ends: Mapping[str, Position]
    """Per origin region the last entry that was stored here. Later entries in other regions were not part of the
    deletion."""
    is_of_base: bool
    """The partitioned topic was deleted, with this partition of it."""


class Deletions:
    """When topics were deleted last (R8)."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def incarnation(self, topic: TopicName) -> tuple[str, list[Check]]:
        """The incarnation of a topic created now, and the checks for the transaction that creates it.

        Deleting a partitioned topic counts for its partitions.
        """
        newest: Stamp | None = None
        checks: list[Check] = []
        for path in sorted({keys.deletion(topic), keys.deletion(topic.base)}):
            _, stamp, version = await self._access.value(path)
            checks.append(Check(path, version))
            if stamp is not None and (newest is None or stamp > newest):
                newest = stamp
        return "" if newest is None else str(newest), checks

    async def incarnations(
        self, base: TopicName, partitions: Sequence[TopicName]
    ) -> tuple[dict[TopicName, str], dict[TopicName, Check]]:
        """``incarnation`` of many partitions of one topic, and the checks by name, the topic's own among them."""
        _, of_base, version = await self._access.value(keys.deletion(base))
        checks = {base: Check(keys.deletion(base), version)}
        found = dict(await self._access.store.scan(keys.deletion(base) + keys.PARTITION))
        incarnations = {}
        for name in partitions:
            path = keys.deletion(name)
            record = found.get(path)
            own = None if record is None else decode(path, record.value)[1]
            newest = max((stamp for stamp in (own, of_base) if stamp is not None), default=None)
            incarnations[name] = "" if newest is None else str(newest)
            checks[name] = Check(path, ABSENT if record is None else record.version)
        return incarnations, checks

    async def find(self, topic: TopicName) -> Deletion | None:
        """None: it was never deleted here. That of a partitioned topic counts from its first write on."""
        base = await self._begun(topic.base)  # read first: once it is finished the other records have it
        value, own, _ = await self._access.value(keys.deletion(topic))
        if topic.partition >= 0:
            _, finished, _ = await self._access.value(keys.deletion(topic.base))
            base = max((stamp for stamp in (base, finished) if stamp is not None), default=None)
        stamps = [stamp for stamp in (own, base) if stamp is not None]
        if not stamps:
            return None
        newest = max(stamps)
        ends = {} if own is None else positions(value, "ends")
        return Deletion(newest, ends, topic.partition >= 0 and newest == base)

    async def _begun(self, base: TopicName) -> Stamp | None:
        """The stamp of a partitioned topic's deletion that has begun and is not finished."""
        value, stamp, version = await self._access.value(keys.partitioned_topic(base))
        deleting = PartitionedTopicRecord.from_json(value, stamp).deleting if version else None
        return None if deleting is None else Stamp.parse(deleting)

    async def newest(self, topic: TopicName) -> Stamp | None:
        """The stamp of the last deletion of a topic or of any of its partitions; None: there was none."""
        _, newest, _ = await self._access.value(keys.deletion(topic.base))
        for path, record in await self._access.store.scan(keys.deletion(topic.base) + keys.PARTITION):
            stamp = decode(path, record.value)[1]
            if stamp is not None and (newest is None or stamp > newest):
                newest = stamp
        return newest

    async def marking(
        self, topic: TopicName, stamp: Stamp | None, ends: Mapping[str, Position] | None = None
    ) -> tuple[Check, Put, Stamp]:
        """The operations that a transaction deleting the topic has to contain.

        :param stamp: of a deletion in another region.
        :param ends: see ``Deletion``.
        """
        path = keys.deletion(topic)
        value, before, version = await self._access.value(path)
        mark = self._access.stamp(before) if stamp is None else stamp
        if before is not None and before > mark:
            mark = before
        known = positions(value, "ends") if version else {}
        for region, end in (ends or {}).items():
            known[region] = max(end, known.get(region, EARLIEST))
        shown = {region: str(end) for region, end in sorted(known.items())}
        return Check(path, version), Put(path, encode({"ends": shown} if shown else {}, mark)), mark

    async def write(
        self, checks: Sequence[Check], operations: Sequence[Put | Delete], topic: TopicName, mark: Stamp
    ) -> bool:
        """Execute a transaction with the result of ``marking``. On success the view is updated at once."""
        if not await self._access.store.transact(checks, operations):
            return False
        self._access.view.deleted(keys.deletion(topic), mark)
        return True


class PartitionedTopics:
    """How many partitions topics have."""

    def __init__(self, access: Access, deletions: Deletions) -> None:
        self._access = access
        self._deletions = deletions

    async def find(self, topic: TopicName) -> PartitionedTopicRecord | None:
        """None: the topic is not partitioned, or does not exist."""
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
        """Those of ``tenant/namespace``."""
        return await list_topics(self._access, namespace, domain, keys.partitioned_topics_of(namespace, domain))

    async def listing(self, namespace: str, domain: str = PERSISTENT) -> Listing:
        """As ``names``."""
        folder = keys.partitioned_topics_of(namespace, domain)
        return Listing(domain, namespace, await self._access.store.children(folder))

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
    ) -> PartitionedTopicRecord:
        """
        :param created: the stamp of its creation in another region; None: it is created here and now.
        :raises AlreadyExists: there is a topic of that name, partitioned or not.
        :raises NotFound: its namespace does not exist.
        :raises Invalid: an impossible number, or a partition's name.
        """
        if topic.partition >= 0:
            raise Invalid(f"{topic} is the name of a partition: a partitioned topic cannot have it")
        path, plain = keys.partitioned_topic(topic), keys.topic(topic)
        record = PartitionedTopicRecord(_check_count(partitions), dict(properties or {}))

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
            ]
            done = await self._access.store.transact(checks, [Put(path, encode(made.to_json(), stamp))])
            return made if done else None

        return await self._access.retry(f"creating {topic}", attempt)

    async def grow(self, topic: TopicName, partitions: int) -> PartitionedTopicRecord:
        """Raise the number of partitions to this one; if it is the same already, nothing happens.

        :raises NotFound: the partitioned topic does not exist.
        :raises Invalid: it has more already: the number never shrinks.
        """
        path = keys.partitioned_topic(topic)
        _check_count(partitions)

        async def attempt() -> PartitionedTopicRecord | None:
            value, before, version = await self._access.value(path)
            if not version:
                raise NotFound(f"partitioned topic {topic} does not exist")
            record = PartitionedTopicRecord.from_json(value, before)
            if record.deleting is not None:
                raise NotFound(f"partitioned topic {topic} is being deleted")
            if partitions == record.partitions:
                return record
            if partitions < record.partitions:
                raise Invalid(f"{topic} has {record.partitions} partitions and cannot go back to {partitions}")
            stamp = self._access.stamp(before)
            grown = replace(record, partitions=partitions, stamp=stamp)
            written = await self._access.store.transact(
                [Check(path, version)], [Put(path, encode(grown.to_json(), stamp))]
            )
            return grown if written else None

        return await self._access.retry(f"growing {topic}", attempt)

    async def change(
        self, topic: TopicName, changing: Callable[[PartitionedTopicRecord], PartitionedTopicRecord]
    ) -> None:
        """Change its properties; ``changing`` may run several times, and must not change the number of partitions.

        :raises NotFound: the partitioned topic does not exist.
        """
        path = keys.partitioned_topic(topic)

        async def attempt() -> bool | None:
            value, before, version = await self._access.value(path)
            if not version:
                raise NotFound(f"partitioned topic {topic} does not exist")
            wanted = changing(PartitionedTopicRecord.from_json(value, before))
            put = Put(path, encode(wanted.to_json(), self._access.stamp(before)))
            return await self._access.store.transact([Check(path, version)], [put]) or None

        await self._access.retry(f"changing {topic}", attempt)

    async def begin_deletion(self, topic: TopicName, stamp: Stamp) -> None:
        """From now on it counts as deleted, even if ``delete`` is never reached.

        :raises NotFound: it does not exist.
        :raises MetadataFull: the deletion did not begin.
        """
        try:
            await self.change(topic, lambda record: replace(record, deleting=str(stamp)))
        except MetadataFull:  # etcd also refuses the very write that filled it, after executing it
            record = await self.on_record(topic)
            if record is None or record.deleting != str(stamp):
                raise

    async def take_back(self, topic: TopicName) -> None:
        """Forget that a topic is partitioned, as if it never was: no deletion is remembered."""
        await self._access.store.delete(keys.partitioned_topic(topic))

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
            forgotten = await _policies_to_forget(self._access, topic)
            operations: list[Put | Delete] = [Delete(path), put, *forgotten]
            done = await self._deletions.write([Check(path, version), check], operations, topic, mark)
            return mark if done else None

        deleted = await self._access.retry(f"deleting {topic}", attempt)
        await _forget_older(self._access, topic)
        return deleted


class Topics:
    """Topics and partitions of this region, with their ledgers. Read and written by the topic's owner."""

    def __init__(self, access: Access, deletions: Deletions) -> None:
        self._access = access
        self._deletions = deletions
        self.on_change: Callable[[TopicName, bool], None] | None = None
        """Hears of each topic that is made (True) or deleted (False) through this catalog."""

    async def find(self, topic: TopicName) -> tuple[TopicRecord, int] | None:
        """The record and its version; None when the topic does not exist here."""
        value, stamp, version = await self._access.value(keys.topic(topic))
        return (TopicRecord.from_json(value, stamp), version) if version else None

    async def get(self, topic: TopicName) -> tuple[TopicRecord, int]:
        """:raises NotFound: the topic does not exist here."""
        found = await self.find(topic)
        if found is None:
            raise NotFound(f"topic {topic} does not exist in {self._access.region}")
        return found

    async def incarnation(self, topic: TopicName) -> str:
        """The incarnation the topic would have if it were made now (R8)."""
        return (await self._deletions.incarnation(topic))[0]

    async def deletion(self, topic: TopicName) -> Deletion | None:
        """Its last deletion here; None: there was none."""
        return await self._deletions.find(topic)

    async def newest_deletion(self, topic: TopicName) -> Stamp | None:
        """Stamp of the newest deletion of the topic or one of its partitions; None if there was none."""
        return await self._deletions.newest(topic)

    async def names(self, namespace: str, domain: str = PERSISTENT) -> list[TopicName]:
        """Those of ``tenant/namespace``, partitions as topics of their own."""
        return await list_topics(self._access, namespace, domain, keys.topics_of(namespace, domain))

    async def listing(self, namespace: str, domain: str = PERSISTENT) -> Listing:
        """As ``names``."""
        return Listing(domain, namespace, await self._access.store.children(keys.topics_of(namespace, domain)))

    async def partitions(self, base: TopicName) -> list[TopicName]:
        """The partitions on record, by number, also those beyond the number of partitions that the topic has."""
        folder, found = keys.topic(base), list[TopicName]()
        for path, _ in await self._access.store.scan(folder + keys.PARTITION):
            name = base._replace(local_name=keys.unescape(path.rpartition("/")[2]))
            if name.partition >= 0 and name.base == base:
                found.append(name)
        return sorted(found, key=lambda name: name.partition)

    async def create(
        self, topic: TopicName, record: TopicRecord | None = None, *, growing_to: int = 0, is_found: bool = False
    ) -> tuple[TopicRecord, int]:
        """Create it with its incarnation filled in; returns the record and its version.

        :param growing_to: number of partitions that its partitioned topic is about to have.
        :param is_found: its ledgers are on the volume, so it may be put on record before its partitioned topic.
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
            if not await self._access.store.transact(checks, [Put(path, encode(made.to_json()))]):
                return None
            found = await self._access.store.get(path)
            if found is None:
                return None  # created and deleted again in between: create it again
            return TopicRecord.from_json(decode(path, found.value)[0]), found.version

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
            raise NotFound(f"{topic.base} is not a partitioned topic (any more): {topic} cannot be created")
        if topic.partition >= max(record.partitions, growing_to):
            raise NotFound(f"{topic.base} has {record.partitions} partitions, not {topic.partition + 1}")
        return Check(path, version)

    async def create_partitions(self, base: TopicName, record: TopicRecord) -> None:
        """Put all missing partitions of a partitioned topic on record, many in one transaction.

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
        shared = [
            Check(keys.partitioned_topic(base), version),
            Check(keys.namespace(base.namespace_name), namespace.version),
        ]
        incarnations, deletions = await self._deletions.incarnations(base, names)
        for begin in range(0, len(names), TOGETHER):
            some = names[begin : begin + TOGETHER]
            checks = [*shared, deletions[base], *(deletions[name] for name in some)]
            checks += [Check(keys.topic(name), ABSENT) for name in some]
            puts = [
                Put(keys.topic(name), encode(replace(record, incarnation=incarnations[name]).to_json()))
                for name in some
            ]
            if await self._access.store.transact(checks, puts) and self.on_change is not None:
                for name in some:
                    self.on_change(name, True)

    async def put(self, topic: TopicName, record: TopicRecord, expected: int) -> int:
        """Replace that version; returns the new one.

        :raises VersionConflict: another broker wrote it: the caller no longer owns the topic.
        """
        return await self._access.store.put(
            keys.topic(topic), encode(record.to_json(), record.stamp), expected=expected
        )

    async def delete(
        self, topic: TopicName, stamp: Stamp | None = None, ends: Mapping[str, Position] | None = None
    ) -> Stamp:
        """Forget it; its ledgers are the caller's to delete. Returns the stamp of the deletion (R8).

        :param stamp: that of the same deletion in another region, so that both mean the same incarnation.
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
            forgotten = [] if topic.partition >= 0 else await _policies_to_forget(self._access, topic)
            done = await self._deletions.write(checks, [Delete(path), put, *forgotten], topic, mark)
            return mark if done else None

        deleted = await self._access.retry(f"deleting {topic}", attempt)
        if topic.partition < 0:
            await _forget_older(self._access, topic)
        if self.on_change is not None:
            self.on_change(topic, False)
        return deleted

    async def take_back(self, topic: TopicName) -> None:
        """Forget a topic that should not have been made, as if it never was: no deletion is remembered."""
        await self._access.store.delete(keys.topic(topic))
        if self.on_change is not None:
            self.on_change(topic, False)

    async def aside(self, topic: TopicName) -> list[TopicRecord]:
        """Copies of the topic that were set aside: their ledgers still say that they are the topic's."""
        return [
            TopicRecord.from_json(*decode(path, record.value))
            for path, record in await self._access.store.scan(keys.topic(topic) + ASIDE)
        ]

    async def move(self, topic: TopicName, to: TopicName, why: Mapping[str, str], stamp: Stamp | None) -> None:
        """Give a topic another name here, with all it holds (R8).

        :param why: properties that say why.
        :param stamp: of its deletion in another region; None: it was not deleted.
        :raises NotFound: it does not exist here.
        """
        old, new = keys.topic(topic), keys.topic(to)

        async def attempt() -> bool | None:
            found = await self._access.store.get(old)
            if found is None:
                raise NotFound(f"topic {topic} does not exist in {self._access.region}")
            incarnation, checks = await self._deletions.incarnation(to)
            value, written = decode(old, found.value)
            record = TopicRecord.from_json(value)
            moved = replace(record, incarnation=incarnation, properties={**record.properties, **why})
            checks += [Check(old, found.version), Check(new, ABSENT)]
            operations: list[Put | Delete] = [Delete(old), Put(new, encode(moved.to_json(), written))]
            if stamp is None:
                return await self._access.store.transact(checks, operations) or None
            check, put, mark = await self._deletions.marking(topic, stamp)
            forgotten = [] if topic.partition >= 0 else await _policies_to_forget(self._access, topic)
            return await self._deletions.write([*checks, check], [*operations, put, *forgotten], topic, mark) or None

        await self._access.retry(f"setting {topic} aside", attempt)
        if self.on_change is not None:
            self.on_change(topic, False)
            self.on_change(to, True)

    async def mark_deleted(self, topic: TopicName, stamp: Stamp) -> None:
        """Remember a deletion in another region: a topic created later under this name has that incarnation (R8)."""

        async def attempt() -> bool | None:
            _, known, _ = await self._access.value(keys.deletion(topic))
            if known is not None and known >= stamp:
                return True
            check, put, mark = await self._deletions.marking(topic, stamp)
            return await self._deletions.write([check], [put], topic, mark) or None

        await self._access.retry(f"marking {topic} as deleted", attempt)


class PoliciesOfTopics:
    """Policies that topics set themselves, overriding their namespaces'. They are deleted with the topic."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def get(self, topic: TopicName) -> TopicPolicies:
        """Empty when it sets nothing."""
        return fold_topic_policies(await self._access.tree(keys.topic_policies(topic))) or TopicPolicies()

    async def set_policy(self, topic: TopicName, policy: str, value: Any, element: str | None = None) -> None:
        """Set one policy, or one element of it, to a JSON value; None removes it. Concurrent changes of others are
        kept.

        :raises Invalid: the value is not valid.
        """

        def changing(tree: Tree) -> dict[str, Any]:
            present = fold_topic_policies(tree) or TopicPolicies()
            return unfold_topic_policies(present.with_policy(policy, value, element))

        await self._access.change(keys.topic_policies(topic), changing)


async def _policies_to_forget(access: Access, topic: TopicName) -> list[Delete]:
    tree = await access.tree(keys.topic_policies(topic))
    return [Delete(tree.path + leaf) for leaf in tree.records]


async def _forget_older(access: Access, topic: TopicName) -> None:
    """Remove policies that were set while the topic was being deleted; later ones belong to the next topic."""
    now = access.stamp(None)

    async def attempt() -> bool | None:
        tree = await access.tree(keys.topic_policies(topic))
        older = [leaf for leaf in tree.records if (tree.stamp(leaf) or now) <= now]
        if not older:
            return True
        checks = [Check(tree.path + leaf, tree.version(leaf)) for leaf in older]
        return await access.write(tree, checks, [Delete(tree.path + leaf) for leaf in older]) or None

    await access.retry(f"forgetting the policies of {topic}", attempt)


def _check_count(partitions: int) -> int:
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise Invalid(f"{partitions} partitions: expected 1 to {MAX_PARTITIONS}")
    return partitions
