# SPDX-License-Identifier: Apache-2.0
"""Shared metadata, measured on three brokers, each with its own etcd.

*Visible*: policies are set in one region at a rate, over its admin API; what counts is the time from the request to the
change in each other region's etcd. *Local*: the same request with and without synchronization, back to back, in
alternating turns, so that the work of all regions on earlier requests competes with it for this machine; *alone*: ten
requests a second.
*Behind*: a region whose store is empty, until it has 100,000 values. *Ten*: what a comparison sends and receives when
ten values of 100,000 differ, including HTTP and proofs. *Memory*: what a broker keeps per value to compare it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import json
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp
from deployment import REGIONS, Deployment
from meridian_broker.engines.etcd.metadata import EtcdMetadataStore
from meridian_broker.metadata import keys
from meridian_broker.metadata.records import encode
from meridian_broker.metadata.store import Put
from meridian_broker.metadata.sync.digests import DigestTree
from meridian_broker.metadata.sync.stamped import Stamped
from meridian_broker.positions.clock import Stamp
from support.brokers.broker_process import wait_until

NAMESPACES = 51
"""Namespaces whose policies are set in turn, a third of them in each region."""
PARTS = ("memory", "local", "visible", "behind")
TURNS = 4
"""Without and with synchronization each: what else this machine does changes slower than that."""
ATTEMPTS = 5
"""Regions compare whenever they want, so they may do so between the change of ten values and the question about it."""
_values = itertools.count(1000)
"""Values to set, each once: setting an existing value writes nothing."""


@dataclass
class Local:
    """What a write costs its caller."""

    off_ms: float
    on_ms: float
    alone_off_ms: float
    alone_on_ms: float

    @property
    def ratio(self) -> float:
        return self.on_ms / self.off_ms


@dataclass
class Visible:
    """The effects of a rate of writes."""

    writes_per_second: float
    """Writes that were answered."""
    p50_ms: float
    p99_ms: float
    overtaken: int
    """Writes never seen in another region: a later write of the same path was sent instead."""
    brokers_ms: float
    """Processor time of all brokers together for one write that is in all regions."""
    etcds_ms: float
    generator_ms: float
    """Processor time of the writers and watchers."""
    fsyncs: float
    """Of all etcds together, per write."""
    fsync_ms: float
    """Average duration of one fsync."""


@dataclass
class Comparing:
    """What comparisons cost."""

    behind_values: int
    behind_seconds: float
    ten_bytes: int


def ttl(number: int) -> str:
    return f"/admin/v2/namespaces/bench/n{number}/messageTTL"


def stored_at(number: int) -> str:
    return f"{keys.namespace(f'bench/n{number}')}/policies/message_ttl_in_seconds"


async def local(deployment: Deployment, count: int, pause: float = 0.0) -> list[float]:
    """Milliseconds of consecutive requests, with pauses of ``pause`` seconds."""
    times = []
    async with aiohttp.ClientSession(deployment.brokers["us"].admin_url) as session:
        for number in range(count):
            begun = time.perf_counter()
            async with session.post(ttl(number % NAMESPACES), json=next(_values)) as answer:
                assert answer.status == 204, await answer.text()
            times.append((time.perf_counter() - begun) * 1000)
            await asyncio.sleep(pause)
    return times


async def visible(deployment: Deployment, rate: int, seconds: float) -> tuple[float, list[float]]:
    """Writes per second that were answered, and for each write and other region the milliseconds until it arrived.

    The regions write in turn, each to its own namespaces.
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
            writes.append(asyncio.create_task(write(next(_values))))
        await asyncio.gather(*writes)
        took = time.perf_counter() - begun
        await asyncio.sleep(2)
        for one in followers:
            one.cancel()
    return count / took, seen


async def follow(
    store: EtcdMetadataStore, place: int, sent: dict[int, tuple[int, float]], seen: list[float], ready: asyncio.Event
) -> None:
    """Record what becomes visible in the region with this number and was written in another one."""
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


async def change_ten(deployment: Deployment, attempt: int) -> None:
    """Write behind the broker's back, so that no event reports it."""
    async with deployment.store("us") as store:
        stamp = Stamp(time.time_ns() // 1_000_000, 0, "us")
        for number in range(10):
            path = f"{keys.namespace(f'many/n{number}')}/policies/message_ttl_in_seconds"
            await store.put(path, encode(5_000_000 + attempt, stamp))


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


def prepare(deployment: Deployment) -> None:
    """The namespaces whose policies are set."""
    us = deployment.brokers["us"]
    tenant = {"adminRoles": [], "allowedClusters": [*REGIONS]}
    assert us.http("PUT", "/admin/v2/tenants/bench", tenant).status == 204
    for number in range(NAMESPACES):
        assert us.http("PUT", f"/admin/v2/namespaces/bench/n{number}", {}).status == 204
    asyncio.run(local(deployment, NAMESPACES))  # what is slow once


def switch_on(deployment: Deployment) -> None:
    for region in REGIONS:
        deployment.switch(region, on=True)
    deployment.wait_in_step(*REGIONS)


def switch_off(deployment: Deployment) -> None:
    for region in REGIONS:
        deployment.switch(region, on=False)


def measure_local(deployment: Deployment, count: int) -> Local:
    """Synchronization is off before this, and on afterwards."""
    off: list[float] = []
    on: list[float] = []
    alone_off: list[float] = []
    alone_on: list[float] = []
    for turn in range(TURNS):
        if turn:
            switch_off(deployment)
        for times, alone in ((off, alone_off), (on, alone_on)):
            if times is on:
                switch_on(deployment)
            asyncio.run(local(deployment, NAMESPACES))  # what is slow once
            alone += asyncio.run(local(deployment, count // 4 // TURNS, 0.1))
            times += asyncio.run(local(deployment, count // TURNS))
        deployment.wait_in_step(*REGIONS)
    return Local(*map(statistics.median, (off, on, alone_off, alone_on)))


def measure_visible(deployment: Deployment, rate: int, seconds: float) -> Visible:
    deployment.wait_in_step(*REGIONS)
    before, syncs = deployment.processor_ms(), deployment.fsyncs()
    writes_per_second, times = asyncio.run(visible(deployment, rate, seconds))
    writes = round(rate * seconds)
    brokers, etcds, here = ((now - then) / writes for now, then in zip(deployment.processor_ms(), before, strict=True))
    count, took_ms = (now - then for now, then in zip(deployment.fsyncs(), syncs, strict=True))
    times.sort()
    p50_ms, p99_ms = statistics.median(times), times[int(len(times) * 0.99)]
    overtaken = (len(REGIONS) - 1) * writes - len(times)
    return Visible(
        writes_per_second, p50_ms, p99_ms, overtaken, brokers, etcds, here, count / writes, took_ms / max(1, count)
    )


def measure_comparing(deployment: Deployment, values: int) -> Comparing:
    """After synchronization was switched on."""
    eu_has = int(str(deployment.status("eu")["values"]))
    for region in REGIONS:
        deployment.brokers[region].kill()
    asyncio.run(fill(deployment, "us", values))
    deployment.start("us")
    deployment.start("eu")
    begun = time.perf_counter()
    wait_until(lambda: int(str(deployment.status("eu").get("values", 0))) >= eu_has + values, "eu to catch up", 600)
    behind = time.perf_counter() - begun
    for attempt in range(ATTEMPTS):
        asyncio.run(change_ten(deployment, attempt))
        time.sleep(1)
        before = deployment.counter.bytes
        answer = deployment.brokers["eu"].http("GET", "/meridian/v1/metadata/diff?region=us")
        assert answer.status == 200, answer.text
        ten = deployment.counter.bytes - before
        if answer.json["count"] == 10:
            break
    else:
        raise AssertionError(f"each time eu had taken {10 - answer.json['count']} of the ten values already")
    return Comparing(values, behind, ten)


def local_told(found: Local) -> str:
    return (
        f"a local write: {found.off_ms:.2f} ms without, {found.on_ms:.2f} ms with synchronization: "
        f"{found.ratio:.2f} times (target: <= 1.3); ten a second: {found.alone_off_ms:.2f} and "
        f"{found.alone_on_ms:.2f} ms"
    )


def visible_told(found: Visible) -> str:
    return (
        f"visible in the other regions, at {found.writes_per_second:.0f} writes/s: p50 {found.p50_ms:.1f} ms, "
        f"p99 {found.p99_ms:.1f} ms (target: p99 <= 50 ms at 200); {found.overtaken} were overtaken by later ones; a "
        f"write takes {found.brokers_ms:.1f} ms of a processor in brokers, {found.etcds_ms:.1f} in etcds, "
        f"{found.generator_ms:.1f} here, and {found.fsyncs:.1f} fsyncs of etcds, {found.fsync_ms:.1f} ms each"
    )


def compared_told(found: Comparing) -> str:
    return (
        f"{found.behind_values} values behind: {found.behind_seconds:.1f} s (target for 100,000: <= 20 s); ten of "
        f"{found.behind_values} values differ: {found.ten_bytes / 1024:.0f} KiB (target: <= 200 KiB)"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer writes; all targets are measured")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part; repeatable")
    parser.add_argument(
        "--rate", type=int, action="append", help="writes per second, all regions together; repeatable; default: 200"
    )
    chosen = parser.parse_args()
    parts, rates = chosen.only or PARTS, chosen.rate or [200]
    figures: dict[str, float] = {}
    is_met = True

    def tell(what: str, found: Local | Visible | Comparing, text: str, *, is_good: bool) -> None:
        nonlocal is_met
        is_met = is_met and is_good
        figures.update({f"{what}_{name}": round(one, 2) for name, one in asdict(found).items()})
        if not chosen.json:
            print(text, flush=True)

    if "memory" in parts:
        figures["memory_bytes_per_value"] = round(per_value := memory(100_000 if chosen.quick else 1_000_000))
        if not chosen.json:
            print(f"memory for comparisons: {per_value:.0f} bytes per value", flush=True)
    if {*parts} & {"local", "visible", "behind"}:
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
            deployment = Deployment(Path(name), stack)
            deployment.start(*REGIONS)
            prepare(deployment)
            if "local" in parts:
                cost = measure_local(deployment, 100 if chosen.quick else 400)
                tell("local", cost, local_told(cost), is_good=cost.ratio <= 1.3)
            else:
                switch_on(deployment)
            for rate in rates if "visible" in parts else ():
                seen = measure_visible(deployment, rate, 6 if chosen.quick else 15)
                tell(f"visible_{rate}", seen, visible_told(seen), is_good=seen.p99_ms <= 50)
            if "behind" in parts:
                behind = measure_comparing(deployment, 100_000)
                is_good = behind.behind_seconds <= 20 and behind.ten_bytes <= 200 << 10
                tell("compared", behind, compared_told(behind), is_good=is_good)
    if chosen.json:
        print(json.dumps(figures))
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
