# SPDX-License-Identifier: Apache-2.0
"""Puts the object store of the settings around a broker's ledger storage."""

from __future__ import annotations

import json
import secrets

from meridian_broker.ledgers.objects import ObjectStore, ObjectStoreError
from meridian_broker.ledgers.offloaded.cache import BlockCache
from meridian_broker.ledgers.offloaded.copies import Copies
from meridian_broker.ledgers.offloaded.offloading import Offloading
from meridian_broker.ledgers.offloaded.storage import OffloadedLedgers
from meridian_broker.ledgers.offloaded.table import OffloadTable
from meridian_broker.ledgers.scheduling import Scheduler
from meridian_broker.ledgers.storage import LedgerStorage
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataStore
from meridian_broker.server.settings import Settings

NAME_BYTES = 8
"""Random bytes in the name of a copy: no two copies of a ledger share a name."""


async def with_offloaded(
    near: LedgerStorage,
    settings: Settings,
    metadata: MetadataStore,
    scheduler: Scheduler,
    objects: ObjectStore | None = None,
) -> LedgerStorage:
    """The storage with the ledgers that were offloaded from it; ``near`` itself if there are none and none are planned.

    :param objects: instead of the bucket in the settings.
    :raises LedgerError: there are offloaded ledgers, and no store in the settings; or the store cannot be used at all.
    :raises MetadataError: the metadata store does not answer.
    """
    offload = settings.offload
    place, region = offload.place, settings.region.cluster_name
    table = OffloadTable(metadata)
    await table.load()
    if place is None and objects is None:
        if any(record.is_whole for record in table):
            raise LedgerError(
                f"{len(table)} ledgers of region {region} were offloaded, but the settings do not say where to: set "
                "managedLedgerOffloadDriver and s3ManagedLedgerOffloadBucket again"
            )
        return near
    if objects is None:
        assert place is not None
        try:
            from meridian_broker.engines.s3.objects import S3Objects  # only where it is used

            objects = S3Objects(place)
        except ObjectStoreError as error:
            raise LedgerError(str(error)) from error
    copies = Copies(
        objects,
        region,
        offload.s3_managed_ledger_offload_read_buffer_size_in_bytes,
        offload.s3_managed_ledger_offload_max_block_size_in_bytes,
    )
    return OffloadedLedgers(
        near,
        Offloading(table, copies, near, scheduler, lambda: secrets.token_hex(NAME_BYTES)),
        BlockCache(offload.offload_read_cache_size_mb << 20, scheduler.answer),
        scheduler,
        prefers_copies=offload.managed_ledger_data_read_priority == "tiered-storage-first",
        outside=json.dumps({"region": region, "place": None if place is None else place.describe()}),
    )
