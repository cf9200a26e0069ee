# SPDX-License-Identifier: Apache-2.0
"""A broker that starts in a region with many topics: how long its clients wait.

Every topic on record is idle: one sealed ledger, and a subscription. The broker is killed and started again, first with
one topic on record, then with all of them. Times run from the start of its process to the receipt of a message on one
of these topics, beside the processor time that the broker has used by then. Then follow messages on more topics, one
after another, while the broker opens all the rest on its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import pulsar
from meridian_broker.engines.etcd.keys import metadata_of
from meridian_broker.engines.etcd.metadata import EtcdMetadataStore
from meridian_broker.metadata import keys
from meridian_broker.metadata.store import Put
from meridian_broker.wire.pulsar import topic_name
from support.brokers.bookies import Bookies, bookies_missing
from support.brokers.broker_process import BrokerProcess, started_afresh

REGION = "us-east"
TOGETHER = 100
"""Records written in one transaction."""
SEED = "persistent://public/default/seed"
FIRST_SECONDS = 2.0
"""The target, from the start of the process to the first receipt."""
FOLLOWING = 200
"""Topics that get a message afterwards."""
PACE_SECONDS = 0.05


@dataclass
class Start:
    """What the first clients of a broker saw."""

    topics: int
    ready_seconds: float
    first_receipt_seconds: float
    first_receipt_cpu_seconds: float
    """Of the broker."""
    p50_ms: float
    p99_ms: float
    """Times from the creation of a producer to the receipt, on further topics."""


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def topic(number: int) -> str:
    return f"persistent://public/default/topic-{number}"


def make_seed(broker: BrokerProcess) -> None:
    """An idle topic with a message and a subscription that acknowledged it."""
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(SEED, "billing", initial_position=pulsar.InitialPosition.Earliest)
    client.create_producer(SEED).send(b"x" * 100)
    consumer.acknowledge(consumer.receive(60_000))
    client.close()
    if broker.http("PUT", "/admin/v2/persistent/public/default/seed/unload").status != 204:
        raise SystemExit("bench: the first topic was not unloaded")


async def copy_record(etcd: str, count: int) -> None:
    """``count`` topics with the seed's record. They share its ledger, which nobody writes or deletes any more."""
    store = await EtcdMetadataStore.connect(etcd, metadata_of(REGION))
    found = await store.get(keys.topic(topic_name.parse(SEED)))
    if found is None:
        raise SystemExit("bench: the first topic has no record")
    for begin in range(0, count, TOGETHER):
        names = (topic_name.parse(topic(number)) for number in range(begin, min(begin + TOGETHER, count)))
        await store.transact([], [Put(keys.topic(name), found.value) for name in names])
    await store.close()


def started(broker: BrokerProcess, count: int) -> Start:
    """Start it, and be its first client."""
    begun = time.monotonic()
    broker.start(wait=False)
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.create_producer(topic(count // 2)).send(b"x" * 100)
    first, cpu = time.monotonic() - begun, cpu_seconds(broker.pid)
    broker.wait_healthy()
    ready = time.monotonic() - begun
    waits: list[float] = []
    for number in range(min(FOLLOWING, count)):
        asked = time.monotonic()
        client.create_producer(topic(number * count // min(FOLLOWING, count))).send(b"x" * 100)
        waits.append((time.monotonic() - asked) * 1000)
        time.sleep(PACE_SECONDS)
    client.close()
    waits.sort()
    return Start(count, ready, first, cpu, waits[len(waits) // 2], waits[len(waits) * 99 // 100])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if (why := bookies_missing()) is not None:
        raise SystemExit(f"bench: {why}")
    with tempfile.TemporaryDirectory(prefix="bench-starting-") as name:
        directory = Path(name) / "bookies"
        directory.mkdir()
        bookies = Bookies(directory, 3)
        try:
            broker = BrokerProcess(
                REGION,
                Path(name) / "broker",
                settings={"managedLedgerStorage": "bookkeeper"},
                metadata_url=f"etcd:{bookies.url}",
                launch=started_afresh,
            )
            with broker:
                make_seed(broker)
                starts: list[Start] = []
                for count in (1, arguments.topics):
                    broker.kill()
                    asyncio.run(copy_record(bookies.url, count))
                    starts.append(started(broker, count))
        finally:
            bookies.close()
    if arguments.json:
        print(json.dumps({"starts": list(map(asdict, starts)), "load": os.getloadavg()[0]}))
    for one in starts:
        print(
            f"{one.topics:7} topics on record: ready after {one.ready_seconds:5.2f} s, first receipt after "
            f"{one.first_receipt_seconds:5.2f} s and {one.first_receipt_cpu_seconds:5.2f} s of processor time; "
            f"further topics: p50 {one.p50_ms:.0f} ms, p99 {one.p99_ms:.0f} ms",
            file=sys.stderr,
        )
    good = starts[-1].first_receipt_seconds <= FIRST_SECONDS
    print(f"seconds to the first receipt  <= {FIRST_SECONDS:g}  {'' if good else 'MISSED'}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
