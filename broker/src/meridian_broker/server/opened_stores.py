# SPDX-License-Identifier: Apache-2.0
"""The stores of one broker, opened, and what needs nothing else: the catalog, the settings that change while brokers
run, and the metadata shared with other regions.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from meridian_broker.admin.http.gatekeeping import CALLER
from meridian_broker.engines.local.files import FilePort
from meridian_broker.engines.pinned import PinnedLedgers
from meridian_broker.gateway.metadata_sync import MetadataSync
from meridian_broker.ledgers.storage import LedgerStorage
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.noting import NotingStore
from meridian_broker.metadata.sync.recording import RecordingStore
from meridian_broker.positions import HybridClock
from meridian_broker.server.anew import begin_anew
from meridian_broker.server.live_settings import LiveSettings
from meridian_broker.server.loop import LoopScheduler
from meridian_broker.server.offloading import with_offloaded
from meridian_broker.server.settings import Settings
from meridian_broker.server.stores import open_ledgers, open_metadata


@dataclass(frozen=True, kw_only=True)
class OpenedStores:
    """Everything is read; nothing is written to a ledger yet."""

    metadata: NotingStore
    clock: HybridClock
    live: LiveSettings
    metadata_sync: MetadataSync
    catalog: Catalog
    ledgers: LedgerStorage
    held: PinnedLedgers


async def open_stores(
    settings: Settings,
    scheduler: LoopScheduler,
    stack: AsyncExitStack,
    files: Callable[[Path], FilePort] | None,
) -> OpenedStores:
    """Open them; ``stack`` closes them again.

    :param files: makes the file port of the ledgers' directory; None: the operating system's own.
    :raises LedgerError: the ledgers cannot be read.
    :raises MetadataError: the metadata store does not answer, or holds unreadable values.
    """
    store = await open_metadata(settings, begin_anew)
    stack.push_async_callback(store.close)
    metadata = NotingStore(store)
    clock = HybridClock(scheduler.now_ms, settings.region.cluster_name)
    live = LiveSettings(settings, metadata)
    await live.load()
    settings = live.current
    choice = settings.metadata.sync_choice()
    # The catalog's writes go through it, for what other regions have to learn.
    recording = RecordingStore(metadata, clock, choice.is_synced, lambda: choice.refusal, CALLER.get)
    metadata_sync = MetadataSync(
        store=metadata,
        clock=clock,
        now_ms=scheduler.now_ms,
        choice=choice,
        recording=recording,
        draw=lambda: secrets.token_hex(8),
    )
    catalog = Catalog(
        *(recording, clock, scheduler.now_ms, asyncio.sleep, secrets.randbelow),
        alone=asyncio.Lock(),
    )
    await catalog.begin()
    scheduler.spawn(catalog.run(), "follow the metadata")
    near = await open_ledgers(settings, files)
    stack.push_async_callback(near.close)
    ledgers = await with_offloaded(near, settings, metadata, scheduler)
    stack.push_async_callback(ledgers.close)
    note = settings.region.data_directory / "ledgers-to-delete" if ledgers.is_apart else None
    held = PinnedLedgers(ledgers, note, scheduler)
    await held.finish_deletions()
    if ledgers.is_apart:  # the metadata may be an older copy than the ledgers (R1)
        stored = [ledger.ledger_id for ledger in await ledgers.list()]
        await catalog.never_below(max(stored, default=-1))
    return OpenedStores(
        metadata=metadata,
        clock=clock,
        live=live,
        metadata_sync=metadata_sync,
        catalog=catalog,
        ledgers=ledgers,
        held=held,
    )
