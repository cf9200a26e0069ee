# SPDX-License-Identifier: Apache-2.0
"""Opens the two stores of a region that the settings name: of its metadata, and of its ledgers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from meridian_broker.bounds.clients import FRAME_PADDING_BYTES
from meridian_broker.engines.etcd.keys import metadata_of
from meridian_broker.engines.local.files import FilePort, VolumeInUse
from meridian_broker.engines.local.store import LocalLedgerStore
from meridian_broker.ledgers.storage import LedgerStorage
from meridian_broker.metadata.store import MetadataLoginRefused, MetadataStore, MetadataUnavailable
from meridian_broker.server.settings import Settings
from meridian_broker.server.waiting import once_there


async def open_metadata(settings: Settings, went_back: Callable[[str], None]) -> MetadataStore:
    """The store that ``metadataStoreUrl`` names. Waits for one that starts, or whose users are being set up.

    :param went_back: called if it was restored from an older copy while in use, where that can be detected.
    :raises MetadataError: it cannot be opened, or not in time.
    """
    away = (MetadataUnavailable, MetadataLoginRefused)
    return await once_there(lambda: _metadata(settings, went_back), away, settings.process.start_timeout_seconds)


async def _metadata(settings: Settings, went_back: Callable[[str], None]) -> MetadataStore:
    kind, _, rest = settings.metadata_store_url.partition(":")
    if kind == "etcd":
        from meridian_broker.engines.etcd.metadata import EtcdMetadataStore

        prefix = metadata_of(settings.region.cluster_name)
        return await EtcdMetadataStore.connect(rest, prefix, went_back, settings.metadata.login)
    from meridian_broker.engines.sqlite.metadata import SqliteMetadataStore

    return await SqliteMetadataStore.open(rest)


async def open_ledgers(settings: Settings, files: Callable[[Path], FilePort] | None = None) -> LedgerStorage:
    """The storage that ``managedLedgerStorage`` names.

    :param files: makes the file port of a local storage's directory; None: the operating system's own.
    :raises LedgerError: it cannot be opened, or another broker does not release it in time.
    """
    storage = settings.storage
    if storage.managed_ledger_storage == "bookkeeper":
        from meridian_broker.engines.bookkeeper.context import BookKeeperSettings
        from meridian_broker.engines.bookkeeper.store import BookKeeperLedgerStore
        from meridian_broker.engines.bookkeeper.zones import Zones, parse_zones

        chosen = BookKeeperSettings(
            ensemble=storage.managed_ledger_default_ensemble_size,
            ack_quorum=storage.managed_ledger_default_ack_quorum,
            frame_bytes_max=settings.network.max_message_size + FRAME_PADDING_BYTES,
            zones=Zones(parse_zones(storage.bookie_zones)),
        )
        urls = settings.metadata_store_url.removeprefix("etcd:")
        return await BookKeeperLedgerStore.start(
            urls, settings.region.cluster_name, chosen, login=settings.metadata.login, tls=storage.bookie_tls
        )
    volume = settings.region.data_directory / "ledgers"
    return await once_there(
        lambda: LocalLedgerStore.start(volume, files=None if files is None else files(volume)),
        VolumeInUse,
        settings.process.start_timeout_seconds,
    )
