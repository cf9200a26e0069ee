# SPDX-License-Identifier: Apache-2.0
"""Coverage-guided fuzzing, as a program: ``coverage_guided.py frames|connection DIRECTORY [libFuzzer options]``.

``frames`` compares the decoder with the protobuf parser on streams cut anywhere. ``connection`` talks to a whole broker
in this process through the connection object that a socket would have: whatever the client sends, no exception may
leave the connection, no failure of the broker may be logged, and everything written back must be frames.

It exits with a code other than 0 at the first finding, which libFuzzer writes into the directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))
with atheris.instrument_imports(include=["meridian_broker.wire", "meridian_broker.gateway", "meridian_broker.topics"]):
    from meridian_broker.gateway.pulsar.connection import Connection
    from meridian_broker.gateway.pulsar.handlers import HANDLERS, RUN_HANDLERS
    from meridian_broker.metadata.topic_records import TopicRecord
    from meridian_broker.wire.proto import pulsar_pb2 as pb
    from meridian_broker.wire.pulsar import encode, topic_name
    from meridian_broker.wire.pulsar.frames import FrameDecoder
    from meridian_broker.wire.pulsar.metadata import build_body
    from support.brokers.broker_inside import broker_inside
    from support.protocol.wire_streams import check_stream

TOPIC = "persistent://public/default/t"
TURNS_MAX = 200
"""Turns of the loop in which an input may be answered; the later ones wait a little."""
QUICK_TURNS = 20
T = pb.BaseCommand


def fuzz_frames(data: bytes) -> None:
    """The first three bytes say where to cut the rest."""
    stream = data[3:]
    check_stream(stream, [cut * len(stream) // 256 for cut in data[:3]])


class Line(asyncio.Transport):
    """A transport that keeps what the connection writes."""

    def __init__(self) -> None:
        super().__init__()
        self.said = bytearray()
        self._closing = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing to do: all writes are accepted."""

    def write(self, data: Any) -> None:
        self.said += data

    def pause_reading(self) -> None:
        """Nothing to do: no more data arrives."""

    def resume_reading(self) -> None:
        """Nothing to do: no more data arrives."""

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True

    def abort(self) -> None:
        self._closing = True


class Failures(logging.Handler):
    """Collects the errors that the broker logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(logging.Formatter().format(record))


def commands(data: bytes) -> bytes:
    """Build frames from an input of pieces after size bytes, command and payload in turn.

    A change of the input thus changes commands, not sizes. A size of 255 makes the size of the frame wrong.
    """
    stream, at = bytearray(), 0
    while at < len(data):
        sizes = []
        pieces = []
        for _ in range(2):
            size = data[at] if at < len(data) else 0
            sizes.append(size)
            pieces.append(data[at + 1 : at + 1 + size])
            at += 1 + size
        command, payload = pieces
        total = 4 + len(command) + len(payload) + (255 in sizes)
        stream += total.to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + payload
    return bytes(stream)


def connection_target(inside: Any, failures: Failures, loop: asyncio.AbstractEventLoop) -> Callable[[bytes], None]:
    """An input is what a client sends after CONNECT."""

    async def say(stream: bytes) -> None:
        line = Line()
        connection = Connection(inside.gateway, HANDLERS, RUN_HANDLERS, loop)
        connection.connection_made(line)
        connection.data_received(encode.simple(T.CONNECT, pb.CommandConnect(client_version="f", protocol_version=21)))
        half = len(stream) // 2
        for piece in (stream[:half], stream[half:]):
            if not line.is_closing():
                connection.data_received(piece)
            for turn in range(TURNS_MAX):
                await asyncio.sleep(0 if turn < QUICK_TURNS else 0.0005)  # the disk's thread needs real time
                if connection._tasks is None:
                    break
        connection.connection_lost(None)
        for _ in range(3):
            await asyncio.sleep(0)
        FrameDecoder().feed(bytes(line.said))
        assert not inside.gateway.connections

    def run(data: bytes) -> None:
        loop.run_until_complete(say(commands(data)))
        if failures.seen:
            raise AssertionError("\n".join(failures.seen))

    return run


def frame_seeds(corpus: Path) -> None:
    """Frames that the decoder parses by hand, each after three cuts."""
    body = build_body(pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1).SerializeToString(), b"x")
    frames = {
        "send": b"".join(encode.send(1, 2, body, 3)),
        "ack": encode.ack(1, 0, [(750_000_000_000_123, 7), (1, 2)]),
        "flow": encode.flow(1, 1000),
        "message": b"".join(encode.message(1, 2, 3, body, 1, 1, [-1], 2)),
        "ping": encode.PING + encode.flow(1, 1),
    }
    for name, frame in frames.items():
        (corpus / name).write_bytes(b"\x10\x80\xf0" + frame)


def command_seeds(corpus: Path) -> None:
    """One of each command that a client may send, on the existing topic."""
    known = {"topic": TOPIC, "subscription": "s", "namespace": "public/default", "producer_name": "p"}
    for kind in T.DESCRIPTOR.fields[1:]:
        message = cast("Any", pb).BaseCommand()
        message.type = kind.number if kind.number in T.Type.values() else T.PING  # numbers are the same in both
        inner = getattr(message, kind.name)
        inner.SetInParent()
        for field in inner.DESCRIPTOR.fields:
            if field.label == field.LABEL_REPEATED:
                continue
            if field.name in known:
                setattr(inner, field.name, known[field.name])
            elif field.label == field.LABEL_REQUIRED and field.cpp_type != field.CPPTYPE_MESSAGE:
                setattr(inner, field.name, "x" if field.cpp_type == field.CPPTYPE_STRING else 1)
        with contextlib.suppress(ValueError):
            encoded = message.SerializePartialToString()[:250]
            make = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)
            take = pb.CommandSubscribe(
                topic=TOPIC, subscription="s", subType=pb.CommandSubscribe.Shared, consumer_id=1, request_id=2
            )
            before = [encode.simple(T.PRODUCER, make)[8:], encode.simple(T.SUBSCRIBE, take)[8:]]
            text = b"".join(bytes((len(one),)) + one + b"\0" for one in (*before, encoded))
            (corpus / kind.name).write_bytes(text)


def main() -> None:
    target, where, *options = sys.argv[1:]
    directory = Path(where)
    corpus = directory / "corpus"
    corpus.mkdir()
    arguments = [sys.argv[0], *options, f"-artifact_prefix={directory}/", str(corpus)]
    if target == "frames":
        frame_seeds(corpus)
        atheris.Setup(arguments, fuzz_frames)
        atheris.Fuzz()  # does not return
    failures = Failures()
    logging.getLogger("meridian_broker").addHandler(failures)
    logging.getLogger("asyncio").addHandler(failures)
    loop = asyncio.new_event_loop()
    command_seeds(corpus)
    broker = broker_inside(directory / "data", allowAutoTopicCreation="false", keepAliveIntervalSeconds=3600)
    inside = loop.run_until_complete(broker.__aenter__())
    loop.run_until_complete(inside.catalog.topics.create(topic_name.parse(TOPIC), TopicRecord()))
    atheris.Setup(arguments, connection_target(inside, failures, loop))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
