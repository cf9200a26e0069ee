# SPDX-License-Identifier: Apache-2.0
"""Messages with a schema: publish objects in one region, get objects in another.

Start the regions with ``meridian up``, then

    python examples/schema_json.py

The class below is the schema. The producer registers it with the topic in us-east; it is replicated, so a consumer in
us-west finds it there and gets an ``Order`` instead of bytes. In transit and on disk an order is JSON.
"""

import argparse
import secrets
import urllib.request

import pulsar
from pulsar.schema import Float, Integer, JsonSchema, Record, String

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--east", default="pulsar://127.0.0.1:6650", help="service URL of one region (%(default)s)")
parser.add_argument("--west", default="pulsar://127.0.0.1:6660", help="service URL of another region (%(default)s)")
parser.add_argument("--west-admin", default="http://127.0.0.1:8090", help="admin URL of that region (%(default)s)")
parser.add_argument("--topic", default=f"typed-orders-{secrets.token_hex(4)}", help="topic (default: a new one)")
arguments = parser.parse_args()
quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


class Order(Record):
    """An order."""

    table = Integer()
    drink = String()
    price = Float()


east = pulsar.Client(arguments.east, logger=quiet)
producer = east.create_producer(arguments.topic, schema=JsonSchema(Order))
producer.send(Order(table=7, drink="espresso", price=2.5))
producer.send(Order(table=7, drink="ristretto", price=2.75))

west = pulsar.Client(arguments.west, logger=quiet)
consumer = west.subscribe(
    arguments.topic, "bar", schema=JsonSchema(Order), initial_position=pulsar.InitialPosition.Earliest
)
total = 0.0
for _ in range(2):
    message = consumer.receive(timeout_millis=30_000)
    order = message.value()
    print(f"table {order.table}: {order.drink}, {order.price:.2f}")
    total += order.price
    consumer.acknowledge(message)
print(f"total {total:.2f}")

path = f"{arguments.west_admin}/admin/v2/schemas/public/default/{arguments.topic}/schema"
with urllib.request.urlopen(path, timeout=30) as answer:
    print(f"the schema in the other region: {answer.read().decode()}")
east.close()
west.close()
