# SPDX-License-Identifier: Apache-2.0
"""BookKeeper with a secured etcd: brokers and bookies may do all that they need, and no more."""

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
from meridian_broker.server.secure_etcd import run_await_etcd, run_secure_etcd
from meridian_broker.server.settings import Settings
from meridian_broker.server.stores import open_metadata
from meridian_broker.server.waiting import StartFailed
from support.brokers.certificates import Authority, Pair
from support.brokers.etcd_server import EtcdServer, etcd_missing, tls_etcd

_missing = etcd_missing()
pytestmark = pytest.mark.skipif(_missing is not None, reason=_missing or "")

METADATA = LedgerMetadata(1, 1, (Segment(0, ("b",)),)).with_custom("meridian-fence", b"1")


class Secured:
    """An etcd that is still open, and settings of a broker that knows a user's name and password."""

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
        assert store.full is not None, "it may list bookies, and finds none"
        await store.close()
    finally:
        secured.etcd.close()


async def test_moving_to_bookkeeper_later_grants_its_keys(tmp_path: Path) -> None:
    """By running `meridian secure-etcd` again, with the new settings."""
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


async def test_bookies_log_in_by_certificate_and_find_what_they_need(tmp_path: Path) -> None:
    """They have no password. A certificate of the same authority with another name grants nothing."""
    ours = Authority(tmp_path)
    for name in ("root", "broker"):
        (tmp_path / name).write_text(f"the password of {name}\n")
    server = await tls_etcd(tmp_path / "etcd", ours.issue("server"), ours.trusted)

    def settings(certificate: Pair, **more: str) -> Settings:
        files = {
            "metadataStoreTrustCertsFilePath": str(ours.trusted),
            "metadataStoreCertificateFilePath": str(certificate.certificate),
            "metadataStoreKeyFilePath": str(certificate.key),
        }
        return Settings.of({"metadataStoreUrl": f"etcd:{server.url}", "clusterName": "us", **files, **more})

    bookie, stranger = (ours.issue(name, common_name=name) for name in ("bookkeeper", "stranger"))
    waiting = asyncio.create_task(asyncio.to_thread(run_await_etcd, settings(bookie)))
    channel = EtcdChannel(parse_endpoints(server.url), settings(bookie).metadata.login)
    try:
        password = {"metadataStoreUser": "broker", "metadataStorePasswordFile": str(tmp_path / "broker")}
        of_broker = settings(ours.issue("client"), managedLedgerStorage="bookkeeper", **password)
        found = []
        for _ in range(2):  # running it again changes nothing
            await asyncio.to_thread(run_secure_etcd, of_broker, tmp_path / "root", lambda _: None)
            answer = await channel.read(rpc.RangeRequest(key=b"/", range_end=b"0"), "asking", 60.0)
            found.append([(kv.key, kv.value) for kv in answer.kvs])
        assert [key for key, _ in found[0]] == [b"/ledgers", b"/ledgers/INSTANCEID"]
        assert found[0] == found[1]
        assert await asyncio.wait_for(waiting, 30) == 0
        with pytest.raises(MetadataError, match="permission denied"):
            await channel.read(rpc.RangeRequest(key=b"meridian/"), "asking", 60.0)
        with pytest.raises(StartFailed):
            await asyncio.to_thread(run_await_etcd, settings(stranger, startTimeoutSeconds="0"))
    finally:
        await channel.close()
        await server.stop()
        await asyncio.gather(waiting, return_exceptions=True)
