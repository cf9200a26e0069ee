# SPDX-License-Identifier: Apache-2.0
"""Duration of one request that creates, or deletes, a topic of a thousand partitions in two regions.

Two real brokers replicate to each other, with embedded metadata and with etcd. Each round creates the topic with one
request; publishes a message to every partition in both regions; receives and acknowledges all of them in both regions,
on a replicated subscription each; and deletes the topic with one request. Creation ends when both regions list all
partitions, deletion when neither lists any. The CPU seconds are those of both brokers and their etcds in that time;
they depend less than the other figures on the load of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pulsar
from processes import cpu_seconds
from support.brokers.broker_process import wait_until
from support.brokers.region_clients import connected
from support.brokers.up_process import UpProcess

REGIONS = ("us", "eu")
PARTITIONS = 1000
CREATE_SECONDS = 3.0
DELETE_SECONDS = 5.0
TOPICS = "/admin/v2/persistent/public/default"
PATIENCE_MS = 60_000


class Round:
    """One topic: created, used, deleted."""

    def __init__(self, regions: UpProcess, number: int) -> None:
        self._regions = regions
        self._name = f"divided-{number}"

    def create(self) -> dict[str, float]:
        return self._timed("PUT", PARTITIONS, PARTITIONS)

    def use(self) -> None:
        with ExitStack() as stack:
            clients = [stack.enter_context(connected(self._regions.service_url(region))) for region in REGIONS]
            consumers = [self._consumer(client, region) for client, region in zip(clients, REGIONS, strict=True)]
            for client in clients:
                producer = client.create_producer(self._name, batching_enabled=False)
                for _ in range(PARTITIONS):
                    producer.send_async(b"used", None)
                producer.flush()
                producer.close()
            for consumer in consumers:
                for _ in range(len(REGIONS) * PARTITIONS):
                    consumer.acknowledge(consumer.receive(PATIENCE_MS))
                consumer.close()

    def delete(self) -> dict[str, float]:
        return self._timed("DELETE", ..., 0)

    def _consumer(self, client: pulsar.Client, region: str) -> pulsar.Consumer:
        return client.subscribe(
            self._name,
            f"of-{region}",
            initial_position=pulsar.InitialPosition.Earliest,
            replicate_subscription_state_enabled=True,
        )

    def _timed(self, method: str, body: object, listed: int) -> dict[str, float]:
        began, cpu = time.monotonic(), self._cpu_seconds()
        answer = self._regions.http(REGIONS[0], method, f"{TOPICS}/{self._name}/partitions", body)
        answered = time.monotonic() - began
        if answer.status != 204:
            raise SystemExit(f"{method} of {self._name} was answered {answer.status}: {answer.text}")
        wait_until(
            lambda: all(self._listed(region) == listed for region in REGIONS), "both regions to list the partitions"
        )
        elapsed = time.monotonic() - began
        used = self._cpu_seconds() - cpu
        return {"answered": round(answered, 2), "everywhere": round(elapsed, 2), "cpu": round(used, 2)}

    def _cpu_seconds(self) -> float:
        etcds = [int(file.read_text()) for file in self._regions.data_dir.glob("*/etcd/etcd.pid")]
        return sum(cpu_seconds(pid) for pid in (*map(self._regions.pid, REGIONS), *etcds))

    def _listed(self, region: str) -> int:
        names = self._regions.http(region, "GET", TOPICS).json
        return sum(f"/{self._name}-partition-" in name for name in names)


def measure(metadata: str, rounds: int) -> list[dict[str, Any]]:
    """One row per round."""
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as directory,
        UpProcess(REGIONS, Path(directory) / "regions", metadata=metadata) as regions,
    ):
        for number in range(rounds):
            one = Round(regions, number)
            created = one.create()
            one.use()
            row: dict[str, Any] = {"metadata": metadata, "round": number, "create": created, "delete": one.delete()}
            rows.append(row)
            figures = "".join(f"{row[what][when]:>12.2f}" for what in ("create", "delete") for when in created)
            print(f"{metadata:>10}{number:>7}{figures}", flush=True)
    return rows


def _has_etcd() -> bool:
    beside = str(Path(sys.executable).parent)
    return shutil.which("etcd", path=os.pathsep.join((beside, os.environ.get("PATH", "")))) is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds each instead of five")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    print(
        f"{PARTITIONS:,} partitions, {len(REGIONS)} regions; seconds until the answer, and until both regions list it"
    )
    print(
        f"{'metadata':>10}{'round':>7}{'create':>12}{'everywhere':>12}{'CPU':>12}{'delete':>12}{'everywhere':>12}{'CPU':>12}"
    )
    rows: list[dict[str, Any]] = []
    for metadata in ("embedded", "etcd") if _has_etcd() else ("embedded",):
        rows += measure(metadata, 2 if options.quick else 5)
    targets: dict[str, dict[str, Any]] = {}
    for metadata in dict.fromkeys(row["metadata"] for row in rows):
        for what, limit in (("create", CREATE_SECONDS), ("delete", DELETE_SECONDS)):
            value = max(row[what]["everywhere"] for row in rows if row["metadata"] == metadata)
            name = f"{what} {PARTITIONS} partitions in {len(REGIONS)} regions, {metadata} metadata, slowest, seconds"
            targets[name] = {"value": value, "limit": limit, "met": value <= limit}
            print(f"{name}: {value:.2f} (<= {limit:g})")
    if options.json:
        machine = {"cores": os.cpu_count(), "load_before": load_before, "load_after": os.getloadavg()[0]}
        print(json.dumps({"targets": targets, "figures": rows, "machine": machine}))
    sys.exit(0 if all(target["met"] for target in targets.values()) else 1)


if __name__ == "__main__":
    main()
