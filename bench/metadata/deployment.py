# SPDX-License-Identifier: Apache-2.0
"""Three regions on this machine, each a broker and an etcd, and the resources that they use."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

from meridian_broker.engines.etcd.keys import metadata_of
from meridian_broker.engines.etcd.metadata import EtcdMetadataStore
from support.brokers.broker_process import BrokerProcess, started_afresh, wait_until
from support.brokers.etcd_server import EtcdServer
from support.brokers.free_ports import free_port

REGIONS = ("us", "eu", "ap")
TOPIC = "persistent://public/default/metadata-events"


class Counter:
    """A port in front of another one that counts the bytes that pass."""

    def __init__(self, target: int) -> None:
        self.bytes = 0
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            comes, _ = self._listener.accept()
            goes = socket.create_connection(("127.0.0.1", self._target))
            for one, two in ((comes, goes), (goes, comes)):
                threading.Thread(target=self._pass, args=(one, two), daemon=True).start()

    def _pass(self, one: socket.socket, two: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                self.bytes += len(data)
                two.sendall(data)
            two.shutdown(socket.SHUT_WR)


class Deployment:
    """Three regions on this machine. For the others, ``counter`` sits in front of us's admin port."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack) -> None:
        self.directory = directory
        self.stack = stack
        ports = {region: (free_port(), free_port()) for region in REGIONS}
        self.counter = Counter(ports["us"][1])
        listed = [
            {
                "name": region,
                "service_url": f"pulsar://127.0.0.1:{port}",
                "admin_url": f"http://127.0.0.1:{self.counter.port if region == 'us' else http_port}",
            }
            for region, (port, http_port) in ports.items()
        ]
        regions, secret = directory / "regions.json", directory / "peer.secret"
        regions.write_text(json.dumps({"regions": listed}), encoding="utf-8")
        secret.write_text("s" * 40, encoding="utf-8")
        secret.chmod(0o600)
        self.etcds = {region: EtcdServer(directory / f"etcd-{region}") for region in REGIONS}
        for etcd in self.etcds.values():
            stack.callback(etcd.close)
        self.brokers = {
            region: BrokerProcess(
                region,
                directory / region,
                port=port,
                http_port=http_port,
                regions_file=regions,
                peer_token_file=secret,
                metadata_url=f"etcd:{self.etcds[region].url}",
                launch=started_afresh,
            )
            for region, (port, http_port) in ports.items()
        }

    def start(self, *regions: str) -> None:
        for region in regions:
            self.brokers[region].start(wait=False)
            self.stack.callback(self.brokers[region].kill)
        for region in regions:
            self.brokers[region].wait_healthy()

    @contextlib.asynccontextmanager
    async def store(self, region: str) -> AsyncIterator[EtcdMetadataStore]:
        store = await EtcdMetadataStore.connect(self.etcds[region].url, metadata_of(region))
        try:
            yield store
        finally:
            await store.close()

    def switch(self, region: str, *, on: bool) -> None:
        path = "/admin/v2/brokers/configuration/metadataSyncEventTopic"
        method, value = ("POST", f"/{quote(TOPIC, safe='')}") if on else ("DELETE", "")
        assert self.brokers[region].http(method, path + value).status == 204
        if on:
            wait_until(lambda: self.status(region).get("active"), f"{region} to read the topic")
        else:
            wait_until(lambda: "outbox" not in self.status(region), f"{region} to leave the topic")

    def status(self, region: str) -> dict[str, object]:
        found: dict[str, object] = self.brokers[region].http("GET", "/meridian/v1/metadata/status").json
        return found

    def processor_ms(self) -> tuple[float, float, float]:
        """Processor seconds that brokers, etcds and this process have used so far."""
        brokers = sum(_processor_ms(one.pid) for one in self.brokers.values())
        return brokers, sum(_processor_ms(one.pid) for one in self.etcds.values()), _processor_ms(os.getpid())

    def fsyncs(self) -> tuple[float, float]:
        """Number of fsyncs of all etcds so far, and milliseconds that they took."""
        found = [_fsyncs(one.url) for one in self.etcds.values()]
        return sum(count for count, _ in found), sum(ms for _, ms in found)

    def wait_in_step(self, *regions: str, seconds: float = 300) -> None:
        wait_until(
            lambda: all(self.status(region).get("synced") for region in regions), "the regions to be in step", seconds
        )


def _processor_ms(pid: int) -> float:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def _fsyncs(url: str) -> tuple[float, float]:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    name = "etcd_disk_wal_fsync_duration_seconds_"
    found = {line.split()[0].removeprefix(name): float(line.split()[1]) for line in lines if line.startswith(name)}
    return found["count"], found["sum"] * 1000
