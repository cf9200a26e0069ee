# SPDX-License-Identifier: Apache-2.0
"""Move a consumer to another region, to the exact message where it stopped.

Start the regions with ``meridian up``, then

    python examples/replicated_subscription.py

A consumer in us-east works on twelve orders and finishes them out of order: some in the middle stay open. It
moves to us-west and gets exactly the open ones. The subscription is replicated because the consumer asks for it
with ``replicate_subscription_state_enabled``; nothing else is needed, in any region.
"""

import argparse
import secrets

import pulsar

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--east", default="pulsar://127.0.0.1:6650", help="service URL of one region (%(default)s)")
parser.add_argument("--west", default="pulsar://127.0.0.1:6660", help="service URL of another region (%(default)s)")
parser.add_argument("--topic", default=f"orders-{secrets.token_hex(4)}", help="topic (default: a new one)")
arguments = parser.parse_args()
quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def subscribe(client):
    """The same subscription, in whichever region the client is connected to."""
    return client.subscribe(
        arguments.topic,
        "kitchen",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        replicate_subscription_state_enabled=True,
    )


east = pulsar.Client(arguments.east, logger=quiet)
consumer = subscribe(east)
producer = east.create_producer(arguments.topic)
for number in range(12):
    producer.send(f"order {number}".encode())

still_open = {"order 3", "order 7", "order 8"}
for _ in range(12):
    message = consumer.receive(timeout_millis=30_000)
    if message.data().decode() not in still_open:
        consumer.acknowledge(message)
# close() returns once the other regions know every acknowledgement, so the move repeats nothing. Without it (the region
# burns down), only what they have learned by then counts: acknowledgements reach them in milliseconds.
consumer.close()
east.close()
print(f"finished 9 of 12 orders in one region; open: {', '.join(sorted(still_open))}")

west = pulsar.Client(arguments.west, logger=quiet)
consumer = subscribe(west)
for _ in range(len(still_open)):
    message = consumer.receive(timeout_millis=30_000)
    order = message.data().decode()
    print(f"the other region delivers {order}")
    still_open.remove(order)
    consumer.acknowledge(message)

try:
    message = consumer.receive(timeout_millis=500)
    raise SystemExit(f"{message.data().decode()} was delivered although it was finished")
except pulsar.Timeout:
    print("and nothing else: it continued at the exact place")
west.close()
