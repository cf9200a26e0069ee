# SPDX-License-Identifier: Apache-2.0
"""The compacted view of a topic as its shadow reads it: the source's own, which the shadow never makes or deletes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from meridian_broker.ledgers.reading import Stored
from meridian_broker.ledgers.store import LedgerNotFound, LedgerStore
from meridian_broker.metadata.topic_records import CompactedRecord
from meridian_broker.positions.position import Position
from meridian_broker.topics.compaction.compaction import Compaction, CompactionResources, Status
from meridian_broker.topics.compaction.view import CompactedView

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.journal.topic_record import TopicMetadata


class Views(Protocol):
    """The views of a source, as a shadow reads them."""

    @property
    def view(self) -> CompactedView | None: ...

    @property
    def status(self) -> Status: ...

    def when_view_changes(self, callback: Callable[[CompactedView | None], None]) -> Callable[[], None]: ...

    async def prepare(self) -> None: ...

    async def read_view(self, position: Position, max_entries: int, max_bytes: int) -> list[Stored]: ...


class FollowedViews:
    """The views of a source that another broker serves, as its record names them: read there, and never made."""

    def __init__(self, store: LedgerStore) -> None:
        self._store = store
        self.view: CompactedView | None = None
        self._readers: list[Callable[[CompactedView | None], None]] = []

    @property
    def status(self) -> Status:
        """What is known here of the source's compactions: whether there is a view."""
        return Status.NOT_RUN if self.view is None else Status.SUCCESS

    async def take(self, record: CompactedRecord | None) -> None:
        """Take the view that the source's record names now. :raises LedgerError: the view cannot be read now."""
        if record == (None if self.view is None else self.view.record):
            return
        view = None if record is None else CompactedView(record, self._store)
        if view is not None:
            await view.load()
        self.view = view
        for callback in tuple(self._readers):
            callback(view)

    def when_view_changes(self, callback: Callable[[CompactedView | None], None]) -> Callable[[], None]:
        """As in ``Compaction``."""
        self._readers.append(callback)
        return lambda: self._readers.remove(callback) if callback in self._readers else None

    async def prepare(self) -> None:
        """Nothing: a view is in force once its index is in memory."""

    async def read_view(self, position: Position, max_entries: int, max_bytes: int) -> list[Stored]:
        """As in ``Compaction``. :raises LedgerError: the entries, or those of a newer view, cannot be read yet."""
        view = self.view
        if view is None:
            return []
        try:
            return await view.read_after(position, max_entries, max_bytes)
        except LedgerNotFound:
            if view is self.view:
                raise
        return await self.read_view(position, max_entries, max_bytes)  # a newer one replaced it meanwhile


class BorrowedCompaction(Compaction):
    """See the module's text. Each shadow whose source exists has one."""

    def __init__(self, topic: TopicContext, source: Views) -> None:
        self._source = source
        super().__init__(topic)
        self._unwatch = source.when_view_changes(self._view_changed)
        topic.when_fenced(lambda _: self._unwatch())

    def go_on(self, source: Views) -> None:
        """The source was opened again, and these are its views now."""
        self._unwatch()
        self._source = source
        self._unwatch = source.when_view_changes(self._view_changed)
        self._view_changed(source.view)

    # Callers that ask for the state read attributes, which are the source's here.

    @property
    def view(self) -> CompactedView | None:
        """The source's view, if there is one."""
        return self._source.view

    @view.setter
    def view(self, _: CompactedView | None) -> None:
        """Nothing: a view is the source's to change."""

    @property
    def status(self) -> Status:
        """The status of the source's last compaction."""
        return self._source.status

    @status.setter
    def status(self, _: Status) -> None:
        """Nothing: only the source is compacted."""

    async def open(
        self, metadata: TopicMetadata, resources: CompactionResources, unnamed: Sequence[tuple[int, Position]] = ()
    ) -> None:
        """Nothing: what is stored of the view is in the source's record."""

    async def close(self) -> None:
        """Nothing: the source goes on."""

    async def delete(self) -> None:
        """Nothing: the view stays."""

    def holds_from(self) -> Position | None:
        """Nothing: the source keeps what its next compaction needs."""
        return None

    def bytes_to_do(self) -> int:
        """Zero: a shadow compacts nothing."""
        return 0

    def start(self) -> None:
        """:raises NotAllowed: always."""
        raise self._topic.read_only("compact")

    async def forget(self) -> None:
        """:raises NotAllowed: always."""
        raise self._topic.read_only("compact")

    async def prepare(self) -> None:
        """As the source does."""
        await self._source.prepare()

    async def read_view(self, position: Position, max_entries: int, max_bytes: int) -> list[Stored]:
        """As the source does."""
        return await self._source.read_view(position, max_entries, max_bytes)
