# SPDX-License-Identifier: Apache-2.0
"""BookKeeper and an etcd that asks for a password: the brokers' user may do all that the engine does, and no more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aetcd import rpc
from meridian_broker.engines.bookkeeper.ledger_metadata import LedgerMetadata, Segment
from meridian_broker.engines.bookkeeper.ledger_table import LedgerTable
from meridian_broker.engines.bookkeeper.store import BookKeeperLedgerStore
from meridian_broker.engines.etcd.address import Login, parse_endpoints
from meridian_broker.engines.etcd.client import EtcdChannel
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataError
from meridian_broker.server.secure_etcd import run_secure_etcd
from meridian_broker.server.settings import Settings
from meridian_broker.server.stores import open_metadata
from support.brokers.etcd_server import EtcdServer, etcd_missing

_missing = etcd_missing()
pytestmark = pytest.mark.skipif(_missing is not None, reason=_missing or "")

METADATA = LedgerMetadata(1, 1, (Segment(0, ("b",)),)).with_custom("meridian-fence", b"1")


class Secured:
    """An open etcd, and settings of a broker that knows a user's name and password."""

    def __init__(self, directory: Path) -> None:
        for name in ("root", "broker"):
            (directory / name).write_text(f"the password of {name}\n")
        self._root = directory / "root"
        self.etcd = EtcdServer(directory / "etcd")
        self.login = Login("broker", directory / "broker")

    def settings(self, **more: str) -> Settings:
        return Settings.of(
            {
                "metadataStoreUrl": f"etcd:{self.etcd.url}",
                "metadataStoreUser": "broker",
                "metadataStorePasswordFile": str(self.login.password_file),
                "clusterName": "us",
                **more,
            }
        )

    async def secure(self, settings: Settings) -> None:
        await asyncio.to_thread(run_secure_etcd, settings, self._root, lambda _: None)

    def channel(self) -> EtcdChannel:
        return EtcdChannel(parse_endpoints(self.etcd.url), self.login)


async def test_the_brokers_user_may_do_all_that_the_engine_does(tmp_path: Path) -> None:
    secured = Secured(tmp_path)
    settings = secured.settings(managedLedgerStorage="bookkeeper")
    try:
        await secured.secure(settings)
        metadata = await open_metadata(settings, pytest.fail)
        await metadata.put("/a", b"")
        await metadata.close()
        channel = secured.channel()
        table = LedgerTable(channel, "us")
        stored = await table.create(7, METADATA)
        assert stored is not None
        version = await table.write(7, METADATA.closed(-1, 0), stored.version)
        assert version is not None
        assert await table.count() == 1
        assert await table.delete(7, version, now_ms=1)
        assert await table.is_deleted(7)
        assert await table.forget_deleted(2) == 1
        for key in (b"/other", b"meridian", b"meridian-other", b"/ledgersnot"):
            with pytest.raises(MetadataError, match="permission denied"):
                await channel.read(rpc.RangeRequest(key=key), "asking", 60.0)
        await table.close()
        store = await BookKeeperLedgerStore.start(secured.etcd.url, "us", login=secured.login)
        assert store.full is not None, "it sees that there are no bookies"
        await store.close()
    finally:
        secured.etcd.close()


async def test_who_moves_to_bookkeeper_is_granted_its_keys_then(tmp_path: Path) -> None:
    """`meridian secure-etcd` again, with the new settings."""
    secured = Secured(tmp_path)
    try:
        await secured.secure(secured.settings())
        table = LedgerTable(secured.channel(), "us")
        with pytest.raises(LedgerError, match="permission denied"):
            await table.create(7, METADATA)
        await secured.secure(secured.settings(managedLedgerStorage="bookkeeper"))
        assert await table.create(7, METADATA) is not None
        await table.close()
    finally:
        secured.etcd.close()
