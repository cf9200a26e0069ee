# SPDX-License-Identifier: Apache-2.0
"""Helpers around the real client from PyPI, mostly for several regions: publish, consume, inspect what is stored."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import pulsar
from support.brokers.broker_process import HttpAnswer, wait_until
from support.protocol.admin_paths import topic_path

EAST, WEST, CENTRAL = ("us-east", "us-west", "eu-central")
SHARED = pulsar.ConsumerType.Shared
KEY_SHARED = pulsar.ConsumerType.KeyShared
FAILOVER = pulsar.ConsumerType.Failover
EXCLUSIVE = pulsar.ConsumerType.Exclusive
EARLIEST = pulsar.InitialPosition.Earliest
LATEST = pulsar.InitialPosition.Latest
QUIET_MS = 500
"""How long a test waits to conclude that nothing arrives."""
PATIENCE_MS = 60_000
"""Timeout for expected messages."""
_numbers = itertools.count()


class Regions(Protocol):
    """Running regions, however they were started."""

    def service_url(self, region: str) -> str:
        """The region's URL for clients."""
        ...

    def http(self, region: str, method: str, path: str) -> HttpAnswer:
        """One request to the region's admin port."""
        ...


def new_topic(name: str) -> str:
    """A topic name that no other test uses."""
    return f"persistent://public/default/{name}-{next(_numbers)}"


def connect(url: str, seconds: int = PATIENCE_MS // 1000) -> pulsar.Client:
    """A client that logs errors only. :param seconds: timeout of its operations."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(url, logger=logger, operation_timeout_seconds=seconds)


@contextlib.contextmanager
def connected(url: str, seconds: int = PATIENCE_MS // 1000) -> Iterator[pulsar.Client]:
    """Like ``connect``, but closed at the end."""
    made = connect(url, seconds)
    try:
        yield made
    finally:
        with contextlib.suppress(pulsar.NotConnected):  # its region may have been killed meanwhile
            made.close()


def client(regions: Regions, region: str) -> contextlib.AbstractContextManager[pulsar.Client]:
    """A client of one region, closed at the end."""
    return connected(regions.service_url(region))


def numbered(numbers: Iterable[int]) -> list[bytes]:
    """Bodies that are their numbers."""
    return [b"%d" % number for number in numbers]


def publish(
    to: pulsar.Client, topic: str, bodies: Iterable[bytes], *, batching: bool = False, **options: Any
) -> list[pulsar.MessageId]:
    """Publish, and wait for every receipt."""
    producer = to.create_producer(
        topic, batching_enabled=batching, batching_max_publish_delay_ms=100, block_if_queue_full=True, **options
    )
    ids: list[pulsar.MessageId] = []
    refused: list[pulsar.Result] = []

    def sent(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
        if result == pulsar.Result.Ok:
            ids.append(message_id)
        else:
            refused.append(result)

    for body in bodies:
        producer.send_async(body, sent)
    producer.flush()
    producer.close()
    assert not refused, refused[0]
    return ids


def subscribe(
    to: pulsar.Client,
    topic: str,
    name: str = "s",
    kind: pulsar.ConsumerType = SHARED,
    initial: pulsar.InitialPosition = EARLIEST,
    **options: Any,
) -> pulsar.Consumer:
    """A consumer of a replicated subscription."""
    return to.subscribe(
        topic,
        name,
        consumer_type=kind,
        initial_position=initial,
        replicate_subscription_state_enabled=True,
        **options,
    )


def take(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    """Receive ``count`` messages without acknowledging them."""
    return [consumer.receive(PATIENCE_MS) for _ in range(count)]


def rest(consumer: pulsar.Consumer, wanted: Iterable[int] = (), *, acknowledge: bool = True) -> list[int]:
    """The numbers of everything that arrives, in order of arrival: until the wanted ones came, and then until it is
    quiet."""
    found: list[int] = []
    left = set(wanted)
    with contextlib.suppress(pulsar.Timeout):
        while True:
            message = consumer.receive(PATIENCE_MS if left - set(found) else QUIET_MS)
            found.append(int(message.data()))
            if acknowledge:
                consumer.acknowledge(message)
    return found


def drain(consumer: pulsar.Consumer, count: int = 0) -> list[bytes]:
    """Receive and acknowledge the ``count`` expected messages, and everything else until it is quiet."""
    found: list[bytes] = []
    with contextlib.suppress(pulsar.Timeout):
        while True:
            message = consumer.receive(PATIENCE_MS if len(found) < count else QUIET_MS)
            found.append(message.data())
            consumer.acknowledge(message)
    return found


def take_numbers(consumer: pulsar.Consumer, numbers: Iterable[int]) -> None:
    """Exactly these arrive, each once, in any order; then nothing."""
    wanted = sorted(numbers)
    found = []
    for _ in wanted:
        message = consumer.receive(PATIENCE_MS)
        found.append(int(message.data()))
        consumer.acknowledge(message)
    assert sorted(found) == wanted
    assert rest(consumer) == []


def stored(regions: Regions, region: str, topic: str, count: int) -> list[int]:
    """Wait until a region stores ``count`` messages of a topic; return their numbers in its order."""
    with client(regions, region) as one:
        reader = one.create_reader(topic, pulsar.MessageId.earliest)
        return [int(reader.read_next(PATIENCE_MS).data()) for _ in range(count)]


def stats(regions: Regions, region: str, topic: str) -> dict[str, Any]:
    """A topic's statistics in a region; empty while the topic does not exist there."""
    answer = regions.http(region, "GET", f"{topic_path(topic)}/stats")
    if answer.status == 404:
        return {}
    assert answer.status == 200, answer.text
    found: dict[str, Any] = answer.json
    return found


def backlog(regions: Regions, region: str, topic: str, name: str = "s") -> int | None:
    """A subscription's backlog in a region; None while it does not exist there."""
    subscription = stats(regions, region, topic).get("subscriptions", {}).get(name)
    return None if subscription is None else int(subscription["msgBacklog"])


def wait_for_backlog(regions: Regions, region: str, topic: str, count: int, name: str = "s") -> None:
    """Wait until a subscription's backlog in a region is exactly ``count``."""
    wait_until(
        lambda: backlog(regions, region, topic, name) == count, f"{topic} to have a backlog of {count} in {region}"
    )
