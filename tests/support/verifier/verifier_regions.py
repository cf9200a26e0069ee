# SPDX-License-Identifier: Apache-2.0
"""Regions that serve the export contract: synthetic worlds as real logs and snapshot files, and real encoder children.

The HTTP side is a stand-in of forty lines; everything behind it is a broker's own code.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from meridian_broker.admin.export.plan import Planner
from meridian_broker.engines.local.store import LocalLedgerStore
from meridian_broker.ledgers.entry import BATCH, MARKER, EntryHeader, pack_extras, pack_foreign, pack_own
from meridian_broker.positions.clock import ZERO
from meridian_broker.positions.dropped import Cause, Dropped
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.positions.progress import Progress
from support.verifier.verifier_worlds import REGIONS, SUBSCRIPTIONS, Acks, Copy, Region, Simulation, whole


def stored(region: str, copy: Copy) -> bytes:
    """The entry as a broker stores it."""
    entry = copy.entry
    flags = (MARKER if entry.marker else 0) | (BATCH if entry.messages > 1 else 0)
    times = entry.publish_ms, entry.publish_ms + (0 if region == entry.origin else 5)
    if region == entry.origin:
        extras = pack_extras(entry.replicate_to, None)
        header = pack_own(flags, entry.messages, 0, copy.checksum, *times, *entry.prev, extras)
    else:
        header = pack_foreign(
            EntryHeader(
                flags,
                0,
                entry.messages,
                0,
                copy.checksum,
                *times,
                Position(*entry.prev),
                entry.origin,
                Position(*entry.place),
                entry.replicate_to,
                None,
            )
        )
    return header + b"body"


async def write_log(directory: Path, region: str, copies: list[Copy]) -> None:
    """Write a log directory with these entries, in the ledgers of their positions."""
    store = await LocalLedgerStore.start(directory)
    ledgers: dict[int, list[Copy]] = {}
    for copy in copies:
        ledgers.setdefault(copy.place[0], []).append(copy)
    for ledger, own in ledgers.items():
        writer = await store.create(ledger, 1)
        for copy in own:
            durable = asyncio.get_running_loop().create_future()
            assert writer.append(stored(region, copy), durable.set_result) == copy.place[1]
            if copy is own[-1]:
                assert await durable == copy.place[1]
        await writer.seal()
    await store.close()


def encoded(acks: Acks) -> str:
    progress = Progress()
    for entry, bits in acks.items():
        prev, place = Position(*entry.prev), Position(*entry.place)
        if bits == whole(entry):
            progress.ack(ZERO, entry.origin, prev, place)
        elif bits:
            progress.ack_batch(ZERO, entry.origin, place, entry.messages, bits, prev)
    return b64encode(progress.encode()).decode()


def record(topic: str, region: Region, *, earlier: bool) -> dict[str, Any]:
    """A topic's line of the snapshot file."""
    ledgers: dict[int, int] = {}
    for copy in region.log:
        ledgers[copy.place[0]] = copy.place[1] + 1
    last = region.earlier_last if earlier else region.last_origin
    return {
        "topic": topic,
        "region": region.name,
        "ledgers": [{"id": one, "entries": count, "size": 0, "sealed": True} for one, count in ledgers.items()],
        "last_own": text(last.get(region.name, EARLIEST)),
        "last_origin": {name: text(place) for name, place in last.items() if name != region.name},
        "trimmed_to": text(region.trimmed_to),
        "trimmed_origins": {name: text(place) for name, place in region.trimmed.items()},
        "links": [
            {"remote": name, "connected": True, "backlog": 0, "last_ack_ms": 0}
            for name in REGIONS
            if name != region.name
        ],
        "subscriptions": [subscription(region, name, earlier=earlier) for name in SUBSCRIPTIONS],
    }


def subscription(region: Region, name: str, *, earlier: bool) -> dict[str, Any]:
    passed = region.passed[name]
    mark_delete = EARLIEST
    deleted: list[list[str]] = []
    contiguous = True
    for copy in region.log:
        contiguous = contiguous and copy.place in passed
        if contiguous:
            mark_delete = Position(*copy.place)
        elif copy.place in passed:
            before = f"{copy.place[0]}:{copy.place[1] - 1}"
            if deleted and deleted[-1][1] == before:
                deleted[-1][1] = text(copy.place)
            else:
                deleted.append([before, text(copy.place)])
    dropped = Dropped()
    for entry in region.dropped[name]:
        dropped.add(Cause.TTL, entry.origin, Position(*entry.prev), Position(*entry.place))
    return {
        "name": name,
        "replicated": True,
        "durable": True,
        "type": "Shared",
        "mark_delete": text(mark_delete),
        "read_position": text(mark_delete),
        "individually_deleted": deleted,
        "progress": encoded(region.earlier[name] if earlier else region.later[name]),
        "firsthand": encoded(region.firsthand[name]),
        "dropped": b64encode(dropped.encode()).decode(),
    }


def text(place: tuple[int, int]) -> str:
    return f"{place[0]}:{place[1]}"


def write_snapshot(path: Path, records: list[dict[str, Any]]) -> dict[str, int]:
    """Write the file; return the number of partitions per table."""
    planner = Planner()
    with path.open("w", encoding="utf-8") as file:
        for one in [*records, {"metadata": []}]:
            line = json.dumps(one) + "\n"
            planner.add(one, len(line))
            file.write(line)
    return planner.partitions()


class ServedRegion:
    """One region's export port. POSTs are answered with S1 and S2 in turn."""

    def __init__(self, directory: Path, region: str, simulations: Mapping[str, Simulation]) -> None:
        self.region = region
        self.directory = directory
        self.port = 0
        self._asked = 0
        self.records = [
            [record(topic, one.regions[region], earlier=earlier) for topic, one in sorted(simulations.items())]
            for earlier in (True, False)
        ]
        self._copies = [copy for one in simulations.values() for copy in one.regions[region].log]

    async def start(self) -> web.AppRunner:
        self.directory.mkdir(parents=True)
        await write_log(self.directory / "log", self.region, self._copies)
        application = web.Application()
        application.router.add_post("/meridian/v1/export", self._take)
        application.router.add_get("/meridian/v1/export/{snapshot}/{table}", self._table)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        return runner

    async def _take(self, _: web.Request) -> web.Response:
        name = f"s{self._asked}"
        path = self.directory / f"{name}.jsonl"
        partitions = write_snapshot(path, self.records[self._asked % len(self.records)])
        self._asked += 1
        answer = {"snapshot": name, "region": self.region, "taken_ms": 1_790_000_000_000 + 2000 * self._asked}
        return web.json_response({**answer, "expires": 0, "format": 1, "partitions": partitions})

    async def _table(self, request: web.Request) -> web.StreamResponse:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "meridian_broker.admin.export.child"),
            *("--snapshot-file", str(self.directory / f"{request.match_info['snapshot']}.jsonl")),
            *(
                "--ledgers",
                json.dumps({"directory": str(self.directory / "log")}),
                "--table",
                request.match_info["table"],
            ),
            *("--partition", request.query["partition"], "--after", request.query["after"]),
            stdout=asyncio.subprocess.PIPE,
        )
        assert child.stdout is not None
        response = web.StreamResponse(headers={"Content-Type": "application/vnd.apache.arrow.stream"})
        await response.prepare(request)
        while data := await child.stdout.read(1 << 16):
            await response.write(data)
        if await child.wait() != 0:
            assert request.transport is not None
            request.transport.abort()
        return response


@contextmanager
def serve(directory: Path, simulations: Mapping[str, Simulation]) -> Iterator[list[ServedRegion]]:
    """Serve all regions on free loopback ports, from one thread, until the block ends."""
    regions = [ServedRegion(directory / name, name, simulations) for name in REGIONS]
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="regions")
    thread.start()
    runners: list[web.AppRunner] = []

    async def stop() -> None:
        for runner in runners:
            await runner.cleanup()

    try:
        runners += [asyncio.run_coroutine_threadsafe(region.start(), loop).result(60) for region in regions]
        yield regions
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
