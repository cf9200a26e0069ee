# SPDX-License-Identifier: Apache-2.0
"""Who may read what a broker stores: its own user, whatever umask it was started with."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.broker_inside import broker_inside
from support.brokers.broker_process import http
from support.protocol.raw_connection import RawConnection


@pytest.fixture(params=[0, 0o077], ids=["loose", "strict"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Sets this process's umask."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


async def test_files_are_for_the_brokers_own_user_alone(tmp_path: Path, umask: int) -> None:
    """Each file is created with an explicit mode; the umask that the program sets is a second lock."""
    data = tmp_path / "data"
    async with broker_inside(data) as broker:
        wire = await RawConnection.open(broker.settings.network.broker_service_port)
        await wire.producer("persistent://public/default/t", producer_name="p")
        wire.send("p", 0, b"secret")
        assert await wire.receipt() == (0, True)
        await wire.close()
        exported = await asyncio.to_thread(http, "POST", f"{broker.listeners.admin_url}/meridian/v1/export", {})
        assert exported.status == 200
        found = {path: stat.S_IMODE(path.stat().st_mode) for path in (data, *data.rglob("*"))}
    assert {path.name for path in found} >= {"data", "metadata.sqlite", "export"}
    wrong = {path: oct(mode) for path, mode in found.items() if mode != (0o700 if path.is_dir() else 0o600)}
    assert wrong == {}
