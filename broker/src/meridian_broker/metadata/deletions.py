# SPDX-License-Identifier: Apache-2.0
"""Deletions of topics: each leaves a stamp, which is the incarnation of whatever is created under that name later (R8).

Creating a topic leaves none, so two regions that create the same topic at the same time mean the same topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from meridian_broker.metadata import keys
from meridian_broker.metadata.access import Access
from meridian_broker.metadata.records import PartitionedTopicRecord, decode, encode
from meridian_broker.metadata.store import ABSENT, Check, Delete, Put
from meridian_broker.metadata.topic_records import positions
from meridian_broker.positions.clock import Stamp
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.wire.pulsar.topic_name import TopicName


class Deletion(NamedTuple):
    """The last deletion of a topic, as this region knows it (R8)."""

    stamp: Stamp
    ends: Mapping[str, Position]
    """Per origin region, the last entry that was stored here. Later entries in other regions were not part of the
    deletion."""
    is_of_base: bool
    """The whole partitioned topic was deleted, not this partition alone."""


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
        """None: it was never deleted here. The deletion of a partitioned topic counts as soon as it begins."""
        base = await self._begun(topic.base)  # read first: once it is finished, the records read below have it
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
        """The stamp of a partitioned topic's unfinished deletion; None: there is none."""
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
        """The operations that a transaction deleting the topic must contain, and the stamp of the deletion.

        :param stamp: the stamp of the same deletion in another region; None: it happens here and now.
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
