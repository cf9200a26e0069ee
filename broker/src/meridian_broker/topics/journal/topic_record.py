# SPDX-License-Identifier: Apache-2.0
"""A topic's record in the metadata store, and its only writer.

The record lists the topic's ledgers and progress ledgers. Only the topic's owner writes it, always against the version
it last read or wrote, so a replaced owner fails here instead of overwriting (R10). A new owner writes the record before
it looks at any ledger: from then on the previous owner cannot begin a ledger, and recovery fences those it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Final

from meridian_broker.ledgers.chapters import Span
from meridian_broker.ledgers.damage import Mend
from meridian_broker.ledgers.holes import Hole
from meridian_broker.ledgers.labels import Belonging
from meridian_broker.ledgers.scheduling import Scheduler
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.store import ABSENT, Check, MetadataFull, MetadataUnavailable, VersionConflict
from meridian_broker.metadata.topic_records import CompactedRecord, LedgerRecord, MendRecord, TopicRecord
from meridian_broker.positions import ZERO, Stamp
from meridian_broker.positions.position import Position
from meridian_broker.positions.skipped import Skipped, extended, kept_before
from meridian_broker.topics.errors import TopicFenced
from meridian_broker.wire.pulsar.topic_name import TopicName

ATTEMPTS: Final = 20
QUARANTINED: Final = "meridian.setAside"
"""Property with the reason of a quarantine (R8); records have it under this name."""
PAUSE_SECONDS: Final = 0.5
"""How long a topic waits for an unreachable metadata store before it is fenced: ten seconds plus the requests' own
timeouts.
"""


class TopicMetadata:
    """The record of one topic, as its owner maintains it."""

    def __init__(
        self, catalog: Catalog, name: TopicName, lock: AbstractAsyncContextManager[object], scheduler: Scheduler
    ) -> None:
        self._catalog = catalog
        self._scheduler = scheduler
        self._name = name
        self._lock = lock
        self._version = ABSENT
        self.record = TopicRecord()

    @property
    def belonging(self) -> Belonging:
        """Label that the topic's ledgers carry."""
        return Belonging(str(self._name), self.record.incarnation)

    @property
    def fence(self) -> int:
        """The fence of this owner's term, with which ledgers are created and recovered."""
        return self.record.owner

    @property
    def newest_ledger(self) -> int:
        """The last ledger with messages that was ever recorded."""
        return max([self.record.newest_ledger, *(one.ledger_id for one in self.record.ledgers)])

    async def acquire(self, fence: int) -> bool:
        """Read the record and become its owner. Returns whether there is a record.

        :raises TopicFenced: a later owner has it.
        """
        for _ in range(ATTEMPTS):
            found = await self._catalog.topics.find(self._name)
            if found is None:
                return False
            self.record, self._version = found
            if self.record.owner > fence:
                raise TopicFenced(
                    f"{self._name} belongs to owner epoch {self.record.owner}, and {fence} is older: look it up again"
                )
            try:
                async with self._lock:
                    await self._write(replace(self.record, owner=fence))
                self._catalog.skip_ledger_ids(self._greatest_id())
                return True
            except VersionConflict:
                continue  # the previous owner wrote something meanwhile
        raise TopicFenced(f"other owners keep writing the record of {self._name}: look it up again")

    def _greatest_id(self) -> int:
        record = self.record
        view = () if record.compacted is None else (record.compacted.ledger_id,)
        greatest: int = max([self.newest_ledger, *record.progress_ledgers, *record.obsolete_ledgers, *view])
        return greatest

    async def create(
        self,
        fence: int,
        *,
        joining: bool,
        created: Stamp | None = None,
        growing_to: int = 0,
        is_found: bool = False,
    ) -> None:
        """:param created: the stamp of its creation in another region; None: it is created here and now.
        :param growing_to: see ``Topics.create``, as for ``is_found``.
        :raises AlreadyExists: it was created concurrently.
        :raises NotFound: it is a partition, and its topic was deleted meanwhile.
        """
        record = TopicRecord(owner=fence, joining=joining, created=created)
        self.record, self._version = await self._catalog.topics.create(
            self._name, record, growing_to=growing_to, is_found=is_found
        )

    async def begin_again(self, incarnation: str, *, joining: bool) -> None:
        """The topic was deleted and created again after this metadata was copied, so what it says about it is
        obsolete.
        """
        async with self._lock:
            await self._write(TopicRecord(incarnation, owner=self.record.owner, joining=joining))

    async def allocate_ledger_id(self) -> int:
        for _ in range(ATTEMPTS):
            try:
                return await self._catalog.allocate_ledger_id()
            except MetadataUnavailable:
                await self._pause()
        return await self._catalog.allocate_ledger_id()

    async def never_below(self, ledger_id: int) -> None:
        """Another region refers to this ledger of ours: new ones get greater ids (R1)."""
        await self._catalog.never_below(ledger_id)

    async def save_spans(
        self,
        spans: list[Span],
        last_own: Position,
        last_origins: Mapping[str, Position],
        holes: Mapping[str, Sequence[Hole]],
    ) -> None:
        async with self._lock:
            record = replace(
                self.record,
                ledgers=tuple(_ledger_record(span) for span in spans),
                newest_ledger=max([self.newest_ledger, *(span.ledger_id for span in spans)]),
                last_own=last_own,
                last_origins=dict(last_origins),
                holes={region: tuple(ranges) for region, ranges in holes.items() if ranges},
            )
            await self._write(record)

    async def save_joining(self, joining: bool, joined: Mapping[str, Position]) -> None:
        """:raises MetadataError: it was not written."""
        async with self._lock:
            await self._write(replace(self.record, joining=joining, joined=dict(joined)))

    async def save_progress_ledgers(self, ledgers: list[int], snapshot: tuple[bytes, ...] | None = None) -> None:
        async with self._lock:
            await self._write(replace(self.record, progress_ledgers=tuple(ledgers), progress_snapshot=snapshot))

    async def save_compaction(self, compacted: CompactedRecord | None, obsolete: tuple[int, ...]) -> None:
        """:raises MetadataError: it was not written."""
        async with self._lock:
            await self._write(replace(self.record, compacted=compacted, obsolete_ledgers=obsolete))

    async def save_mends(self, mends: Sequence[Mend]) -> None:
        """:raises MetadataError: it was not written."""
        async with self._lock:
            await self._write(
                replace(self.record, mends=tuple(MendRecord(mend.first, mend.count, mend.copies) for mend in mends))
            )

    async def save_skipped(self, remote: str, known: Position | None, upto: Position, own: Position) -> Skipped:
        """Returns everything that is skipped for the region now; for the parameters see ``extended``.

        :raises MetadataError: it was not written.
        """
        async with self._lock:
            record = self.record
            earlier, before = record.skipped.get(remote), record.skipped_before
            skipped = extended(earlier, known, upto, own)
            if skipped != earlier:
                if kept := kept_before(before.get(remote, ()), earlier, skipped):
                    before = {**before, remote: tuple(kept)}
                every = {**record.skipped, remote: skipped}
                await self._write(replace(record, skipped=every, skipped_before=before))
            return skipped

    async def save_topic_epoch(self, epoch: int) -> None:
        """:raises MetadataError: it was not written."""
        async with self._lock:
            await self._write(replace(self.record, topic_epoch=epoch))

    async def save_terminated(self, last: Position | None, origins: Mapping[str, Position]) -> None:
        """
        :param last: None: the topic is not terminated any more.
        :param origins: per other region, its last entry before the end.
        :raises MetadataError: it was not written.
        """
        async with self._lock:
            await self._write(replace(self.record, terminated=last, terminated_origins=dict(origins)))

    async def save_properties(self, properties: dict[str, str]) -> None:
        async with self._lock:
            await self._write(replace(self.record, properties=properties))

    async def check_writable(self) -> None:
        """Write the record as it is. A topic that is about to be closed for good, and then deleted or renamed, stays
        open if the store refuses this: it could not be opened again either.

        :raises MetadataError: it was not written.
        """
        async with self._lock:
            await self._write(self.record)

    async def begin_deletion(
        self, stamp: Stamp, last_own: Position, last_origins: Mapping[str, Position], also: Sequence[Check] = ()
    ) -> None:
        """From here on the topic is deleted, even if the deletion is interrupted. Called again, it updates the ends.

        :param stamp: of the deletion, the same however often it is repeated: regions identify it by that.
        :param also: must hold at the same time.
        :raises Overtaken: something in ``also`` does not; the record is unchanged.
        :raises MetadataFull: the record is unchanged.
        :raises MetadataError: the record may have been written.
        """
        ends = dict(last_origins)
        async with self._lock:
            record = replace(self.record, deleting=str(stamp), last_own=last_own, last_origins=ends)
            if record != self.record:
                await self._write(record, also)

    async def _write(self, record: TopicRecord, also: Sequence[Check] = ()) -> None:
        """Write with retries: while the store is unreachable publishing waits, and no other owner can take the topic
        over.

        :raises MetadataFull, Overtaken: the record is unchanged.
        """
        unsure = False
        for attempt in range(ATTEMPTS + 1):
            try:
                self._version = await self._catalog.topics.put(self._name, record, self._version, also)
                break
            except MetadataFull as error:
                if await self._is_written(record):
                    break  # etcd also refuses the very write that filled it, after executing it
                if attempt == ATTEMPTS:
                    if unsure:
                        raise MetadataUnavailable(str(error)) from error
                    raise
                await self._pause()
            except MetadataUnavailable:
                if attempt == ATTEMPTS:
                    raise
                unsure = True  # the write may have succeeded nevertheless
                await self._pause()
            except VersionConflict as error:
                if not unsure or not await self._is_written(record):
                    raise VersionConflict(
                        f"another broker owns {self._name} by now, or another process writes its record: this broker "
                        f"may not write it any more ({error})"
                    ) from error
                break
        self.record = record

    async def _is_written(self, record: TopicRecord) -> bool:
        found = await self._catalog.topics.find(self._name)
        if found is None or found[1] == self._version or found[0] != replace(record, stamp=found[0].stamp):
            return False
        self._version = found[1]
        return True

    async def _pause(self) -> None:
        await self._scheduler.answer(lambda ready: self._scheduler.later(PAUSE_SECONDS, lambda: ready(None)))

    def mends(self) -> list[Mend]:
        """The recorded repairs of damaged entries."""
        return mends_of(self.record)

    def spans(self) -> list[Span]:
        """The recorded ledgers."""
        return spans_of(self.record)


def mends_of(record: TopicRecord) -> list[Mend]:
    """The repairs of damaged entries in a topic's record."""
    return [Mend(mend.first, mend.count, mend.copies) for mend in record.mends]


def spans_of(record: TopicRecord) -> list[Span]:
    """The ledgers in a topic's record."""
    return [_span(ledger) for ledger in record.ledgers]


def _ledger_record(span: Span) -> LedgerRecord:
    return LedgerRecord(
        ledger_id=span.ledger_id,
        entries=max(span.entries, 0),
        size=span.size,
        sealed_ms=span.sealed_ms if span.entries >= 0 else 0,
        own_before=span.own_before,
        origins_before=span.origins_before,
        is_joined=span.is_joined,
        latest_ms=span.latest_ms,
    )


def _span(record: LedgerRecord) -> Span:
    return Span(
        record.ledger_id,
        record.own_before,
        dict(record.origins_before),
        record.entries if record.sealed_ms else -1,
        record.size,
        record.sealed_ms,
        record.is_joined,
        record.latest_ms,
    )


def stamp_of(incarnation: str) -> Stamp:
    """Stamp of the previous deletion; ``ZERO`` if the text is not valid."""
    try:
        return Stamp.parse(incarnation) if incarnation else ZERO
    except ValueError:
        return ZERO
