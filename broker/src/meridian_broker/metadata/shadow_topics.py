# SPDX-License-Identifier: Apache-2.0
"""Which topics are shadows of which others (PIP-180), in this region alone.

A shadow has a record of its own beside those of its topic or partitions. It is written before the topic's record and
deleted after it, so a topic is never taken for an ordinary one while it is a shadow. A record without a topic is what a
crash left, and means nothing.

All records are in memory: whether a topic is a shadow is asked for each opening, producer and policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from meridian_broker.metadata import keys
from meridian_broker.metadata.access import Access
from meridian_broker.metadata.errors import NotFound
from meridian_broker.metadata.records import decode, encode
from meridian_broker.metadata.rules import Rules
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.topic_name import TopicName

SOURCE: Final = "PULSAR.SHADOW_SOURCE"
"""Property that makes a new topic a shadow: the name of its source, as Pulsar's clients write it."""
HOLDS: Final = "meridian.holdSourceLedgers"
"""Property of a new shadow: whether its subscriptions keep ledgers of the source, ``true`` unless it says ``false``."""


@dataclass(frozen=True, slots=True)
class ShadowRecord:
    """What is on record of a shadow. Both names are those of whole topics, never of partitions."""

    shadow: TopicName
    source: TopicName
    holds: bool = True
    """The source keeps the ledgers that the shadow's subscriptions still need."""
    listed: bool = True
    """It is in the source's list of shadows (``shadowTopics``)."""

    def source_of(self, name: TopicName) -> TopicName:
        """The topic of which ``name``, this shadow or a partition of it, is a view."""
        return self.source if name.partition < 0 else self.source.with_partition(name.partition)

    def shadow_of(self, name: TopicName) -> TopicName:
        """The view of ``name``, the source or a partition of it."""
        return self.shadow if name.partition < 0 else self.shadow.with_partition(name.partition)

    def to_json(self) -> dict[str, Any]:
        return {"shadow": str(self.shadow), "source": str(self.source), "holds": self.holds, "listed": self.listed}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ShadowRecord:
        """:raises InvalidTopicNameError, KeyError: it is damaged."""
        return cls(
            topic_name.parse(value["shadow"]),
            topic_name.parse(value["source"]),
            bool(value.get("holds", True)),
            bool(value.get("listed", True)),
        )


class ShadowTopics:
    """See the module's text. One per catalog; its broker is the only one that writes them."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._records: dict[str, ShadowRecord] = {}
        self._of: dict[str, dict[str, ShadowRecord]] = {}
        """The shadows of each source, by name."""
        self._is_loaded = False
        self.behind: set[TopicName] = set()
        """Shadows that could not follow their source to more partitions yet."""

    async def load(self) -> None:
        """Read all records, once. :raises MetadataError: they cannot be read, or a newer version wrote them."""
        if self._is_loaded:
            return
        for path, record in await self._access.store.scan(keys.SHADOWS + "/"):
            self._learn(ShadowRecord.from_json(decode(path, record.value)[0]))
        self._is_loaded = True

    def _learn(self, record: ShadowRecord) -> None:
        self._records[str(record.shadow)] = record
        self._of.setdefault(str(record.source), {})[str(record.shadow)] = record

    def find(self, name: TopicName) -> ShadowRecord | None:
        """The record of a topic or partition that is a shadow; None: it is none."""
        return self._records.get(str(name.base)) if self._records else None

    def of(self, source: TopicName) -> list[ShadowRecord]:
        """The shadows of a topic, or of the topic that ``source`` is a partition of; sorted."""
        if not self._of:
            return []
        return [record for _, record in sorted(self._of.get(str(source.base), {}).items())]

    def schemas_of(self, name: TopicName) -> TopicName:
        """The topic whose schemas are those of ``name``: a shadow has its source's."""
        record = self.find(name)
        return name if record is None else record.source

    def all(self) -> list[ShadowRecord]:
        return list(self._records.values())

    async def put(self, record: ShadowRecord) -> None:
        """:raises MetadataError: it may not be written."""
        await self._access.store.put(keys.shadow(record.shadow), encode(record.to_json()))
        self._learn(record)

    async def list_in_source(self, shadow: TopicName, listed: bool) -> None:
        """:raises NotFound: there is no such shadow."""
        record = self.find(shadow)
        if record is None:
            raise NotFound(f"{shadow} is not a shadow topic")
        if record.listed != listed:
            await self.put(replace(record, listed=listed))

    async def delete(self, shadow: TopicName) -> None:
        """Nothing happens if there is none. :raises MetadataError: it may still be there."""
        record = self.find(shadow)
        if record is not None:
            await self._access.store.delete(keys.shadow(record.shadow))
            del self._records[str(record.shadow)]
            siblings = self._of[str(record.source)]
            del siblings[str(record.shadow)]
            if not siblings:
                del self._of[str(record.source)]


def as_shadow(rules: Rules) -> Rules:
    """The rules of a shadow: what is about storing messages is its source's affair, and no other region has it."""
    return replace(
        rules,
        deduplication=False,
        replicate_subscriptions=False,
        compaction_threshold_bytes=0,
        offload_threshold_bytes=-1,
        offload_threshold_seconds=-1,
        offload_deletion_lag_ms=-1,
        inactive_topics=replace(rules.inactive_topics, remove=False),
    )
