# SPDX-License-Identifier: Apache-2.0
"""Watch, over HTTP, a replicated subscription's progress become the same in all regions.

Start the regions with ``meridian up``, then

    python examples/watch_progress.py

A consumer in us-east acknowledges 45 of 50 messages and leaves five open. Every region is asked for the subscription's
status until all agree: how many messages are left (``backlog``), how many acknowledged ranges lie beyond the first open
message (``holes``), up to where everything of each origin region is acknowledged (``floors``). ``synced`` means that
the other regions have confirmed everything this one knows. The regions' addresses come from the first one's list.
``meridian subscriptions status`` prints the same.
"""

import argparse
import json
import secrets
import time
import urllib.error
import urllib.request

import pulsar

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--east", default="pulsar://127.0.0.1:6650", help="service URL of one region (%(default)s)")
parser.add_argument("--east-admin", default="http://127.0.0.1:8080", help="admin URL of the same region (%(default)s)")
parser.add_argument("--topic", default=f"watched-{secrets.token_hex(4)}", help="topic (default: a new one)")
arguments = parser.parse_args()


def get(url):
    """The JSON at a URL."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


clusters = f"{arguments.east_admin}/admin/v2/clusters"
admins = {name: get(f"{clusters}/{name}")["serviceUrl"] for name in get(clusters)}
print(f"regions: {', '.join(sorted(admins))}")

client = pulsar.Client(arguments.east, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
consumer = client.subscribe(
    arguments.topic,
    "workers",
    consumer_type=pulsar.ConsumerType.Shared,
    initial_position=pulsar.InitialPosition.Earliest,
    replicate_subscription_state_enabled=True,
)
producer = client.create_producer(arguments.topic)
for number in range(50):
    producer.send(f"task {number}".encode())
open_still = 0
for number in range(50):
    message = consumer.receive(timeout_millis=30_000)
    if number % 10 == 3:
        open_still += 1
    else:
        consumer.acknowledge(message)


def status(admin):
    """The subscription as one region sees it; None: the region does not know it yet."""
    name = f"persistent/public/default/{arguments.topic}/workers"
    try:
        return get(f"{admin}/meridian/v1/subscriptions/{name}/status")
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return None


shown = {}
give_up = time.monotonic() + 60
while True:
    now = {name: status(admin) for name, admin in admins.items()}
    for name, seen in now.items():
        line = "does not know it yet"
        if seen is not None:
            line = f"backlog {seen['backlog']}, holes {seen['holes']}, floors {seen['floors']}, synced {seen['synced']}"
        if line != shown.get(name):
            print(f"{name}: {line}")
            shown[name] = line
    known = [seen for seen in now.values() if seen is not None]
    if len(known) == len(admins) and all(seen["backlog"] == open_still and seen["synced"] for seen in known):
        break
    if time.monotonic() > give_up:
        raise SystemExit("the regions did not agree within a minute")
    time.sleep(0.05)
print(f"every region knows that {open_still} of 50 messages are open")
client.close()
