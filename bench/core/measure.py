# SPDX-License-Identifier: Apache-2.0
"""The targets of one broker and of three regions, measured with real processes on loopback.

Rates are per second of the broker's processor time, because the machine is shared: the wall rate beside it only shows
how busy the machine was. Memory is the growth of the resident set over many items.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from processes import Broker, Generator, Regions, cpu_seconds, rss_bytes, run
from regions import NAMES, Switches, acks_visible
from report import Report

TOPIC = "persistent://public/default/bench"


class Bench(Report):
    """Runs the cases."""

    def __init__(self, directory: Path, options: argparse.Namespace) -> None:
        super().__init__(as_json=options.json)
        self.directory = directory
        self.quick: bool = options.quick

    def place(self, name: str) -> Path:
        return self.directory / name


def publishing(bench: Bench) -> None:
    """Raw SENDs and their receipts, then delivery and single acknowledgements of the same messages.

    Several rounds, each with its own broker and directory. The targets apply to the round least disturbed by others, as
    in the other benches; the median is shown beside it. A directory is deleted before the next round: otherwise the
    page cache grows into memory that a virtual machine must request from its host, which costs five times as much as
    the write itself.
    """
    seconds, consumed = 2.0 if bench.quick else 4.0, 50_000
    rounds: dict[str, list[float]] = {}
    for number in range(3 if bench.quick else 7):
        directory = bench.place(f"publishing-{number}")
        with Broker(directory) as broker:
            for name, options in {
                "publish_1kib": {"size": 1024, "messages": 1, "window": 4000, "connections": 1},
                "publish_1kib_4_connections": {"size": 1024, "messages": 1, "window": 4000, "connections": 4},
                "publish_64kib": {"size": 65536, "messages": 64, "window": 256, "connections": 1},
            }.items():
                used = measured(broker, "publish", topic=f"{TOPIC}-{name}", seconds=seconds, **options)
                if name == "publish_1kib":  # a slow machine publishes less than should be consumed
                    consumed = min(consumed, int(used["count"]))
                unit = 65536 / 1e6 if name == "publish_64kib" else 1
                rounds.setdefault(name, []).append(used["count"] * unit / used["cpu"])
                rounds.setdefault(f"{name}_wall", []).append(used["count"] * unit / used["seconds"])
            topic = f"{TOPIC}-publish_1kib-0"
            used = measured(broker, "consume", topic=topic, subscription="s", count=consumed)
            rounds.setdefault("consume", []).append(used["count"] / used["cpu"])
            rounds.setdefault("consume_wall", []).append(used["count"] / used["seconds"])
        shutil.rmtree(directory)
    middle = {name: statistics.median(values) for name, values in rounds.items()}
    best = {name: max(values) for name, values in rounds.items()}
    bench.at_least("publish_1kib_per_broker_cpu_second", best["publish_1kib"], 100_000)
    bench.figure("publish_1kib_per_broker_cpu_second_median", middle["publish_1kib"])
    bench.figure("publish_1kib_per_second_median", middle["publish_1kib_wall"])
    bench.figure("publish_1kib_4_connections_per_broker_cpu_second", best["publish_1kib_4_connections"])
    bench.at_least("publish_64kib_megabytes_per_broker_cpu_second", best["publish_64kib"], 400)
    bench.figure("publish_64kib_megabytes_per_broker_cpu_second_median", middle["publish_64kib"])
    bench.figure("publish_64kib_megabytes_per_second_median", middle["publish_64kib_wall"])
    bench.figure("consume_and_ack_1kib_per_broker_cpu_second", best["consume"])
    bench.figure("consume_and_ack_1kib_per_broker_cpu_second_median", middle["consume"])
    bench.figure("consume_and_ack_1kib_per_second_median", middle["consume_wall"])


def acknowledging(bench: Bench) -> None:
    """How soon the other regions know about acknowledgements made in one."""
    seconds = 8.0 if bench.quick else 30.0
    visible = acks_visible(bench.place("acks"), f"{TOPIC}-acks", 1000, seconds)
    bench.at_most("ack_visible_elsewhere_p50_milliseconds", visible.p50, 5)
    bench.at_most("ack_visible_elsewhere_p99_milliseconds", visible.p99, 25)
    bench.figure("ack_visible_elsewhere_samples", visible.acks)


def switching(bench: Bench) -> None:
    """A region is killed, later another one hands over as planned; several times, at times from a seed."""
    seed = random.SystemRandom().randrange(1_000_000)
    bench.figure("switch_seed", seed, str(seed))
    with Regions(bench.place("regions"), *NAMES) as regions:
        switches = Switches(regions, bench.directory, random.Random(seed))
        outcomes = [switches.story(f"{TOPIC}-story-{n}") for n in range(2 if bench.quick else 10)]
    bench.figure("switch_repetitions", len(outcomes))
    bench.figure("switch_messages", sum(one.published for one in outcomes))
    bench.at_most("planned_switch_redelivered_acked", sum(one.planned_redelivered_acked for one in outcomes), 0)
    bench.at_most("sigkill_switch_redelivered_acked", sum(one.kill_redelivered_acked for one in outcomes), 0)
    bench.at_most("switch_messages_lost", sum(one.lost for one in outcomes), 0)
    bench.figure("sigkill_switch_redelivered_in_client", sum(one.kill_redelivered_in_client for one in outcomes))
    bench.figure("sigkill_switch_first_message_milliseconds_max", max(one.kill_first_message_ms for one in outcomes))
    bench.figure("planned_switch_first_message_milliseconds_max", max(one.planned_first_message_ms for one in outcomes))


def killing(bench: Bench) -> None:
    """Real kill -9 while publishing; every message whose receipt was sent is read back at the end."""
    kills = 20 if bench.quick else 200
    receipts = bench.place("receipts")
    receipts.mkdir()
    topic = f"{TOPIC}-kills"
    broker = Broker(bench.place("killed"))
    broker.start()
    try:
        run("keep", port=broker.port, topic=topic, subscription="all")
        first = 0
        starts: list[float] = []
        for number in range(kills):
            generator = Generator(
                "publish_numbers", port=broker.port, topic=topic, first=first, out=receipts / f"{number}"
            ).ready()
            time.sleep(random.uniform(0.0, 0.25))
            broker.kill()
            first = int(generator.result()["next"])
            began = time.monotonic()
            broker.start()
            starts.append(time.monotonic() - began)
        result = run("read_back", port=broker.port, topic=topic, subscription="all", receipts=receipts / "*")
    finally:
        broker.stop()
    bench.figure("kill_repetitions", kills)
    bench.figure("kill_receipts", result["receipts"])
    bench.at_most("kill_receipted_messages_lost", result["lost"], 0)
    bench.figure("restart_after_kill_seconds_max", max(starts))


def remembering(bench: Bench) -> None:
    """Memory of idle objects."""
    count = 10_000
    for kind, name, limit in (
        ("subscriptions", "idle_subscription_bytes", 1024),
        ("consumers", "idle_consumer_bytes", 1024),
        ("connections", "idle_connection_bytes", 8192),
    ):
        with Broker(bench.place(kind)) as broker:
            options = {"port": broker.port, "topic": f"{TOPIC}-idle"}
            # Created first: the topic and, for consumers, their subscriptions.
            run("idle", kind="subscriptions", count=count if kind == "consumers" else 10, connections=10, **options)
            before = settled_rss(broker)
            generator = Generator("idle", kind=kind, count=count, connections=10, **options).ready()
            grown = settled_rss(broker) - before
            generator.result()
            bench.at_most(name, grown / count, limit)
    for metadata in ("embedded", "etcd"):
        with Regions(bench.place(f"idle-{metadata}"), "one", metadata=metadata) as regions:
            time.sleep(2)
            mebibytes = rss_bytes(regions.pid("one")) / (1 << 20)
        if metadata == "embedded":
            bench.at_most("idle_broker_mebibytes", mebibytes, 75)
        else:
            bench.figure("idle_broker_with_etcd_mebibytes", mebibytes)


def settled_rss(broker: Broker) -> int:
    """Resident memory once it no longer changes."""
    last = 0
    while (now := rss_bytes(broker.pid)) != last:
        last = now
        time.sleep(0.5)
    return now


def measured(broker: Broker, what: str, **options: Any) -> dict[str, Any]:
    """A generator's result, with the broker's processor time meanwhile."""
    generator = Generator(what, port=broker.port, **options).ready()
    before = cpu_seconds(broker.pid)
    result = generator.result()
    time.sleep(0.2)  # later work of the broker for this load counts too
    return {**result, "cpu": cpu_seconds(broker.pid) - before}


def cases() -> dict[str, Callable[[Bench], None]]:
    return {
        "publishing": publishing,
        "acknowledging": acknowledging,
        "remembering": remembering,
        "killing": killing,
        "switching": switching,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="at most 240 s: fewer repetitions, shorter runs")
    parser.add_argument("--json", action="store_true", help="print only one JSON object, on the last line")
    parser.add_argument("--prepare", action="store_true", help="no effect: a run needs nothing fetched")
    parser.add_argument("--only", action="append", choices=[*cases()], help="only this case; repeatable")
    parser.add_argument("--directory", type=Path, default=Path(), help="where to write; it must be on a real disk")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    if options.prepare:
        return 0
    with tempfile.TemporaryDirectory(prefix="bench-core-", dir=options.directory) as directory:
        bench = Bench(Path(directory).resolve(), options)
        for name, case in cases().items():
            if options.only and name not in options.only:
                continue
            began = time.monotonic()
            bench.title(name)
            case(bench)
            bench.figures[f"{name}_case_seconds"] = round(time.monotonic() - began, 1)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
