# SPDX-License-Identifier: Apache-2.0
"""Publish in one region, consume in another.

Start the regions with ``meridian up``, then

    python examples/produce_consume.py

Ten orders are sent to us-east, in batches and without waiting for each receipt; a consumer in us-west reads them and
acknowledges each. Nothing needs to be set up: the first producer or consumer creates the topic, which is
replicated because its namespace, ``public/default``, is.
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

east = pulsar.Client(arguments.east, logger=quiet)
west = pulsar.Client(arguments.west, logger=quiet)

# Earliest: also what was published before this subscription existed.
consumer = west.subscribe(arguments.topic, "kitchen", initial_position=pulsar.InitialPosition.Earliest)


def stored(result, _message_id):
    """Called with the broker's receipt, which is sent once the message is on disk."""
    if result != pulsar.Result.Ok:
        print(f"a message was not stored: {result}")


producer = east.create_producer(arguments.topic, batching_enabled=True, block_if_queue_full=True)
for number in range(10):
    producer.send_async(f"order {number}".encode(), stored, properties={"table": str(number % 3)})
producer.flush()  # waits for the receipts
print("published 10 orders in one region")

for _ in range(10):
    message = consumer.receive(timeout_millis=30_000)
    print(f"{message.data().decode()} for table {message.properties()['table']}")
    consumer.acknowledge(message)
print("consumed 10 orders in the other")

east.close()
west.close()
