# SPDX-License-Identifier: Apache-2.0
"""A broker started before its dependencies: it waits, says for what, and goes on, or gives up in time."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import sqlite3
from pathlib import Path

import aiohttp
import pytest
from meridian_broker.cli.output import COULD_NOT_TELL
from meridian_broker.engines.etcd.metadata import EtcdMetadataStore
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.positions.clock import HybridClock
from meridian_broker.server.rank import Outranked
from support.brokers.broker_inside import broker_inside
from support.brokers.broker_process import BrokerProcess, wait_until
from support.brokers.etcd_server import EtcdServer, etcd_missing
from support.brokers.free_ports import free_port

_missing = etcd_missing()


@pytest.mark.skipif(_missing is not None, reason=_missing or "")
def test_its_etcd_starts_later(tmp_path: Path) -> None:
    etcd = EtcdServer(tmp_path / "etcd")
    try:
        etcd.kill()
        broker = BrokerProcess("us", tmp_path / "us", metadata_url=f"etcd:{etcd.url}").start(wait=False)
        wait_until(lambda: "waiting up to 60 s for it" in broker.log(), "the broker to say that it waits")
        with broker:
            etcd.start()
            broker.wait_healthy()
    finally:
        etcd.close()


def test_an_earlier_broker_still_uses_the_volume(tmp_path: Path) -> None:
    """Its metadata is elsewhere, as in a pod: only the volume is in use."""
    with BrokerProcess("us", tmp_path / "us") as first:
        second = BrokerProcess("us", tmp_path / "us2").start(wait=False)
        with second:
            second.wait_healthy()
            second.stop()
            shutil.rmtree(tmp_path / "us2" / "ledgers")
            (tmp_path / "us2" / "ledgers").symlink_to(tmp_path / "us" / "ledgers")
            second.start(wait=False)
            wait_until(
                lambda: "in use by another broker process" in second.log(),
                "the broker to say that its volume is in use",
            )
            first.kill()
            second.wait_healthy()


@pytest.mark.skipif(_missing is not None, reason=_missing or "")
async def test_a_later_broker_of_the_region_stops_the_earlier_one(tmp_path: Path) -> None:
    """On another volume, as in a second pod: from then on the first can write nothing and must not look healthy."""
    etcd = EtcdServer(tmp_path / "etcd")
    try:
        with BrokerProcess("us", tmp_path / "us", metadata_url=f"etcd:{etcd.url}") as first:
            store = await EtcdMetadataStore.connect(etcd.url, "meridian/us")
            catalog = Catalog(store, HybridClock(lambda: 0, "us"), lambda: 0, asyncio.sleep, lambda _: 0)
            assert await catalog.next_broker_epoch("broker-0") == 2
            await store.close()
            assert first._process is not None
            assert await asyncio.to_thread(first._process.wait, 60) == COULD_NOT_TELL
            assert "another broker of region us has started (epoch 2, this one has 1)" in first.log()
    finally:
        etcd.close()


async def test_an_earlier_broker_is_not_ready_while_it_closes(tmp_path: Path) -> None:
    """Probes over an existing connection are still answered then."""
    probes = free_port()
    async with (
        broker_inside(tmp_path, probeServicePort=probes) as earlier,
        aiohttp.ClientSession(f"http://127.0.0.1:{probes}") as http,
    ):

        async def probe() -> int:
            async with http.get("/ready") as answer:
                return answer.status

        serving = asyncio.ensure_future(earlier.serve(asyncio.Event()))
        assert await probe() == 200
        await earlier.catalog.next_broker_epoch(earlier.broker_id)
        with pytest.raises(Outranked, match="another broker of region inside has started"):
            await asyncio.wait_for(serving, 60)
        assert await probe() == 503
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", earlier.settings.network.broker_service_port)


def test_what_it_waits_for_never_comes(tmp_path: Path) -> None:
    nowhere = {"metadata_url": "etcd:http://127.0.0.1:1", "settings": {"startTimeoutSeconds": "0"}}
    broker = BrokerProcess("us", tmp_path / "us", **nowhere).start(wait=False)  # type: ignore[arg-type]
    with broker:
        assert broker._process is not None
        assert broker._process.wait(60) != 0
        assert "127.0.0.1:1" in broker.log()


def test_data_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    with BrokerProcess("us", tmp_path / "us") as broker:
        broker.stop()
        with contextlib.closing(sqlite3.connect(tmp_path / "us" / "metadata.sqlite")) as metadata:
            metadata.execute("PRAGMA user_version = 99")
        broker.start(wait=False)
        assert broker._process is not None
        assert broker._process.wait(60) == 2
        assert "written by a newer version of Meridian (metadata format 99" in broker.log().splitlines()[-1]
        assert "Traceback" not in broker.log()


def test_its_port_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        broker = BrokerProcess("us", tmp_path / "us", port=other.getsockname()[1]).start(wait=False)
        with broker:
            assert broker._process is not None
            assert broker._process.wait(60) == 2
            assert "Address already in use. Stop the process that uses the port, or choose another" in broker.log()
            assert "Traceback" not in broker.log()


def test_it_is_told_to_stop_while_it_waits(tmp_path: Path) -> None:
    broker = BrokerProcess("us", tmp_path / "us", metadata_url="etcd:http://127.0.0.1:1").start(wait=False)
    with broker:
        wait_until(lambda: "waiting up to 60 s for it" in broker.log(), "the broker to say that it waits")
        assert broker.stop() in (0, -signal.SIGTERM)
