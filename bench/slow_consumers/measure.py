# SPDX-License-Identifier: Apache-2.0
"""Memory of a broker whose consumers request everything and read nothing, or a little now and then.

A thousand consumers, each on its own connection and subscription, with permits for a million messages. Every other one
never reads; the rest read two kilobytes ten times a second. Meanwhile a producer publishes, and one good consumer takes
everything. Memory must be flat: what the broker holds for a slow consumer is bounded, the rest stays in the log.

Memory is the resident set. It is measured when all are subscribed, after a quarter of the messages, when all buffers
are full, and at the end. At last some of the slow consumers read on, and must get every message, in order.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "core"))
from meridian_broker.wire.pulsar import encode
from meridian_broker.wire.pulsar.frames import FrameDecoder, Message
from processes import Broker, cpu_seconds, rss_bytes
from raw import PING, Raw, frame, number_of
from report import Report

TOPIC = "persistent://public/default/slow"
CONSUMERS = 1000
PERMITS = 1_000_000
MESSAGE_BYTES = 4096
WINDOW = 200
"""Maximum number of messages without a receipt."""
SIP_BYTES = 2048
SIP_SECONDS = 0.1
CAUGHT_UP = 5
"""Slow consumers that read on at the end."""
GROWTH_LIMIT_MIB = 96.0
"""From a quarter of the messages to all of them: the buffers of those that sip fill one after the other."""
EACH_LIMIT_KIB = 256.0
"""Everything above an empty broker, including the cache of the newest entries, divided by the slow consumers."""
STALL_SECONDS = 60.0


class Slow:
    """A consumer that has requested everything. Its kernel buffer is small, so that the broker notices its slowness."""

    def __init__(self, port: int, number: int) -> None:
        self.connection = Raw(port, receive_bytes=4096)
        self.connection.subscribe(TOPIC, f"slow-{number}", subType=0)
        self.connection.write(encode.flow(1, PERMITS))
        self.socket = self.connection.socket
        self.numbers: list[int] = []
        self._decoder = FrameDecoder()

    def sip(self) -> None:
        """Read a little, if there is something."""
        try:
            self._hear(self.socket.recv(SIP_BYTES, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return

    def _hear(self, data: bytes) -> None:
        if not data:
            raise SystemExit("bench: the broker closed the connection of a slow consumer")
        for command in self._decoder.feed(data):
            if isinstance(command, Message):
                self.numbers.append(number_of(command.body))
            elif command[0] == PING:
                self.socket.sendall(encode.PONG)

    def read_on(self, upto: int) -> list[int]:
        """Read on to message ``upto``; the numbers of all messages, in order."""
        self.socket.settimeout(STALL_SECONDS)
        while not self.numbers or self.numbers[-1] < upto:
            self._hear(self.socket.recv(1 << 20))
        return self.numbers


class Load:
    """The producer, the good consumer and the sips of the slow ones, in one loop."""

    def __init__(self, port: int, slow: list[Slow]) -> None:
        self._slow = slow
        self._sipping = slow[1::2]
        self._producer, self._good = Raw(port), Raw(port)
        self._producer.producer(TOPIC)
        self._good.subscribe(TOPIC, "good", subType=0)
        self._good.write(encode.flow(1, PERMITS))
        self._selector = selectors.DefaultSelector()
        for one in (self._producer, self._good):
            self._selector.register(one.socket, selectors.EVENT_READ, one)
        self.sent = self.stored = self.taken = 0
        self._next_sip = time.monotonic()

    def publish(self, upto: int) -> None:
        """Until this many are stored and the good consumer has them."""
        moved = time.monotonic()
        while self.stored < upto or self.taken < upto:
            while self.sent < upto and self.sent - self.stored < WINDOW:
                self._producer.write(frame(self.sent, MESSAGE_BYTES))
                self.sent += 1
            for key, _ in self._selector.select(SIP_SECONDS):
                self._take(key.data)
                moved = time.monotonic()
            if time.monotonic() >= self._next_sip:
                self._next_sip = time.monotonic() + SIP_SECONDS
                for one in self._sipping:
                    one.sip()
            if time.monotonic() - moved > STALL_SECONDS:
                raise SystemExit(f"bench: nothing moves: {self.sent} sent, {self.stored} stored, {self.taken} taken")

    def _take(self, connection: Raw) -> None:
        for command in connection.read():
            if command[0] == PING:
                connection.write(encode.PONG)
            elif connection is self._producer:
                self.stored += 1
            elif isinstance(command, Message):
                self.taken += 1


def measure(bench: Report, directory: Path, messages: int, consumers: int) -> None:
    mib = 1 << 20
    # Otherwise the broker disconnects those that take nothing.
    with Broker(directory, keepAliveIntervalSeconds=3600) as broker:
        empty = rss_bytes(broker.pid)
        slow = [Slow(broker.port, number) for number in range(consumers)]
        load = Load(broker.port, slow)
        subscribed = rss_bytes(broker.pid)
        began, cpu = time.monotonic(), cpu_seconds(broker.pid)
        load.publish(messages // 4)
        quarter = rss_bytes(broker.pid)
        load.publish(messages)
        end = rss_bytes(broker.pid)
        bench.figure("consumers", consumers)
        bench.figure("published_mib", messages * MESSAGE_BYTES / mib)
        bench.figure("publish_seconds", time.monotonic() - began)
        bench.figure("broker_cpu_seconds", cpu_seconds(broker.pid) - cpu)
        bench.figure("rss_empty_mib", empty / mib)
        bench.figure("rss_subscribed_mib", subscribed / mib)
        bench.figure("rss_after_a_quarter_mib", quarter / mib)
        bench.figure("rss_end_mib", end / mib)
        bench.at_most("rss_growth_mib", (end - quarter) / mib, GROWTH_LIMIT_MIB)
        bench.at_most("rss_per_slow_consumer_kib", (end - empty) / 1024 / consumers, EACH_LIMIT_KIB)
        wrong = sum(one.read_on(messages - 1) != list(range(messages)) for one in slow[:CAUGHT_UP])
        bench.at_most("slow_consumers_that_missed_messages", wrong, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the messages")
    parser.add_argument("--json", action="store_true", help="print only one JSON object, on the last line")
    parser.add_argument("--prepare", action="store_true", help="no effect: a run needs nothing fetched")
    parser.add_argument("--directory", type=Path, default=Path(), help="where to write; it must be on a real disk")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    if options.prepare:
        return 0
    bench = Report(as_json=options.json)
    with tempfile.TemporaryDirectory(prefix="bench-slow-", dir=options.directory) as directory:
        measure(bench, Path(directory).resolve(), 16_000 if options.quick else 64_000, CONSUMERS)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
