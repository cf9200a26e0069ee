# SPDX-License-Identifier: Apache-2.0
"""Partitioned topics: how many partitions each has in each region, and what must hold for them. Part of the world.

A partition is an ordinary topic, whose messages the rest of the model checks. This module checks what makes partitions
one topic: in the end every region has the same number of them, no more than were requested since the topic was last
deleted, and none from an earlier incarnation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from meridian_broker.metadata import keys
from meridian_broker.metadata.records import PartitionedTopicRecord, decode
from meridian_broker.metadata.topic_records import TopicRecord
from meridian_broker.positions import ZERO, Stamp
from meridian_broker.topics.journal.topic_record import stamp_of
from meridian_broker.wire.pulsar import topic_name
from simulation.names import base_of, full_name, number_of

if TYPE_CHECKING:
    from simulation.stage import Broker, Region, Stage


class Standing(NamedTuple):
    """A partitioned topic in one region, according to its metadata."""

    number: int
    """Number of partitions; 0: there is no such topic."""
    deleted: Stamp
    """The last deletion that the region knows of."""
    partitions: dict[str, Stamp]
    """Partitions on record: name -> the deletion after which each was created."""


class PartitionCounts:
    """See the module's text."""

    def __init__(self, world: Stage) -> None:
        self._world = world
        self.names: set[str] = set()
        """Topics that somebody created with partitions."""
        self._wanted: dict[tuple[str, Stamp], int] = {}
        """(topic, last deletion) -> the most partitions requested since."""
        self.under_way: list[Broker] = []
        """Regions that have yet to answer a command, once for each command."""

    def of(self, home: Region, base: str) -> Standing:
        name, records = topic_name.parse(full_name(base)), home.metadata.records
        found = records.get(keys.partitioned_topic(name))
        record = None if found is None else PartitionedTopicRecord.from_json(*decode("", found.value))
        count = 0 if record is None or record.deleting is not None else record.partitions
        deletion = records.get(keys.deletion(name))
        deleted = None if deletion is None else decode("", deletion.value)[1]
        partitions = {
            path.rpartition("/")[2]: stamp_of(TopicRecord.decode("", record.value).incarnation)
            for path, record in records.items()
            if path.startswith(keys.topic(name) + keys.PARTITION) and base_of(path.rpartition("/")[2]) == base
        }
        return Standing(count, deleted or ZERO, partitions)

    def asked(self, home: Region, base: str, count: int) -> None:
        """A client requests this many, in the topic's incarnation that the region knows now."""
        key = base, self.of(home, base).deleted
        self._wanted[key] = max(count, self._wanted.get(key, 0))

    def exists(self, topic: str) -> bool:
        """Whether the topic has this partition somewhere; true for topics without partitions."""
        base = base_of(topic)
        return base == topic or any(number_of(topic) < self.of(home, base).number for home in self._homes())

    def go(self, home: Region, base: str) -> None:
        """The region has recorded that it deletes the topic, and will do so even if it crashes."""
        for partition in self.of(home, base).partitions:
            record = home.metadata.records[keys.topic(topic_name.parse(full_name(partition)))]
            stored = TopicRecord.decode("", record.value)
            self._world.model.partition_goes(home, partition, stored)

    def disagreement(self) -> str:
        """What is still outstanding; empty: all regions agree."""
        if waiting := [broker.region for broker in self.under_way if broker.alive]:
            return f"commands about partitions are unanswered in {' '.join(waiting)}"
        for base in sorted(self.names):
            standing = {home.name: self.of(home, base) for home in self._homes()}
            if len({one.number for one in standing.values()}) > 1:
                shown = ", ".join(f"{region} {one.number}" for region, one in standing.items())
                return f"the number of partitions of {base} differs: {shown}"
            for region, one in standing.items():
                for partition, made in one.partitions.items():
                    if made < one.deleted:
                        return f"{region} still has {partition}, which was deleted with {base}"
        return ""

    def check(self) -> None:
        """Once all regions agree, check that no more partitions exist than were requested."""
        for base in sorted(self.names):
            for home in self._homes():
                one = self.of(home, base)
                most = self._wanted.get((base, one.deleted), 0)
                if one.number > most:
                    text = f"{base} has {one.number} in {home.name}, but {most} were requested since its last deletion"
                    self._world.model.violate("partitions not requested", text)

    def _homes(self) -> list[Region]:
        return [home for home in self._world.regions.values() if home.name not in self._world.gone]
