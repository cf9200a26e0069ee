# SPDX-License-Identifier: Apache-2.0
"""A broker's id belongs to one process at a time, the one that started last. A region's only broker has an id, too.

Each start takes a greater epoch from the metadata and fences the ledgers and topics of all earlier processes (R10). An
earlier broker that still runs, on a node that was cut off or beside a second pod, can write nothing any more. If it
stayed, it would look healthy and keep clients that it cannot serve, so it exits as soon as it learns of the later
epoch. It does not drain, because draining writes, and what it promised is on its disk.
"""

from __future__ import annotations

import asyncio

from meridian_broker.metadata.catalog import Catalog


class Outranked(Exception):
    """A later broker serves this region. The message says so, and what to do."""


async def until_outranked(catalog: Catalog, broker_id: str, epoch: int) -> None:
    """Wait for a later broker; never returns if none starts.

    :raises Outranked: one has started.
    """
    later = await catalog.later_broker_epoch(broker_id, epoch)
    raise Outranked(
        f"another broker of region {catalog.region} has started (epoch {later}, this one has {epoch}), so this one "
        "exits. If both were started on purpose, stop one of them, or give each its own brokerId: that needs "
        "managedLedgerStorage=bookkeeper"
    )


async def served(catalog: Catalog, broker_id: str, epoch: int, stop: asyncio.Event) -> None:
    """Return when ``stop`` is set.

    :raises Outranked: a later broker has started before that.
    """
    stopping = asyncio.ensure_future(stop.wait())
    outranked = asyncio.ensure_future(until_outranked(catalog, broker_id, epoch))
    try:
        await asyncio.wait((stopping, outranked), return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            await outranked
    finally:
        stopping.cancel()
        outranked.cancel()
        await asyncio.wait((stopping, outranked))
