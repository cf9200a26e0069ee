# SPDX-License-Identifier: Apache-2.0
"""The remaining part of a topic's log after a volume or metadata was restored from an older copy (R5).

A volume that is older than the metadata lacks the last of the recorded ledgers. Metadata that are older than the
volume do not name the last ledgers on it, and name some that were trimmed since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from meridian_broker.ledgers.chapters import Chapter, Span
from meridian_broker.ledgers.store import LedgerDeleted, LedgerInfo, LedgerNotFound, LedgerStore
from meridian_broker.positions.position import EARLIEST, Position


class SurvivingLedgers(NamedTuple):
    """A topic's log, as metadata and volume together describe it."""

    chapters: list[Chapter]
    last_own: Position
    """Like ``last_origins``, used if there is no chapter."""
    last_origins: dict[str, Position]
    is_other: bool
    """It differs from the metadata."""
    is_older: bool = False
    """The volume lacks some ledgers that the metadata names, so entries recorded as recovered may be missing again."""


class _Recovered:
    """Fences and seals each ledger when it is first asked about, and asks the store only once."""

    def __init__(self, store: LedgerStore, fence: int) -> None:
        self._store = store
        self._fence = fence
        self._infos: dict[int, LedgerInfo] = {}

    async def info(self, ledger_id: int) -> LedgerInfo:
        """:raises LedgerNotFound: there is none. :raises LedgerError: it cannot be recovered."""
        if ledger_id not in self._infos:
            self._infos[ledger_id] = await self._store.recover(ledger_id, self._fence)
        return self._infos[ledger_id]


async def surviving(
    store: LedgerStore,
    named: Sequence[Span],
    found: Sequence[Span],
    last_own: Position,
    last_origins: Mapping[str, Position],
    fence: int,
    now_ms: int,
) -> SurvivingLedgers:
    """Fence and seal the remaining recorded ledgers, and those that were found.

    :param found: ledgers of the topic on the volume that the metadata does not name, all created after those it names.
        One that is gone by now had no entries: an opening deleted it, and failed later.
    :param last_own: like ``last_origins``, as recorded.
    :raises LedgerError: a ledger cannot be recovered; nothing was changed.
    """
    recovered = _Recovered(store, fence)
    entries = await _still_there(recovered, found)
    found = [span for span in found if span.ledger_id in entries]
    spans = [*await _not_given_back(recovered, named, any(entries.values())), *found]
    is_other = bool(found) or len(spans) < len(named)
    origins = dict(last_origins)
    for span in found:
        last_own = max(last_own, span.own_before)
        for region, last in span.origins_before.items():
            origins[region] = max(last, origins.get(region, EARLIEST))
    whole = await _count_whole(recovered, spans)
    is_older = whole < len(spans)
    chapters: list[Chapter] = []
    for span in spans[:whole]:
        chapter = Chapter(span)
        if span.entries < 0:
            is_other = True
            try:
                info = await recovered.info(span.ledger_id)
            except LedgerNotFound:
                # Recorded, but the broker stopped before it reached the store; or the volume is an older copy.
                last_own, origins = span.own_before, dict(span.origins_before)
                is_older = True
                continue
            is_older = is_older or info.size < span.size
            if info.entries == 0:
                await store.delete(span.ledger_id)
                continue
            chapter.entries, chapter.size, chapter.sealed_ms = info.entries, info.size, now_ms
        chapters.append(chapter)
    if whole < len(spans):
        is_other = True
        last_own, origins = spans[whole].own_before, dict(spans[whole].origins_before)
        if (part := await _part_of(recovered, spans[whole], now_ms)) is not None:
            chapters.append(part)
    return SurvivingLedgers(chapters, last_own, origins, is_other, is_older)


async def _still_there(recovered: _Recovered, found: Sequence[Span]) -> dict[int, int]:
    """The number of entries of each of these ledgers that the store still has."""
    entries: dict[int, int] = {}
    for span in found:
        with suppress(LedgerNotFound):
            entries[span.ledger_id] = (await recovered.info(span.ledger_id)).entries
    return entries


async def _not_given_back(recovered: _Recovered, named: Sequence[Span], is_older: bool) -> Sequence[Span]:
    """The recorded ledgers without those at the head that were trimmed since.

    :param is_older: the metadata is certainly older. Otherwise a missing ledger may be one whose creation failed.
    """
    for number, span in enumerate(named):
        try:
            await recovered.info(span.ledger_id)
        except LedgerDeleted:
            continue
        except LedgerNotFound:
            if is_older:
                continue  # trimmed so long ago that the store has forgotten it
        return named[number:]
    return ()


async def _count_whole(recovered: _Recovered, spans: list[Span]) -> int:
    """How many of the recorded ledgers are complete in the store; fewer than all: the volume is an older copy.

    A ledger that is missing *between* others is damage, not an older copy; reading it reports that.

    :raises LedgerError: a ledger cannot be recovered.
    """
    whole = len(spans)
    for number in range(len(spans) - 1, -1, -1):
        span = spans[number]
        try:
            info = await recovered.info(span.ledger_id)
        except LedgerNotFound:
            whole = number if span.entries >= 0 else whole  # recorded first, so perhaps never created
            continue
        if info.entries < span.entries:
            return number
        if info.entries or span.entries >= 0:
            return whole
    return whole


async def _part_of(recovered: _Recovered, span: Span, now_ms: int) -> Chapter | None:
    """The remaining part of the first incomplete ledger; None if nothing is left."""
    try:
        info = await recovered.info(span.ledger_id)
    except LedgerNotFound:
        return None
    if not info.entries:
        return None
    chapter = Chapter(span)
    chapter.entries, chapter.size, chapter.sealed_ms = info.entries, info.size, now_ms
    return chapter
