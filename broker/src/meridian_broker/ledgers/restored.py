# SPDX-License-Identifier: Apache-2.0
"""A volume that was restored from an older copy than the metadata: how much of a topic's log is there (R5)."""

from __future__ import annotations

from meridian_broker.ledgers.chapters import Chapter, Span
from meridian_broker.ledgers.store import LedgerNotFound, LedgerStore


async def count_whole(store: LedgerStore, spans: list[Span], fence: int) -> int:
    """How many of the ledgers on record the store has whole; less than all: the volume is an older copy.

    A ledger that is missing *between* others is no older copy but damage, and is left for whoever reads it to say.

    :raises LedgerError: one cannot be recovered.
    """
    whole = len(spans)
    for number in range(len(spans) - 1, -1, -1):
        span = spans[number]
        try:
            info = await store.recover(span.ledger_id, fence)
        except LedgerNotFound:
            whole = number if span.entries >= 0 else whole  # one that was begun may never have been made
            continue
        if info.entries < span.entries:
            return number
        if info.entries or span.entries >= 0:
            return whole
    return whole


async def part_of(store: LedgerStore, span: Span, fence: int, now_ms: int) -> Chapter | None:
    """What there is of the first ledger that is not whole; None: nothing."""
    try:
        info = await store.recover(span.ledger_id, fence)
    except LedgerNotFound:
        return None
    if not info.entries:
        return None
    chapter = Chapter(span)
    chapter.entries, chapter.size, chapter.sealed_ms = info.entries, info.size, now_ms
    return chapter
