# SPDX-License-Identifier: Apache-2.0
"""A planned restart as clients see it: SIGTERM, and then the next broker on the same volume and ports.

An unmodified Pulsar client publishes 200 messages a second, another one consumes and acknowledges them. Measured are
the longest time between two receipts and between two deliveries, redelivered acknowledged messages, and lost ones; and
where the time goes: the drain, and the start until the broker reports that it serves.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import pulsar
from support.brokers.broker_process import BrokerProcess, started_afresh, wait_until

RATE = 200
TOPIC = "persistent://public/default/orders"
TARGET_SECONDS = 2.0
BEFORE_SECONDS, AFTER_SECONDS = 3.0, 5.0
"""Traffic before SIGTERM, and after the next broker is healthy."""


@dataclass
class Restart:
    """What one restart cost."""

    drain_seconds: float
    start_seconds: float
    publish_pause_seconds: float
    delivery_pause_seconds: float
    published: int
    refused: int
    lost: int
    repeated_after_ack: int
    stored_twice: int
    """Messages sent again because the client had no receipt when its connection ended."""


class Publisher(threading.Thread):
    """Publishes at the rate, whatever the answers; records when each receipt came."""

    def __init__(self, client: pulsar.Client) -> None:
        super().__init__(name="publisher")
        self._producer = client.create_producer(TOPIC, send_timeout_millis=60_000, max_pending_messages=50_000)
        self.stop = threading.Event()
        self.sent = 0
        self.receipts: list[float] = []
        self.refused: list[str] = []

    def run(self) -> None:
        begun = time.monotonic()
        while not self.stop.is_set():
            self._producer.send_async(str(self.sent).encode(), self._answered)
            self.sent += 1
            time.sleep(max(0.0, begun + self.sent / RATE - time.monotonic()))
        self._producer.flush()

    def _answered(self, result: pulsar.Result, _: object) -> None:
        if result == pulsar.Result.Ok:
            self.receipts.append(time.monotonic())
        else:
            self.refused.append(str(result))


class Subscriber(threading.Thread):
    """Acknowledges everything that comes; records when, and what is redelivered after its acknowledgement."""

    def __init__(self, client: pulsar.Client) -> None:
        super().__init__(name="subscriber")
        self._consumer = client.subscribe(TOPIC, "billing", consumer_type=pulsar.ConsumerType.Shared)
        self.stop = threading.Event()
        self.times: list[float] = []
        self.came: Counter[tuple[int, str]] = Counter()
        """Number and message id."""

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                message = self._consumer.receive(100)
            except pulsar.Timeout:
                continue
            self.times.append(time.monotonic())
            self.came[int(message.data()), str(message.message_id())] += 1
            self._consumer.acknowledge(message)


def longest(times: list[float]) -> float:
    return max((after - before for before, after in itertools.pairwise(times)), default=0.0)


def restarted(directory: Path) -> Restart:
    broker = BrokerProcess("us", directory, launch=started_afresh)
    with broker:
        clients = [
            pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)) for _ in range(2)
        ]
        subscriber, publisher = Subscriber(clients[0]), Publisher(clients[1])
        for one in (subscriber, publisher):
            one.start()
        time.sleep(BEFORE_SECONDS)
        begun = time.monotonic()
        broker.stop()
        drained = time.monotonic()
        broker.start()
        started = time.monotonic()
        time.sleep(AFTER_SECONDS)
        publisher.stop.set()
        publisher.join()
        wait_until(
            lambda: len({number for number, _ in subscriber.came}) >= publisher.sent - len(publisher.refused),
            "all messages to arrive",
        )
        subscriber.stop.set()
        subscriber.join()
        for client in clients:
            client.close()
    numbers = {number for number, _ in subscriber.came}
    return Restart(
        drain_seconds=drained - begun,
        start_seconds=started - drained,
        publish_pause_seconds=longest(publisher.receipts),
        delivery_pause_seconds=longest(subscriber.times),
        published=publisher.sent,
        refused=len(publisher.refused),
        lost=len(set(range(publisher.sent)) - numbers),
        repeated_after_ack=sum(count - 1 for count in subscriber.came.values()),
        stored_twice=len(subscriber.came) - len(numbers),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one restart instead of five")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = []
    for number in range(1 if arguments.quick else 5):
        with tempfile.TemporaryDirectory(prefix="bench-restarts-") as name:
            found.append(restarted(Path(name) / f"us-{number}"))
        if not arguments.json:
            print("  ".join(f"{key} {value:.2f}" for key, value in asdict(found[-1]).items()))
    worst = max(one.publish_pause_seconds for one in found)
    harmless = not any(one.lost or one.refused or one.repeated_after_ack for one in found)
    if arguments.json:
        print(json.dumps([asdict(one) for one in found]))
    else:
        print(f"longest pause {worst:.2f} s, target {TARGET_SECONDS:.0f} s")
    return 0 if harmless and worst <= TARGET_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
