# SPDX-License-Identifier: Apache-2.0
"""Two consumers share a subscription and acknowledge single messages, out of order, even inside a batch.

Start a region (``meridian up`` or ``meridian standalone``), then

    python examples/partial_acks.py

Twenty messages travel as one batch, which is one entry in the broker's log. The first consumer of a shared subscription
finishes every second message and disconnects; the second one then gets the rest of the batch, and nothing that was
finished. ``batch_index_ack_enabled`` lets the client acknowledge single messages of a batch.
"""

import argparse
import secrets

import pulsar

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--east", default="pulsar://127.0.0.1:6650", help="service URL of a region (%(default)s)")
parser.add_argument("--topic", default=f"tasks-{secrets.token_hex(4)}", help="topic (default: a new one)")
arguments = parser.parse_args()

client = pulsar.Client(arguments.east, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


def subscribe(name):
    """One of the workers."""
    return client.subscribe(
        arguments.topic,
        "workers",
        consumer_type=pulsar.ConsumerType.Shared,
        consumer_name=name,
        initial_position=pulsar.InitialPosition.Earliest,
        batch_index_ack_enabled=True,
    )


first = subscribe("first")
# With a long delay and a batch of 20, all are sent together once the 20th is there.
producer = client.create_producer(
    arguments.topic, batching_enabled=True, batching_max_messages=20, batching_max_publish_delay_ms=60_000
)
for number in range(20):
    producer.send_async(f"task {number}".encode(), None)
producer.flush()

finished = []
for number in range(20):
    message = first.receive(timeout_millis=30_000)
    if number % 2 == 0:
        first.acknowledge(message)
        finished.append(message.data().decode())
print(f"the first worker finished {len(finished)} of 20 tasks and left")

second = subscribe("second")
first.close()
for _ in range(20 - len(finished)):
    message = second.receive(timeout_millis=30_000)
    task = message.data().decode()
    if task in finished:
        raise SystemExit(f"{task} was delivered again although it was finished")
    finished.append(task)
    second.acknowledge(message)
print(f"the second worker got exactly the others; all {len(finished)} are done")

try:
    message = second.receive(timeout_millis=500)
    raise SystemExit(f"{message.data().decode()} was delivered again")
except pulsar.Timeout:
    print("nothing is left")
client.close()
