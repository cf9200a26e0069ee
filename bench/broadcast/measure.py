# SPDX-License-Identifier: Apache-2.0
"""A broadcast: one message to tens of thousands of consumers, each with its own subscription.

All consumers belong to one process that speaks the protocol on bare sockets, a few thousand to a connection. Each has
an Exclusive, durable subscription. First all subscribe; then messages come at one and at ten per second, to consumers
that acknowledge each and grant a permit for it; then at one per second to consumers that acknowledge nothing. Some at
one per second come before all others, to warm up, the bookies' virtual machines above all: they have figures of their
own (``warm_up``), and no target. A
delivery's latency runs from the SEND until its bytes were read here, and includes the work of the generator, which
shares the machine with the broker. Then a thousand consumers of the official Python client join, each with its own
subscription, and a client that does not read (``real.py`` publishes and measures). At last the broker is killed and
started again, all subscribe again, and a message reaches each of them; ``--only restart`` skips everything in between.

With ``--shadows 4`` the subscriptions are spread over four shadows of the topic, in one broker; with ``--brokers 2`` as
well, half of them in each of two brokers, on bookies (``arrangements.py``).
"""

from __future__ import annotations

import argparse
import json
import selectors
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "core"))
from arrangements import TOPIC, Arrangement, OneBroker, TwoBrokers, cpu, rss
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from raw import CLOSE_CONSUMER, MESSAGE, PING, Raw, frame, subscribing
from report import Report

PER_CONNECTION = 2_000
"""Maximum consumers: their numbers have one or two bytes on the wire."""
PERMITS = 100
AT_ONCE = 500
"""SUBSCRIBEs of a connection in flight at once."""
NUMBER = 13
"""Where the consumer's number begins in a MESSAGE, an ACK and a FLOW."""
STALL_SECONDS = 120.0
WARM_UP = 10
"""Messages before all others."""
TARGETED = "1_per_second"
"""Messages whose end-to-end latency has a target."""
MANY = 100_000
"""Targets in seconds, each from this number of subscriptions on; below, those for 40,000."""
CONNECT_SECONDS = {False: 12.0, True: 40.0}
P99_SECONDS = {False: 0.3, True: 0.8}
CPU_MICROSECONDS = 10.0
MEMORY_KIB = 1.5
RESTART_SECONDS = 60.0


class Listener:
    """A connection with thousands of consumers, each on its own subscription."""

    def __init__(self, port: int, names: list[tuple[str, str]]) -> None:
        """:param names: topic and subscription of each consumer."""
        self.raw = Raw(port)
        self._names = names
        self._data = bytearray()
        self._answers: dict[bytes, tuple[bytes, bytes]] = {}
        """By message id: ACK and FLOW of a consumer whose number has one byte or two."""
        self.reached: set[tuple[int, ...]] = set()
        """Consumers that have acknowledged a message, by their numbers as encoded."""

    def subscribe(self, first: int) -> bool:
        """The consumers from this number on, ``AT_ONCE`` of them. False: there are none left."""
        some = self._names[first : first + AT_ONCE]
        exclusive = pb.CommandSubscribe.Exclusive
        wanted = [
            subscribing(topic, name, number, subType=exclusive) for number, (topic, name) in enumerate(some, first)
        ]
        if wanted:
            self.raw.ask_all(4, wanted)
        return first + AT_ONCE < len(self._names)

    def begin(self) -> None:
        """Grant the first permits. Not earlier: messages among the answers to SUBSCRIBE would be lost."""
        self.raw.write(b"".join(encode.flow(number, PERMITS) for number in range(len(self._names))))

    def take(self, *, acknowledge: bool) -> int:
        """Read what has come, and count it."""
        data = self._data
        received = self.raw.socket.recv(1 << 20)
        if not received:
            raise SystemExit("bench: the broker closed a connection")
        data += received
        at, count, answers = 0, 0, list[bytes | bytearray]()
        while len(data) - at >= 10:
            size = 4 + int.from_bytes(data[at : at + 4], "big")
            if at + size > len(data):
                break
            alike = 1
            if data[at + 9] == PING:
                answers.append(encode.PONG)
            elif data[at + 9] == CLOSE_CONSUMER:
                raise SystemExit("bench: a broker closed consumers: it lost its topics, and its log says why")
            elif data[at + 9] == MESSAGE:
                alike = count_alike(data, at, size)
                count += alike
                if acknowledge:
                    answers.append(self._answer(data, at, size, alike))
            at += alike * size
        del data[:at]
        if answers:
            self.raw.write(b"".join(answers))
        return count

    def _answer(self, data: bytearray, at: int, size: int, count: int) -> bytearray:
        """ACK and FLOW of each consumer for a run of MESSAGEs: all that differs are the numbers, which are copied.
        Nothing is parsed or encoded for each consumer, since the generator's work counts."""
        width = width_at(data, at)
        begin = at + NUMBER + width + 2
        place = bytes(data[begin : begin + data[begin - 1]])
        prepared = self._answers.get(place) or self._answer_with(place)
        one = prepared[width - 1]
        answers, flow = bytearray(one * count), 4 + int.from_bytes(one[:4], "big")
        numbers = [data[at + byte : at + count * size : size] for byte in range(NUMBER, NUMBER + width)]
        for byte, column in enumerate(numbers, NUMBER):
            answers[byte :: len(one)] = answers[flow + byte :: len(one)] = column
        self.reached.update(zip(*numbers, strict=True))
        return answers

    def _answer_with(self, place: bytes) -> tuple[bytes, bytes]:
        """Prepare the bytes that acknowledge this message."""
        read = pb.MessageIdData.FromString(place)
        one, two = (
            encode.ack(consumer_id, 0, [(read.ledgerId, read.entryId)]) + encode.flow(consumer_id, 1)
            for consumer_id in (1, PER_CONNECTION)
        )
        self._answers[place] = one, two
        return one, two


def width_at(data: bytearray, at: int) -> int:
    """How many bytes the consumer's number has in the frame there."""
    return 1 if data[at + NUMBER] < 0x80 else 2


def count_alike(data: bytearray, at: int, size: int) -> int:
    """How many frames in a row differ from the one there in nothing but the consumer's number."""
    most, width, looked = (len(data) - at) // size, width_at(data, at), 8
    same_from = at + NUMBER + width
    if data[same_from : at + size] != data[same_from + size : at + 2 * size]:
        return 1  # as if a consumer is behind and is sent several messages at once
    while True:
        count = min(looked, most)
        run = data[at : at + count * size]
        first = run[:size]
        for byte in range(NUMBER, NUMBER + width):
            run[byte::size] = first[byte : byte + 1] * count
        same = first * count
        if run != same:
            differing = int.from_bytes(run, "big") ^ int.from_bytes(same, "big")
            return (len(run) - (differing.bit_length() + 7) // 8) // size
        if count == most:
            return count
        looked *= 4


def connect(arrangement: Arrangement, subscriptions: list[tuple[str, str]]) -> list[Listener]:
    """All consumers. Connections subscribe in turn, since a broker takes only so many requests of each at once."""
    of_port: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for topic, name in subscriptions:
        of_port[arrangement.port_of(topic)].append((topic, name))
    listeners = [
        Listener(port, names[first : first + PER_CONNECTION])
        for port, names in of_port.items()
        for first in range(0, len(names), PER_CONNECTION)
    ]
    for listener in listeners:
        first = 0
        while listener.subscribe(first):
            first += AT_ONCE
        listener.begin()
    return listeners


def broadcast(
    bench: Report,
    brokers: Arrangement,
    listeners: list[Listener],
    count: int,
    rate: int,
    messages: int,
    *,
    acknowledge: bool,
    name: str,
) -> None:
    """Messages at a rate, and when they arrived.

    :param count: number of subscriptions.
    :param name: what the figures' names begin with.
    """
    selector = selectors.DefaultSelector()
    for listener in listeners:
        selector.register(listener.raw.socket, selectors.EVENT_READ, listener)
    producer = Raw(brokers.port_of(TOPIC))
    producer.producer(TOPIC)
    published: list[float] = []
    arrived: list[tuple[float, int]] = []
    taken, used, own, began = 0, cpu(brokers), time.process_time(), time.monotonic()
    moved = began
    while taken < messages * count:
        now = time.monotonic()
        if len(published) < messages and now >= began + len(published) / rate:
            published.append(now)
            producer.write(frame(len(published), 100))
        if now - moved > STALL_SECONDS:
            raise SystemExit(f"bench: nothing moves: {taken} of {messages * count} deliveries")
        due = began + len(published) / rate if len(published) < messages else now + 1.0
        for key, _ in selector.select(max(0.0, min(1.0, due - now))):
            got = key.data.take(acknowledge=acknowledge)
            if got:
                moved = time.monotonic()
                arrived.append((moved, got))
                taken += got
    used, own = cpu(brokers) - used, time.process_time() - own
    waits = sorted(latencies(published, arrived, count))
    total = sum(number for _, number in waits)
    bench.figure(f"{name}_e2e_p50_seconds", at(waits, 0.5, total))
    p99 = at(waits, 0.99, total)
    if name == TARGETED:
        bench.at_most(f"{name}_e2e_p99_seconds", p99, P99_SECONDS[count >= MANY])
    else:
        bench.figure(f"{name}_e2e_p99_seconds", p99)
    bench.figure(f"{name}_e2e_max_seconds", waits[-1][0])
    if name == "warm_up":
        bench.figure(f"{name}_broker_cpu_microseconds_per_delivery", used / total * 1e6)
    else:
        bench.at_most(f"{name}_broker_cpu_microseconds_per_delivery", used / total * 1e6, CPU_MICROSECONDS)
    bench.figure(f"{name}_generator_cpu_microseconds_per_delivery", own / total * 1e6)
    producer.close()


def latencies(published: list[float], arrived: Iterable[tuple[float, int]], count: int) -> list[tuple[float, int]]:
    """Each delivery's latency: the first ``count`` count as the first message's, and so on, which is exact unless a
    message overtakes another."""
    found, number, left = list[tuple[float, int]](), 0, count
    for when, some in arrived:
        while some:
            part = min(some, left)
            found.append((when - published[number], part))
            some -= part
            left -= part
            if not left:
                number, left = number + 1, count
    return found


def at(waits: list[tuple[float, int]], share: float, total: int) -> float:
    wanted, seen = share * total, 0
    for wait, number in waits:
        seen += number
        if seen >= wanted:
            return wait
    return waits[-1][0]


def real_clients(bench: Report, brokers: Arrangement, listeners: list[Listener], count: int, messages: int) -> None:
    """A sample of real clients among the others, while one more subscription of each topic does not read at all."""
    idle = connect(brokers, [(topic, f"does-not-read-{at}") for at, topic in enumerate(brokers.topics)])
    program = [sys.executable, str(Path(__file__).with_name("real.py"))]
    wanted = [str(brokers.port_of(TOPIC)), brokers.topics[0], TOPIC, str(count), str(messages)]
    selector = selectors.DefaultSelector()
    for listener in listeners:
        selector.register(listener.raw.socket, selectors.EVENT_READ, listener)
    with subprocess.Popen([*program, *wanted], stdout=subprocess.PIPE, text=True) as child:
        while child.poll() is None:
            for key, _ in selector.select(0.1):
                key.data.take(acknowledge=True)
        if child.returncode or child.stdout is None:
            raise SystemExit("bench: the real clients failed")
        for name, value in json.loads(child.stdout.read()).items():
            bench.figure(f"real_clients_{name}", value)
    for one in idle:
        one.raw.close()


def measure(
    bench: Report, brokers: Arrangement, subscriptions: int, messages: int, real: int, *, only_restart: bool
) -> None:
    """:param real: number of real clients. :param only_restart: nothing is sent before the restart."""
    topics = brokers.topics
    names = [(topics[number % len(topics)], f"s{number}") for number in range(subscriptions)]
    empty, used, began = rss(brokers), cpu(brokers), time.monotonic()
    listeners = connect(brokers, names)
    bench.figure("subscriptions", subscriptions)
    bench.figure("topics", len(topics))
    bench.figure("brokers", len(brokers.pids))
    bench.at_most("connect_seconds", time.monotonic() - began, CONNECT_SECONDS[subscriptions >= MANY])
    bench.figure("connect_cpu_microseconds_each", (cpu(brokers) - used) / subscriptions * 1e6)
    bench.figure("rss_connected_mib", rss(brokers) / (1 << 20))
    bench.at_most("rss_kib_per_subscription", (rss(brokers) - empty) / 1024 / subscriptions, MEMORY_KIB)
    if not only_restart:
        of_all = bench, brokers, listeners, subscriptions
        broadcast(*of_all, 1, WARM_UP, acknowledge=True, name="warm_up")
        broadcast(*of_all, 1, messages, acknowledge=True, name=TARGETED)
        broadcast(*of_all, 10, messages, acknowledge=True, name="10_per_second")
        broadcast(*of_all, 1, messages, acknowledge=False, name="1_per_second_unacknowledged")
        real_clients(bench, brokers, listeners, count=real, messages=messages)
        bench.figure("rss_end_mib", rss(brokers) / (1 << 20))
    for listener in listeners:
        listener.raw.close()
    restart(bench, brokers, names)


def restart(bench: Report, brokers: Arrangement, names: list[tuple[str, str]]) -> None:
    """From the kill until all subscriptions have a consumer again, and until each has received a message."""
    began = time.monotonic()
    if not brokers.restart():
        return
    bench.figure("restart_until_healthy_seconds", time.monotonic() - began)
    listeners = connect(brokers, names)
    bench.figure("restart_until_all_subscribed_seconds", time.monotonic() - began)
    serve(brokers, listeners, len(names))
    bench.at_most("restart_until_all_served_seconds", time.monotonic() - began, RESTART_SECONDS)


def serve(brokers: Arrangement, listeners: list[Listener], count: int) -> None:
    """Publish a message, and wait until each of these subscriptions has received one, even an earlier one."""
    producer = Raw(brokers.port_of(TOPIC))
    producer.producer(TOPIC)
    producer.write(frame(1, 100))
    with selectors.DefaultSelector() as selector:
        for listener in listeners:
            selector.register(listener.raw.socket, selectors.EVENT_READ, listener)
        while (reached := sum(len(listener.reached) for listener in listeners)) < count:
            ready = selector.select(STALL_SECONDS)
            if not ready:
                raise SystemExit(f"bench: nothing moves: {reached} of {count} subscriptions are served again")
            for key, _ in ready:
                key.data.take(acknowledge=True)
    producer.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="ten thousand subscriptions, five messages")
    parser.add_argument("--json", action="store_true", help="print only one JSON object, on the last line")
    parser.add_argument("--prepare", action="store_true", help="no effect: a run needs nothing fetched")
    parser.add_argument("--only", choices=("restart",), help="only connect and restart")
    parser.add_argument(
        "--subscriptions", type=int, help="number of subscriptions; default: 40,000, or 10,000 with --quick"
    )
    parser.add_argument("--shadows", type=int, default=0, help="spread them over this many shadows of the topic")
    parser.add_argument("--brokers", type=int, choices=(1, 2), default=1, help="two need bookies: scripts/bookkeeper")
    parser.add_argument("--directory", type=Path, default=Path(), help="where to write; it must be on a real disk")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    if options.prepare:
        return 0
    if options.only and options.brokers == 2:
        raise SystemExit("bench: two brokers are not restarted: bench/brokers measures how one takes over")
    bench = Report(as_json=options.json)
    count = options.subscriptions or (10_000 if options.quick else 40_000)
    with tempfile.TemporaryDirectory(prefix="bench-broadcast-", dir=options.directory) as directory:
        messages, real = (5, 100) if options.quick else (20, 1000)
        arrangement = OneBroker if options.brokers == 1 else TwoBrokers
        with arrangement(Path(directory).resolve(), options.shadows) as brokers:
            measure(bench, brokers, count, messages, real, only_restart=options.only == "restart")
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
