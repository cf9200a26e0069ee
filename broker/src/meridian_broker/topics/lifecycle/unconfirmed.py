# SPDX-License-Identifier: Apache-2.0
"""What an unreachable region had not confirmed before this broker started, restored from the progress log.

The lag of other regions is counted in memory, because an acknowledgement should cost nothing on disk besides its own
record. After a restart it is computed again: the region's metadata says since when another region may lack
acknowledgements of this one (``server/behind.py``: one write when it becomes unreachable, one when it has everything
again), and the progress log says what was acknowledged since, and when. The result is a lower bound: a progress log
that was rolled over or went to rest since contains no individual acknowledgements, and of a long log only the newest
entries are examined.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from meridian_broker.ledgers.scheduling import next_turn
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions import Progress

if TYPE_CHECKING:
    from meridian_broker.topics.topic import Topic

LOOKS: Final = 50_000
"""Entries examined per topic, newest first, for all its subscriptions together."""
SLICE: Final = 500
"""Entries examined before others run."""


class Before(Protocol):
    """What was known before the restart, and the receiver of the results."""

    @property
    def since_ms(self) -> Mapping[str, int]:
        """Region -> since when it may lack something, by the wall clock. Only regions that were not compared since."""
        ...

    def found(self, topic: str, subscription: str, region: str, entries: int, since_ms: int) -> None:
        """The region has lacked at least ``entries`` entries of the subscription since then."""
        ...


@dataclass(slots=True)
class _Owed:
    """What clients acknowledged on one subscription since a region became unreachable."""

    since_ms: int
    progress: Progress = field(default_factory=Progress)
    entries: int = 0


class Unconfirmed:
    """Collects what regions lack during the replay of the progress log."""

    def __init__(self, regions: Collection[str], before: Before) -> None:
        """:param regions: those of the topic."""
        self._before = before
        self._since = {region: since_ms for region, since_ms in before.since_ms.items() if region in regions}
        self._owed: dict[int, dict[str, _Owed]] = {since_ms: {} for since_ms in self._since.values()}

    def acked(self, name: str, time_ms: int, delta: Progress) -> None:
        """The replay read an acknowledgement that was made in this region (``replay.OnAcked``)."""
        for since_ms, names in self._owed.items():
            if time_ms >= since_ms:
                owed = names.get(name) or names.setdefault(name, _Owed(time_ms))
                owed.progress.join(delta)

    async def tell(self, topic: Topic) -> None:
        """Report what other regions of the topic lack, once its subscriptions are rebuilt."""
        for names in self._owed.values():
            for name in list(names):
                subscription = topic.subscriptions.get(name)
                if subscription is None or not subscription.replicated:
                    del names[name]
        with suppress(LedgerError):  # an index that cannot be read costs a figure, not the topic
            await _count(topic, [one for names in self._owed.values() for one in names.values()])
        for region, since_ms in self._since.items():
            for name, one in self._owed[since_ms].items():
                self._before.found(topic.name, name, region, one.entries, one.since_ms)


async def _count(topic: Topic, owed: list[_Owed]) -> None:
    """Count entries stored here, newest first; others run in between."""
    left = LOOKS // max(1, len(owed))
    for ledger, entries, _ in reversed(list(topic.log.counts())):
        if not owed or left <= 0:
            return
        if not entries:
            continue
        index = await topic.log.load_index(ledger)
        for first in range(max(0, entries - left), entries, SLICE):
            for _, region, origin in index.origins(first, min(first + SLICE, entries) - 1):
                for one in owed:
                    one.entries += one.progress.is_acked(region, origin)
            await next_turn(topic.scheduler)
        left -= entries
