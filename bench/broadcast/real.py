# SPDX-License-Identifier: Apache-2.0
"""A sample of real consumers among the others: the official Python client, with one subscription each.

Prints one JSON object: how long they took to subscribe, and how long messages took from ``send`` to the listeners.
"""

from __future__ import annotations

import json
import sys
import threading
import time

import pulsar

PATIENCE_SECONDS = 120.0


def main() -> int:
    port, topic, source = sys.argv[1:4]
    count, messages = int(sys.argv[4]), int(sys.argv[5])
    client = pulsar.Client(f"pulsar://127.0.0.1:{port}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    sent: list[float] = []
    waits: list[float] = []
    all_arrived = threading.Event()

    def arrived(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        waits.append(time.monotonic() - sent[int(message.data())])
        consumer.acknowledge(message)
        if len(waits) == count * messages:
            all_arrived.set()

    began = time.monotonic()
    for number in range(count):
        client.subscribe(topic, f"real-{number}", message_listener=arrived)
    subscribed = time.monotonic() - began
    producer = client.create_producer(source, batching_enabled=False)
    for number in range(messages):
        time.sleep(max(0.0, began + subscribed + number - time.monotonic()))
        sent.append(time.monotonic())
        producer.send_async(str(number).encode(), lambda *_: None)
    if not all_arrived.wait(PATIENCE_SECONDS):
        print(f"bench: {len(waits)} of {count * messages} messages reached real clients", file=sys.stderr)
        return 1
    waits.sort()
    found = {
        "connect_seconds": subscribed,
        "e2e_p50_seconds": waits[len(waits) // 2],
        "e2e_p99_seconds": waits[len(waits) * 99 // 100],
        "e2e_max_seconds": waits[-1],
    }
    print(json.dumps(found), flush=True)
    client.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
