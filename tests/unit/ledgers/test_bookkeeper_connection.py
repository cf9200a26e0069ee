# SPDX-License-Identifier: Apache-2.0
"""A connection to a bookie: whose answer it is, however the bytes arrive, and what happens without one."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable, Coroutine, Iterable

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from meridian_broker.engines.bookkeeper.bookies import AVOID_SECONDS, Bookies
from meridian_broker.engines.bookkeeper.connection import (
    ADDS_MAX,
    ANSWERS,
    BUFFER_BYTES,
    FRAME_BYTES_MAX,
    READS_MAX,
    BookieConnection,
)
from meridian_broker.engines.bookkeeper.fanning import JOINED_BYTES, Fan
from meridian_broker.engines.bookkeeper.packets import Answer, Code, Flags, Operation
from meridian_broker.engines.bookkeeper.ports import Packet

LATE = 1e12


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_aborted = False

    def writelines(self, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        self.written += b"".join(parts)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def abort(self) -> None:
        self.is_aborted = True


class Ledger:
    """Records what a connection reports."""

    def __init__(self, *ensemble: str) -> None:
        self.ensemble = ensemble
        self.is_idle = True
        self.is_failing = False
        self.heard: list[tuple[str, object, object]] = []

    def acked(self, bookie: str, entries: list[int]) -> None:
        for entry in entries:
            self.answered(bookie, entry, Code.OK)

    def answered(self, bookie: str, entry: int, code: Code) -> None:
        if self.is_failing:
            raise ValueError("a mistake")
        self.heard.append((bookie, entry, code))

    def room(self, bookie: str) -> None:
        self.heard.append((bookie, "room", None))

    def lost(self, bookie: str, why: str) -> None:
        self.heard.append((bookie, "lost", why))

    def tick(self, now_ms: int) -> None:
        self.is_idle = True


class Made:
    """A connection and both its sides. Created in a running loop."""

    def __init__(self) -> None:
        self.ledgers = {7: Ledger("b"), 8: Ledger("b")}
        self.lost: list[str] = []
        self.transport = Transport()
        self.connection = BookieConnection("b", {**self.ledgers}, lambda _, why: self.lost.append(why))
        self.connection.connection_made(self.transport)

    def hear(self, data: bytes, *pieces: int) -> None:
        """The bookie sends these bytes in pieces of these sizes, and the rest in as few pieces as fit."""
        sizes = list(pieces)
        while data and not self.connection.is_closed:
            room = self.connection.get_buffer(-1)
            size = min(len(room), len(data), sizes.pop(0) if sizes else len(data))
            room[:size] = data[:size]
            self.connection.buffer_updated(size)
            data = data[size:]

    async def sent(self) -> bytes:
        await asyncio.sleep(0)
        written, self.transport.written = self.transport.written, b""
        return written


def frame(operation: int, code: int, ledger: int, entry: int, rest: bytes = b"", version: int = 2) -> bytes:
    body = struct.pack(">IIqq", version << 24 | operation << 16, code, ledger, entry) + rest
    return struct.pack(">I", len(body)) + body


@settings(max_examples=500)
@given(
    st.lists(st.tuples(st.sampled_from("arb"), st.integers(0, 40), st.binary(max_size=300)), max_size=12),
    st.lists(st.integers(1, 40), max_size=40),
)
def test_answers_are_parsed_whole_however_they_are_split(said: list[tuple[str, int, bytes]], pieces: list[int]) -> None:
    async def run() -> None:
        made = Made()
        told: list[Answer] = []
        stream = b""
        reads: list[Answer] = []
        adds: list[tuple[str, int, Code]] = []
        for number, (kind, entry, body) in enumerate(said):
            if kind == "a":
                stream += frame(Operation.ADD, 0, 7, entry)
                adds.append(("b", entry, Code.OK))
            elif kind == "r":
                made.connection.read(7, 1000 + number, Flags.NONE, b"", told.append, LATE)
                stream += frame(Operation.READ, 0, 7, 1000 + number, body)
                reads.append(Answer(Operation.READ, Code.OK, 7, 1000 + number, -1, [body]))
            else:
                made.connection.read_batch(7, entry, 9, 9, told.append, LATE)
                request = sum(one[0] == "b" for one in said[: number + 1])
                stream += frame(Operation.BATCH_READ, 0, 7, entry, struct.pack(">qI", request, len(body)) + body)
                reads.append(Answer(Operation.BATCH_READ, Code.OK, 7, entry, request, [body]))
        made.hear(stream, *pieces)
        assert made.ledgers[7].heard == adds
        assert told == reads
        assert made.lost == []

    asyncio.run(run())


@settings(max_examples=500)
@given(
    st.lists(st.tuples(st.integers(6, 8), st.integers(1, 3 * ANSWERS), st.sampled_from([0, 0, 0, 101])), max_size=8),
    st.lists(st.integers(1, 2000), max_size=4),
)
def test_runs_of_acknowledgements_are_reported_as_sent(runs: list[tuple[int, int, int]], pieces: list[int]) -> None:
    """Runs of alternating ledgers, one of them unknown here; a run's last answer may be a refusal."""

    async def run() -> None:
        made = Made()
        stream, entries = b"", {6: 0, 7: 0, 8: 0}
        said: dict[int, list[object]] = {6: [], 7: [], 8: []}
        for ledger, count, last in runs:
            for number in range(count):
                code = last if number == count - 1 else 0
                stream += frame(Operation.ADD, code, ledger, entries[ledger])
                said[ledger].append(("b", entries[ledger], Code(code)))
                entries[ledger] += 1
        made.hear(stream, *pieces)
        for ledger in (7, 8):
            assert sorted(map(repr, made.ledgers[ledger].heard)) == sorted(map(repr, said[ledger]))
            in_order = [one for one in made.ledgers[ledger].heard if one[2] == Code.OK]
            assert in_order == [one for one in said[ledger] if one[2] == Code.OK]  # type: ignore[index]
        assert made.lost == []

    asyncio.run(run())


async def test_an_answer_larger_than_the_buffer_is_parsed() -> None:
    made = Made()
    told: list[Answer] = []
    for entry, size in enumerate((BUFFER_BYTES * 3, 10, BUFFER_BYTES * 20, BUFFER_BYTES)):
        made.connection.read(7, entry, Flags.NONE, b"", told.append, LATE)
        made.hear(frame(Operation.READ, 0, 7, entry, bytes(size)), 100, 1000)
    assert [len(answer.bodies[0]) for answer in told] == [BUFFER_BYTES * 3, 10, BUFFER_BYTES * 20, BUFFER_BYTES]


@pytest.mark.parametrize(
    "junk",
    [
        struct.pack(">I", FRAME_BYTES_MAX + 1),
        struct.pack(">I", 3) + b"abc",
        frame(Operation.ADD, 0, 7, 1, version=3),
        frame(99, 0, 7, 1),
        frame(Operation.BATCH_READ, 0, 7, 1, struct.pack(">qI", 1, 10)),
    ],
)
async def test_a_bookie_that_sends_garbage_is_disconnected(junk: bytes) -> None:
    made = Made()
    told: list[Answer] = []
    made.connection.read(7, 5, Flags.NONE, b"", told.append, LATE)
    made.connection.read_batch(7, 6, 1, 1, told.append, LATE)
    made.hear(junk + frame(Operation.ADD, 0, 7, 1))
    assert made.transport.is_aborted and len(made.lost) == 1
    assert [answer.code for answer in told] == [Code.DISCONNECTED] * 2
    assert made.ledgers[7].heard == []
    made.connection.connection_lost(None)
    assert len(made.lost) == 1


async def test_answers_nobody_waits_for_are_ignored() -> None:
    made = Made()
    said = [(Operation.READ, b"x"), (Operation.BATCH_READ, struct.pack(">q", 77)), (Operation.ADD, b"")]
    for operation, rest in said:
        made.hear(frame(operation, 0, 999, 1, rest))
    assert made.lost == []


async def test_reads_of_one_entry_share_a_request_or_wait_for_each_other() -> None:
    made = Made()
    told: list[tuple[str, Code]] = []
    key = b"k" * 20
    for name, flags in (("a", Flags.NONE), ("b", Flags.NONE), ("c", Flags.FENCE), ("d", Flags.NONE)):
        made.connection.read(7, 1, flags, key, lambda answer, name=name: told.append((name, answer.code)), LATE)  # type: ignore[misc]
    assert len(await made.sent()) == 24
    made.hear(frame(Operation.READ, 1, 7, 1))
    assert told == [("a", Code.NO_LEDGER), ("b", Code.NO_LEDGER), ("d", Code.NO_LEDGER)]
    fencing = await made.sent()
    assert len(fencing) == 44 and fencing.endswith(key)
    made.hear(frame(Operation.READ, 2, 7, 1))
    assert told[3:] == [("c", Code.NO_ENTRY)]


async def test_a_late_answer_is_not_taken_for_another_requests() -> None:
    made = Made()
    told: list[Answer] = []
    fenced: list[Answer] = []
    made.connection.read(7, 1, Flags.NONE, b"", told.append, 10.0)
    made.connection.read_batch(7, 1, 1, 1, told.append, 10.0)
    made.connection.check_time(9.9)
    assert told == []
    made.connection.check_time(10.0)
    made.connection.check_time(10.0)
    assert [answer.code for answer in told] == [Code.NO_ANSWER] * 2 and made.lost == []
    made.connection.read(7, 1, Flags.FENCE, bytes(20), fenced.append, 20.0)
    await made.sent()
    made.hear(frame(Operation.READ, 2, 7, 1) + frame(Operation.BATCH_READ, 0, 7, 1, struct.pack(">q", 1)))
    assert fenced == [] and len(told) == 2
    assert len(await made.sent()) == 44
    made.hear(frame(Operation.READ, 2, 7, 1))
    assert [answer.code for answer in fenced] == [Code.NO_ENTRY]
    for entry in range(READS_MAX + 1):
        made.connection.read(7, entry, Flags.NONE, b"", told.append, 30.0)
    made.connection.check_time(29.0)
    assert made.transport.is_aborted


async def test_too_many_adds_are_refused_until_there_is_room() -> None:
    made = Made()
    for _ in range(ADDS_MAX):
        assert made.connection.add(7, [Packet(b"h", b"d")])
    assert not made.connection.add(7, [Packet(b"h", b"d")])
    assert not made.connection.add(8, [Packet(b"h", b"d")])
    assert len(await made.sent()) == 2 * ADDS_MAX
    half = ADDS_MAX // 2 - 1
    made.hear(b"".join(frame(Operation.ADD, 0, 7, entry) for entry in range(half)))
    assert made.ledgers[8].heard == []
    made.hear(frame(Operation.ADD, 0, 7, half))
    assert made.ledgers[8].heard == [("b", "room", None)] and made.ledgers[7].heard[-1] == ("b", "room", None)
    assert made.connection.add(8, [Packet(b"h", b"d")])


async def test_adds_are_refused_while_the_socket_takes_no_more() -> None:
    made = Made()
    data = bytes(1 << 20)
    sent = 0
    while made.connection.add(7, [Packet(b"", data)]):
        sent += 1
    assert made.transport.high is not None
    assert sent == made.transport.high // len(data) == 8
    made.connection.pause_writing()
    await made.sent()
    assert made.ledgers[7].heard == [] and not made.connection.add(7, [Packet(b"", data)])
    made.connection.resume_writing()
    assert made.ledgers[7].heard == [("b", "room", None)] and made.connection.add(7, [Packet(b"", data)])


async def test_adds_to_several_bookies_keep_their_order_with_adds_to_one() -> None:
    one, other = Made(), Made()
    fan = Fan((one.connection, other.connection))
    assert fan.add(Packet(b"1", b"a")) and fan.add(Packet(b"2", b"b"))
    assert one.connection.add(7, [Packet(b"3", b"c")])
    assert fan.add(Packet(b"4", b"d"))
    assert [await one.sent(), await other.sent()] == [b"1a2b3c4d", b"1a2b4d"]
    large = bytes(JOINED_BYTES + 1)
    assert fan.add(Packet(b"5", large))
    assert [await one.sent(), await other.sent()] == [b"5" + large] * 2
    assert [await one.sent(), await other.sent()] == [b"", b""]


async def test_adds_to_several_bookies_are_refused_if_one_is_full() -> None:
    one, other = Made(), Made()
    fan = Fan((one.connection, other.connection))
    for _ in range(ADDS_MAX - 1):
        assert other.connection.add(7, [Packet(b"h", b"d")])
    assert fan.add(Packet(b"1", b"")) and not fan.add(Packet(b"2", b""))
    assert await one.sent() == b"1"
    assert (await other.sent()).endswith(b"hd1")
    assert not fan.add(Packet(b"2", b""))
    other.connection.close("gone")
    assert not fan.add(Packet(b"2", b""))
    assert await one.sent() == b""


async def test_as_many_adds_are_sent_as_there_is_room_for() -> None:
    made = Made()
    adds = [Packet(b"h", b"d")] * (ADDS_MAX - 1)
    assert made.connection.add(7, adds) == ADDS_MAX - 1
    assert made.connection.add(8, adds) == 1
    assert len(await made.sent()) == 2 * ADDS_MAX
    made.hear(b"".join(frame(Operation.ADD, 0, 7, entry) for entry in range(ADDS_MAX - 1)))
    assert made.ledgers[8].heard == [("b", "room", None)]


async def test_an_answer_makes_room_for_several_bookies_in_the_same_turn() -> None:
    one, other = Made(), Made()
    fan = Fan((one.connection, other.connection))
    for made in (one, other):
        assert made.connection.add(7, [Packet(b"h", b"d")] * (ADDS_MAX - 1)) == ADDS_MAX - 1
    assert fan.add(Packet(b"1", b"a")) and not fan.add(Packet(b"2", b"b"))
    for made in (one, other):
        made.hear(frame(Operation.ADD, 0, 7, 0))
    assert fan.add(Packet(b"2", b"b"))
    assert not fan.add(Packet(b"3", b"c"))
    assert (await one.sent()).endswith(b"hd1a2b")


async def test_adds_waiting_for_several_bookies_reach_the_remaining_ones() -> None:
    one, other = Made(), Made()
    fan = Fan((one.connection, other.connection))
    assert fan.add(Packet(b"1", b"a"))
    one.connection.close("gone")
    assert [await one.sent(), await other.sent()] == [b"", b"1a"]


async def test_lost_connections_are_replaced_together() -> None:
    made: list[Made] = []

    async def connect(protocol: Callable[[], asyncio.BaseProtocol], *_: object) -> asyncio.BaseTransport:
        made.append(Made())
        protocol().connection_made(made[-1].transport)
        return made[-1].transport

    bookies = Bookies(connect)
    for name in "abc":
        bookies.registered(name, (name, 1), is_writable=True)
    first = bookies.fan(("a", "b"))
    assert first is not None and first is bookies.fan(("b", "a"))
    assert bookies.fan(("a", "unheard of")) is None
    others = bookies.fan(("b", "c"))
    bookies.connections["a"].close("gone")
    assert first.is_closed and bookies.fan(("a", "b")) is not first
    assert others is not None and not others.is_closed and bookies.fan(("b", "c")) is others
    await bookies.close()


@pytest.mark.logs_error("could not be handled")
async def test_a_failing_callback_costs_the_others_no_answer() -> None:
    made = Made()
    made.ledgers[8].is_failing = True

    def fail(_: Answer) -> None:
        raise ValueError("a mistake")

    made.connection.read(7, 1, Flags.NONE, b"", fail, LATE)
    stream = (frame(Operation.ADD, 0, 8, 1), frame(Operation.READ, 0, 7, 1, b"x"), frame(Operation.ADD, 0, 7, 2))
    made.hear(b"".join(stream))
    assert made.ledgers[7].heard == [("b", 2, Code.OK)] and made.lost == []


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_entries_and_answers_cross_a_real_connection(run: Callable[[Coroutine[None, None, None]], None]) -> None:
    """On the event loop that brokers use, and on the one that tests use."""
    count, data, ended = 300, bytes(70_000), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for entry in range(count):
            while (length := struct.unpack(">I", await reader.readexactly(4))[0]) == 20:
                await reader.readexactly(length)  # the read, answered last
            assert length == len(data)
            await reader.readexactly(length)
            writer.write(frame(Operation.ADD, 0, 7, entry))
        writer.write(frame(Operation.READ, 0, 7, 1, data))
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()
        ended.set()

    async def cross() -> None:
        async with asyncio.timeout(60):
            await talk()

    async def talk() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        bookies = Bookies()
        bookies.registered("b", server.sockets[0].getsockname()[:2], is_writable=True)
        ledger = Ledger("b")
        bookies.attach(7, ledger)
        told: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        bookies.read(7, "b", 1, Flags.NONE, b"", told.set_result)
        entry = 0
        while entry < count:
            if bookies.add(7, "b", entry, [Packet(struct.pack(">I", len(data)), data)]):
                entry += 1
            else:
                await asyncio.sleep(0)
        assert (await told).bodies == [data]
        assert [one[1] for one in ledger.heard if one[1] != "room"] == list(range(count))
        await bookies.close()
        await ended.wait()
        server.close()

    run(cross())


# -- all bookies of a region -----------------------------------------------------------------------------------------


async def refuse(*_: object) -> asyncio.BaseTransport:
    raise ConnectionRefusedError("nobody listens")


async def test_an_unreachable_bookies_requests_fail_and_it_is_not_chosen() -> None:
    bookies = Bookies(refuse)
    for name in "abc":
        bookies.registered(name, (name, 1), is_writable=True)
    ledger = Ledger("a", "b")
    bookies.attach(7, ledger)
    told: list[Answer] = []
    assert bookies.add(7, "a", 0, [Packet(b"", b"")])
    both = asyncio.Event()

    def hear(answer: Answer) -> None:
        told.append(answer)
        if len(told) == 2:
            both.set()

    bookies.read(7, "a", 0, Flags.NONE, b"", hear)
    bookies.read(7, "unheard of", 0, Flags.NONE, b"", hear)
    await asyncio.wait_for(both.wait(), 60)
    assert [answer.code for answer in told] == [Code.DISCONNECTED] * 2
    assert ledger.heard[0][:2] == ("a", "lost")
    assert {bookies.choose("a", {"b"}) for _ in range(20)} == {"c"}
    assert bookies.choose("a", {"b", "c"}) is None
    assert set(bookies.choose_ensemble(2)) == {"b", "c"} and len(bookies.choose_ensemble(9)) == 3
    assert AVOID_SECONDS > 0
    await bookies.close()


async def test_an_unregistered_bookie_is_replaced_only_if_another_exists() -> None:
    bookies = Bookies(refuse)
    for name in "abc":
        bookies.registered(name, (name, 1), is_writable=True)
    ledger = Ledger("a", "b")
    bookies.attach(7, ledger)
    for name in "abc":
        bookies.unregistered(name)
    now = asyncio.get_running_loop().time()
    bookies.pass_time(now + 100)
    assert ledger.heard == []
    bookies.registered("b", ("b", 1), is_writable=True)
    bookies.pass_time(now + 100)
    assert ledger.heard == []
    bookies.registered("c", ("c", 1), is_writable=True)
    bookies.pass_time(now + 100)
    assert [one[:2] for one in ledger.heard] == [("a", "lost")]
    bookies.registered("a", ("a", 1), is_writable=False)
    assert bookies.choose("a", {"b", "c"}) is None and bookies.address("a") == ("a", 1)
    await bookies.close()
