# SPDX-License-Identifier: Apache-2.0
"""A region of two brokers on three bookies, all on this machine.

*Throughput*: messages that brokers store per second of their processor time, two brokers with half of the load each
beside one with all of it. Wall time says as much about the machine's cores, which clients and bookies share.

*Handover*: unmodified Pulsar clients publish to every topic of one broker, each again half a second after its receipt.
Then that broker is stopped (SIGTERM) or killed. The pause of a topic is the longest time that one of its messages
waited for its receipt. A stop is over once the broker has ended, a kill once the other one owns every bundle and, as a
separate figure, once it has opened every topic; clients pause longer after a kill, because each failed attempt doubles
their pause. Messages with a receipt must be stored, and acknowledged ones must not be redelivered after a stop.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pulsar
from support.brokers.bookies import START_SECONDS, bookies_missing, jars
from support.brokers.broker_process import http, wait_until
from support.brokers.up_process import UpProcess

REGION = "us-east"
GENERATOR = Path(__file__).parents[1] / "core" / "generator.py"
TICKS = os.sysconf("SC_CLK_TCK")
INTERVAL_SECONDS = 0.5
"""Interval between the messages of one topic."""
NAMESPACE = "public/bench"
DEFAULT_BUNDLES = 4
"""Bundles of namespace public/default."""
BUNDLES = 64
"""Default bundles of the measured namespace: a stopping broker hands over a few bundles at a time, and clients wait as
long as their bundle takes. One bundle holds some fifteen of a thousand topics."""
CONSUMED = 50
"""Topics that have a consumer."""
SESSION_SECONDS = 10.0
"""Default of metadataStoreSessionTimeoutMillis."""
PATIENCE_SECONDS = 120.0
KINDS = {"bookies": b"bookkeeper.server.Main", "etcd": b"etcd", "brokers": b"broker"}
"""Kinds of processes, by a word in their command lines; the first match counts."""
PARTS = (THROUGHPUT, STOPPED, KILLED) = ("throughput", "stopped", "killed")


class Processes:
    """The processor time of all processes involved, by kind, from now on."""

    def __init__(self, directory: Path) -> None:
        """:param directory: the region's; the command line of each of its processes names a path in it."""
        self._place = str(directory).encode()
        self._before = self._now()

    def seconds(self) -> dict[str, float]:
        """Since then, without brokers that have ended."""
        now = self._now()
        took = {pid: (kind, seconds - self._before.get(pid, (kind, 0.0))[1]) for pid, (kind, seconds) in now.items()}
        return {
            one: round(sum(seconds for kind, seconds in took.values() if kind == one), 2) for one in ("clients", *KINDS)
        }

    def _now(self) -> dict[int, tuple[str, float]]:
        found: dict[int, tuple[str, float]] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                kind = next((one for one, word in KINDS.items() if word in command), None)
                if kind is not None and self._place in command and b"\0up\0" not in command:
                    found[int(entry.name)] = kind, cpu_seconds(int(entry.name))
        return found | {os.getpid(): ("clients", cpu_seconds(os.getpid()))}


class Region:
    """The region's brokers and their topics."""

    def __init__(self, directory: Path, brokers: int, bundles: int = BUNDLES) -> None:
        self.bundles = bundles
        options = ("--storage", "bookkeeper", "--bookkeeper-jars", str(jars()))
        self.process = UpProcess(
            (REGION,), directory, metadata="etcd", brokers=brokers, options=options, start_seconds=2 * START_SECONDS
        )

    def __enter__(self) -> Region:
        self.process.start()
        record = self.process.record(REGION)
        self.brokers: list[dict[str, Any]] = record.get("brokers", [record])
        self.by_url = {one["service_url"]: one for one in self.brokers}
        place = f"{self.brokers[0]['admin_url']}/admin/v2/namespaces/{NAMESPACE}"
        if http("PUT", place, {"bundles": {"numBundles": self.bundles}}).status != 204:
            raise SystemExit(f"bench: namespace {NAMESPACE} was not created")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()

    @property
    def every_bundle(self) -> int:
        """Number of bundles that the brokers own together."""
        return self.bundles + DEFAULT_BUNDLES

    @property
    def url(self) -> str:
        return "pulsar://" + ",".join(one["service_url"].removeprefix("pulsar://") for one in self.brokers)

    def owner(self, topic: str) -> dict[str, Any]:
        """The broker that serves a topic."""
        place = f"{self.brokers[-1]['admin_url']}/lookup/v2/topic/{topic.replace('://', '/')}"
        answer = wait_until(lambda: (found := http("GET", place)).status == 200 and found, f"{topic} to have an owner")
        broker: dict[str, Any] = self.by_url[answer.json["brokerUrl"]]
        return broker

    def topics_of(self, broker: dict[str, Any], count: int, prefix: str, suffix: str = "") -> list[str]:
        """``count`` names of topics that this broker serves."""
        found: list[str] = []
        number = 0
        while len(found) < count:
            topic = f"persistent://{NAMESPACE}/{prefix}-{number}{suffix}"
            if self.owner(topic) is broker:
                found.append(topic)
            number += 1
        return found


def is_balanced(region: Region) -> bool:
    """Wait until all bundles are owned and none will move to another broker."""
    if len(region.brokers) == 1:
        return True
    counts = [owned(broker) for broker in region.brokers]
    return sum(counts) == region.every_bundle and max(counts) - min(counts) < 2


def open_topics(broker: dict[str, Any]) -> int:
    """Number of topics of the measured namespace that are open there."""
    text = http("GET", f"{broker['admin_url']}/metrics").text
    found = re.search(rf'^pulsar_topics_count{{[^}}]*"{NAMESPACE}"[^}}]*}} (\d+)', text, re.MULTILINE)
    return int(found[1]) if found else 0


def owned(broker: dict[str, Any]) -> int:
    """The number of its bundles."""
    url = broker["admin_url"]
    answer = http("GET", f"{url}/admin/v2/brokers/{REGION}/{url.removeprefix('http://')}/ownedNamespaces")
    return len(answer.json) if answer.status == 200 else 0


# -- throughput ----------------------------------------------------------------------------------------------------


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def throughput(directory: Path, brokers: int, seconds: float) -> float:
    """Messages of 1 KiB stored per second of the brokers' processor time."""
    with Region(directory, brokers) as region:
        wait_until(lambda: is_balanced(region), "every broker to own topics")
        generators: list[Popen[bytes]] = []
        for number, broker in enumerate(region.brokers):
            for _ in range(2):
                topic = next(name for name in region.topics_of(broker, 1, f"load-{number}-{len(generators)}", "-0"))
                generators.append(_generator(broker, topic, seconds))
        for one in generators:
            assert one.stdout is not None
            if one.stdout.readline().strip() != b"ready":
                raise SystemExit("bench: a generator did not start")
        before = sum(cpu_seconds(one["pid"]) for one in region.brokers)
        stored = 0
        for one in generators:
            assert one.stdin is not None
            one.stdin.write(b"\n")
            one.stdin.flush()
        for one in generators:
            output, _ = one.communicate(timeout=seconds + PATIENCE_SECONDS)
            stored += json.loads(output.splitlines()[-1])["count"]
        return stored / (sum(cpu_seconds(one["pid"]) for one in region.brokers) - before)


def _generator(broker: dict[str, Any], topic: str, seconds: float) -> Popen[bytes]:
    """Publishes to the topic over one connection; the generator appends its number to the topic's name."""
    port = broker["service_url"].rpartition(":")[2]
    given = {"port": port, "topic": topic.removesuffix("-0"), "size": 1024, "messages": 1, "window": 500}
    pairs = [f"{key}={value}" for key, value in (given | {"seconds": seconds, "connections": 1}).items()]
    return Popen([sys.executable, str(GENERATOR), "publish", *pairs], stdin=PIPE, stdout=PIPE)


# -- handover of topics --------------------------------------------------------------------------------------------


@dataclass
class Change:
    """The cost of moving all topics of a broker to the other one."""

    topics: int
    seconds: float
    open_seconds: float
    """Until the other broker had all topics open, whoever asked for them."""
    p50_pause_seconds: float
    p99_pause_seconds: float
    receipts: int
    refused: int
    lost: int
    repeated_after_ack: int
    processor_seconds: dict[str, float]
    """Processor seconds by kind of process, until the other broker had all topics open."""


class Publisher(threading.Thread):
    """One message of each topic is in flight, or waits for its turn."""

    def __init__(self, client: pulsar.Client, topics: list[str]) -> None:
        super().__init__(name="publisher", daemon=True)
        self._producers = {
            topic: client.create_producer(topic, send_timeout_millis=0, batching_enabled=False) for topic in topics
        }
        self._due = [(time.monotonic() + number % 50 / 100, topic) for number, topic in enumerate(topics)]
        heapq.heapify(self._due)
        self._lock = threading.Condition()
        self._ending = False
        self.pauses = dict.fromkeys(topics, 0.0)
        self.last = dict.fromkeys(topics, 0.0)
        """When each topic had its last receipt."""
        self.receipts: Counter[str] = Counter()
        self.refused = 0
        self._sent: Counter[str] = Counter()

    def run(self) -> None:
        while True:
            with self._lock:
                if self._ending:
                    return
                wait = self._due[0][0] - time.monotonic() if self._due else INTERVAL_SECONDS
                if wait > 0:
                    self._lock.wait(wait)
                    continue
                _, topic = heapq.heappop(self._due)
            self._send(topic)

    def _send(self, topic: str) -> None:
        sent = time.monotonic()
        self._sent[topic] += 1

        def told(result: pulsar.Result, _: object) -> None:
            now = time.monotonic()
            with self._lock:
                self.pauses[topic] = max(self.pauses[topic], now - sent)
                self.last[topic] = now
                if result == pulsar.Result.Ok:
                    self.receipts[topic] += 1
                else:
                    self.refused += 1
                heapq.heappush(self._due, (sent + INTERVAL_SECONDS, topic))
                self._lock.notify()

        self._producers[topic].send_async(f"{topic} {self._sent[topic]}".encode(), told)

    def forget(self) -> None:
        """Measure pauses from now on."""
        with self._lock:
            self.pauses = dict.fromkeys(self.pauses, 0.0)

    def end(self) -> None:
        """Publish no more; returns once all receipts have come."""
        with self._lock:
            self._ending = True
            self._lock.notify()
        self.join()
        wait_until(lambda: len(self._due) == len(self._producers), "the last receipts to arrive")


class Subscribers:
    """Acknowledges everything from some topics, and counts redeliveries after that."""

    def __init__(self, client: pulsar.Client, topics: list[str]) -> None:
        self._acked: set[bytes] = set()
        self.repeated = 0
        kind = pulsar.ConsumerType.Shared
        self._consumers = [
            client.subscribe(topic, "billing", consumer_type=kind, message_listener=self._got) for topic in topics
        ]

    def _got(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        data = bytes(message.data())
        self.repeated += data in self._acked
        consumer.acknowledge(message)
        self._acked.add(data)


def changed(directory: Path, count: int, how: signal.Signals, bundles: int = BUNDLES) -> Change:
    with Region(directory, 2, bundles) as region:
        wait_until(lambda: is_balanced(region), "both brokers to own topics")
        leaving = region.brokers[0]
        topics = region.topics_of(leaving, count, "topic")
        for topic in topics:  # it keeps published messages to be counted
            place = f"{leaving['admin_url']}/admin/v2/{topic.replace('://', '/')}/subscription/audit"
            if http("PUT", place, "earliest").status != 204:
                raise SystemExit(f"bench: {topic} got no subscription")
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        clients = [pulsar.Client(region.url, logger=logger, io_threads=1) for _ in range(2)]
        subscribers = Subscribers(clients[0], topics[:CONSUMED])
        publisher = Publisher(clients[1], topics)
        publisher.start()
        wait_until(lambda: all(publisher.receipts[topic] > 1 for topic in topics), "the first receipts to arrive")
        publisher.forget()
        begun, processes = time.monotonic(), Processes(directory)
        os.kill(leaving["pid"], how)
        wait_until(lambda: "Start it again" in region.process.log(), "the broker to end", PATIENCE_SECONDS)
        ended = time.monotonic()
        every, heir = region.every_bundle, region.brokers[1]
        done = wait_until(lambda: owned(heir) == every and time.monotonic(), "the other broker to own all topics")
        opened, took = _all_open(heir, count), processes.seconds()
        wait_until(lambda: min(publisher.last.values()) > ended, "every topic to get receipts again", PATIENCE_SECONDS)
        publisher.end()
        for client in clients:
            client.close()
        left = region.brokers[1]["admin_url"]
        stored = {topic: _backlog(left, topic) for topic in topics}
    pauses = sorted(publisher.pauses.values())
    return Change(
        topics=count,
        seconds=(ended if how == signal.SIGTERM else done) - begun,
        open_seconds=opened - begun,
        p50_pause_seconds=pauses[len(pauses) // 2],
        p99_pause_seconds=pauses[len(pauses) * 99 // 100],
        receipts=publisher.receipts.total(),
        refused=publisher.refused,
        lost=sum(max(0, publisher.receipts[topic] - stored[topic]) for topic in topics),
        repeated_after_ack=subscribers.repeated,
        processor_seconds=took,
    )


def _all_open(broker: dict[str, Any], count: int) -> float:
    """When the broker has ``count`` topics open. It is asked twice a second, because the answer lists each topic."""
    until = time.monotonic() + PATIENCE_SECONDS
    while open_topics(broker) < count:
        if time.monotonic() > until:
            raise SystemExit(f"bench: the other broker has {open_topics(broker)} of {count} topics open")
        time.sleep(0.5)
    return time.monotonic()


def _backlog(admin_url: str, topic: str) -> int:
    stats = http("GET", f"{admin_url}/admin/v2/{topic.replace('://', '/')}/stats").json
    return int(stats["subscriptions"]["audit"]["msgBacklog"])


# -- the table -----------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100 topics instead of 1,000, and shorter runs")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=PARTS, help="only this part")
    parser.add_argument("--topics", type=int, help="number of topics to hand over; default: 1,000")
    arguments = parser.parse_args()
    if (why := bookies_missing()) is not None:
        raise SystemExit(f"bench: {why}")
    count, seconds = (100, 5.0) if arguments.quick else (1000, 20.0)
    count = arguments.topics or count
    parts = PARTS if arguments.only is None else (arguments.only,)
    found: dict[str, Any] = {}
    load, met = os.getloadavg()[0], True

    def told(what: str, value: float, sign: str, target: float) -> None:
        nonlocal met
        good = value >= target if sign == ">=" else value <= target
        met &= good
        print(f"{what:58} {value:8.2f}  {sign} {target:g}  {'' if good else 'MISSED'}", file=sys.stderr, flush=True)

    def said(change: Change) -> None:
        took = ", ".join(f"{kind} {seconds:.1f}" for kind, seconds in change.processor_seconds.items())
        print(f"  p50 pause {change.p50_pause_seconds:.2f} s; processor seconds: {took}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="bench-brokers-") as name:
        place = Path(name)
        if THROUGHPUT in parts:
            one, two = (throughput(place / f"load-{brokers}", brokers, seconds) for brokers in (1, 2))
            found["messages_per_cpu_second"] = {"one_broker": one, "two_brokers": two}
            told("two brokers beside one, throughput per processor second", two / one, ">=", 0.9)
        if STOPPED in parts:
            stopped = changed(place / STOPPED, count, signal.SIGTERM)
            found[STOPPED] = asdict(stopped)
            told("stopped: seconds until all topics were handed over", stopped.seconds, "<=", 3.0)
            told("stopped: p99 pause of a topic, seconds", stopped.p99_pause_seconds, "<=", 0.3)
            told("stopped: messages with a receipt lost", stopped.lost, "<=", 0)
            told("stopped: acknowledged messages that came again", stopped.repeated_after_ack, "<=", 0)
            said(stopped)
        if KILLED in parts:
            killed = changed(place / KILLED, count, signal.SIGKILL)
            found[KILLED] = asdict(killed)
            told("killed: seconds until all bundles had an owner", killed.seconds, "<=", SESSION_SECONDS + 2)
            told("killed: seconds until all topics were open", killed.open_seconds, "<=", SESSION_SECONDS + 2)
            told("killed: messages with a receipt lost", killed.lost, "<=", 0)
            said(killed)
    if arguments.json:
        found["machine"] = {"cores": os.cpu_count(), "load_before": load, "load_after": os.getloadavg()[0]}
        print(json.dumps(found))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
