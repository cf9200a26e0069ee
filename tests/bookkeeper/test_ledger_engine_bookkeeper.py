# SPDX-License-Identifier: Apache-2.0
"""The BookKeeper engine on real bookies: the contract, bookies that die or hang, new owners, BookKeeper's tools."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from meridian_broker.engines.bookkeeper.certificates import BookieTls
from meridian_broker.engines.bookkeeper.context import BookKeeperSettings
from meridian_broker.engines.bookkeeper.handles import BookKeeperReader, BookKeeperWriter
from meridian_broker.engines.bookkeeper.ledger_metadata import LedgerMetadata, Segment
from meridian_broker.engines.bookkeeper.ledger_table import LedgerTable
from meridian_broker.engines.bookkeeper.ports import AddLimits, Versioned
from meridian_broker.engines.bookkeeper.securing import Connect, connect_tcp, encrypted
from meridian_broker.engines.bookkeeper.store import BookKeeperLedgerStore
from meridian_broker.engines.etcd.address import parse_endpoints
from meridian_broker.engines.etcd.client import EtcdChannel
from meridian_broker.ledgers.storage import OldLedger
from meridian_broker.ledgers.store import LedgerDeleted, LedgerError, LedgerFenced, LedgerInfo
from support.brokers.bookies import Bookies, java_compiler_missing
from support.brokers.certificates import Authority
from support.contracts.ledger_contract import EVERYTHING, LedgerContract, append_all, append_one, read_all

LIMITS = AddLimits(silent_ms=6_000, blocking_ms=3_000, retry_ms=200, patience_ms=3_000)
SETTINGS = BookKeeperSettings(limits=LIMITS)
LEDGERS_OF_A_TEST = 1_000
PATIENCE = 120.0
_tests = itertools.count(1)


class NumberedStore:
    """A store whose ledger ids start at a number of the test's own: all tests of a run share the bookies, and no id is
    ever used again."""

    def __init__(self, store: BookKeeperLedgerStore, base: int) -> None:
        self.store = store
        self._base = base

    async def create(self, ledger_id: int, fence: int, label: bytes = b"") -> NumberedWriter:
        return NumberedWriter(await self.store.create(self._base + ledger_id, fence, label), self._base)

    async def open(self, ledger_id: int) -> BookKeeperReader:
        return await self.store.open(self._base + ledger_id)

    async def recover(self, ledger_id: int, fence: int) -> LedgerInfo:
        return self._info(await self.store.recover(self._base + ledger_id, fence))

    async def delete(self, ledger_id: int) -> None:
        await self.store.delete(self._base + ledger_id)

    async def list(self) -> list[LedgerInfo]:
        ours = range(self._base, self._base + LEDGERS_OF_A_TEST)
        return [self._info(info) for info in await self.store.list() if info.ledger_id in ours]

    def _info(self, info: LedgerInfo) -> LedgerInfo:
        return LedgerInfo(info.ledger_id - self._base, info.entries, info.size, info.sealed, info.label)


class NumberedWriter:
    def __init__(self, writer: BookKeeperWriter, base: int) -> None:
        self.writer = writer
        self._base = base
        self.append = writer.append
        self.append_many = writer.append_many

    @property
    def ledger_id(self) -> int:
        return self.writer.ledger_id - self._base

    @property
    def next_entry(self) -> int:
        return self.writer.next_entry

    @property
    def size(self) -> int:
        return self.writer.size

    async def seal(self) -> LedgerInfo:
        info = await self.writer.seal()
        return LedgerInfo(self.ledger_id, info.entries, info.size, info.sealed, info.label)


class Switch:
    """Connections to bookies that a test can break."""

    def __init__(self, connect: Connect = connect_tcp) -> None:
        self.is_broken = False
        self.ciphers: list[object] = []
        """The cipher of each connection; None: it is not encrypted."""
        self._connect = connect
        self._made: list[asyncio.BaseProtocol] = []

    async def __call__(
        self, protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> asyncio.BaseTransport:
        if self.is_broken:
            raise ConnectionRefusedError("the test broke it")
        made = protocol()
        self._made.append(made)
        transport = await self._connect(lambda: made, host, port)
        self.ciphers.append(transport.get_extra_info("cipher"))
        return transport

    def turn(self, is_broken: bool) -> None:
        self.is_broken = is_broken
        if is_broken:
            for protocol in self._made:
                protocol.connection_lost(ConnectionResetError("the test broke it"))
            self._made.clear()


class BookKeeperWorld:
    def __init__(self, bookies: Bookies) -> None:
        self.bookies = bookies
        self.base = next(_tests) * LEDGERS_OF_A_TEST
        self.switch = Switch()
        self.store: NumberedStore

    async def start(self) -> NumberedStore:
        """Another broker of the region."""
        store = await BookKeeperLedgerStore.start(
            self.bookies.url, "region", SETTINGS, login=self.bookies.etcd.login, connect=self.switch
        )
        return NumberedStore(store, self.base)

    async def reopen(self) -> NumberedStore:
        await self.store.store.close()
        self.store = await self.start()
        return self.store

    def fail(self, is_failing: bool) -> None:
        self.switch.turn(is_failing)


@pytest.fixture
async def ledgers(bookies: Bookies) -> AsyncIterator[BookKeeperWorld]:
    world = BookKeeperWorld(bookies)
    world.store = await world.start()
    yield world
    await world.store.store.close()


class TestContract(LedgerContract):
    pass


async def appended(writer: NumberedWriter, count: int, size: int = 100) -> list[bytes]:
    entries = [(b"%d " % number * size)[:size] for number in range(count)]
    await append_all(writer, entries)
    return entries


async def test_a_bookie_that_dies_is_replaced_and_nothing_is_lost(ledgers: BookKeeperWorld) -> None:
    store, bookies = ledgers.store, ledgers.bookies
    writer = await store.create(1, fence=1)
    other_writer = await store.create(2, fence=1)
    before = await appended(writer, 500)
    victim = bookies.number(writer.writer.writing.metadata.segments[0].ensemble[0])
    heard: list[int | LedgerError] = []
    for number in range(500):
        writer.append(b"%d" % number, heard.append)
        if number == 250:
            await append_one(other_writer, b"a turn of the loop or more")
            bookies.kill(victim)
    behind = await appended(writer, 500)
    assert heard == list(range(500, 1000))
    during = [b"%d" % number for number in range(500)]
    assert await read_all(store, 1) == before + during + behind
    metadata = writer.writer.writing.metadata
    assert len(metadata.segments) == 2 and bookies.name(victim) not in metadata.segments[1].ensemble
    assert (await writer.seal()).entries == 1500
    other = await ledgers.start()
    assert await read_all(other, 1) == before + during + behind  # though each ensemble's first bookie may be dead
    await other.store.close()
    await asyncio.to_thread(bookies.start, victim)


async def test_a_bookie_that_hangs_is_replaced(ledgers: BookKeeperWorld) -> None:
    store, bookies = ledgers.store, ledgers.bookies
    writer = await store.create(1, fence=1)
    victim = bookies.number(writer.writer.writing.metadata.segments[0].ensemble[1])
    bookies.pause(victim)
    try:
        async with asyncio.timeout(PATIENCE):
            written = await appended(writer, 20_000, size=1000)  # more than may be in flight
            while len(writer.writer.writing.metadata.segments) == 1:
                written += await appended(writer, 1)
        assert (await writer.seal()).entries == len(written)
        assert await read_all(store, 1) == written
    finally:
        bookies.resume(victim)


class Follower:
    """Another broker's reader of ledger 1, which is told when the ledger has grown."""

    def __init__(self, reader: BookKeeperReader) -> None:
        self.reader = reader
        self._grown = asyncio.Event()
        self.end = reader.follow(self._grown.set)

    async def reads(self, entries: list[bytes]) -> None:
        """Wait until it has been told of all these entries, and check that it reads them."""
        async with asyncio.timeout(PATIENCE):
            while self.reader.last_confirmed() < len(entries) - 1:
                await self._grown.wait()
                self._grown.clear()
        found: list[bytes] = []
        while len(found) < len(entries):
            found += await self.reader.read(len(found), len(entries) - 1, 1 << 20)
        assert found == entries


async def test_a_ledger_is_read_to_its_end_while_another_broker_writes_it(ledgers: BookKeeperWorld) -> None:
    """Also the newest entry, which no later one confirms; also when a bookie hangs and is replaced, and to the seal."""
    other, bookies = await ledgers.start(), ledgers.bookies
    writer = await ledgers.store.create(1, fence=1)
    written = await appended(writer, 1)
    follower = Follower(await other.open(1))
    for _ in range(3):
        writer.writer.announce()
        await follower.reads(written)
        written += await appended(writer, 100)
    asked = bookies.number(writer.writer.writing.metadata.segments[-1].ensemble[0])
    bookies.pause(asked)
    try:
        async with asyncio.timeout(PATIENCE):
            while len(writer.writer.writing.metadata.segments) == 1:
                written += await appended(writer, 1)
        writer.writer.announce()
        await follower.reads(written)
    finally:
        bookies.resume(asked)
    written += await appended(writer, 10)
    await writer.seal()
    await follower.reads(written)
    follower.end()
    await other.store.close()


async def test_a_follower_reads_what_a_dead_writer_left_once_the_ledger_is_recovered(ledgers: BookKeeperWorld) -> None:
    dead, other = await ledgers.start(), await ledgers.start()
    written = await appended(await dead.create(1, fence=1), 50)
    follower = Follower(await other.open(1))
    await dead.store.close()
    assert (await ledgers.store.recover(1, fence=2)).entries == 50
    await follower.reads(written)
    follower.end()
    await other.store.close()


async def test_a_new_owner_takes_a_ledger_from_a_live_writer(ledgers: BookKeeperWorld) -> None:
    store, other = ledgers.store, await ledgers.start()
    for ledger in range(5):
        writer = await store.create(ledger, fence=1)
        heard: list[int | LedgerError] = []
        many = asyncio.Event()

        async def write(
            writer: NumberedWriter = writer, heard: list[int | LedgerError] = heard, many: asyncio.Event = many
        ) -> None:
            while not heard or not isinstance(heard[-1], LedgerError):
                for _ in range(20):
                    writer.append(b"x" * 50, heard.append)
                await append_one(writer, b"x" * 50)
                if len(heard) > 200:
                    many.set()

        writing = asyncio.create_task(write())
        await many.wait()
        info = await other.recover(ledger, fence=2)
        async with asyncio.timeout(PATIENCE):
            await writing
        confirmed = [result for result in heard if isinstance(result, int)]
        assert confirmed == sorted(confirmed) and confirmed[-1] < info.entries
        assert isinstance(next(one for one in heard if isinstance(one, LedgerError)), LedgerFenced)
        with pytest.raises(LedgerFenced):
            await writer.seal()
        assert await read_all(other, ledger) == [b"x" * 50] * info.entries
        with pytest.raises(LedgerFenced):
            await store.recover(ledger, fence=1)
    await other.store.close()


async def test_a_ledger_that_was_recovered_a_moment_ago_is_opened_without_asking_etcd_again(
    ledgers: BookKeeperWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only once, because another broker may change the metadata in etcd; a deletion by this broker is known at once."""
    dead, asked = await ledgers.start(), list[int]()
    entries = await appended(await dead.create(1, fence=1), 5)
    await appended(await dead.create(2, fence=1), 1)
    await ledgers.store.recover(1, fence=2)
    await ledgers.store.recover(2, fence=2)
    read = LedgerTable.read

    async def counted(table: LedgerTable, ledger: int) -> Versioned | None:
        asked.append(ledger - ledgers.base)
        return await read(table, ledger)

    monkeypatch.setattr(LedgerTable, "read", counted)
    assert await read_all(ledgers.store, 1) == entries
    assert asked == []
    assert await read_all(ledgers.store, 1) == entries
    assert asked == [1]
    await ledgers.store.delete(2)
    with pytest.raises(LedgerDeleted):
        await ledgers.store.open(2)
    await dead.store.close()


async def test_ledgers_of_a_broker_that_died_are_recovered_though_a_bookie_is_dead(ledgers: BookKeeperWorld) -> None:
    dead, bookies = await ledgers.start(), ledgers.bookies
    written: dict[int, list[bytes]] = {}
    for ledger in range(20):
        written[ledger] = await appended(await dead.create(ledger, fence=1, label=b"l"), ledger * 40)
    victim = 2
    bookies.kill(victim)
    infos = await asyncio.gather(*(ledgers.store.recover(ledger, fence=2) for ledger in range(20)))
    for ledger, info in enumerate(infos):
        entries = written[ledger]
        assert info == LedgerInfo(ledger, len(entries), sum(map(len, entries)), True, b"l")
        assert await read_all(ledgers.store, ledger) == entries
    await dead.store.close()
    await asyncio.to_thread(bookies.start, victim)


async def test_nothing_confirmed_is_lost_when_all_bookies_die(ledgers: BookKeeperWorld) -> None:
    store, bookies = ledgers.store, ledgers.bookies
    writer = await store.create(1, fence=1)
    written = await appended(writer, 1000)
    heard: list[int | LedgerError] = []
    for _ in range(1000):
        writer.append(b"unsure", heard.append)
    for number in range(1, 5):
        bookies.kill(number)
    async with asyncio.timeout(PATIENCE):
        assert isinstance(await append_one(writer, b"last"), LedgerError)
    for number in range(1, 5):
        await asyncio.to_thread(bookies.start, number)
    confirmed = 1000 + sum(isinstance(result, int) for result in heard)
    other = await ledgers.start()
    info = await other.recover(1, fence=2)
    assert info.entries >= confirmed
    found = await read_all(other, 1)
    assert found[:1000] == written and set(found[1000:]) <= {b"unsure"}
    await other.store.close()


async def test_the_largest_entry_is_stored_and_a_larger_one_fails_its_ledger_alone(ledgers: BookKeeperWorld) -> None:
    largest = SETTINGS.frame_bytes_max - 64
    writer, other = await ledgers.store.create(1, fence=1), await ledgers.store.create(2, fence=1)
    assert await append_one(writer, bytes(largest)) == 0
    assert isinstance(await append_one(writer, bytes(largest + 1)), LedgerError)
    assert await append_one(other, b"fine") == 0
    assert (await writer.seal()).size == largest
    reader = await ledgers.store.open(1)
    assert await reader.read(0, 0, EVERYTHING) == [bytes(largest)]


async def test_connections_are_encrypted_and_bookies_known_by_their_certificates(
    ledgers: BookKeeperWorld, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bookies = ledgers.bookies
    switch = Switch(encrypted(bookies.tls))
    store = await BookKeeperLedgerStore.start(bookies.url, "region", SETTINGS, login=bookies.etcd.login, connect=switch)
    writer = await store.create(ledgers.base, fence=1)
    written = [b"%d " % number * 1000 for number in range(200)]
    for entry in written:
        writer.append(entry, lambda _: None)
    assert await append_one(NumberedWriter(writer, 0), b"last") == 200
    assert switch.ciphers and all(switch.ciphers), "no connection without one"
    await store.close()  # writes the last confirmed entry to bookies, on connections of its own
    later = await BookKeeperLedgerStore.start(
        bookies.url, "region", SETTINGS, login=bookies.etcd.login, tls=bookies.tls
    )
    assert (await later.open(ledgers.base)).last_confirmed() == 200
    assert (await later.recover(ledgers.base, fence=2)).entries == 201
    assert await read_all(later, ledgers.base) == [*written, b"last"]
    await later.close()
    strange = Authority(tmp_path, "strange")
    deceived = await BookKeeperLedgerStore.start(
        bookies.url, "region", SETTINGS, login=bookies.etcd.login, tls=BookieTls(strange.trusted)
    )
    caplog.set_level("INFO")
    refused = await deceived.create(ledgers.base + 1, fence=1)
    assert isinstance(await append_one(NumberedWriter(refused, 0), b"secret"), LedgerError)
    assert "CERTIFICATE_VERIFY_FAILED" in caplog.text
    await deceived.close()


async def test_a_region_sees_its_own_ledgers_alone(ledgers: BookKeeperWorld) -> None:
    """A search for ledgers that no topic names must not find those of another region."""
    mine = ledgers.store.store
    other = await BookKeeperLedgerStore.start(ledgers.bookies.url, "other", SETTINGS, login=ledgers.bookies.etcd.login)
    first, second, third = range(ledgers.base, ledgers.base + 3)
    await (await other.create(first, 1, b"label")).seal()
    await (await mine.create(second, 1, b"label")).seal()
    await (await mine.create(third, 1)).seal()
    assert [info.ledger_id for info in await other.list()] == [first]
    assert await other.older_than(-60_000) == [OldLedger(first, 1, b"label")]
    assert await other.older_than(60_000) == []
    assert OldLedger(second, 1, b"label") in await mine.older_than(-60_000)
    assert {first, third}.isdisjoint(old.ledger_id for old in await mine.older_than(-60_000))
    await other.close()


async def test_ids_of_deleted_ledgers_are_forgotten_after_a_long_time(ledgers: BookKeeperWorld) -> None:
    table, base = LedgerTable(EtcdChannel(parse_endpoints(ledgers.bookies.url)), "forgetful"), ledgers.base
    metadata = LedgerMetadata(1, 1, (Segment(0, ("b",)),))
    before = await table.count()
    for number, deleted_ms in enumerate((100, 300, 200)):
        made = await table.create(base + number, metadata)
        assert made is not None and await table.delete(base + number, made.version, deleted_ms)
    assert await table.forget_deleted(100) == 0
    assert await table.forget_deleted(250) == 1  # up to the first one that is younger
    assert not await table.is_deleted(base) and await table.is_deleted(base + 2)
    assert await table.create(base + 1, metadata) is None
    assert await table.forget_deleted(1_000) == 2
    assert await table.create(base + 3, metadata) is not None
    assert await table.count() == before + 1
    await table.close()


async def test_bookkeepers_tools_read_what_this_client_writes_and_the_reverse(ledgers: BookKeeperWorld) -> None:
    bookies = ledgers.bookies
    writer = await ledgers.store.create(1, fence=3, label=b"whose it is")
    await append_all(writer, [b"alpha", b"beta", b"gamma"])
    await writer.seal()
    open_writer = await ledgers.store.create(2, fence=3)
    await append_all(open_writer, [b"delta", b"epsilon"])
    ledger = writer.writer.ledger_id

    def shell(*arguments: str) -> str:
        return bookies.shell(*arguments)

    shown = await asyncio.to_thread(shell, "ledgermetadata", "-ledgerid", str(ledger))
    for fact in ("state=CLOSED", "length=14", "lastEntryId=2", "writeQuorumSize=3", "ackQuorumSize=2", "CRC32C"):
        assert fact in shown, shown
    for name in writer.writer.writing.metadata.segments[0].ensemble:
        assert name in shown
    read = await asyncio.to_thread(shell, "readledger", "-ledgerid", str(ledger), "-msg")
    assert all(text in read for text in ("alpha", "beta", "gamma")), read
    recovering = await asyncio.to_thread(shell, "readledger", "-ledgerid", str(ledger + 1), "-msg", "-r")
    assert "epsilon" in recovering, recovering
    assert isinstance(await append_one(open_writer, b"late"), LedgerFenced)
    other = await ledgers.start()
    assert await other.recover(2, fence=4) == LedgerInfo(2, 2, 12, True)  # a tool closed it
    await other.store.close()


async def test_this_client_reads_and_recovers_what_bookkeepers_own_wrote(ledgers: BookKeeperWorld) -> None:
    if (missing := java_compiler_missing()) is not None:
        pytest.skip(missing)
    entries = [b"entry %d" % number for number in range(300)]
    store = ledgers.store.store
    closed, striped, left_open = await asyncio.to_thread(ledgers.bookies.java_writer, len(entries))
    for ledger in (closed, striped):
        assert await read_all(store, ledger) == entries
        assert await store.recover(ledger, fence=2) == LedgerInfo(ledger, 300, sum(map(len, entries)), True)
    reader = await store.open(left_open)
    assert 297 <= reader.last_confirmed() < 299  # the last entry does not say that it was confirmed
    assert await store.recover(left_open, fence=2) == LedgerInfo(left_open, 300, sum(map(len, entries)), True)
    assert await read_all(store, left_open) == entries
