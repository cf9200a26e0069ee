# SPDX-License-Identifier: Apache-2.0
"""A broker that is started before what it stands on: it waits, says for what, and goes on, or ends in time."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import sqlite3
from pathlib import Path

import pytest
from broker_process import BrokerProcess, wait_until
from etcd_server import EtcdServer, etcd_missing

_missing = etcd_missing()


@pytest.mark.skipif(_missing is not None, reason=_missing or "")
def test_its_etcd_comes_later(tmp_path: Path) -> None:
    etcd = EtcdServer(tmp_path / "etcd")
    try:
        etcd.kill()
        broker = BrokerProcess("us", tmp_path / "us", metadata_url=f"etcd:{etcd.url}").start(wait=False)
        wait_until(lambda: "waits up to 60 s for it" in broker.log(), "the broker to say that it waits")
        with broker:
            etcd.start()
            broker.wait_healthy()
    finally:
        etcd.close()


def test_an_earlier_broker_still_has_the_volume(tmp_path: Path) -> None:
    """Its metadata is elsewhere, as in a pod: the volume alone is in the way."""
    with BrokerProcess("us", tmp_path / "us") as first:
        second = BrokerProcess("us", tmp_path / "us2").start(wait=False)
        with second:
            second.wait_healthy()
            second.stop()
            shutil.rmtree(tmp_path / "us2" / "ledgers")
            (tmp_path / "us2" / "ledgers").symlink_to(tmp_path / "us" / "ledgers")
            second.start(wait=False)
            wait_until(lambda: "in use by another broker process" in second.log(), "the broker to say that it waits")
            first.kill()
            second.wait_healthy()


def test_what_it_waits_for_never_comes(tmp_path: Path) -> None:
    nowhere = {"metadata_url": "etcd:http://127.0.0.1:1", "settings": {"startTimeoutSeconds": "0"}}
    broker = BrokerProcess("us", tmp_path / "us", **nowhere).start(wait=False)  # type: ignore[arg-type]
    with broker:
        assert broker._process is not None
        assert broker._process.wait(60) != 0
        assert "127.0.0.1:1" in broker.log()


def test_a_newer_version_was_here(tmp_path: Path) -> None:
    with BrokerProcess("us", tmp_path / "us") as broker:
        broker.stop()
        with contextlib.closing(sqlite3.connect(tmp_path / "us" / "metadata.sqlite")) as metadata:
            metadata.execute("PRAGMA user_version = 99")
        broker.start(wait=False)
        assert broker._process is not None
        assert broker._process.wait(60) == 2
        assert "metadata format 99, made by a newer version" in broker.log().splitlines()[-1]
        assert "Traceback" not in broker.log()


def test_its_port_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        broker = BrokerProcess("us", tmp_path / "us", port=other.getsockname()[1]).start(wait=False)
        with broker:
            assert broker._process is not None
            assert broker._process.wait(60) == 2
            assert "Address already in use. Stop the process that has the port, or choose another" in broker.log()
            assert "Traceback" not in broker.log()


def test_it_is_told_to_stop_while_it_waits(tmp_path: Path) -> None:
    broker = BrokerProcess("us", tmp_path / "us", metadata_url="etcd:http://127.0.0.1:1").start(wait=False)
    with broker:
        wait_until(lambda: "waits up to 60 s for it" in broker.log(), "the broker to say that it waits")
        assert broker.stop() in (0, -signal.SIGTERM)
