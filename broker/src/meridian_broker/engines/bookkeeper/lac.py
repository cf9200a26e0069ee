# SPDX-License-Identifier: Apache-2.0
"""Requests that write and read the last confirmed entry (LAC) of open ledgers.

An entry carries only the LAC at the time it was sent, so no entry shows that the newest ones are confirmed. A writer
that stops, or that other brokers follow, therefore stores an explicit LAC on the bookies. The requests exist only in
version 3 of the protocol. A bookie that has received version 2 on a connection no longer understands version 3 there,
so they use connections of their own: one per exchange, or one that is kept (``LacConnection``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from struct import Struct
from typing import Final, cast

from google.protobuf.message import DecodeError

from meridian_broker.engines.bookkeeper.entries import (
    EntryDamaged,
    explicit_lac,
    parse_entry,
    parse_explicit_lac,
)
from meridian_broker.wire.proto.bookkeeper_pb2 import Answer, Request

VERSION: Final = 3
READ_ENTRY: Final = 1
WRITE_LAC: Final = 6
READ_LAC: Final = 7
PIGGYBACK: Final = 2
"""Flag of a read: answer with what is confirmed, not with an entry that already exists."""
UNDER_WAY: Final = 100
"""Requests in flight at once."""
ANSWER_BYTES_MAX: Final = 64 << 20

_LENGTH = Struct(">I")


OpenConnection = Callable[[Callable[[], asyncio.BaseProtocol]], Awaitable[asyncio.BaseTransport]]
"""Connects a protocol to a bookie, or raises OSError."""


class NoAnswer(Exception):
    """The bookie did not answer all requests."""


def write_request(ledger: int, key: bytes, last_confirmed: int) -> Request:
    request = Request()
    request.header.operation = WRITE_LAC
    request.write_lac.ledger = ledger
    request.write_lac.lac = last_confirmed
    request.write_lac.key = key
    request.write_lac.body = explicit_lac(ledger, last_confirmed)
    return request


def read_request(ledger: int) -> Request:
    request = Request()
    request.header.operation = READ_LAC
    request.read_lac.ledger = ledger
    return request


def wait_request(ledger: int, known: int, seconds: float) -> Request:
    """A request answered once more than ``known`` is confirmed, or after this time."""
    request = Request()
    request.header.operation = READ_ENTRY
    request.read_entry.ledger = ledger
    request.read_entry.entry = -1
    request.read_entry.previous_lac = known
    request.read_entry.patience = int(seconds * 1000)
    request.read_entry.flag = PIGGYBACK
    return request


def last_confirmed(ledger: int, answer: Answer) -> int:
    """The newest entry that the answer to a ``read_request`` shows as confirmed; -1: none."""
    found = -1
    try:
        if answer.read_lac.explicit_body:
            found = parse_explicit_lac(ledger, answer.read_lac.explicit_body)
    except EntryDamaged:
        pass
    try:
        if answer.read_lac.last_entry:
            found = max(found, parse_entry(ledger, answer.read_lac.last_entry).last_confirmed)
    except EntryDamaged:
        pass
    return found


async def exchange(open_connection: OpenConnection, requests: Iterable[Request], seconds: float) -> list[Answer]:
    """The answers to requests, in their order. :raises NoAnswer: not all of them came in time."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    try:
        async with asyncio.timeout(seconds):
            transport = await open_connection(lambda: protocol)
            writer = asyncio.StreamWriter(cast("asyncio.WriteTransport", transport), protocol, reader, loop)
            try:
                return await _exchange(reader, writer, list(requests))
            finally:
                transport.close()
    except (OSError, EOFError, DecodeError) as error:  # a timeout is an OSError
        raise NoAnswer(repr(error)) from error


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests: list[Request]
) -> list[Answer]:
    answers: dict[int, Answer] = {}
    for first in range(0, len(requests), UNDER_WAY):
        some = requests[first : first + UNDER_WAY]
        for number, request in enumerate(some, first):
            request.header.version = VERSION
            request.header.request = number
            frame = request.SerializeToString()
            writer.write(_LENGTH.pack(len(frame)) + frame)
        await writer.drain()
        while len(answers) < first + len(some):
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            if length > ANSWER_BYTES_MAX:
                raise EOFError(f"an answer of {length} bytes")
            answer = Answer.FromString(await reader.readexactly(length))
            answers[answer.header.request] = answer
    return [answers[number] for number in range(len(requests))]


class LacConnection(asyncio.Protocol):
    """One connection for many requests, whose answers may come late and in any order."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._received = bytearray()
        self._transport: asyncio.WriteTransport | None = None
        self._number = 0
        self.is_lost = False

    async def ask(self, request: Request, seconds: float) -> Answer:
        """:raises NoAnswer: it did not come in time, or the connection broke."""
        if self._transport is None or self.is_lost:
            raise NoAnswer("the connection is closed")
        self._number += 1
        request.header.version = VERSION
        request.header.request = number = self._number
        frame = request.SerializeToString()
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._transport.write(_LENGTH.pack(len(frame)) + frame)
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise NoAnswer(f"no answer for {seconds} s") from None
        finally:
            del self._waiting[number]

    def close(self) -> None:
        """Close the connection: waiting callers get ``NoAnswer``."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            if length > ANSWER_BYTES_MAX:
                self.close()
                return
            end = _LENGTH.size + length
            if len(self._received) < end:
                return
            try:
                answer = Answer.FromString(bytes(self._received[_LENGTH.size : end]))
            except DecodeError:
                self.close()
                return
            del self._received[:end]
            waiting = self._waiting.get(answer.header.request)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(NoAnswer(f"the connection broke ({error!r})"))
