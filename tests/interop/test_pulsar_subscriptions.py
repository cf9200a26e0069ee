# SPDX-License-Identifier: Apache-2.0
"""A replicated subscription moves between a real Apache Pulsar and Meridian by snapshots (PIP-33), and back.

It needs Java 17 and the jars that `scripts/pulsar` fetches.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest
from support.brokers.broker_process import BrokerProcess, wait_until
from support.brokers.pulsar_process import PulsarProcess
from support.brokers.region_clients import connected
from support.brokers.two_kinds import NAMESPACE, Side, numbered, publish

SECONDS = 600
SUBSCRIPTION = "mover"
MARKERS = 30
"""Most markers after the last message: those of a few snapshots."""
LAG = 5
"""Seconds. Either kind of broker takes a snapshot every second; the machine may be busy."""


def subscription(side: Side, topic: str) -> dict[str, Any]:
    """The subscription's statistics; empty: it does not exist."""
    answer = side.http("GET", f"/admin/v2/{topic.replace('://', '/')}/stats")
    found: dict[str, Any] = answer.json["subscriptions"].get(SUBSCRIPTION, {}) if answer.status == 200 else {}
    return found


def wait_until_moved(side: Side, topic: str) -> None:
    """Pulsar's backlog includes markers, which it skips once there is a consumer."""
    most = MARKERS if isinstance(side, PulsarProcess) else 0
    seen: list[Any] = []

    def is_there() -> bool:
        found = subscription(side, topic)
        seen.append(found.get("msgBacklog"))
        return bool(found) and bool(found["replicated"]) and int(found["msgBacklog"]) <= most

    try:
        wait_until(is_there, "the other side to apply the acknowledgements", 60.0)
    finally:
        print("backlogs", topic, [one for at, one in enumerate(seen) if at == 0 or seen[at - 1] != one])


def wait_until_sent(meridian: BrokerProcess, topic: str) -> None:
    """Wait until all messages of the topic are in Pulsar."""

    def is_there() -> bool:
        shown = meridian.http("GET", f"/admin/v2/{topic.replace('://', '/')}/stats").json["replication"]["apache"]
        return bool(shown["connected"]) and shown["replicationBacklog"] == 0

    wait_until(is_there, "Pulsar to have all messages", 60.0)


@contextlib.contextmanager
def consumer(side: Side, topic: str, kind: pulsar.ConsumerType = pulsar.ConsumerType.Shared) -> Iterator[Any]:
    with connected(side.service_url) as client:
        yield client.subscribe(
            topic,
            SUBSCRIPTION,
            consumer_type=kind,
            initial_position=pulsar.InitialPosition.Earliest,
            replicate_subscription_state_enabled=True,
        )


def taken(consumer: Any, expected: set[bytes], *, keep: frozenset[bytes] = frozenset()) -> Counter[bytes]:
    """Receive until all of these have come and a second was quiet; acknowledge everything but ``keep``."""
    found: Counter[bytes] = Counter()
    while True:
        try:
            message = consumer.receive(1000 if expected <= found.keys() else 60_000)
        except pulsar.Timeout:
            missing = sorted(expected - found.keys())
            assert not missing, f"{len(missing)} messages are missing, the first is {missing[0]!r}"
            return found
        found[message.data()] += 1
        if message.data() not in keep:
            consumer.acknowledge(message)


@pytest.mark.timeout(SECONDS)
def test_a_subscription_moves_and_comes_back_while_pulsar_is_killed(
    apache: PulsarProcess, meridian: BrokerProcess
) -> None:
    topic = f"persistent://{NAMESPACE}/moves"
    first = numbered("m0", 100) + numbered("p0", 100)
    with consumer(apache, topic) as there:
        publish(meridian, topic, numbered("m0", 100))
        publish(apache, topic, numbered("p0", 100))
        taken(there, set(first))
        publish(apache, topic, numbered("p1", 1))
        taken(there, {*numbered("p1", 1)})
        wait_until_moved(meridian, topic)
    second = numbered("m2", 100) + numbered("p2", 100)
    publish(meridian, topic, numbered("m2", 100))
    publish(apache, topic, numbered("p2", 100))
    with consumer(meridian, topic) as here:
        assert set(taken(here, set(second))) == set(second), "what was acknowledged in Pulsar does not come again"
        apache.kill()
        third = numbered("m3", 100)
        publish(meridian, topic, third)
        assert set(taken(here, set(third))) == set(third)
        apache.start()
        wait_until_sent(meridian, topic)
        wait_until_moved(apache, topic)
    fourth = numbered("m4", 100) + numbered("p4", 100)
    publish(apache, topic, numbered("p4", 100))
    publish(meridian, topic, numbered("m4", 100))
    with consumer(apache, topic) as there:
        assert set(taken(there, set(fourth))) == set(fourth), "nor does what was acknowledged here"


@pytest.mark.timeout(SECONDS)
def test_nothing_behind_a_hole_is_passed(apache: PulsarProcess, meridian: BrokerProcess) -> None:
    """Individual acknowledgements do not travel: what is after the hole comes again, and the hole is not lost."""
    for side, other in ((apache, meridian), (meridian, apache)):
        name = "apache" if side is apache else "meridian"
        topic = f"persistent://{NAMESPACE}/holes-of-{name}"
        sent = numbered(name, 60)
        with consumer(side, topic) as one:
            publish(side, topic, sent[:30])
            taken(one, set(sent[:30]))
            publish(other, topic, numbered("wake", 1))
            taken(one, set(numbered("wake", 1)))
            wait_until_moved(other, topic)
            hole = frozenset(sent[40:41])
            publish(side, topic, sent[30:], batching_enabled=False)
            taken(one, set(sent[30:]), keep=hole)
        with consumer(other, topic) as two:
            found = taken(two, set(hole))
            assert not found.keys() & set(sent[:30]), "what was acknowledged before comes again"


@pytest.mark.timeout(SECONDS)
def test_a_move_under_load_repeats_a_few_seconds_at_most(apache: PulsarProcess, meridian: BrokerProcess) -> None:
    topic = f"persistent://{NAMESPACE}/load"
    sent: dict[str, list[bytes]] = {"apache": [], "meridian": []}
    ends = threading.Event()

    def load(side: Side, name: str) -> None:
        with connected(side.service_url) as client:
            producer = client.create_producer(topic)
            while not ends.wait(0.02):
                message = f"{name}-{len(sent[name]):06}".encode()
                producer.send(message)
                sent[name].append(message)

    with consumer(apache, topic):
        pass
    publishers = [threading.Thread(target=load, args=one) for one in ((apache, "apache"), (meridian, "meridian"))]
    for publisher in publishers:
        publisher.start()
    seen: Counter[bytes] = Counter()
    acked: set[bytes] = set()
    repeats = 0
    try:
        for side in (apache, meridian, apache, meridian):
            with consumer(side, topic) as one:
                ends_at = len(sent["apache"]) + 200
                while len(sent["apache"]) < ends_at:
                    with contextlib.suppress(pulsar.Timeout):
                        message = one.receive(1000)
                        seen[message.data()] += 1
                        repeats += message.data() in acked
                        one.acknowledge(message)
                        acked.add(message.data())
    finally:
        ends.set()
        for publisher in publishers:
            publisher.join()
    everything = {*sent["apache"], *sent["meridian"]}
    with consumer(meridian, topic) as one:
        seen += taken(one, everything - seen.keys())
    assert everything <= seen.keys()
    moves, a_second = 3, 100
    print(f"{len(everything)} messages, {repeats} repeated over {moves} moves")
    assert repeats <= moves * LAG * a_second
