# SPDX-License-Identifier: Apache-2.0
"""Shared metadata, measured on three brokers, each with an etcd of its own.

*Visible*: policies are set in one region at a rate, over its admin API; what counts is the time from the request to the
change in the etcd of each other region. *Local*: the same request with and without synchronization. *Behind*: a region
whose store is empty, until it has 100,000 values. *Ten*: what a comparison sends and receives when ten values of
100,000 differ, HTTP and its proofs included. *Memory*: what a broker keeps of each value to compare it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import resource
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

import aiohttp
from meridian_broker.engines.etcd.keys import metadata_of
from meridian_broker.engines.etcd.metadata import EtcdMetadataStore
from meridian_broker.metadata import keys
from meridian_broker.metadata.records import encode
from meridian_broker.metadata.store import Put
from meridian_broker.metadata.sync.digests import DigestTree
from meridian_broker.metadata.sync.stamped import Stamped
from meridian_broker.positions.clock import Stamp
from support.brokers.broker_process import BrokerProcess, started_afresh, wait_until
from support.brokers.etcd_server import EtcdServer
from support.brokers.free_ports import free_port

REGIONS = ("us", "eu", "ap")
TOPIC = "persistent://public/default/metadata-events"
NAMESPACES = 51
"""Whose policies are set in turn, a third of them in each region."""


@dataclass
class Found:
    """All figures; None: not measured."""

    writes_per_second: float
    visible_p50_ms: float
    visible_p99_ms: float
    local_off_ms: float
    local_on_ms: float
    behind_values: int
    behind_seconds: float
    ten_bytes: int
    memory_values: int
    memory_bytes_per_value: float

    @property
    def local_ratio(self) -> float:
        return self.local_on_ms / self.local_off_ms


class Counter:
    """A port in front of another one that counts what passes."""

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
    """Three regions on this machine. ``counter`` stands in front of the admin port of us, for the others."""

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

    def status(self, region: str) -> dict[str, object]:
        found: dict[str, object] = self.brokers[region].http("GET", "/meridian/v1/metadata/status").json
        return found

    def wait_in_step(self, *regions: str, seconds: float = 300) -> None:
        wait_until(lambda: all(self.status(region).get("synced") for region in regions), "step", seconds)


def ttl(number: int) -> str:
    return f"/admin/v2/namespaces/bench/n{number}/messageTTL"


def stored_at(number: int) -> str:
    return f"{keys.namespace(f'bench/n{number}')}/policies/message_ttl_in_seconds"


async def local(deployment: Deployment, count: int) -> float:
    """Median of one request after the other, in milliseconds."""
    times = []
    async with aiohttp.ClientSession(deployment.brokers["us"].admin_url) as session:
        for number in range(count):
            begun = time.perf_counter()
            async with session.post(ttl(number % NAMESPACES), json=1000 + number) as answer:
                assert answer.status == 204, await answer.text()
            times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1000


async def visible(deployment: Deployment, rate: int, seconds: float) -> tuple[float, list[float]]:
    """Writes per second that were answered, and for each write and other region the milliseconds until it was there.

    The regions write in turn, each to namespaces of its own.
    """
    sent: dict[int, tuple[int, float]] = {}
    seen: list[float] = []
    async with contextlib.AsyncExitStack() as stack:
        followers, sessions = [], []
        for place, region in enumerate(REGIONS):
            store = await stack.enter_async_context(deployment.store(region))
            ready = asyncio.Event()
            followers.append(asyncio.create_task(follow(store, place, sent, seen, ready)))
            await ready.wait()
            url = deployment.brokers[region].admin_url
            sessions.append(await stack.enter_async_context(aiohttp.ClientSession(url)))

        async def write(number: int) -> None:
            place = number % len(REGIONS)
            sent[number] = place, time.perf_counter()
            async with sessions[place].post(ttl(number % NAMESPACES), json=number) as answer:
                assert answer.status == 204, await answer.text()

        count, begun = round(rate * seconds), time.perf_counter()
        writes = []
        for number in range(count):
            await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
            writes.append(asyncio.create_task(write(100_000 + number)))
        await asyncio.gather(*writes)
        took = time.perf_counter() - begun
        await asyncio.sleep(2)
        for one in followers:
            one.cancel()
    return count / took, seen


async def follow(
    store: EtcdMetadataStore, place: int, sent: dict[int, tuple[int, float]], seen: list[float], ready: asyncio.Event
) -> None:
    """What becomes visible in the region with this number, and was written in another one."""
    async for changes in store.watch(keys.namespaces_of("bench") + "/"):
        now = time.perf_counter()
        ready.set()
        for change in changes:
            if change.record is not None and change.path.endswith("/message_ttl_in_seconds"):
                number = json.loads(change.record.value)["value"]
                if number in sent and sent[number][0] != place:
                    seen.append((now - sent[number][1]) * 1000)


async def fill(deployment: Deployment, region: str, values: int) -> None:
    """Namespaces of four values each, written to the store directly."""
    async with deployment.store(region) as store:
        operations = [Put(keys.tenant("many"), encode({}, Stamp(1000, 0, region)))]
        for number in range(values // 4):
            base, stamp = keys.namespace(f"many/n{number}"), Stamp(1000 + number, 0, region)
            operations.append(Put(base, encode({}, stamp)))
            operations.append(Put(f"{base}/policies/replication_clusters/{region}", encode(True, stamp)))
            operations.append(Put(f"{base}/policies/message_ttl_in_seconds", encode(number, stamp)))
            operations.append(Put(f"{base}/policies/max_topics_per_namespace", encode(7, stamp)))
        for first in range(0, len(operations), 128 * 16):
            group = operations[first : first + 128 * 16]
            await asyncio.gather(*(store.transact([], group[at : at + 128]) for at in range(0, len(group), 128)))


async def change_ten(deployment: Deployment) -> None:
    """Behind the broker's back, so that no event tells of it."""
    async with deployment.store("us") as store:
        stamp = Stamp(time.time_ns() // 1_000_000, 0, "us")
        for number in range(10):
            path = f"{keys.namespace(f'many/n{number}')}/policies/message_ttl_in_seconds"
            await store.put(path, encode(5_000_000, stamp))


def memory(values: int) -> float:
    """Bytes of a digest tree per value."""
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tree = DigestTree()
    for number in range(values):
        path = f"{keys.NAMESPACES}/tenant-{number % 100}/namespace-{number // 8}/policies/policy-{number % 8}"
        tree.set(path, Stamped(Stamp(1_700_000_000_000 + number, 0, "us"), b"%d" % number))
    assert len(tree) == values
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / values


def measure(quick: bool, writes: int) -> Found:
    values, memory_values = (10_000, 100_000) if quick else (100_000, 1_000_000)
    per_value = memory(memory_values)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        deployment = Deployment(Path(name), stack)
        deployment.start(*REGIONS)
        us = deployment.brokers["us"]
        tenant = {"adminRoles": [], "allowedClusters": [*REGIONS]}
        assert us.http("PUT", "/admin/v2/tenants/bench", tenant).status == 204
        for number in range(NAMESPACES):
            assert us.http("PUT", f"/admin/v2/namespaces/bench/n{number}", {}).status == 204
        off = asyncio.run(local(deployment, 100 if quick else 400))
        for region in REGIONS:
            deployment.switch(region, on=True)
        deployment.wait_in_step(*REGIONS)
        on = asyncio.run(local(deployment, 100 if quick else 400))
        deployment.wait_in_step(*REGIONS)
        rate, times = asyncio.run(visible(deployment, writes, 3 if quick else 15))
        times.sort()
        eu_has = int(str(deployment.status("eu")["values"]))
        for region in REGIONS:
            deployment.brokers[region].kill()
        asyncio.run(fill(deployment, "us", values))
        deployment.start("us")
        deployment.start("eu")
        begun = time.perf_counter()
        wait_until(lambda: int(str(deployment.status("eu").get("values", 0))) >= eu_has + values, "eu to catch up", 600)
        behind = time.perf_counter() - begun
        asyncio.run(change_ten(deployment))
        time.sleep(1)
        before = deployment.counter.bytes
        answer = deployment.brokers["eu"].http("GET", "/meridian/v1/metadata/diff?region=us")
        assert answer.status == 200, answer.text
        assert answer.json["count"] == 10, answer.json["count"]
        ten = deployment.counter.bytes - before
    return Found(
        round(rate, 1),
        round(statistics.median(times), 1),
        round(times[int(len(times) * 0.99)], 1),
        round(off, 2),
        round(on, 2),
        values,
        round(behind, 1),
        ten,
        memory_values,
        round(per_value),
    )


def lines(found: Found) -> Iterator[str]:
    yield f"visible in the other regions, at {found.writes_per_second:.0f} writes/s: p50 {found.visible_p50_ms} ms, "
    yield f"p99 {found.visible_p99_ms} ms (target: p99 <= 50 ms)\n"
    yield f"a local write: {found.local_off_ms} ms without, {found.local_on_ms} ms with synchronization: "
    yield f"{found.local_ratio:.2f} times (target: <= 1.3)\n"
    yield f"{found.behind_values} values behind: {found.behind_seconds} s (target for 100,000: <= 20 s)\n"
    yield f"ten of {found.behind_values} values differ: {found.ten_bytes / 1024:.0f} KiB (target: <= 200 KiB)\n"
    yield f"memory for comparisons: {found.memory_bytes_per_value:.0f} bytes per value, of {found.memory_values}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rate", type=int, default=200, help="writes a second, of all regions together")
    chosen = parser.parse_args()
    found = measure(chosen.quick, chosen.rate)
    if chosen.json:
        print(json.dumps(asdict(found) | {"local_ratio": round(found.local_ratio, 2)}))
    else:
        print("".join(lines(found)), end="")
    is_met = (
        found.visible_p99_ms <= 50
        and found.local_ratio <= 1.3
        and found.behind_seconds <= 20
        and found.ten_bytes <= 200 << 10
    )
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
