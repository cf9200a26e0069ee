# SPDX-License-Identifier: Apache-2.0
"""The demo's consumer that asks for receipts: an acknowledgement counts once the broker says that it is on disk.

The client from the Python package index cannot ask for them (Java's can: ``isAckReceiptEnabled``), so this speaks the
protocol itself. It works on a subscription of its own, takes whole batches, acknowledges one in a hundred late, and
writes a journal as ``worker.py`` does: D delivered, A its receipt has come. ``flight`` is 0: it does not look inside.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode, metadata
from meridian_broker.wire.pulsar.frames import FrameDecoder
from worker import HOLD_SECONDS, HOLD_SHARE, POLITENESS, RECORD

SUBSCRIPTION = "with-receipts"
PERMITS = 10_000
READ_BYTES = 1 << 20
READ_SECONDS = 0.1
"""How late a stop may be noticed."""
WRITE_SECONDS = 60
ERROR, CONNECT, CONNECTED, SUBSCRIBE, SUCCESS, MESSAGE, ACK, CLOSE_CONSUMER, PING, ACK_RESPONSE = (
    getattr(pb.BaseCommand, name)
    for name in (
        *("ERROR", "CONNECT", "CONNECTED", "SUBSCRIBE", "SUCCESS", "MESSAGE", "ACK", "CLOSE_CONSUMER", "PING"),
        "ACK_RESPONSE",
    )
)

stopping = False


class Consumer:
    """One Shared consumer on a socket of its own."""

    def __init__(self, url: str, topic: str, journal: Path, seed: int) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname or "", address.port or 0), timeout=60)
        self._decoder = FrameDecoder()
        self._journal = journal.open("ab", buffering=1 << 16)
        self._random = random.Random(seed)
        self._requests = 1
        self._unconfirmed: dict[int, Any] = {}
        self._held: deque[tuple[float, Any]] = deque()
        self._taken = 0
        self._ask(CONNECT, pb.CommandConnect(client_version="demo", protocol_version=19), CONNECTED)
        subscribe = pb.CommandSubscribe(
            topic=topic,
            subscription=SUBSCRIPTION,
            subType=pb.CommandSubscribe.Shared,
            consumer_id=1,
            request_id=1,
            initialPosition=pb.CommandSubscribe.Earliest,
            replicate_subscription_state=True,
        )
        self._ask(SUBSCRIBE, subscribe, SUCCESS)
        self._socket.sendall(encode.flow(1, PERMITS))

    def run(self) -> None:
        """Until asked to stop, or until the region is dead."""
        while not stopping:
            self._step()
        while self._held:
            self._acknowledge(self._held.popleft()[1])
        while self._unconfirmed:
            self._step()
        self._ask(CLOSE_CONSUMER, pb.CommandCloseConsumer(consumer_id=1, request_id=2), SUCCESS)

    def close(self) -> None:
        self._journal.close()
        self._socket.close()

    def _step(self) -> None:
        for command in self._read():
            if command[0] == MESSAGE:
                self._take(command[1].message_id, metadata.parse(command[3]).num_messages_in_batch)
            elif command[0] == ACK_RESPONSE:
                self._note(b"A", self._unconfirmed.pop(command[1].request_id))
        while self._held and self._held[0][0] <= time.monotonic():
            self._acknowledge(self._held.popleft()[1])
        self._journal.flush()

    def _take(self, place: Any, messages: int) -> None:
        self._note(b"D", place)
        if self._random.random() < HOLD_SHARE:
            self._held.append((time.monotonic() + HOLD_SECONDS * self._random.random(), place))
        else:
            self._acknowledge(place)
        self._taken += messages  # permits count messages, not batches
        if self._taken >= PERMITS // 2:
            self._socket.sendall(encode.flow(1, self._taken))
            self._taken = 0

    def _acknowledge(self, place: Any) -> None:
        self._requests += 1
        self._unconfirmed[self._requests] = place
        ack = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, request_id=self._requests)
        ack.message_id.add(ledgerId=place.ledgerId, entryId=place.entryId)
        self._socket.sendall(encode.simple(ACK, ack))

    def _read(self) -> list[Any]:
        """The commands that come within a moment. :raises OSError: the connection is gone."""
        self._socket.settimeout(READ_SECONDS)
        try:
            data = self._socket.recv(READ_BYTES)
        except TimeoutError:
            return []
        finally:
            self._socket.settimeout(WRITE_SECONDS)
        if not data:
            raise ConnectionError("the broker closed the connection")
        commands: list[Any] = self._decoder.feed(data)
        for command in commands:
            if command[0] == PING:
                self._socket.sendall(encode.PONG)
            elif command[0] == ERROR:
                raise SystemExit(f"demo: the broker refused: {command[1].message}")
        return commands

    def _ask(self, kind: int, command: Any, answer: int) -> None:
        self._socket.sendall(encode.simple(kind, command))
        while all(one[0] != answer for one in self._read()):
            pass

    def _note(self, kind: bytes, place: Any) -> None:
        now = time.time_ns() // 1_000_000
        self._journal.write(RECORD.pack(kind, place.ledgerId, place.entryId, -1, 0, now))


def stop(signum: int, frame: object) -> None:
    del signum, frame
    global stopping
    stopping = True


def main(arguments: list[str]) -> None:
    os.nice(POLITENESS)
    signal.signal(signal.SIGTERM, stop)
    url, topic, journal, seed = arguments
    if not sys.stdin.readline():  # a stand-by, ready to go; the demo says when
        return
    consumer = Consumer(url, topic, Path(journal), int(seed))
    try:
        consumer.run()
    except OSError:  # the region is dead
        pass
    finally:
        consumer.close()


if __name__ == "__main__":
    main(sys.argv[1:])
