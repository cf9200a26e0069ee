# SPDX-License-Identifier: Apache-2.0
"""Compaction of one topic: when it runs, what it produces, and how it survives interruption.

The topic's metadata record names the current view and the *obsolete ledgers*: those that compaction may have begun or
left behind, and that are to be deleted. A ledger is listed there before it is created; one write makes the new view
current and lists the old one; only then is the old one deleted. So whenever the broker stops, the next one finds a
complete view and knows what to delete.

A view damaged by the disk is rebuilt. If the log still holds everything that the view covers, the view is dropped, and
readers get the log until the next view is current. Otherwise the view may hold the only copy of old entries. A damaged
entry that the log still has is read from there, and compaction copies it to the new view. One that exists nowhere else
is not skipped: its readers wait, and the health page reports it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from meridian_broker.ledgers.entry import BATCH, MARKER, unpack
from meridian_broker.ledgers.finding import last_message
from meridian_broker.ledgers.labels import Kind, Label
from meridian_broker.ledgers.notifying import notify_all
from meridian_broker.ledgers.reading import Stored
from meridian_broker.ledgers.store import (
    LedgerCorrupt,
    LedgerDeleted,
    LedgerError,
    LedgerNotFound,
    LedgerStore,
    LedgerUnreadable,
)
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.compaction.compactor import CompactionLimits, Compactor
from meridian_broker.topics.compaction.view import CompactedView, survey
from meridian_broker.topics.errors import CompactionRunning, TopicError, TopicFenced

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.journal.topic_record import TopicMetadata

log = logging.getLogger(__name__)

READ_ENTRIES: Final = 1000
READ_BYTES: Final = 1 << 20


class Status(StrEnum):
    """The state of the last compaction since the topic was opened."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class CompactionResources:
    """Resources shared by the compactions of all topics."""

    store: LedgerStore
    turn: AbstractAsyncContextManager[Any]
    """One compaction at a time."""
    limits: CompactionLimits


class Compaction:
    """Compaction of one topic, and reading through its view. Call ``await open`` first."""

    def __init__(self, topic: TopicContext) -> None:
        self.view: CompactedView | None = None
        self.status = Status.NOT_RUN
        self.last_error = ""
        self._topic = topic
        self._resources: CompactionResources | None = None
        self._metadata: TopicMetadata | None = None
        self._is_indexed = False
        self._is_damaged = False
        self._from: Position | None = None
        """While the first compaction runs: nothing after this may be trimmed until its view is in force."""
        self._stopping = False
        self._forgetting = False
        self._at_work = False
        self._waiting: list[Callable[[None], None]] = []
        self._readers: list[Callable[[CompactedView | None], None]] = []

    def when_view_changes(self, callback: Callable[[CompactedView | None], None]) -> Callable[[], None]:
        """Call ``callback`` with each view that comes into force; None: there is no view any more. Returns a function
        that ends this.
        """
        self._readers.append(callback)
        return lambda: self._readers.remove(callback)

    def _view_changed(self, view: CompactedView | None) -> None:
        for callback in tuple(self._readers):
            callback(view)

    async def open(
        self, metadata: TopicMetadata, resources: CompactionResources, unnamed: Sequence[tuple[int, Position]] = ()
    ) -> None:
        """Take over what an earlier owner left.

        :param unnamed: ledgers of views that are not on record, with their horizons: they may be newer than the
            metadata.
        :raises LedgerError: a ledger that compaction left behind cannot be deleted.
        """
        self._metadata, self._resources = metadata, resources
        await self._find_newest(metadata, resources, unnamed)
        if metadata.record.compacted is not None:
            self.view = CompactedView(metadata.record.compacted, resources.store, self._in_log)
        await self._delete_obsolete()

    async def _find_newest(
        self, metadata: TopicMetadata, resources: CompactionResources, unnamed: Sequence[tuple[int, Position]]
    ) -> None:
        """Metadata older than the volume may name a view that is deleted, and lack the one that replaced it (R5)."""
        record, obsolete = metadata.record.compacted, metadata.record.obsolete_ledgers
        newest = record
        for ledger_id, horizon in sorted(unnamed):
            if newest is not None and ledger_id <= newest.ledger_id:
                continue
            found = await survey(resources.store, ledger_id, horizon, metadata.fence)
            old = ledger_id if found is None else -1 if newest is None else newest.ledger_id
            obsolete = (*obsolete, *(() if old < 0 else (old,)))
            newest = newest if found is None else found
        if newest is not None and newest is record:
            try:
                await resources.store.open(newest.ledger_id)
            except LedgerDeleted:
                newest = None
            except LedgerNotFound:
                pass  # damage is reported when it is read
        if newest is not record or obsolete != metadata.record.obsolete_ledgers:
            await metadata.save_compaction(newest, obsolete)

    async def close(self) -> None:
        """Stop at the next slice, and wait for it."""
        self._stopping = True
        if self._at_work:
            await self._topic.scheduler.answer(self._waiting.append)

    async def delete(self) -> None:
        """The topic is deleted: delete its view, too."""
        await self.close()
        if self._resources is not None:
            for ledger in (*self._obsolete(), *(() if self.view is None else (self.view.record.ledger_id,))):
                await self._resources.store.delete(ledger)
        self.view = None

    def holds_from(self) -> Position | None:
        """Everything after this is kept for the next compaction; None: nothing is.

        While a view is being deleted everything is kept: what its readers passed over unacknowledged is then owed
        again.
        """
        if self._forgetting:
            return EARLIEST
        return self._from if self.view is None else self.view.horizon

    @property
    def is_wanted(self) -> bool:
        """Whether there is or will be a compacted view, which needs what every subscription acknowledged."""
        return self.holds_from() is not None or self._topic.rules.compaction_threshold_bytes > 0

    def bytes_to_do(self) -> int:
        """Approximate number of bytes in the log that the view does not cover."""
        return self._topic.log.bytes_after(EARLIEST if self.view is None else self.view.horizon)

    # -- compacting ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a compaction. :raises CompactionRunning: one is in progress, or the view is being deleted."""
        self._check_idle()
        self.status, self.last_error = Status.RUNNING, ""
        self._topic.scheduler.spawn(self._run(), "compact a topic")

    async def _run(self) -> None:
        error: Exception | None = None
        try:
            resources, metadata = self._ready()
            async with resources.turn:
                self._check()
                self._at_work = True
                await self._compact(resources, metadata)
        except (LedgerError, MetadataError, TopicError) as refused:
            error = refused
            log.warning("%s was not compacted: %s", self._topic.name, refused)
        except Exception as unexpected:
            error = unexpected
            raise
        finally:
            self._from = None
            self._at_work = False
            self.last_error = "" if error is None else f"{error}" or type(error).__name__
            self.status = Status.SUCCESS if error is None else Status.ERROR
            waiting, self._waiting = self._waiting, []
            notify_all(waiting, None)

    def _ready(self) -> tuple[CompactionResources, TopicMetadata]:
        if self._resources is None or self._metadata is None:
            raise TopicFenced(f"{self._topic.name} is not open")
        return self._resources, self._metadata

    def _check(self) -> None:
        self._topic.check_open()
        if self._stopping:
            raise TopicFenced(f"{self._topic.name} was closed in the meantime: compact it again")

    async def _compact(self, resources: CompactionResources, metadata: TopicMetadata) -> None:
        topic, old = self._topic, self.view
        await self.prepare()
        await self._delete_obsolete()
        is_all_in_view = old is not None and old.horizon >= topic.log.last_confirmed and not self._is_damaged
        if not topic.log.entries or is_all_in_view:
            return
        self._from = topic.log.before(topic.log.first)
        compactor = Compactor(
            topic.log,
            old,
            topic.region,
            resources.limits,
            topic.scheduler,
            self._check,
            by_time=bool(topic.remotes or topic.log.last_origin),
        )
        ledger_id = await metadata.allocate_ledger_id()
        in_force = None if old is None else old.record
        await metadata.save_compaction(in_force, (ledger_id,))
        label = Label(Kind.COMPACTED, metadata.belonging, horizon=compactor.horizon).encode()
        writer = await resources.store.create(ledger_id, metadata.fence, label)
        try:
            record = await compactor.run(writer)
        except (LedgerError, TopicError):
            await writer.seal()  # its ledger is obsolete: nothing is in flight when it is deleted
            raise
        self._check()
        await metadata.save_compaction(record, () if old is None else (old.record.ledger_id,))
        view = CompactedView(record, resources.store, self._in_log)
        view.index(compactor.kept)
        self.view, self._is_indexed, self._is_damaged = view, True, False
        self._view_changed(view)
        await self._delete_obsolete()

    def _obsolete(self) -> tuple[int, ...]:
        return () if self._metadata is None else self._metadata.record.obsolete_ledgers

    async def _delete_obsolete(self) -> None:
        resources, metadata = self._ready()
        if obsolete := metadata.record.obsolete_ledgers:
            for ledger in obsolete:
                await resources.store.delete(ledger)
            await metadata.save_compaction(metadata.record.compacted, ())

    async def forget(self) -> None:
        """Delete the view, as if the topic had never been compacted: readers get the log, and nothing is kept for the
        view.

        The record is changed first: as long as it names the view, nothing of the log after the view's horizon is
        trimmed.

        :raises CompactionRunning: a compaction is in progress, or the view is being deleted.
        :raises MetadataError: the view is still recorded and in force.
        """
        self._check_idle()
        _, metadata = self._ready()
        if self.view is None:
            return
        self._forgetting = True
        try:
            await metadata.save_compaction(None, (self.view.record.ledger_id,))
            self.view, self._is_indexed = None, False
            self._view_changed(None)
            await self._delete_obsolete()
        finally:
            self._forgetting = False

    def _check_idle(self) -> None:
        """:raises CompactionRunning: the view is about to change."""
        if self.status is Status.RUNNING:
            raise CompactionRunning(f"{self._topic.name} is being compacted: wait until it is done")
        if self._forgetting:
            raise CompactionRunning(f"the compacted view of {self._topic.name} is being deleted: wait until it is gone")

    # -- damage --------------------------------------------------------------------------------------------------

    async def _dropped(self, error: LedgerCorrupt) -> bool:
        """Drop a damaged view and build another one, if the log still has all that it covers."""
        topic = self._topic
        if self.view is None or self.status is Status.RUNNING or self._forgetting or not _is_whole(topic):
            return False
        log.error(
            "%s: the compacted view is damaged and is being rebuilt; readers get the log until then: %s",
            topic.name,
            error,
        )
        try:
            await self.forget()
        except MetadataError as refused:
            raise LedgerUnreadable(
                f"the damaged compacted view of {topic.name} stays on record: {refused}"
            ) from refused
        self.start()
        return True

    async def _in_log(self, position: Position) -> bytes | None:
        """The entry of the log where the view is damaged; None for a batch, of which the view may hold a part only."""
        topic = self._topic
        if _is_whole(topic) and self.status is not Status.RUNNING:
            return None  # the view can be rebuilt from the log
        if not topic.log.holds(position) or position in topic.log.damage.damaged:
            return None
        entry = await topic.log.read_one(position)
        if unpack(entry).flags & (BATCH | MARKER):
            return None
        if not self._is_damaged:
            self._is_damaged = True
            log.error("%s: entry %s of the compacted view is damaged; reading it from the log", topic.name, position)
            topic.scheduler.defer(self._make_anew)
        return entry

    def _make_anew(self) -> None:
        if self.status is not Status.RUNNING and not self._forgetting and self._topic.failure is None:
            self.start()

    # -- reading -------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Load the view's index into memory: a consumer is about to read it.

        :raises LedgerError: its ledger cannot be read.
        """
        if self.view is not None and not self._is_indexed:
            try:
                await self.view.load()
            except LedgerCorrupt as error:
                if not await self._dropped(error):
                    raise
                return
            self._is_indexed = True

    def covers(self, position: Position) -> bool:
        """Whether there is a view and it covers this entry."""
        return self.view is not None and position <= self.view.horizon

    def tail_after(self, position: Position, max_entries: int, max_bytes: int) -> list[Stored] | None:
        """As ``ReadableLog.tail_after``, through the view."""
        view = self.view
        if view is not None and position < view.horizon:
            if view.after(position) is not None:
                return None
            position = view.horizon
        return self._topic.log.tail_after(position, max_entries, max_bytes)

    async def read_after(self, position: Position, max_entries: int, max_bytes: int) -> list[Stored]:
        """As ``ReadableLog.read_after``, through the view. :raises LedgerError: the entries cannot be read."""
        if self.view is not None and position < self.view.horizon:
            entries = await self.read_view(position, max_entries, max_bytes)
            if entries:
                return entries
            position = max(position, EARLIEST if self.view is None else self.view.horizon)
        return await self._topic.log.read_after(position, max_entries, max_bytes)

    async def read_view(self, position: Position, max_entries: int, max_bytes: int) -> list[Stored]:
        """Entries of the view after ``position``; none at its end, or if there is no view.

        :raises LedgerError: the entries cannot be read.
        """
        while (view := self.view) is not None:
            try:
                return await view.read_after(position, max_entries, max_bytes)
            except LedgerNotFound:
                if view is self.view:
                    raise  # otherwise a newer view replaced it meanwhile
            except LedgerCorrupt as error:
                if view is self.view and not await self._dropped(error):
                    raise
        return []

    async def first_at(self, time_ms: int) -> Position | None:
        """The first entry published at or after ``time_ms`` among those that only the view has; None: there is none.

        :raises LedgerError: the entries cannot be read.
        """
        position, first = EARLIEST, self._topic.log.first
        while entries := await self.read_view(position, READ_ENTRIES, READ_BYTES):
            for position, entry in entries:
                if position >= first:
                    return None
                if unpack(entry).publish_time_ms >= time_ms:
                    return position
        return None

    async def last_message(self) -> tuple[Position, int] | None:
        """The last message that a reader of the view gets, with its index in its batch, -1 if it is in none.

        None: the log's last message. Position -1:-1: there is no message at all.

        :raises LedgerError: it cannot be read.
        """
        view = self.view
        if view is None or await last_message(self._topic.log) > view.horizon:
            return None
        if view.last is None:
            return Position(-1, -1), -1
        entry = await view.read_one(view.last)
        assert entry is not None
        header = unpack(entry)
        if not header.flags & BATCH:
            return view.last, -1
        return view.last, header.messages - 1 if header.kept is None else header.kept.bit_length() - 1


def _is_whole(topic: TopicContext) -> bool:
    """Whether nothing of the log was ever trimmed: then it has everything that a view of it may cover."""
    spans = topic.log.spans()
    return bool(spans) and spans[0].own_before == EARLIEST and not spans[0].origins_before and not topic.log.joined
