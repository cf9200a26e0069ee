# SPDX-License-Identifier: Apache-2.0
"""What a region that is away had not confirmed before this broker started: found again in the progress log.

How far others are behind is counted in memory, for an acknowledgement costs nothing on disk beside its own record.
After a restart that count is worked out anew: the region's metadata say since when another region may lack what was
acknowledged here (``server/behind.py``, a write when it goes and one when it has all again), and the progress log says
what was acknowledged since, and when. It is a lower bound: a progress ledger that was rolled over since keeps no single
acknowledgements, and of a long log only the newest entries are looked at.
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
"""Entries looked at per topic, the newest ones, for all its subscriptions together."""
SLICE: Final = 500
"""Of them before others run."""


class Before(Protocol):
    """What the broker's life before knew, and who is told what follows from it."""

    @property
    def since_ms(self) -> Mapping[str, int]:
        """Region -> since when it may lack something, by the wall clock. Only those not compared with since."""
        ...

    def found(self, topic: str, subscription: str, region: str, entries: int, since_ms: int) -> None:
        """The region lacks at least so many of the subscription's entries, and since then."""
        ...


@dataclass(slots=True)
class _Owed:
    """Acknowledged here by clients of one subscription since a region went."""

    since_ms: int
    progress: Progress = field(default_factory=Progress)
    entries: int = 0


class Unconfirmed:
    """Collects what regions lack while the progress log is read."""

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
        """Tell what other regions of the topic lack, now that its subscriptions are rebuilt."""
        for names in self._owed.values():
            for name in list(names):
                subscription = topic.subscriptions.get(name)
                if subscription is None or not subscription.replicated:
                    del names[name]
        with suppress(LedgerError):  # an index that cannot be read costs a figure, and no topic
            await _count(topic, [one for names in self._owed.values() for one in names.values()])
        for region, since_ms in self._since.items():
            for name, one in self._owed[since_ms].items():
                self._before.found(topic.name, name, region, one.entries, one.since_ms)


async def _count(topic: Topic, owed: list[_Owed]) -> None:
    """Entries stored here, from the newest on, and others run in between."""
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
