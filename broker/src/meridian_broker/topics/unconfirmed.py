# SPDX-License-Identifier: Apache-2.0
"""What a region that is away had not confirmed before this broker started: found again in the progress log.

How far others are behind is counted in memory, for an acknowledgement costs nothing on disk beside its own record.
After a restart that count is worked out anew: the region's metadata say since when another region may lack what was
acknowledged here (``server/behind.py``, a write when it goes and one when it has all again), and the progress log says
what was acknowledged since, and when. It is a lower bound: a progress ledger that was rolled over since keeps no single
acknowledgements, and of a long log only the newest entries are looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions import Progress
from meridian_broker.topics.progress_log import Change, Kind

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


async def recall(topic: Topic, changes: Iterable[Change], regions: Collection[str], before: Before) -> None:
    """Tell what other regions of the topic lack.

    :param changes: all that the progress log holds; the subscriptions are rebuilt from it.
    """
    since = {region: since_ms for region, since_ms in before.since_ms.items() if region in regions}
    if not since:
        return
    acked = [change for change in changes if change.kind == Kind.ACKED and change.time_ms >= min(since.values())]
    owed: dict[int, dict[str, _Owed]] = {}
    for since_ms in since.values():
        owed[since_ms] = _acked_since(topic, (change for change in acked if change.time_ms >= since_ms))
    with suppress(LedgerError):  # an index that cannot be read costs a figure, and no topic
        await _count(topic, [one for names in owed.values() for one in names.values()])
    for region, since_ms in since.items():
        for name, one in owed[since_ms].items():
            before.found(topic.name, name, region, one.entries, one.since_ms)


def _acked_since(topic: Topic, changes: Iterable[Change]) -> dict[str, _Owed]:
    found: dict[str, _Owed] = {}
    for _, name, time_ms, payload in changes:
        subscription = topic.subscriptions.get(name)
        if subscription is not None and subscription.replicated:
            found.setdefault(name, _Owed(time_ms)).progress.join(Progress.decode(payload))
    return found


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
            await topic.scheduler.answer(lambda ready: topic.scheduler.defer(lambda: ready(None)))
        left -= entries
