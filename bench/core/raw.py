# SPDX-License-Identifier: Apache-2.0
"""A client on a bare blocking socket: as little between load and broker as Python allows."""

from __future__ import annotations

import socket
import time
from typing import Any

from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode, metadata
from meridian_broker.wire.pulsar.frames import FrameDecoder

READ_BYTES = 1 << 20
NAME = "bench"
CONNECTED, ERROR, RECEIPT, SEND_ERROR, MESSAGE, CLOSE_CONSUMER, PING = 3, 14, 7, 8, 9, 16, 18


class Raw:
    """One connection, through its handshake."""

    def __init__(self, port: int, receive_bytes: int | None = None, host: str = "127.0.0.1") -> None:
        """:param receive_bytes: size of the kernel's buffer for unread bytes; None: the kernel chooses."""
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.connect((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = FrameDecoder()
        self._requests = 0
        self.write(encode.simple(2, pb.CommandConnect(client_version="bench", protocol_version=19)))
        while all(command[0] != CONNECTED for command in self.read()):
            pass

    def write(self, data: bytes | memoryview) -> None:
        self.socket.sendall(data)

    def read(self) -> list[Any]:
        """The commands that have arrived; waits for some bytes. :raises ConnectionError: the broker is gone."""
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise ConnectionError("the broker closed the connection")
        return self._decoder.feed(data)

    def read_alive(self) -> list[Any]:
        """Like ``read``, but answers a PING: the broker closes a connection that only listens."""
        commands = self.read()
        if any(command[0] == PING for command in commands):
            self.write(encode.PONG)
        return commands

    def ask(self, kind: int, message: Any) -> Any:
        """Send a request, return its answer."""
        return self.ask_all(kind, [message])[-1]

    def ask_all(self, kind: int, messages: list[Any]) -> list[Any]:
        """Send requests together, return their answers in order of arrival."""
        waiting = set()
        for message in messages:
            self._requests += 1
            message.request_id = self._requests
            waiting.add(self._requests)
        self.write(b"".join(encode.simple(kind, message) for message in messages))
        answers = []
        while waiting:
            for command in self.read_alive():
                if getattr(command[1], "request_id", None) in waiting:
                    if command[0] == ERROR:
                        raise SystemExit(f"bench: the broker refused: {command[1].message}")
                    waiting.remove(command[1].request_id)
                    answers.append(command[1])
        return answers

    def producer(self, topic: str) -> None:
        """PRODUCER, with the name in the metadata of ``body``."""
        self.ask(5, pb.CommandProducer(topic=topic, producer_id=1, producer_name=NAME))

    def subscribe(self, topic: str, subscription: str, consumer_id: int = 1, **options: Any) -> None:
        """SUBSCRIBE; see ``subscribing``."""
        self.ask(4, subscribing(topic, subscription, consumer_id, **options))

    def close_consumer(self, consumer_id: int = 1) -> None:
        self.ask(16, pb.CommandCloseConsumer(consumer_id=consumer_id))

    def close(self) -> None:
        self.socket.close()


def subscribing(topic: str, subscription: str, consumer_id: int, **options: Any) -> pb.CommandSubscribe:
    """A SUBSCRIBE, by default Shared and from the earliest message on."""
    return pb.CommandSubscribe(
        topic=topic,
        subscription=subscription,
        consumer_id=consumer_id,
        initialPosition=pb.CommandSubscribe.Earliest,
        **{"subType": pb.CommandSubscribe.Shared, **options},
    )


def body(number: int, payload_bytes: int, messages: int = 1) -> bytes:
    """A message body whose payload begins with ``number,``; with ``messages``, a batch (with arbitrary contents)."""
    view = pb.MessageMetadata(producer_name=NAME, sequence_id=number, publish_time=time.time_ns() // 1_000_000)
    if messages > 1:
        view.num_messages_in_batch = messages
    return metadata.build_body(view.SerializeToString(), (b"%d," % number).ljust(payload_bytes, b"."))


def number_of(stored: bytes) -> int:
    """The number that ``body`` put in."""
    _, end = metadata.metadata_bounds(stored)
    return int(stored[end : stored.index(b",", end)])


def frame(number: int, payload_bytes: int, messages: int = 1) -> bytes:
    """A whole SEND of producer 1."""
    return b"".join(encode.send(1, number, body(number, payload_bytes, messages), messages))


def take_frames(data: bytearray, kind: int) -> int:
    """Take the complete frames off the front of ``data`` and count them; all must be of this kind, or PING.

    Receipts of a burst have one length: if the first byte and the type of each are right, there are as many as fit. The
    generator shares the machine with the broker, so its own cost counts.
    """
    count = 0
    while len(data) >= 10:
        length = 4 + int.from_bytes(data[:4], "big")
        fits = len(data) // length
        if fits == 0:
            break
        if fits > 1:
            same = fits * length
            if not (
                length < 256
                and data[0:same:length] == data[1:same:length] == data[2:same:length] == bytes(fits)
                and data[3:same:length] == bytes((length - 4,)) * fits
                and data[9:same:length] == bytes((kind,)) * fits
            ):
                fits = 1
        if data[9] == kind:
            count += fits
        elif data[9] != PING:
            raise SystemExit(f"bench: command {data[9]} instead of {kind}")
        del data[: fits * length]
    return count
