# SPDX-License-Identifier: Apache-2.0
"""Which topics are shadows of which others (PIP-180), in this region alone.

A shadow has a record of its own beside those of its topic or partitions. It is written before the topic's record and
deleted after it, so a topic is never taken for an ordinary one while it is a shadow. A record without a topic is what a
crash left, and means nothing.

All records are in memory: whether a topic is a shadow is asked for each opening, producer and policy. In a region of
several brokers each of them may write one, and the others hear of it (``follow``). What must not be missed, such as
whether a topic that is about to be opened is a shadow, is read from the store (``fetch``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from meridian_broker.metadata import keys
from meridian_broker.metadata.access import Access
from meridian_broker.metadata.errors import AlreadyExists, Invalid, NotFound, Overtaken
from meridian_broker.metadata.policy_values import EXACT
from meridian_broker.metadata.records import decode, encode
from meridian_broker.metadata.rules import Rules
from meridian_broker.metadata.store import ABSENT, Check, Delete, MetadataError, Put, Record, VersionConflict
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.topic_name import TopicName

SOURCE: Final = "PULSAR.SHADOW_SOURCE"
"""Property that makes a new topic a shadow: the name of its source, as Pulsar's clients write it."""
HOLDS: Final = "meridian.holdSourceLedgers"
"""Property of a new shadow: whether its subscriptions keep ledgers of the source, ``true`` unless it says ``false``."""
RESETS: Final = "meridian.autoResetBacklogEntries"
"""Property of a shadow: ``ShadowRecord.reset_behind``."""
RESET_MAX: Final = 1_000_000_000
READINGS: Final = 5
"""How often a record is read that changes meanwhile."""


@dataclass(frozen=True, slots=True)
class ShadowRecord:
    """The record of a shadow. Both names are those of whole topics, never of partitions."""

    shadow: TopicName
    source: TopicName
    holds: bool = True
    """The source keeps the ledgers that the shadow's subscriptions still need."""
    listed: bool = True
    """It is in the source's list of shadows (``shadowTopics``)."""
    made_ms: int = 0
    """When it was made, by the clock of the broker that made it; 0: an earlier version did."""
    reset_behind: int = 0
    """If it has more unread entries than this in a full ledger of a source at another broker, they are not read ahead;
    0: as the broker's settings say."""

    def source_of(self, name: TopicName) -> TopicName:
        """The source topic or partition of ``name``, which is this shadow or one of its partitions."""
        return self.source if name.partition < 0 else self.source.with_partition(name.partition)

    def shadow_of(self, name: TopicName) -> TopicName:
        """The shadow or partition that shows ``name``, which is the source or one of its partitions."""
        return self.shadow if name.partition < 0 else self.shadow.with_partition(name.partition)

    def is_same(self, other: ShadowRecord) -> bool:
        """Whether both are of one shadow, which may have been changed, and not of one made later under its name."""
        return (self.shadow, self.source, self.made_ms) == (other.shadow, other.source, other.made_ms)

    def to_json(self) -> dict[str, Any]:
        return {
            "shadow": str(self.shadow),
            "source": str(self.source),
            "holds": self.holds,
            "listed": self.listed,
            "madeMs": self.made_ms,
            "resetBehind": self.reset_behind,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ShadowRecord:
        """:raises InvalidTopicNameError, KeyError: it is damaged."""
        return cls(
            topic_name.parse(value["shadow"]),
            topic_name.parse(value["source"]),
            bool(value.get("holds", True)),
            bool(value.get("listed", True)),
            int(value.get("madeMs", 0)),
            int(value.get("resetBehind", 0)),
        )


def made_as(
    shadow: TopicName, properties: Mapping[str, str], *, listed: bool = False, made_ms: int = 0
) -> ShadowRecord:
    """The record of a shadow that is made with these properties.

    :raises InvalidTopicNameError, Invalid: they are not valid.
    """
    holds = properties.get(HOLDS, "true").lower()
    if holds not in ("true", "false"):
        raise Invalid(f"property {HOLDS} is {properties[HOLDS]!r}: expected true or false")
    source, behind = topic_name.parse(properties[SOURCE]), checked_reset(properties.get(RESETS, "0"))
    return ShadowRecord(shadow, source, holds == "true", listed, made_ms, behind)


def checked_reset(text: str) -> int:
    """The value of the property ``RESETS``. :raises Invalid: it is not valid."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(RESET_MAX)) and int(text) <= RESET_MAX):
        raise Invalid(f"property {RESETS} is {text[:40]!r}: expected a whole number, 0 to {RESET_MAX}")
    return int(text)


class ShadowTopics:
    """See the module's text. One per catalog."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._records: dict[str, ShadowRecord] = {}
        self._of: dict[str, dict[str, ShadowRecord]] = {}
        """The shadows of each source, by name."""
        self._readings: list[set[str]] = []
        """For each that is under way, the shadows of which something newer is known."""
        self._is_loaded = False
        self.behind: set[TopicName] = set()
        """Shadows that could not follow their source to more partitions yet."""
        self.on_first: Callable[[ShadowRecord], None] = lambda _: None
        """Called with the first shadow of each source, whichever broker made it."""

    async def load(self) -> None:
        """Read all records, once. :raises MetadataError: they cannot be read, or a newer version wrote them."""
        if not self._is_loaded:
            await self.refresh()

    async def refresh(self) -> None:
        """Read all records as any broker of the region wrote them. :raises MetadataError: as ``load``."""
        with self._noting() as newer:
            found = [_read(path, record) for path, record in await self._access.store.scan(keys.SHADOWS + "/")]
        for name in self._records.keys() - {str(one.shadow) for one in found} - newer:
            self._forget(name)
        for one in found:
            if str(one.shadow) not in newer:
                self._learn(one)
        self._is_loaded = True

    @contextmanager
    def _noting(self) -> Iterator[set[str]]:
        """The names of shadows that are made, changed or deleted while something is read: the answer may be older."""
        newer = set[str]()
        self._readings.append(newer)
        try:
            yield newer
        finally:
            self._readings = [one for one in self._readings if one is not newer]

    async def fetch(self, name: TopicName) -> ShadowRecord | None:
        """As ``find``, from the store. :raises MetadataError: it cannot be read."""
        path, shadow = keys.shadow(name), str(name.base)
        for _ in range(READINGS):
            with self._noting() as newer:
                record = await self._access.store.get(path)
            if shadow not in newer:
                break
        if record is not None:
            self._learn(_read(path, record))
        elif shadow in self._records:
            self._forget(shadow)
        return self.find(name)

    async def follow(self, pause: Callable[[], Awaitable[None]]) -> None:
        """Follow what other brokers of the region write, until cancelled.

        :param pause: waits before a retry, after the store did not answer.
        """
        while True:
            try:
                async for changes in self._access.store.watch(keys.SHADOWS + "/"):
                    if not changes:
                        await self.refresh()
                    for change in changes:
                        self._heard(change.path, change.record)
                    self._access.news += 1
            except MetadataError:
                await pause()

    def _heard(self, path: str, record: Record | None) -> None:
        if record is not None:
            self._learn(_read(path, record))
            return
        for name, known in list(self._records.items()):
            if keys.shadow(known.shadow) == path:
                self._forget(name)

    def _learn(self, record: ShadowRecord) -> None:
        known = self._records.get(str(record.shadow))
        if known == record:
            return
        if known is not None and known.source != record.source:
            self._forget(str(record.shadow))
        self._note(str(record.shadow))
        self._records[str(record.shadow)] = record
        is_first = str(record.source) not in self._of
        self._of.setdefault(str(record.source), {})[str(record.shadow)] = record
        if is_first:
            self.on_first(record)

    def _note(self, name: str) -> None:
        for newer in self._readings:
            newer.add(name)

    def _forget(self, name: str) -> None:
        self._note(name)
        record = self._records.pop(name)
        siblings = self._of[str(record.source)]
        del siblings[name]
        if not siblings:
            del self._of[str(record.source)]

    def find(self, name: TopicName) -> ShadowRecord | None:
        """The record of a topic or partition that is a shadow; None: it is not one."""
        return self._records.get(str(name.base)) if self._records else None

    def of(self, source: TopicName) -> list[ShadowRecord]:
        """The shadows of a topic, or of the topic that ``source`` is a partition of; sorted."""
        if not self._of:
            return []
        return [record for _, record in sorted(self._of.get(str(source.base), {}).items())]

    def holding(self, source: TopicName) -> dict[str, bool]:
        """The names of the shadows, or their partitions, that show this topic or partition; each with whether it holds
        the source's ledgers. A topic may have ten thousand, and this is asked several times in a row."""
        of = self._of.get(str(source.base), {})
        suffix = "" if source.partition < 0 else keys.PARTITION + str(source.partition)
        return {name + suffix: record.holds for name, record in of.items()}

    def schemas_of(self, name: TopicName) -> TopicName:
        """The topic whose schemas are those of ``name``: a shadow has its source's."""
        record = self.find(name)
        return name if record is None else record.source

    def all(self) -> list[ShadowRecord]:
        return list(self._records.values())

    async def create(self, record: ShadowRecord, replaced: ShadowRecord | None = None) -> Check:
        """Write the record of a new shadow. A deletion of its source that is not on record yet fails (``announce``).

        :param replaced: a record without a topic, in whose place it goes.
        :returns: what holds as long as the record is as written.
        :raises AlreadyExists: another broker writes one, too.
        :raises MetadataError: it may be written.
        """
        path = keys.shadow(record.shadow)
        stored = None if replaced is None else await self._access.store.get(path)
        if stored is not None and _read(path, stored) != replaced:
            raise AlreadyExists(f"{record.shadow} has just been made by another broker")
        is_as_read = Check(path, ABSENT if stored is None else stored.version)
        writes: list[Put | Delete] = [Put(path, encode(record.to_json())), Delete(keys.source_deletion(record.source))]
        done = await self._access.store.transact([is_as_read], writes)
        if done is None:
            raise AlreadyExists(f"{record.shadow} is being made a shadow by another broker")
        self._learn(record)
        return Check(path, done.version)

    async def change(
        self,
        shadow: TopicName,
        *,
        source: TopicName | None = None,
        holds: bool | None = None,
        listed: bool | None = None,
        reset_behind: int | None = None,
    ) -> None:
        """Change a shadow's record. None: unchanged.

        :raises NotFound: there is no such shadow. One that is deleted at the same time does not come back.
        :raises MetadataError: it may be changed.
        """
        path = keys.shadow(shadow)
        given = {"source": source, "holds": holds, "listed": listed, "reset_behind": reset_behind}
        wanted: dict[str, Any] = {name: value for name, value in given.items() if value is not None}

        async def attempt() -> ShadowRecord | None:
            stored = await self._access.store.get(path)
            if stored is None:
                raise NotFound(f"{shadow} is not a shadow topic")
            known = _read(path, stored)
            if (changed := replace(known, **wanted)) == known:
                return known
            try:
                await self._access.store.put(path, encode(changed.to_json()), expected=stored.version)
            except VersionConflict:
                return None
            return changed

        self._learn(await self._access.retry(f"changing shadow {shadow}", attempt))

    async def delete(self, record: ShadowRecord) -> None:
        """Delete the record of this shadow, but not that of a later one of its name; nothing happens if it is gone.

        :raises MetadataError: it may still be there.
        """
        await self._delete(record, ())

    async def delete_left(self, record: ShadowRecord) -> None:
        """As ``delete``, but only while there is no topic of its name: a creation or a deletion was interrupted. If the
        topic is about to be made after all, that fails, because its record as a shadow is gone.

        :raises MetadataError: it may still be there.
        """
        name = record.shadow
        await self._delete(record, [Check(keys.topic(name), ABSENT), Check(keys.partitioned_topic(name), ABSENT)])

    async def _delete(self, record: ShadowRecord, also: Sequence[Check]) -> None:
        path, shadow = keys.shadow(record.shadow), str(record.shadow)

        async def attempt() -> bool | None:
            stored = await self._access.store.get(path)
            if stored is not None and not _read(path, stored).is_same(record):
                return False
            if stored is None:
                return True
            if await self._access.store.transact([Check(path, stored.version), *also], [Delete(path)]):
                return True
            try:
                await self._access.expect(also)
            except Overtaken:
                return False
            return None

        if not await self._access.retry(f"deleting shadow {shadow}", attempt):
            return
        known = self._records.get(shadow)
        if known is not None and known.is_same(record):
            self._forget(shadow)
        needs, name = keys.shadow_needs(record.source), keys.escape(shadow)
        is_last = str(record.source) not in self._of
        for path, _ in await self._access.store.scan(needs + "/"):
            if is_last or path.rpartition("/")[2] == name:
                await self._access.store.delete(path)

    async def announce(self, source: TopicName) -> Check:
        """This broker is about to delete a topic, and looks for shadows of it after this. While the answer holds, no
        broker has written the record of another one."""
        path = keys.source_deletion(source)
        return Check(path, await self._access.store.put(path, b"{}"))

    async def withdraw(self, announced: Check) -> None:
        """The topic was deleted, or was not. If nobody is told, what was written is overwritten by the next one."""
        with suppress(MetadataError):
            await self._access.store.delete(announced.path, expected=announced.version)


def _read(path: str, record: Record) -> ShadowRecord:
    return ShadowRecord.from_json(decode(path, record.value)[0])


def as_shadow(rules: Rules) -> Rules:
    """The rules of a shadow: its source decides about storing messages, and no other region has it."""
    return replace(
        rules,
        deduplication=False,
        replicate_subscriptions=False,
        subscription_sync=EXACT,
        compaction_threshold_bytes=0,
        offload_threshold_bytes=-1,
        offload_threshold_seconds=-1,
        offload_deletion_lag_ms=-1,
        inactive_topics=replace(rules.inactive_topics, remove=False),
    )
