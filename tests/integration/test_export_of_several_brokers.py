# SPDX-License-Identifier: Apache-2.0
"""The export of a region of two brokers has each topic of both exactly once, or nothing at all."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from http.client import IncompleteRead
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from meridian_broker.admin.export import export, region
from meridian_broker.admin.export.copying import Copying
from meridian_broker.admin.export.export import Exports
from meridian_broker.admin.export.plan import TABLES
from meridian_broker.engines.sqlite.metadata import SqliteMetadataStore
from meridian_broker.gateway.broker_calls import BrokerCalls
from meridian_broker.ownership.bundles import Bundle
from meridian_broker.ownership.records import BrokerRecord
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.wire.pulsar.topic_name import parse
from support.brokers.broker_inside import broker_inside
from support.brokers.broker_process import HttpAnswer, http
from support.contracts.metadata_contract import wait_until
from support.contracts.ownership_brokers import BrokerOfTest, CountedTopics

NAMES = [f"persistent://public/default/topic-{number}" for number in range(12)]
LEASE_SECONDS = 30.0
EXPORT = "/meridian/v1/export"


class Broker(BrokerOfTest):
    """A separate broker that owns some bundles of a region it shares with others."""

    def __init__(self, name: str, store: SqliteMetadataStore, url: str) -> None:
        super().__init__(name, store, LEASE_SECONDS)
        self.url = url
        record = {"": {"admin_url": url}}
        self.owner._membership.described = lambda lease, draining: BrokerRecord(
            name, f"{name}#{lease}", record, draining=draining
        )
        self.owner.bind(CountedTopics())

    async def ask(self, method: str, path: str, body: object = ...) -> HttpAnswer:
        return await asyncio.to_thread(http, method, self.url + path, body)

    async def take(self, **asked: object) -> dict[str, Any]:
        answer = await self.ask("POST", EXPORT, asked)
        assert answer.status == 200, answer.text
        taken: dict[str, Any] = answer.json
        return taken

    async def rows(self, taken: dict[str, Any], table: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for number in range(taken["partitions"][table]):
            answer = await self.ask("GET", f"{EXPORT}/{taken['snapshot']}/{table}?partition={number}")
            assert answer.status == 200, answer.text
            found += pa.ipc.open_stream(answer.body).read_all().to_pylist()
        return found

    async def exporters(self, taken: dict[str, Any]) -> dict[str, str]:
        """The broker that exported a topic, known by its subscription's name. Fails if two exported it."""
        rows = await self.rows(taken, "cursors")
        assert max(Counter(row["topic"] for row in rows).values()) == 1
        return {row["topic"]: row["subscription"] for row in rows}

    async def bundle(self, topic: str) -> Bundle:
        return (await self.owner.bundles("public/default")).of(parse(topic))


class Region:
    """Brokers a and b. Both have all topics with different contents, so the export shows whose topics it holds."""

    def __init__(
        self, a: Broker, b: Broker, inside: dict[str, BrokerProcess], b_ends: contextlib.AsyncExitStack
    ) -> None:
        self.a = a
        self.b = b
        self.inside = inside
        self.b_ends = b_ends

    async def owners(self) -> dict[str, str]:
        owned = {bundle: one.name for one in (self.a, self.b) for bundle in one.owner.owned()}
        return {name: owned[await self.a.bundle(name)] for name in NAMES}

    def files(self) -> dict[str, int]:
        """How many snapshots each broker has on disk."""
        return {
            name: len(list((one.settings.region.data_directory / "export").glob("*.jsonl")))
            for name, one in self.inside.items()
        }


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Region]:
    store = await SqliteMetadataStore.open(tmp_path / "ownership")
    async with contextlib.AsyncExitStack() as stack:
        b_ends = await stack.enter_async_context(contextlib.AsyncExitStack())
        inside = {
            "a": await stack.enter_async_context(broker_inside(tmp_path / "a")),
            "b": await b_ends.enter_async_context(broker_inside(tmp_path / "b")),
        }
        brokers = {name: Broker(name, store, one.listeners.admin_url) for name, one in inside.items()}
        for name, one in inside.items():
            stack.push_async_callback(brokers[name].scheduler.close)
            await brokers[name].owner.start()
            one.admin.owner, one.admin.brokers = brokers[name].owner, BrokerCalls(None)
            for topic in NAMES:
                path = f"/admin/v2/{topic.replace('://', '/')}"
                assert (await brokers[name].ask("PUT", path)).status == 204
                assert (await brokers[name].ask("PUT", f"{path}/subscription/{name}")).status == 204
        a, b = brokers["a"], brokers["b"]
        await wait_until(lambda: len(a.owner.view.brokers) == len(b.owner.view.brokers) == 2)
        for number, bundle in enumerate((await a.owner.bundles("public/default")).every()):
            await (a, b)[number % 2].owner.acquire(bundle)
        await wait_until(lambda: len(a.owner.view.owners) == len(b.owner.view.owners) == 4)
        made = Region(a, b, inside, b_ends)
        assert set((await made.owners()).values()) == {"a", "b"}
        yield made
    await store.close()


@pytest.mark.parametrize("asked", ["a", "b"])
async def test_each_topic_is_exported_by_its_owner(two: Region, asked: str) -> None:
    broker = getattr(two, asked)
    taken = await broker.take()
    assert await broker.exporters(taken) == await two.owners()
    assert taken["partitions"] == {**dict.fromkeys(TABLES, 2), "metadata": 1}
    assert "/geo/namespaces/public/default" in {row["path"] for row in await broker.rows(taken, "metadata")}
    one = await broker.take(topics=NAMES[0])
    assert list(await broker.exporters(one)) == NAMES[:1]
    after = await broker.ask("GET", f"{EXPORT}/{taken['snapshot']}/topics?partition=1&after=1")
    whole = await broker.ask("GET", f"{EXPORT}/{taken['snapshot']}/topics?partition=1")
    rows = [pa.ipc.open_stream(one.body).read_all().to_pylist() for one in (whole, after)]
    assert rows[0][1:] == rows[1]
    for path, status in (("topics?partition=2", 404), ("topics?partition=-1", 400), ("metadata?partition=1", 404)):
        assert (await broker.ask("GET", f"{EXPORT}/{taken['snapshot']}/{path}")).status == status


async def test_a_bundle_that_nobody_owns_is_taken_by_the_broker_that_is_asked(two: Region) -> None:
    bundle = await two.a.bundle(NAMES[0])
    await (two.a if bundle in two.a.owner.owned() else two.b).owner.give_up(bundle)
    await wait_until(lambda: bundle not in two.a.owner.view.owners)
    assert (await two.a.exporters(await two.a.take()))[NAMES[0]] == "a"
    assert bundle in two.a.owner.owned()


async def test_a_bundle_that_moves_before_its_owner_is_asked_is_read_from_the_next_owner(
    two: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = [*two.b.owner.owned()]
    take_part = Exports.take_part

    async def taken(exports: Exports, *asked: Any) -> dict[str, Any]:
        while going:
            await two.b.owner.give_up(going.pop(), "a")
        return await take_part(exports, *asked)

    monkeypatch.setattr(Exports, "take_part", taken)
    assert await two.a.exporters(await two.a.take()) == dict.fromkeys(NAMES, "a")
    assert two.files() == {"a": 1, "b": 0}


async def test_a_bundle_that_moves_or_is_split_while_it_is_copied_is_copied_again(
    two: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both brokers lose a bundle after its first topic was written: one bundle to the other broker, one to a split."""
    copy, lost = Copying._topic, []

    async def topic(copying: Copying, name: str) -> None:
        await copy(copying, name)
        broker = next(one for one in (two.a, two.b) if two.inside[one.name].admin is copying._state)
        if broker not in lost:
            lost.append(broker)
            bundle = await broker.bundle(name)
            if broker is two.a:
                await broker.owner.split(bundle, bundle.middle)
            else:
                await broker.owner.give_up(bundle, "a")

    monkeypatch.setattr(Copying, "_topic", topic)
    taken = await two.a.take()
    assert len(lost) == 2
    assert await two.a.exporters(taken) == await two.owners()
    assert len(await two.a.rows(taken, "topics")) == len(NAMES)


async def test_a_snapshot_is_read_and_ended_through_either_broker(two: Region) -> None:
    """Behind the region's single address, each request may reach another broker."""
    taken = await two.a.take()
    assert await two.b.exporters(taken) == await two.owners()
    assert await two.b.rows(taken, "metadata") == await two.a.rows(taken, "metadata")
    path = f"{EXPORT}/{taken['snapshot']}"
    for wrong, status in (("topics?partition=7", 404), ("topics?partition=x", 400), ("x", 404)):
        assert (await two.b.ask("GET", f"{path}/{wrong}")).status == status
    for nowhere in ("a.x", "b.x", "c.x", ".x", "a.b.x", "..%2Fa.x", "a%3Fx.y"):
        assert (await two.b.ask("GET", f"{EXPORT}/{nowhere}/topics")).status == 404
    assert (await two.b.ask("DELETE", path)).status == 204
    await wait_until(lambda: two.files() == {"a": 0, "b": 0})
    assert (await two.b.ask("GET", f"{path}/topics")).status == 404


async def test_both_brokers_export_at_once(two: Region) -> None:
    first, second = await asyncio.gather(two.a.take(), two.b.take())
    assert await two.a.exporters(first) == await two.b.exporters(second) == await two.owners()


async def test_without_a_broker_there_is_no_export_until_its_bundles_are_owned(
    two: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = await two.a.take()
    monkeypatch.setattr(region, "PATIENCE_SECONDS", 0.2)
    bundle = min(two.b.owner.owned())
    await two.b_ends.aclose()
    refused = await two.a.ask("POST", EXPORT)
    assert refused.status == 503
    assert str(bundle) in refused.json["reason"]
    assert "broker b" in refused.json["reason"]
    gone = await two.a.ask("GET", f"{EXPORT}/{taken['snapshot']}/topics?partition=1")
    assert gone.status == 503
    assert "broker b" in gone.json["reason"]
    assert two.files()["a"] == 1
    lease = two.b.owner._membership.lease
    assert lease is not None
    await two.b.scheduler.close()
    await lease.revoke()  # the lease expires
    monkeypatch.setattr(region, "PATIENCE_SECONDS", 20.0)
    assert await two.a.exporters(await two.a.take()) == dict.fromkeys(NAMES, "a")


async def test_a_part_ends_with_its_snapshot(two: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = await two.a.take()
    assert two.files() == {"a": 1, "b": 1}
    assert (await two.a.ask("DELETE", f"{EXPORT}/{taken['snapshot']}")).status == 204
    await wait_until(lambda: two.files() == {"a": 0, "b": 0})
    monkeypatch.setattr(export, "SNAPSHOTS_MAX", 2)
    every = [await two.a.take() for _ in range(4)]
    await wait_until(lambda: two.files() == {"a": 2, "b": 2})
    assert await two.a.exporters(every[-1]) == await two.owners()
    monkeypatch.setattr(export, "LIFE_MS", 50)
    await two.a.take()
    await wait_until(lambda: two.files() == {"a": 1, "b": 1})


async def test_a_snapshot_ends_with_its_part(two: Region) -> None:
    taken = await two.a.take()
    two_of_b = list((two.inside["b"].settings.region.data_directory / "export").glob("*.jsonl"))
    assert (await two.b.ask("DELETE", f"{EXPORT}/{two_of_b[0].stem}")).status == 204
    path = f"{EXPORT}/{taken['snapshot']}/topics"
    assert (await two.a.ask("GET", path)).status == 200
    assert (await two.a.ask("GET", f"{path}?partition=1")).status == 404
    assert (await two.a.ask("GET", path)).status == 404
    assert two.files() == {"a": 0, "b": 0}


async def test_a_part_has_the_requested_bundles_that_its_broker_owns(
    two: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = [str(bundle) for bundle in (await two.a.owner.bundles("public/default")).every()]
    taken = await two.b.take(bundles=[*every, every[0], "public/nowhere/0x00000000_0xffffffff"])
    assert taken["bundles"] == [str(bundle) for bundle in two.b.owner.owned()]
    assert set((await two.b.exporters(taken)).values()) == {"b"}
    assert await two.b.rows(taken, "metadata") == []
    monkeypatch.setattr(two.inside["b"].admin.catalog, "known_namespaces", list)  # it has heard of no bundle yet
    assert (await two.b.take(bundles=every))["bundles"] == []
    nothing = await two.b.take(bundles=[])
    assert nothing["bundles"] == []
    assert two.files()["b"] == 1
    refused: list[object] = ["x", 1, {}, [1], ["x"], ["public/default/0x80000000_0x00000000"]]
    for wrong in refused:
        assert (await two.b.ask("POST", EXPORT, {"bundles": wrong})).status == 412


class FalseBroker:
    """Listens in b's place, accepts every export request, and sends what the test wants."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {}
        self.sent = 0
        self.ends_after = 1 << 60
        """Bytes of a stream."""
        self.asked: list[tuple[str, bool]] = []
        """Each request's method and path, and whether it had the client's token."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            method, path = head.decode().split()[:2]
            self.asked.append((f"{method} {path}", b"Authorization: Bearer of-the-client\r\n" in head))
            if method == "POST":
                length = int(head.lower().partition(b"content-length:")[2].split()[0])
                asked = json.loads(await reader.readexactly(length))
                body = json.dumps({"bundles": asked["bundles"], **self.answer}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
            elif method == "GET":
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                while self.sent < self.ends_after:
                    writer.write(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
                    await writer.drain()
                    self.sent += 1 << 16
            else:
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()


@pytest.fixture
async def false(two: Region) -> AsyncIterator[FalseBroker]:
    made = FalseBroker()
    made.answer = {"snapshot": "x", "format": 1, "partitions": dict.fromkeys(TABLES, 1)}
    await two.b_ends.aclose()
    server = await asyncio.start_server(made.serve, "127.0.0.1", urlsplit(two.b.url).port)
    yield made
    server.close()


async def test_the_stream_of_a_broker_that_dies_is_cut_short(two: Region, false: FalseBroker) -> None:
    taken = await two.a.take()
    false.ends_after = 3 << 16
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(two.a.url).port)
    writer.write(f"GET {EXPORT}/{taken['snapshot']}/entries?partition=1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    got = await reader.read()
    assert got.startswith(b"HTTP/1.1 200 OK")
    assert len(got) > 1 << 16
    assert not got.endswith(b"0\r\n\r\n")
    writer.close()


async def test_a_stream_is_passed_on_as_fast_as_it_is_read(two: Region, false: FalseBroker) -> None:
    taken = await two.a.take()
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(two.a.url).port, limit=1 << 12)
    writer.write(f"GET {EXPORT}/{taken['snapshot']}/entries?partition=1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 OK")
    before = -1
    while before < false.sent:
        before = false.sent
        await asyncio.sleep(0.5)  # it ends when no more is sent
    assert false.sent < 64 << 20
    writer.transport.abort()


async def test_other_brokers_are_asked_with_the_clients_own_token(two: Region, false: FalseBroker) -> None:
    false.ends_after = 0

    async def ask(method: str, path: str = "") -> HttpAnswer:
        headers = {"Authorization": "Bearer of-the-client"}
        return await asyncio.to_thread(http, method, f"{two.a.url}{EXPORT}{path}", headers=headers)

    taken = (await ask("POST")).json
    with pytest.raises(IncompleteRead):
        await ask("GET", f"/{taken['snapshot']}/entries?partition=1&after=5")
    await ask("DELETE", f"/{taken['snapshot']}")
    await wait_until(lambda: len(false.asked) >= 3)
    assert false.asked == [
        (f"POST {EXPORT}", True),
        (f"GET {EXPORT}/x/entries?partition=0&after=5", True),
        (f"DELETE {EXPORT}/x", True),
    ]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"bundles": ["public/default/0x00000000_0x00000001"]}, "other bundles"),
        ({"bundles": 5}, "broker b"),
        ({"partitions": {}}, "broker b"),
        ({"partitions": dict.fromkeys(TABLES, 0)}, "numbers of partitions"),
        ({"partitions": dict.fromkeys(TABLES, 1 << 40)}, "numbers of partitions"),
        ({"format": 2}, "format 2"),
    ],
)
async def test_answers_that_make_no_sense_are_not_believed(
    two: Region, false: FalseBroker, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(region, "PATIENCE_SECONDS", 0.0)
    false.answer |= answer
    refused = await two.a.ask("POST", EXPORT)
    assert refused.status == 503
    assert said in refused.json["reason"]
