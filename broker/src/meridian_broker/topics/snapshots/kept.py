# SPDX-License-Identifier: Apache-2.0
"""The snapshots that a topic's log still has: they are found again after a restart (PIP-33)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.entry import FOREIGN, MARKER, unpack
from meridian_broker.ledgers.index import NO_PLACE
from meridian_broker.ledgers.scheduling import next_turn
from meridian_broker.positions.position import Position
from meridian_broker.wire.pulsar import markers, metadata
from meridian_broker.wire.pulsar.markers import Snapshot

if TYPE_CHECKING:
    from meridian_broker.topics.topic import Topic

LOOKS: Final = 100
"""Entries that are read in one turn of the loop."""
LEDGERS: Final = 64
"""How many of the last ledgers are searched. A subscription further behind goes on with newer snapshots."""

log = logging.getLogger(__name__)


async def find(topic: Topic, after: Position, found: Callable[[Snapshot], None]) -> None:
    """Call ``found`` for each snapshot beyond ``after``, in order.

    :raises LedgerError: an entry or an index cannot be read.
    """
    looked = 0
    for span in topic.log.spans()[-LEDGERS:]:
        if span.ledger_id < after.ledger or topic.failure is not None:
            continue
        index = await topic.log.load_index(span.ledger_id)
        entry = after.entry if span.ledger_id == after.ledger else -1
        while (entry := index.kinds.find(NO_PLACE, entry + 1)) >= 0:
            position = Position(span.ledger_id, entry)
            if not topic.log.holds(position):
                continue
            snapshot = _snapshot(await topic.log.read_one(position))
            if snapshot is not None:
                found(snapshot)
            looked += 1
            if looked % LOOKS == 0:
                await next_turn(topic.scheduler)


def _snapshot(stored: bytes) -> Snapshot | None:
    """The snapshot that an entry is; None: it is something else."""
    if stored[1] & (MARKER | FOREIGN) != MARKER:
        return None
    header = unpack(stored)
    if header.replaces is not None:
        return None
    body = stored[header.body_offset :]
    try:
        marker = markers.read(body, metadata.scan(body))
    except metadata.BodyError as error:
        log.warning("ignoring a snapshot marker that cannot be read: %s", error)
        return None
    return marker if isinstance(marker, Snapshot) else None
