# SPDX-License-Identifier: Apache-2.0
"""Exchanges of commands with a broker: requests, answers, and whether the connection stays open.

An ``Exchange`` is a list of steps, each of which sends one command. Answers are recorded in a short form that keeps
what a client acts on (type, error, ids) and omits what differs between runs (addresses, ledgers, texts). The same
exchange runs against any broker that speaks the protocol. ``{t}`` in a name stands for a part unique to the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from meridian_broker.wire.pulsar.errors import ServerError
from meridian_broker.wire.pulsar.frames import FrameDecoder
from meridian_broker.wire.pulsar.metadata import build_body

T = pb.BaseCommand
CLOSED: Final = "closed"
"""The broker closed the connection."""
ANSWER_SECONDS: Final = 60.0
NONE: Final = (1 << 64) - 1
_numbers = itertools.count()
_FIELDS: Final = {field.number: field.name for field in T.DESCRIPTOR.fields}


@dataclass(frozen=True)
class Say:
    """One command, and how each answer to it is described."""

    data: Callable[[str], bytes]
    on: int = 0
    """Number of the connection that sends it and receives the answers."""


@dataclass(frozen=True)
class Exchange:
    """Steps on fresh connections that have shaken hands."""

    name: str
    steps: tuple[Say, ...]
    setup: tuple[tuple[str, str, Any], ...] = ()
    """Admin requests before the first step: method, path, body."""
    connect: bool = True


def say(kind: int, message: Any, on: int = 0) -> Say:
    """A step that sends ``message``, in whose strings ``{t}`` is replaced."""

    def encoded(unique: str) -> bytes:
        copy = type(message)()
        copy.CopyFrom(message)
        for descriptor, value in copy.ListFields():
            if isinstance(value, str) and "{t}" in value:
                setattr(copy, descriptor.name, value.replace("{t}", unique))
        return encode.simple(kind, copy)

    return Say(encoded, on)


def send(
    sequence_id: int,
    *,
    producer_id: int = 1,
    payload: bytes = b"x",
    metadata: dict[str, Any] | None = None,
    damage: bool = False,
    command: dict[str, Any] | None = None,
    on: int = 0,
) -> Say:
    """SEND of one entry; ``damage``: with a wrong checksum; ``command``: more fields of the command."""
    fields: dict[str, Any] = {"producer_name": "p", "sequence_id": sequence_id, "publish_time": 1} | (metadata or {})
    body = build_body(pb.MessageMetadata(**fields).SerializeToString(), payload)
    if damage:
        body = body[:-1] + bytes([body[-1] ^ 1])
    said = pb.CommandSend(producer_id=producer_id, sequence_id=sequence_id, **(command or {}))
    base = T(type=T.SEND, send=said).SerializeToString()
    frame = (4 + len(base) + len(body)).to_bytes(4, "big") + len(base).to_bytes(4, "big") + base + body
    return Say(lambda _: frame, on)


class _Connection:
    """Answers pings: a broker sends them on connections that may be dead."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self._reader = reader
        self._heard: asyncio.Queue[Any] = asyncio.Queue()
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        decoder = FrameDecoder()
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(1 << 16):
                for command in decoder.feed(data):
                    if command[0] == T.PING:
                        self.writer.write(encode.PONG)
                    else:
                        self._heard.put_nowait(command)
        self._heard.put_nowait(None)

    async def close(self) -> None:
        self._listening.cancel()
        await asyncio.wait([self._listening])
        self.writer.close()

    async def next(self, seconds: float) -> Any:
        """The next command, or None when the broker closed the connection. :raises TimeoutError: nothing arrived."""
        async with asyncio.timeout(seconds):
            return await self._heard.get()

    async def hear(self, wanted: int | None, quiet: float) -> list[str]:
        """``wanted`` answers and then silence, or (``None``) whatever arrives until it is quiet."""
        found: list[str] = []
        ponged = False
        self.writer.write(encode.PING)
        with contextlib.suppress(TimeoutError):
            while True:
                waits = ANSWER_SECONDS if not ponged or (wanted is not None and len(found) < wanted) else quiet
                command = await self.next(waits)
                if command is None:
                    found.append(CLOSED)
                    break
                if command[0] == T.PONG and not ponged:
                    ponged = True
                else:
                    found.append(describe(command))
        return found


@dataclass(frozen=True)
class Answers:
    """Answers to one step."""

    pulsars: list[str]
    ours: list[str]
    """The same as Pulsar's, except where this broker differs on purpose."""
    reason: str
    """Why this broker's answer differs."""


def read_answers(file: Path) -> dict[str, list[Answers]]:
    """Answers by name of the exchange.

    The file has a paragraph per exchange: its name, a line per step and, where this broker differs, a line ``here``
    after it, with the reason after ``#``.
    """
    found: dict[str, list[Answers]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            steps = found[line[3:]] = []
        elif line.startswith("here:"):
            text, _, reason = line[5:].partition("#")
            steps[-1] = Answers(steps[-1].pulsars, _listed(text), reason.strip())
        elif line and not line.startswith("#"):
            said = _listed(line.partition(":")[2])
            steps.append(Answers(said, said, ""))
    return found


def _listed(text: str) -> list[str]:
    return sorted(one.strip() for one in text.split("|") if one.strip())


@dataclass
class Broker:
    """A broker's address, and how to call its admin API."""

    host: str
    port: int
    admin: Callable[[str, str, Any], object]
    quiet: float = 0.02
    _connections: dict[int, _Connection] = field(default_factory=dict)

    async def run(self, exchange: Exchange, expected: list[list[str]] | None = None) -> list[list[str]]:
        """Run the exchange; return the answers to each step, sorted, as their order is random.

        :param expected: the number of answers to wait for; None: wait until no more arrive for a while.
        """
        unique = f"x{next(_numbers)}-{id(self) & 0xFFFFFF:x}"
        for verb, path, body in exchange.setup:
            self.admin(verb, path.replace("{t}", unique), body)
        heard: list[list[str]] = []
        self._connections = {}
        try:
            for number, step in enumerate(exchange.steps):
                connection = await self._connection(step.on, exchange.connect)
                connection.writer.write(step.data(unique))
                wanted = None if expected is None else len([one for one in expected[number] if one != CLOSED])
                heard.append(sorted(one.replace(unique, "{t}") for one in await connection.hear(wanted, self.quiet)))
        finally:
            for connection in self._connections.values():
                await connection.close()
        return heard

    async def _connection(self, number: int, connect: bool) -> _Connection:
        if number not in self._connections:
            made = _Connection(*await asyncio.open_connection(self.host, self.port))
            self._connections[number] = made
            if connect:
                hello = pb.CommandConnect(client_version="exchange", protocol_version=21)
                made.writer.write(encode.simple(T.CONNECT, hello))
                answer = await made.next(ANSWER_SECONDS)
                assert answer is not None and answer[0] == T.CONNECTED, answer
        return self._connections[number]


def describe(command: Any) -> str:
    """The parts that a client would act on."""
    kind, message = command[0], command[1]
    name = T.Type.Name(kind)
    if kind == T.MESSAGE:
        return f"MESSAGE to {message.consumer_id}"
    for code in ("error", "error_code"):
        if message.DESCRIPTOR.fields_by_name.get(code) is not None and message.HasField(code):
            return f"{name} {ServerError(getattr(message, code)).name}{_request(message)}"
    details = _DETAILS.get(kind)
    return name + _request(message) + ("" if details is None else " " + details(message))


def _request(message: Any) -> str:
    has = message.DESCRIPTOR.fields_by_name.get("request_id") is not None
    return f" of {'nobody' if message.request_id == NONE else message.request_id}" if has else ""


def _place(message: pb.MessageIdData) -> str:
    return "none" if message.ledgerId == NONE else f"{'0' if message.ledgerId == 0 else 'L'}:{message.entryId}"


_DETAILS: Final[dict[int, Callable[[Any], str]]] = {
    T.CONNECTED: lambda m: f"version {m.protocol_version}",
    T.PRODUCER_SUCCESS: lambda m: (
        f"last {m.last_sequence_id}"
        + ("" if m.producer_ready else " waiting")
        + (f" epoch {m.topic_epoch}" if m.HasField("topic_epoch") else "")
        + (f" schema {m.schema_version.hex()}" if m.schema_version else "")
    ),
    T.SEND_RECEIPT: lambda m: f"{m.sequence_id} at {_place(m.message_id)}",
    T.LOOKUP_RESPONSE: lambda m: pb.CommandLookupTopicResponse.LookupType.Name(m.response),
    T.PARTITIONED_METADATA_RESPONSE: lambda m: f"{m.partitions}",
    T.GET_TOPICS_OF_NAMESPACE_RESPONSE: lambda m: (
        f"{sorted(m.topics)}" + (" filtered" if m.filtered else "") + ("" if m.changed else " unchanged")
    ),
    T.WATCH_TOPIC_LIST_SUCCESS: lambda m: f"{sorted(m.topic)}",
    T.WATCH_TOPIC_UPDATE: lambda m: f"+{sorted(m.new_topics)} -{sorted(m.deleted_topics)}",
    T.GET_LAST_MESSAGE_ID_RESPONSE: lambda m: f"{_place(m.last_message_id)} batch {m.last_message_id.batch_index}",
    T.ACTIVE_CONSUMER_CHANGE: lambda m: f"{m.consumer_id} {'active' if m.is_active else 'passive'}",
    T.GET_SCHEMA_RESPONSE: lambda m: f"version {m.schema_version.hex()}",
    T.GET_OR_CREATE_SCHEMA_RESPONSE: lambda m: f"version {m.schema_version.hex()}",
    T.CLOSE_PRODUCER: lambda m: f"{m.producer_id}",
    T.CLOSE_CONSUMER: lambda m: f"{m.consumer_id}",
    T.SEND_ERROR: lambda m: f"{m.sequence_id}",
}
