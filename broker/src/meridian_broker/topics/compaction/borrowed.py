# SPDX-License-Identifier: Apache-2.0
"""The compacted view of a topic as its shadow reads it: the source's own, which the shadow never makes or deletes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from meridian_broker.ledgers.reading import Stored
from meridian_broker.positions.position import Position
from meridian_broker.topics.compaction.compaction import Compaction, CompactionResources, Status
from meridian_broker.topics.compaction.view import CompactedView

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.journal.topic_record import TopicMetadata


class BorrowedCompaction(Compaction):
    """See the module's text. Each shadow whose source is there has one."""

    def __init__(self, topic: TopicContext, source: Compaction) -> None:
        self._source = source
        super().__init__(topic)

    # The parts that are asked for the state read attributes, which are the source's here.

    @property
    def view(self) -> CompactedView | None:
        """The source's view, if there is one."""
        return self._source.view

    @view.setter
    def view(self, _: CompactedView | None) -> None:
        """Nothing: a view is the source's to change."""

    @property
    def status(self) -> Status:
        """Of the source's last compaction."""
        return self._source.status

    @status.setter
    def status(self, _: Status) -> None:
        """Nothing: only the source is compacted."""

    def when_view_changes(self, callback: Callable[[CompactedView | None], None]) -> Callable[[], None]:
        """As of the source, until the shadow is closed or fenced."""
        ending = self._source.when_view_changes(callback)
        self._topic.when_fenced(lambda _: ending())
        return ending

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
        """None here."""
        return 0

    def start(self) -> None:
        """:raises NotAllowed: always."""
        raise self._topic.read_only("compact")

    async def forget(self) -> None:
        """:raises NotAllowed: always."""
        raise self._topic.read_only("compact")

    async def prepare(self) -> None:
        """As of the source."""
        await self._source.prepare()

    async def read_view(self, position: Position, max_entries: int, max_bytes: int) -> list[Stored]:
        """As of the source."""
        return await self._source.read_view(position, max_entries, max_bytes)
