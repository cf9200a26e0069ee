# SPDX-License-Identifier: Apache-2.0
"""A snapshot that nobody asks for any more ends by itself and releases its ledgers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from meridian_broker.admin.export import export
from support.brokers.broker_process import http
from support.brokers.broker_regions import regions, until


async def test_a_snapshot_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with regions(tmp_path, "solo") as (solo,):
        topic = f"{solo.admin_url}/admin/v2/persistent/public/default/kept"
        assert (await asyncio.to_thread(http, "PUT", topic)).status == 204
        url = f"{solo.admin_url}/meridian/v1/export"
        lasting = (await asyncio.to_thread(http, "POST", url)).json
        monkeypatch.setattr(export, "LIFE_MS", 50)
        ending = (await asyncio.to_thread(http, "POST", url)).json
        assert ending["expires"] < lasting["expires"]
        directory = solo.process.settings.region.data_directory / "export"
        await until(lambda: not (directory / f"{ending['snapshot']}.jsonl").exists())
        assert (await asyncio.to_thread(http, "GET", f"{url}/{ending['snapshot']}/topics")).status == 404
        assert (directory / f"{lasting['snapshot']}.jsonl").exists()
