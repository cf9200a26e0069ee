# SPDX-License-Identifier: Apache-2.0
"""Shared metadata, measured on three brokers, each with an etcd of its own.

*Visible*: policies are set in one region at a rate, over its admin API; what counts is the time from the request to the
change in the etcd of each other region. *Local*: the same request with and without synchronization, one right
after the other, so that what all regions do about the last ones competes with it for this machine; *alone*: ten a
second. *Behind*: a region
whose store is empty, until it has 100,000 values. *Ten*: what a comparison sends and receives when ten values of
100,000 differ, HTTP and its proofs included. *Memory*: what a broker keeps of each value to compare it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
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
class Writing:
    """What writing costs."""

    local_off_ms: float = 0.0
    local_on_ms: float = 0.0
    alone_off_ms: float = 0.0
    alone_on_ms: float = 0.0
    processor_ms: float = 0.0
    """Of all brokers and etcds together, for one write that is in all regions."""
    writes_per_second: float = 0.0
    visible_p50_ms: float = 0.0
    visible_p99_ms: float = 0.0

    @property
    def local_ratio(self) -> float:
        return self.local_on_ms / self.local_off_ms

    @property
    def alone_ratio(self) -> float:
        return self.alone_on_ms / self.alone_off_ms


@dataclass
class Comparing:
    """What comparisons cost."""

    behind_values: int
    behind_seconds: float
    ten_bytes: int


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

    def processor_ms(self) -> int:
        """That brokers and etcds have used so far."""
        pids = [one.pid for one in self.brokers.values()] + [one.pid for one in self.etcds.values()]
        stats = [Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split() for pid in pids]
        ticks = sum(int(one[11]) + int(one[12]) for one in stats)
        return ticks * 1000 // os.sysconf("SC_CLK_TCK")

    def wait_in_step(self, *regions: str, seconds: float = 300) -> None:
        wait_until(lambda: all(self.status(region).get("synced") for region in regions), "step", seconds)


def ttl(number: int) -> str:
    return f"/admin/v2/namespaces/bench/n{number}/messageTTL"


def stored_at(number: int) -> str:
    return f"{keys.namespace(f'bench/n{number}')}/policies/message_ttl_in_seconds"


async def local(deployment: Deployment, count: int, pause: float = 0.0) -> float:
    """Median of one request after the other, in milliseconds, with pauses of so many seconds."""
    times = []
    async with aiohttp.ClientSession(deployment.brokers["us"].admin_url) as session:
        for number in range(count):
            begun = time.perf_counter()
            async with session.post(ttl(number % NAMESPACES), json=1000 + number) as answer:
                assert answer.status == 204, await answer.text()
            times.append(time.perf_counter() - begun)
            await asyncio.sleep(pause)
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


def measure_writing(deployment: Deployment, count: int, rate: int, seconds: float) -> Writing:
    """With synchronization on at the end."""
    us, found = deployment.brokers["us"], Writing()
    tenant = {"adminRoles": [], "allowedClusters": [*REGIONS]}
    assert us.http("PUT", "/admin/v2/tenants/bench", tenant).status == 204
    for number in range(NAMESPACES):
        assert us.http("PUT", f"/admin/v2/namespaces/bench/n{number}", {}).status == 204
    asyncio.run(local(deployment, NAMESPACES))  # what is slow once
    found.alone_off_ms = asyncio.run(local(deployment, count // 4, 0.1))
    found.local_off_ms = asyncio.run(local(deployment, count))
    for region in REGIONS:
        deployment.switch(region, on=True)
    deployment.wait_in_step(*REGIONS)
    asyncio.run(local(deployment, NAMESPACES))
    found.alone_on_ms = asyncio.run(local(deployment, count // 4, 0.1))
    found.local_on_ms = asyncio.run(local(deployment, count))
    deployment.wait_in_step(*REGIONS)
    before = deployment.processor_ms()
    found.writes_per_second, times = asyncio.run(visible(deployment, rate, seconds))
    found.processor_ms = (deployment.processor_ms() - before) / round(rate * seconds)
    times.sort()
    found.visible_p50_ms, found.visible_p99_ms = statistics.median(times), times[int(len(times) * 0.99)]
    return found


def measure_comparing(deployment: Deployment, values: int) -> Comparing:
    """After ``measure_writing``."""
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
    return Comparing(values, behind, ten)


def written(found: Writing) -> Iterator[str]:
    yield f"visible in the other regions, at {found.writes_per_second:.0f} writes/s: "
    yield f"p50 {found.visible_p50_ms:.1f} ms, p99 {found.visible_p99_ms:.1f} ms (target: p99 <= 50 ms); "
    yield f"{found.processor_ms:.1f} ms of a processor each\n"
    yield f"a local write: {found.local_off_ms:.2f} ms without, {found.local_on_ms:.2f} ms with synchronization: "
    yield f"{found.local_ratio:.2f} times (target: <= 1.3)\n"
    yield f"ten a second: {found.alone_off_ms:.2f} ms without, {found.alone_on_ms:.2f} ms with it: "
    yield f"{found.alone_ratio:.2f} times\n"


def compared(found: Comparing, memory_per_value: float) -> Iterator[str]:
    yield f"{found.behind_values} values behind: {found.behind_seconds:.1f} s (target for 100,000: <= 20 s)\n"
    yield f"ten of {found.behind_values} values differ: {found.ten_bytes / 1024:.0f} KiB (target: <= 200 KiB)\n"
    yield f"memory for comparisons: {memory_per_value:.0f} bytes per value\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--writing", action="store_true", help="only what writing costs")
    parser.add_argument("--rate", type=int, default=200, help="writes a second, of all regions together")
    chosen = parser.parse_args()
    per_value = 0.0 if chosen.writing else memory(100_000 if chosen.quick else 1_000_000)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        deployment = Deployment(Path(name), stack)
        deployment.start(*REGIONS)
        writing = measure_writing(deployment, *((100, chosen.rate, 3) if chosen.quick else (400, chosen.rate, 15)))
        figures = asdict(writing) | {"local_ratio": writing.local_ratio, "alone_ratio": writing.alone_ratio}
        text = [*written(writing)]
        is_met = writing.visible_p99_ms <= 50 and writing.local_ratio <= 1.3
        if not chosen.writing:
            comparing = measure_comparing(deployment, 10_000 if chosen.quick else 100_000)
            figures |= asdict(comparing) | {"memory_bytes_per_value": per_value}
            text += compared(comparing, per_value)
            is_met = is_met and comparing.behind_seconds <= 20 and comparing.ten_bytes <= 200 << 10
    print(json.dumps({name: round(one, 2) for name, one in figures.items()}) if chosen.json else "".join(text).rstrip())
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
