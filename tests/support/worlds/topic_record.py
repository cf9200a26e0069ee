# SPDX-License-Identifier: Apache-2.0
"""A topic's record as its two logs see it: the metadata's part that has their lists of ledgers."""

from __future__ import annotations

from collections.abc import Mapping

from meridian_broker.ledgers.chapters import Span
from meridian_broker.ledgers.holes import Hole
from meridian_broker.ledgers.labels import Belonging
from meridian_broker.positions.position import EARLIEST, Position


class TopicRecord:
    """In memory. ``spans`` is for ``TopicLog.open``, ``progress`` for ``ProgressLog.open``."""

    def __init__(self) -> None:
        self.spans: tuple[list[Span], Position, dict[str, Position], dict[str, list[Hole]]] = ([], EARLIEST, {}, {})
        self.progress: list[int] = []
        self.snapshot: tuple[bytes, ...] | None = None
        self._last = 0

    @property
    def belonging(self) -> Belonging:
        return Belonging("topic", "")

    async def allocate_ledger_id(self) -> int:
        self._last += 1
        return self._last

    async def save_spans(
        self,
        spans: list[Span],
        last_own: Position,
        last_origins: Mapping[str, Position],
        holes: Mapping[str, list[Hole]],
    ) -> None:
        self.spans = list(spans), last_own, dict(last_origins), dict(holes)

    async def save_progress_ledgers(self, ledgers: list[int], snapshot: tuple[bytes, ...] | None = None) -> None:
        self.progress, self.snapshot = list(ledgers), snapshot
