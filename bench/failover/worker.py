# SPDX-License-Identifier: Apache-2.0
"""The publisher and the consumer, each in its own process: ``worker.py WHAT key=value ...``.

They implement the protocol themselves, because client libraries collect acknowledgements for a while before they send
them: nothing is known about an acknowledgement that was still in the library when the broker died. The consumer here
sends each at once, asks for its receipt (ACK with a request id, ACK_RESPONSE) and records both times. So repeated
messages can be judged without excuses: the broker must keep everything for which it sent a receipt.

Each waits for a line ``go`` when it is ready, and ends with one line of JSON.
"""

from __future__ import annotations

import json
import selectors
import struct
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, BinaryIO

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "core"))
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from raw import MESSAGE, PING, RECEIPT, SEND_ERROR, Raw, frame, number_of

NOTE = struct.Struct("<Bqd")
"""Event, number, time (this machine's monotonic clock)."""
TAKEN, SENT, CONFIRMED = 0, 1, 2
ACK, ACK_RESPONSE, CLOSE_CONSUMER, SUCCESS = 10, 38, 16, 13
PERMITS = 1000
WINDOW = 1000
"""Maximum number of messages without receipt."""
HELD_SHARE = 100
"""One message of this many is held back."""


def publish(host: str, port: int, topic: str, first: int, count: int, rate: float, out: str) -> Any:
    """Numbered messages at a steady rate (0: as fast as receipts allow); ``out`` gets each receipt's moment."""
    client = Raw(port, host=host)
    client.producer(topic)
    _ready()
    began = time.monotonic()
    sent, confirmed = 0, 0
    with Path(out).open("ab") as file:
        while confirmed < count:
            due = count if rate == 0 else min(count, int((time.monotonic() - began) * rate) + 1)
            due = min(due, confirmed + WINDOW)
            if due > sent:
                client.write(b"".join(frame(first + number, 100) for number in range(sent, due)))
                sent = due
            wait = began + sent / rate - time.monotonic() if rate and sent < count else None
            for command in _read(client, wait):
                if command[0] == RECEIPT:
                    file.write(NOTE.pack(CONFIRMED, first + confirmed, time.monotonic()))
                    confirmed += 1
                elif command[0] == SEND_ERROR:
                    raise SystemExit(f"bench: refused to publish: {command[1].message}")
    return {"published": confirmed}


class Consumer:
    """Takes messages at a steady rate and acknowledges each individually, with a receipt; holds some back."""

    def __init__(self, client: Raw, file: BinaryIO, hold_seconds: float | None) -> None:
        self.waiting: deque[tuple[Any, int]] = deque()
        self.taken = 0
        self.unconfirmed: dict[int, int] = {}
        self._client = client
        self._file = file
        self._hold = hold_seconds
        self._held: deque[tuple[float, Any, int]] = deque()
        self._requests = 1 << 32
        self._granted = 0

    def read(self, seconds: float | None) -> None:
        for command in _read(self._client, seconds):
            if command[0] == MESSAGE:
                self.waiting.append((command[1].message_id, number_of(command[3])))
            elif command[0] == ACK_RESPONSE:
                if command[1].HasField("error"):
                    raise SystemExit(f"bench: an acknowledgement was refused: {command[1].message}")
                self._note(CONFIRMED, self.unconfirmed.pop(command[1].request_id))

    def take(self, count: int) -> None:
        """Process this many waiting messages, and held ones that are due."""
        out = []
        for _ in range(min(count, len(self.waiting))):
            place, number = self.waiting.popleft()
            self.taken += 1
            self._note(TAKEN, number)
            if self._hold is not None and self.taken % HELD_SHARE == 0:
                self._held.append((time.monotonic() + self._hold, place, number))
            else:
                out.append(self._acknowledge(place, number))
        while self._held and self._held[0][0] <= time.monotonic():
            out.append(self._acknowledge(*self._held.popleft()[1:]))
        if self.taken + PERMITS // 2 > self._granted:
            out.append(encode.flow(1, PERMITS if not self._granted else PERMITS // 2))
            self._granted += PERMITS if not self._granted else PERMITS // 2
        if out:
            self._client.write(b"".join(out))
            self._file.flush()

    def _acknowledge(self, place: Any, number: int) -> bytes:
        self._requests += 1
        self.unconfirmed[self._requests] = number
        self._note(SENT, number)
        command = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, request_id=self._requests)
        command.message_id.add(ledgerId=place.ledgerId, entryId=place.entryId)
        return encode.simple(ACK, command)

    def _note(self, what: int, number: int) -> None:
        self._file.write(NOTE.pack(what, number, time.monotonic()))
        if what == CONFIRMED:
            self._file.flush()


def consume(host: str, port: int, topic: str, subscription: str, count: int, rate: float, hold: float, out: str) -> Any:
    """``hold``: seconds for which one message in a hundred is held back; 0: none, inf: forever.

    Prints ``worked`` once it has processed ``count`` messages. Then a line ``close`` makes it close the consumer
    properly; without one it stays until the connection ends.
    """
    client = Raw(port, host=host)
    client.subscribe(topic, subscription, replicate_subscription_state=True)
    _ready()
    began = time.monotonic()
    closed = 0.0
    with Path(out).open("ab") as file:
        consumer = Consumer(client, file, hold or None)
        try:
            while consumer.taken < count:
                due = min(count, int((time.monotonic() - began) * rate) + 1)
                consumer.take(due - consumer.taken)
                consumer.read(began + due / rate - time.monotonic() if consumer.taken >= due else None)
            print("worked", flush=True)
            closed = _stay(client, consumer)
        except OSError:
            pass
    return {"taken": consumer.taken, "unconfirmed": len(consumer.unconfirmed), "close_seconds": closed}


def _stay(client: Raw, consumer: Consumer) -> float:
    """Work until told to close; returns the seconds that closing took."""
    poll = selectors.DefaultSelector()
    poll.register(client.socket, selectors.EVENT_READ)
    poll.register(sys.stdin, selectors.EVENT_READ)
    while True:
        for key, _ in poll.select(0.01):
            if key.fileobj is client.socket:
                consumer.read(None)
            elif sys.stdin.readline():
                began = time.monotonic()
                while consumer.unconfirmed:
                    consumer.read(None)
                client.close_consumer()
                return time.monotonic() - began
            else:
                poll.unregister(sys.stdin)
        consumer.take(0)


def places(host: str, port: int, topic: str, subscription: str, last: int) -> Any:
    """Read a topic through its own subscription: the position of each number, up to ``last``."""
    client = Raw(port, host=host)
    client.subscribe(topic, subscription, subType=pb.CommandSubscribe.Exclusive)
    _ready()
    client.write(encode.flow(1, PERMITS))
    found: dict[int, tuple[int, int]] = {}
    seen = granted = 0
    while last not in found:
        for command in _read(client, None):
            if command[0] == MESSAGE:
                found[number_of(command[3])] = (command[1].message_id.ledgerId, command[1].message_id.entryId)
                seen += 1
        if seen - granted >= PERMITS // 2:
            client.write(encode.flow(1, seen - granted))
            granted = seen
    return {"places": [[number, *place] for number, place in found.items()]}


def subscriptions(host: str, port: int, topics: str, count: int, together: int = 100) -> Any:
    """Create many replicated subscriptions, ``count`` on each of these topics, and leave them without consumers."""
    client = Raw(port, host=host)
    _ready()
    for topic in topics.split(","):
        for begin in range(0, count, together):
            ids = range(begin, min(begin + together, count))
            asked = [
                pb.CommandSubscribe(
                    topic=topic,
                    subscription=f"idle-{number}",
                    consumer_id=number,
                    subType=pb.CommandSubscribe.Shared,
                    initialPosition=pb.CommandSubscribe.Earliest,
                    replicate_subscription_state=True,
                )
                for number in ids
            ]
            client.ask_all(4, asked)
            client.ask_all(CLOSE_CONSUMER, [pb.CommandCloseConsumer(consumer_id=number) for number in ids])
    return {"subscriptions": count * (topics.count(",") + 1)}


def _read(client: Raw, seconds: float | None) -> list[Any]:
    """The commands that arrive within a time; keep-alive is answered here."""
    client.socket.settimeout(None if seconds is None else max(seconds, 0.0005))
    try:
        commands = client.read()
    except TimeoutError:
        return []
    finally:
        client.socket.settimeout(None)
    if any(command[0] == PING for command in commands):
        client.write(encode.PONG)
    return commands


def _ready() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


WORK = {each.__name__: each for each in (publish, consume, places, subscriptions)}
NUMBERS = {"port": int, "first": int, "count": int, "last": int, "rate": float, "hold": float}


def main(arguments: list[str]) -> None:
    what, *pairs = arguments
    given: dict[str, Any] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        given[key] = NUMBERS[key](value) if key in NUMBERS else value
    print(json.dumps(WORK[what](**given)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
