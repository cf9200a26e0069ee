# SPDX-License-Identifier: Apache-2.0
"""A topic of four partitions: more throughput, order kept per key.

Start the regions with ``meridian up``, then

    python examples/partitioned.py

The partitions are created in us-east, over the admin API that every Pulsar tool uses; the other regions follow. Thirty
sensors' readings are published with the sensor's name as key. A key always goes to the same partition, so a consumer
sees the readings of each sensor in order, while those of different sensors interleave.
"""

import argparse
import collections
import json
import secrets
import urllib.request

import pulsar

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--east", default="pulsar://127.0.0.1:6650", help="service URL of one region (%(default)s)")
parser.add_argument("--east-admin", default="http://127.0.0.1:8080", help="admin URL of the same region (%(default)s)")
parser.add_argument("--topic", default=f"readings-{secrets.token_hex(4)}", help="topic (default: a new one)")
arguments = parser.parse_args()

# `meridian topics create TOPIC --partitions 4` does the same.
path = f"{arguments.east_admin}/admin/v2/persistent/public/default/{arguments.topic}/partitions"
request = urllib.request.Request(path, b"4", {"Content-Type": "application/json"}, method="PUT")
urllib.request.urlopen(request, timeout=30).close()

client = pulsar.Client(arguments.east, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
print(f"{arguments.topic} has {len(client.get_topic_partitions(arguments.topic))} partitions")
consumer = client.subscribe(arguments.topic, "plot", initial_position=pulsar.InitialPosition.Earliest)

producer = client.create_producer(arguments.topic, block_if_queue_full=True)
for hour in range(10):
    for sensor in range(30):
        reading = json.dumps({"hour": hour, "celsius": 15 + hour})
        producer.send_async(reading.encode(), None, partition_key=f"sensor-{sensor}")
producer.flush()

hours = collections.defaultdict(list)
partitions = collections.defaultdict(set)
for _ in range(300):
    message = consumer.receive(timeout_millis=30_000)
    hours[message.partition_key()].append(json.loads(message.data())["hour"])
    partitions[message.partition_key()].add(message.topic_name())
    consumer.acknowledge(message)

if any(found != list(range(10)) for found in hours.values()) or any(len(found) != 1 for found in partitions.values()):
    raise SystemExit("a sensor's readings arrived out of order")
used = len(set.union(*partitions.values()))
print(f"300 readings of {len(hours)} sensors over {used} partitions, each sensor's in order")
client.close()
