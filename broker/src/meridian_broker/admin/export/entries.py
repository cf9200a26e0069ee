# SPDX-License-Identifier: Apache-2.0
"""Rows of the table ``entries``: stored entries read from the broker's own storage, their headers unpacked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from meridian_broker.admin.export.plan import Stretch
from meridian_broker.admin.export.rows import Row, entry_row
from meridian_broker.engines.outside import open_outside
from meridian_broker.ledgers.damage import stand_in
from meridian_broker.ledgers.entry import EntryFormatError, unpack
from meridian_broker.ledgers.storage import OutsideLedgers
from meridian_broker.ledgers.store import LedgerCorrupt, LedgerError
from meridian_broker.positions.position import Position

READ_BYTES: Final = 4 << 20
"""Bytes of stored entries held at once."""


def entry_batches(
    storage: str,
    stretches: Iterable[Stretch],
    skipped: int,
    rows_max: int,
    copies: Mapping[Position, Position] | None = None,
) -> Iterator[list[Row]]:
    """The rows of these stretches after the first ``skipped``, ``rows_max`` at a time.

    :param storage: ``LedgerStorage.outside``.
    :param copies: positions of copies of damaged entries. A damaged entry without a copy becomes a marker.
    :raises LedgerError: a ledger is gone, or ends before the snapshot says.
    :raises EntryFormatError: an entry of a newer format.
    """
    with asyncio.Runner() as runner:
        ledgers = runner.run(open_outside(storage))
        try:
            for stretch in _after(stretches, skipped):
                yield from _entries(runner, ledgers, stretch, rows_max, copies or {})
        finally:
            runner.run(ledgers.close())


def _after(stretches: Iterable[Stretch], skipped: int) -> Iterator[Stretch]:
    """The rest of the stretches after the first ``skipped`` entries: every entry is one row."""
    for one in stretches:
        if skipped >= one.count:
            skipped -= one.count
        else:
            yield Stretch(one.topic, one.region, one.ledger, one.first + skipped, one.last)
            skipped = 0


def _entries(
    runner: asyncio.Runner,
    ledgers: OutsideLedgers,
    stretch: Stretch,
    rows_max: int,
    copies: Mapping[Position, Position],
) -> Iterator[list[Row]]:
    topic, region, ledger = stretch.topic, stretch.region, stretch.ledger
    rows: list[Row] = []
    at = stretch.first
    while at <= stretch.last:
        last = min(stretch.last, at + rows_max - len(rows) - 1)
        try:
            found = runner.run(ledgers.read(ledger, at, last, READ_BYTES))
        except LedgerCorrupt:
            found = [runner.run(_instead(ledgers, region, Position(ledger, at), copies))]
        if not found:
            raise LedgerError(
                f"ledger {ledger} ends before entry {at}, though the snapshot has it up to {stretch.last}: "
                "take another snapshot"
            )
        rows += [entry_row(topic, region, ledger, entry, stored) for entry, stored in enumerate(found, at)]
        at += len(found)
        if len(rows) >= rows_max:
            yield rows
            rows = []
    if rows:
        yield rows


async def _instead(
    ledgers: OutsideLedgers, region: str, damaged: Position, copies: Mapping[Position, Position]
) -> bytes:
    """The copy of a damaged entry, or a marker if there is none."""
    at = copies.get(damaged)
    if at is not None:
        try:
            marker = (await ledgers.read(at.ledger, at.entry, at.entry, 1))[0]
            header = unpack(marker)
            if header.replaces == damaged:
                return marker[header.body_offset :]
        except (LedgerCorrupt, EntryFormatError):
            pass
    return stand_in(None, region, damaged, 1)
