# SPDX-License-Identifier: Apache-2.0
"""A thousand GeoTopics in three regions: how soon all are Ready, and what they cost while nothing happens.

Real brokers with a real etcd each, the operator in its own process, and the tests' API server in this one. First all
objects are created at once. Then nothing happens for a while. Then one topic has traffic and many replicated
subscriptions.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulsar
from processes import Regions, cpu_seconds, rss_bytes, wait
from report import Report
from support.kubernetes.kube_api import KubeApi

HERE = Path(__file__).resolve().parent
NAMES = ("us-east", "us-west", "eu-central")
READY_SECONDS = 120.0
"""For a thousand objects; for fewer in proportion."""


class Operator:
    """The operator's process."""

    def __init__(self, api: KubeApi, regions: Regions) -> None:
        urls = {name: regions.listed[name]["admin_url"] for name in NAMES}
        command = [sys.executable, str(HERE / "operator_program.py"), str(api.port), json.dumps(urls)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid

    def __enter__(self) -> Operator:
        if self._line() != "ready":
            raise SystemExit("bench: the operator did not start")
        return self

    def region_calls(self) -> dict[str, int]:
        """Requests to each region so far."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        calls: dict[str, int] = json.loads(self._line())
        return calls

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)


class Cluster:
    """Everything that runs and is measured."""

    def __init__(self, bench: Report, api: KubeApi, regions: Regions, operator: Operator) -> None:
        self.bench, self.api, self.regions, self.operator = bench, api, regions, operator

    def used(self) -> dict[str, float]:
        """Processor seconds so far, by process."""
        used = {"operator": cpu_seconds(self.operator.pid)}
        for name in NAMES:
            used[f"broker {name}"] = cpu_seconds(self.regions.pid(name))
            used[f"etcd {name}"] = cpu_seconds(int((self.regions.directory / name / "etcd/etcd.pid").read_text()))
        return used

    def ready(self, plural: str) -> int:
        found = [one for (kind, _, _), one in self.api.objects.copy().items() if kind == plural]
        return sum(_ready(one) for one in found)

    def falsely_unreachable(self) -> int:
        return len(self.api.ever("geotopics", "RegionUnreachable"))

    def watch(self, what: str, seconds: float) -> dict[str, float]:
        """CPU time and requests per second while idle."""
        before, calls, asked, began = (
            self.used(),
            self.operator.region_calls(),
            len(self.api.requests),
            time.monotonic(),
        )
        time.sleep(seconds)
        took = time.monotonic() - began
        shares = {name: (after - before[name]) / took for name, after in self.used().items()}
        for name, share in shares.items():
            self.bench.figure(f"{what}_percent_of_a_core_{name.replace(' ', '_').replace('-', '_')}", 100 * share)
        after_calls = self.operator.region_calls()
        most = max((after_calls[name] - calls[name]) / took for name in NAMES)
        return shares | {"calls": most, "api": (len(self.api.requests) - asked) / took}


def _ready(one: dict[str, Any]) -> bool:
    conditions = one.get("status", {}).get("conditions", ())
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


@contextmanager
def cluster(bench: Report, directory: Path) -> Iterator[Cluster]:
    """Three regions, an API server, an operator."""
    with (
        Regions(directory / "regions", *NAMES, metadata="etcd") as regions,
        KubeApi() as api,
        Operator(api, regions) as operator,
    ):
        yield Cluster(bench, api, regions, operator)


def making(world: Cluster, count: int, patience: float) -> None:
    """Create this many objects at once."""
    bench, api = world.bench, world.api
    base = world.used()
    began = time.monotonic()
    for number in range(count):
        spec = {"topic": f"persistent://public/default/topic-{number}", "regions": list(NAMES), "messageTTL": "7d"}
        api.create("geotopics", f"topic-{number}", spec=spec)
    bench.figure("create_seconds", time.monotonic() - began)
    _wait_shown(bench, lambda: world.ready("geotopics"), count, patience)
    took = time.monotonic() - began
    bench.at_most("all_ready_seconds", took, READY_SECONDS * max(count, 100) / 1000)
    for name, value in world.used().items():
        bench.figure(f"making_cpu_seconds_{name.replace(' ', '_').replace('-', '_')}", value - base[name])
    bench.figure("making_api_requests_per_object", len(api.requests) / count)
    events = [one for (plural, _, _), one in api.objects.copy().items() if plural == "events"]
    bench.at_most("events_per_object", len(events) / count, 1)
    bench.at_most("falsely_unreachable_objects_while_made", world.falsely_unreachable(), 0)


def _wait_shown(bench: Report, ready: Callable[[], int], count: int, patience: float) -> None:
    until, shown = time.monotonic() + patience, time.monotonic()
    while (now := ready()) < count:
        if time.monotonic() > until:
            bench.figure("not_ready", count - now)
            return
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            bench.title(f"    {now} of {count} are Ready")
        time.sleep(0.2)


def resting(world: Cluster, settle: float, seconds: float) -> None:
    """Watch while nothing happens."""
    bench = world.bench
    time.sleep(settle)
    shares = world.watch("idle", seconds)
    bench.at_most("idle_broker_percent_of_a_core", 100 * max(shares[f"broker {name}"] for name in NAMES), 2)
    bench.at_most("idle_etcd_percent_of_a_core", 100 * max(shares[f"etcd {name}"] for name in NAMES), 1)
    bench.at_most("idle_requests_per_second_to_a_region", shares["calls"], 1.1)
    bench.at_most("idle_api_requests_per_second", shares["api"], 5)
    bench.at_most("falsely_unreachable_objects", world.falsely_unreachable(), 0)
    bench.at_most("operator_mebibytes", rss_bytes(world.operator.pid) / (1 << 20), 300)


def busy(world: Cluster, subscriptions: int, seconds: float) -> None:
    """Subscriptions of one topic whose numbers change all the time."""
    for number in range(subscriptions):
        spec = {"topic": "persistent://public/default/topic-0", "subscription": f"subscription-{number}"}
        world.api.create("replicatedsubscriptions", f"subscription-{number}", spec=spec)
    wait(lambda: world.ready("replicatedsubscriptions") == subscriptions, "all subscriptions to be ready", 240)
    client = pulsar.Client(
        f"pulsar://127.0.0.1:{world.regions.port(NAMES[0])}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    producer = client.create_producer("persistent://public/default/topic-0")
    _wait_quiet(world.api)  # creating the subscriptions is not traffic
    asked, began = len(world.api.requests), time.monotonic()
    while time.monotonic() - began < seconds:
        producer.send(b"x")
        time.sleep(0.2)
    requests, took = world.api.requests[asked:], time.monotonic() - began
    client.close()
    for what, count in Counter(_purpose(method, path) for method, path in requests).items():
        world.bench.figure(f"traffic_{what}_per_second", count / took)
    world.bench.at_most("traffic_api_requests_per_second", len(requests) / took, 5)


def _wait_quiet(api: KubeApi) -> None:
    """Return once the operator has asked the API server for nothing for three seconds."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        count = len(api.requests)
        time.sleep(3)
        if len(api.requests) == count:
            return


def _purpose(method: str, path: str) -> str:
    """A short name for a request to the API server."""
    if path.endswith("/status"):
        return "status_writes"
    return "events" if path.endswith("/events") else f"other_{method.lower()}_requests"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="at most 240 s: 200 objects, shorter watches")
    parser.add_argument("--json", action="store_true", help="print only one JSON object, on the last line")
    parser.add_argument("--prepare", action="store_true", help="no effect: a run needs nothing fetched")
    parser.add_argument("--objects", type=int, help="number of GeoTopics; default: 1000")
    parser.add_argument("--idle", type=float, help="seconds to watch while nothing happens; default: 600")
    parser.add_argument("--directory", type=Path, default=Path(), help="where to write; it must be on a real disk")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    if options.prepare:
        return 0
    count = options.objects or (200 if options.quick else 1000)
    bench = Report(as_json=options.json)
    with (
        tempfile.TemporaryDirectory(prefix="bench-operator-", dir=options.directory) as directory,
        cluster(bench, Path(directory).resolve()) as world,
    ):
        bench.figure("objects", count)
        making(world, count, 90 if options.quick else 600)
        resting(world, 10 if options.quick else 30, options.idle or (30 if options.quick else 600))
        busy(world, 30 if options.quick else 100, 15 if options.quick else 60)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
