# SPDX-License-Identifier: Apache-2.0
"""The load, in its own process: ``generator.py WHAT key=value ...``. The last line it prints is JSON."""

from __future__ import annotations

import json
import random
import resource
import selectors
import signal
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from raw import MESSAGE, READ_BYTES, RECEIPT, Raw, frame, number_of, subscribing, take_frames

BLOCK_BYTES = 256 << 10
"""Frames are built beforehand and sent in blocks of about this size."""
TOGETHER = 50
"""Subscriptions created at a time."""
RECEIPT_RECORD = struct.Struct("<qqq")
"""ledger, entry, number."""
PERMITS = 1000
WAITING = 500
"""Maximum number of messages without receipt, if the broker will be killed."""


def publish(port: int, topic: str, size: int, messages: int, window: int, seconds: float, connections: int) -> Any:
    """Pipelined SENDs, at most ``window`` without receipt per connection, for a time."""
    clients = [Raw(port) for _ in range(connections)]
    per_block = max(1, min(window // 2, BLOCK_BYTES // size))
    block = b"".join(frame(number, size, messages) for number in range(per_block))
    poll = selectors.DefaultSelector()
    for number, client in enumerate(clients):
        client.producer(f"{topic}-{number}")
        client.socket.setblocking(False)
        poll.register(client.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, number)
    waiting, unsent = [0] * connections, [memoryview(b"")] * connections
    received: list[bytearray] = [bytearray() for _ in clients]
    done = 0
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    until = began + seconds
    while time.monotonic() < until or any(waiting):
        sending = time.monotonic() < until
        for key, events in poll.select():
            number = key.data
            client = clients[number]
            if events & selectors.EVENT_READ:
                data = client.socket.recv(READ_BYTES)
                if not data:
                    raise SystemExit("bench: the broker closed the connection")
                received[number] += data
                receipts = take_frames(received[number], RECEIPT)
                waiting[number] -= receipts
                done += receipts
            if not unsent[number] and sending and waiting[number] + per_block <= window:
                unsent[number] = memoryview(block)
                waiting[number] += per_block
            if unsent[number] and events & selectors.EVENT_WRITE:
                unsent[number] = unsent[number][client.socket.send(unsent[number]) :]
            wanted = selectors.EVENT_READ
            if unsent[number] or (sending and waiting[number] + per_block <= window):
                wanted |= selectors.EVENT_WRITE
            if key.events != wanted:
                poll.modify(client.socket, wanted, number)
    return {"count": done, "seconds": time.monotonic() - began}


def consume(port: int, topic: str, subscription: str, count: int) -> Any:
    """Take ``count`` messages of a Shared subscription and acknowledge each individually, pipelined."""
    client = Raw(port)
    client.subscribe(topic, subscription)
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    client.write(encode.flow(1, PERMITS))
    taken = granted = 0
    while taken < count:
        answers = []
        for command in client.read_alive():
            if command[0] == MESSAGE:
                place = command[1].message_id
                answers.append(encode.ack(1, 0, ((place.ledgerId, place.entryId),)))
        taken += len(answers)
        if taken - granted >= PERMITS // 2:
            answers.append(encode.flow(1, taken - granted))
            granted = taken
        client.write(b"".join(answers))
    seconds = time.monotonic() - began
    client.close_consumer()
    return {"count": taken, "seconds": seconds}


def acknowledge(port: int, topic: str, subscription: str, rate: int, seconds: float, out: str) -> Any:
    """Publish at a steady rate, acknowledge at once; ``out`` gets (ledger, entry, ns when the ACK was sent)."""
    publisher, client = Raw(port), Raw(port)
    client.subscribe(topic, subscription, replicate_subscription_state=True)
    publisher.producer(topic)
    print("ready", flush=True)
    sys.stdin.readline()
    client.write(encode.flow(1, PERMITS))
    poll = selectors.DefaultSelector()
    for one in (publisher, client):
        poll.register(one.socket, selectors.EVENT_READ, one)
    total = int(rate * seconds)
    sent = acked = 0
    began = time.monotonic()
    with Path(out).open("wb") as file:
        while acked < total:
            due = min(total, int((time.monotonic() - began) * rate) + 1)
            if due > sent:
                publisher.write(b"".join(frame(number, 1024) for number in range(sent, due)))
                sent = due
            for key, _ in poll.select(max(0.0, began + sent / rate - time.monotonic()) if sent < total else None):
                if key.data is publisher:
                    publisher.read()
                    continue
                places = [c[1].message_id for c in client.read() if c[0] == MESSAGE]
                if places:
                    answers = [encode.ack(1, 0, ((place.ledgerId, place.entryId),)) for place in places]
                    now = time.time_ns()
                    client.write(b"".join([*answers, encode.flow(1, len(places))]))
                    acked += len(places)
                    for place in places:
                        file.write(RECEIPT_RECORD.pack(place.ledgerId, place.entryId, now))
    return {"count": acked, "seconds": time.monotonic() - began}


def publish_numbers(port: int, topic: str, first: int, out: str, rate: int = 1 << 30) -> Any:
    """Publish numbered messages until the broker dies, or until SIGTERM and all receipts have come.

    ``out`` gets (ledger, entry, number) of each receipt.
    """
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    client = Raw(port)
    client.producer(topic)
    sent = first
    receipts = 0
    waiting: deque[int] = deque()
    began = time.monotonic()
    with Path(out).open("wb") as file:
        print("ready", flush=True)
        try:
            while waiting or not stopping:
                due = int((time.monotonic() - began) * rate) + 1 - (sent - first)
                if due > 0 and len(waiting) < WAITING and not stopping:
                    burst = range(sent, sent + random.randint(1, min(due, 100)))
                    waiting.extend(burst)
                    sent = burst.stop
                    client.write(b"".join(frame(number, random.randint(8, 2000)) for number in burst))
                    continue
                if not waiting:
                    time.sleep(1 / rate)
                    continue
                for command in client.read():
                    if command[0] == RECEIPT:
                        place = command[1].message_id
                        number = waiting.popleft()
                        if command[1].sequence_id != number:
                            raise SystemExit(f"bench: receipt {command[1].sequence_id} instead of {number}")
                        file.write(RECEIPT_RECORD.pack(place.ledgerId, place.entryId, number))
                        receipts += 1
        except OSError:
            pass
    return {"count": receipts, "next": sent}


def keep(port: int, topic: str, subscription: str) -> Any:
    """Create a subscription, so that the topic keeps everything."""
    client = Raw(port)
    client.subscribe(topic, subscription, subType=pb.CommandSubscribe.Exclusive)
    client.close_consumer()
    return {}


def read_back(port: int, topic: str, subscription: str, receipts: str) -> Any:
    """Read a subscription from its start; which receipts (files, in turn) name an entry that is not there?"""
    expected: dict[tuple[int, int], int] = {}
    for path in Path(receipts).parent.glob(Path(receipts).name):
        data = path.read_bytes()
        for ledger, entry, number in RECEIPT_RECORD.iter_unpack(data[: len(data) // 24 * 24]):
            expected[ledger, entry] = number
    total = len(expected)
    client = Raw(port)
    client.subscribe(topic, subscription, subType=pb.CommandSubscribe.Exclusive)
    last = client.ask(29, pb.CommandGetLastMessageId(consumer_id=1)).last_message_id
    end = last.ledgerId, last.entryId
    client.write(encode.flow(1, PERMITS))
    seen = granted = wrong = 0
    place = (-1, -1)
    while place < end:
        for command in client.read_alive():
            if command[0] == MESSAGE:
                place = command[1].message_id.ledgerId, command[1].message_id.entryId
                number = expected.pop(place, None)
                wrong += number is not None and (number != number_of(command[3]) or not command[2])
                seen += 1
        if seen - granted >= PERMITS // 2:
            client.write(encode.flow(1, seen - granted))
            granted = seen
    return {"receipts": total, "lost": len(expected) + wrong, "stored": seen}


def idle(port: int, topic: str, kind: str, count: int, connections: int) -> Any:
    """Create many subscriptions, consumers or connections and keep them until a line comes."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    clients = [Raw(port) for _ in range(count if kind == "connections" else connections)]
    for begin in range(0, count if kind != "connections" else 0, TOGETHER):
        client = clients[begin // TOGETHER % connections]
        ids = range(begin, min(begin + TOGETHER, count))
        client.ask_all(4, [subscribing(topic, f"idle-{number}", number) for number in ids])
        if kind == "subscriptions":
            client.ask_all(16, [pb.CommandCloseConsumer(consumer_id=number) for number in ids])
        else:
            client.write(b"".join(encode.flow(number, PERMITS) for number in ids))
    print("ready", flush=True)
    sys.stdin.readline()
    return {"count": count, "clients": len(clients)}


WORK: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (publish, consume, acknowledge, publish_numbers, keep, read_back, idle)
}


def main(arguments: list[str]) -> None:
    what, *pairs = arguments
    given: dict[str, Any] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        given[key] = json.loads(value) if value[:1].isdigit() else value
    print(json.dumps(WORK[what](**given)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
