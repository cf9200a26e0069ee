# SPDX-License-Identifier: Apache-2.0
"""``meridian up`` as a supervisor: what it starts, reports and stops, and what it leaves behind.

A stand-in takes the broker's place, because the real one does not misbehave on demand.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from meridian_broker.engines.etcd.metadata import EtcdMetadataStore
from meridian_broker.metadata.store import MetadataError
from meridian_broker.server.layout import Directory, UpFailed
from meridian_broker.server.regions_file import clusters_in
from meridian_broker.server.settings import load
from support.brokers.free_ports import free_base_port

TESTS = Path(__file__).parents[1]
DRIVER = """
import sys
from pathlib import Path
from meridian_broker.cli.programs import UpOptions
from meridian_broker.server.layout import UpFailed
from meridian_broker.server.settings import SettingsError
from meridian_broker.server.supervisor import run_up

directory, mode, metadata, port, http_port, regions, brokers, stand_in, *assignments = sys.argv[1:]
options = UpOptions(regions=tuple(regions.split(",")), data_directory=Path(directory), metadata=metadata,
                    base_port=int(port), base_http_port=int(http_port), brokers=int(brokers),
                    assignments=tuple(assignments))
try:
    sys.exit(run_up(options, lambda line: print(line, flush=True), (sys.executable, stand_in, mode)))
except (UpFailed, SettingsError) as error:
    sys.exit(str(error))
"""
SECONDS_MAX = 90.0


class Up:
    """One running supervisor, its output read line by line."""

    def __init__(self, directory: Path, mode: str = "good", metadata: str = "embedded", **more: str) -> None:
        self.directory = directory
        brokers = int(more.pop("brokers", 1))
        self.ports = [int(more.pop("port", 0)) or free_base_port(2, brokers), free_base_port(2, brokers)]
        where = (*map(str, self.ports), more.pop("regions", "us,eu"), str(brokers))
        environment = os.environ | more.pop("environment", {})  # type: ignore[operator]
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-c", DRIVER, str(directory), mode, metadata, *where),
                *(
                    str(TESTS / "support/brokers/stand_in_broker.py"),
                    *(f"{key}={value}" for key, value in more.items()),
                ),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )

    def read_until(self, pattern: str) -> str:
        """Output up to the line that matches; the test's own timeout bounds the wait."""
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if re.search(pattern, line):
                return "".join(lines)
        raise AssertionError(f"ended with {self.process.wait()} before saying {pattern!r}:\n{''.join(lines)}")

    def end(self) -> tuple[int, str]:
        """Its exit code and the rest of its output."""
        output, _ = self.process.communicate(timeout=SECONDS_MAX)
        return self.process.returncode, output

    def pids(self) -> dict[str, int]:
        document = json.loads((self.directory / "regions.json").read_text(encoding="utf-8"))
        return {region["name"]: region["pid"] for region in document["regions"]}


Launch = Callable[..., Up]


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Starts supervisors that end with the test, whatever its outcome. Takes the arguments of ``Up``."""
    started: list[Up] = []

    def one(*arguments: Any, **more: Any) -> Up:
        started.append(Up(*arguments, **more))
        return started[-1]

    yield one
    for up in started:
        if up.process.poll() is None:
            up.process.kill()
        up.process.communicate()


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while left := [pid for pid in pids if alive(pid)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it ended before the file was opened, or while it was read
        return False


def test_the_regions_run_until_sigterm_and_again(tmp_path: Path, launch: Launch) -> None:
    for _ in range(2):
        up = launch(tmp_path / "d")
        announced = up.read_until("All regions are up")
        assert f"pulsar://127.0.0.1:{up.ports[0] + 10}" in announced
        pids = list(up.pids().values())
        assert all(map(alive, pids))
        up.process.send_signal(signal.SIGTERM)
        code, rest = up.end()
        assert code == 0, rest
        assert "us stopped in" in rest
        assert "eu stopped in" in rest
        wait_until_gone(pids)


def test_a_region_of_several_brokers(tmp_path: Path, launch: Launch) -> None:
    up = launch(tmp_path / "d", regions="us", brokers="3")
    announced = up.read_until("All regions are up")
    listed = json.loads((tmp_path / "d" / "regions.json").read_text(encoding="utf-8"))["regions"][0]["brokers"]
    settings = [load(Path(one["config"]), (), {}) for one in listed]
    assert [one.brokers.broker_id for one in settings] == ["broker-1", "broker-2", "broker-3"]
    assert [one.network.broker_service_port for one in settings] == [up.ports[0], up.ports[0] + 2, up.ports[0] + 4]
    assert len({one.region.data_directory for one in settings}) == 3
    assert len({one.metadata_store_url for one in settings}) == 1
    assert all(f"us/{one['broker_id']}" in announced for one in listed)
    assert f"pulsar://127.0.0.1:{up.ports[0]},127.0.0.1:{up.ports[0] + 2},127.0.0.1:{up.ports[0] + 4}\n" in announced
    os.kill(listed[1]["pid"], signal.SIGKILL)
    report = up.read_until("Start it again")
    assert "The broker broker-2 of region us" in report
    assert listed[1]["config"] in report
    up.process.terminate()
    code, rest = up.end()
    assert code == 1
    assert "us/broker-3 stopped in" in rest
    wait_until_gone([one["pid"] for one in listed])


def test_several_regions_of_several_brokers(tmp_path: Path, launch: Launch) -> None:
    up = launch(tmp_path / "d", regions="us,eu", brokers="2")
    up.read_until("All regions are up")
    found = clusters_in(tmp_path / "d" / "regions.json")
    first, first_http = up.ports
    assert found["us"].broker_service_url == f"pulsar://127.0.0.1:{first},127.0.0.1:{first + 2}"
    assert found["eu"].service_url == f"http://127.0.0.1:{first_http + 10},127.0.0.1:{first_http + 12}"
    up.process.terminate()
    assert up.end()[0] == 0


def test_the_environment_of_each_region(tmp_path: Path, launch: Launch) -> None:
    up = launch(tmp_path / "d", maxMessageSize="2048", environment={"MERIDIAN_logLevel": "debug"})
    up.read_until("All regions are up")
    settings = load(tmp_path / "d" / "eu" / "broker.conf", (), {})
    assert settings.region.cluster_name == "eu"
    assert settings.region.data_directory == tmp_path / "d" / "eu" / "data"
    assert settings.network.broker_service_port == up.ports[0] + 10
    assert settings.network.max_message_size == 2048
    assert settings.process.log_level == "debug"
    assert settings.region.regions_file == tmp_path / "d" / "regions.json"
    token_file = settings.region.peer_token_file
    assert token_file is not None
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    token = token_file.read_text(encoding="ascii").strip()
    assert len(token) >= 32
    for pid in up.pids().values():
        assert token.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert token.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


def test_the_token_stays_the_same(tmp_path: Path) -> None:
    for _ in range(2):
        directory = Directory(tmp_path)
        directory.make_token()
        directory.close()
        tokens = {(tmp_path / "peer.token").read_text(encoding="ascii")}
    assert len(tokens) == 1


def test_a_broker_that_dies_is_reported_and_the_others_go_on(tmp_path: Path, launch: Launch) -> None:
    up = launch(tmp_path / "d")
    up.read_until("All regions are up")
    pids = up.pids()
    os.kill(pids["us"], signal.SIGKILL)
    report = up.read_until("Start it again")
    assert "region us" in report
    assert "SIGKILL" in report
    assert str(tmp_path / "d" / "us" / "broker.log") in report
    assert alive(pids["eu"])
    up.process.send_signal(signal.SIGINT)
    code, rest = up.end()
    assert code == 1
    assert "eu stopped in" in rest


def test_a_broker_that_does_not_start_stops_all_and_its_log_is_shown(tmp_path: Path, launch: Launch) -> None:
    up = launch(tmp_path / "d", mode="dies")
    code, output = up.end()
    assert code == 1
    assert "exited with code 3 while starting" in output
    assert "the disk is made of cheese" in output
    wait_until_gone(list(up.pids().values()))


def test_a_broker_that_does_not_stop_is_killed(tmp_path: Path, launch: Launch) -> None:
    up = launch(tmp_path / "d", mode="stubborn", brokerShutdownTimeoutMs="3600000")
    up.read_until("All regions are up")
    pids = list(up.pids().values())
    # The first signal begins the drain, which would take an hour; the second ends the wait.
    up.process.send_signal(signal.SIGINT)
    up.read_until("Stopping")
    up.process.send_signal(signal.SIGINT)
    code, output = up.end()
    assert code == 1
    assert "did not stop and was killed" in output
    wait_until_gone(pids)


def test_no_broker_survives_a_supervisor_that_is_killed(tmp_path: Path, launch: Launch) -> None:
    up = launch(tmp_path / "d")
    up.read_until("All regions are up")
    pids = list(up.pids().values())
    up.process.kill()
    wait_until_gone(pids)


def test_a_taken_port_is_named_before_anything_starts(tmp_path: Path, launch: Launch) -> None:
    base = free_base_port(2)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", base + 10))
        taken.listen()
        up = launch(tmp_path / "d", port=str(base))
        code, output = up.end()
    assert code == 1
    assert f"port {base + 10}, meant for the broker of region eu" in output
    assert not (tmp_path / "d" / "regions.json").exists()


def test_a_directory_is_for_one_supervisor_and_one_kind_of_metadata(tmp_path: Path, launch: Launch) -> None:
    up = launch(tmp_path / "d")
    up.read_until("All regions are up")
    with pytest.raises(UpFailed, match="another `meridian up` runs"):
        Directory(tmp_path / "d")
    up.process.terminate()
    assert up.end()[0] == 0
    other = launch(tmp_path / "d", metadata="etcd")
    code, output = other.end()
    assert code == 1
    assert "--metadata embedded" in output


def test_settings_that_up_chooses_are_refused(tmp_path: Path, launch: Launch) -> None:
    up = launch(tmp_path / "d", brokerServicePort="1")
    code, output = up.end()
    assert code == 1
    assert "--base-port" in output


def test_each_region_has_an_etcd_of_its_own(tmp_path: Path, launch: Launch) -> None:
    up = launch(tmp_path / "d", metadata="etcd")
    assert "metadata: etcd " in up.read_until("All regions are up")
    settings = [load(tmp_path / "d" / name / "broker.conf", (), {}) for name in ("us", "eu")]
    urls = {one.metadata_store_url for one in settings}
    assert len(urls) == 2
    assert len({one.metadata.login.password() for one in settings}) == 2
    for url in urls:
        with pytest.raises(MetadataError, match="requires a password"):
            asyncio.run(EtcdMetadataStore.connect(url.removeprefix("etcd:"), "meridian/us"))
    assert all(re.fullmatch(r"etcd:http://127\.0\.0\.1:\d+", url) for url in urls)
    etcd_pids = [int((tmp_path / "d" / name / "etcd" / "etcd.pid").read_text()) for name in ("us", "eu")]
    up.process.terminate()
    assert up.end()[0] == 0
    wait_until_gone(etcd_pids)
