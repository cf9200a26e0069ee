# SPDX-License-Identifier: Apache-2.0
"""What clients rely on when a topic goes to another broker of its region: handed over, or because its owner was killed.

Each feature has two steps, one before the move and one after it. All topics move together, because a killed broker's
lease takes ten seconds to end.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pulsar
import pytest
from support.brokers.bookies import Bookies
from support.brokers.bookkeeper_region import Region, everything, received, running
from support.brokers.broker_process import BrokerProcess, wait_until
from support.brokers.region_clients import (
    EARLIEST,
    KEY_SHARED,
    PATIENCE_MS,
    QUIET_MS,
    SHARED,
    connected,
    drain,
    numbered,
    publish,
    take,
)
from support.worlds import compaction_steps

SETTINGS = {
    "brokerDeduplicationEnabled": "true",
    "brokerDeduplicationEntriesInterval": "10",
    "compactionRateInMBPerSecond": "0",
    "managedLedgerMaxEntriesPerLedger": "20",
}
HANDED_OVER, KILLED = "handed over", "killed"
LONGEST_OUTAGE: Final = {HANDED_OVER: 4_000, KILLED: 20_000}
"""Milliseconds until a delayed message is due: after the move, unless the machine is very busy."""
_numbers = itertools.count()


@dataclass
class Moving:
    """A topic that moves."""

    region: Region
    how: str
    client: pulsar.Client
    """Stays connected to the next owner: an attempt at a broker that is down would double its pause."""
    topic: str
    owner: BrokerProcess
    heir: BrokerProcess

    def stats(self, broker: BrokerProcess) -> Any:
        return broker.http("GET", f"{compaction_steps.ADMIN}/{self.topic}/stats").json

    def acknowledged(self, backlog: int, subscription: str = "s") -> None:
        """Wait until the owner has the acknowledgements, which clients hold back for 0.1 s."""
        wait_until(
            lambda: self.stats(self.owner)["subscriptions"][subscription]["msgBacklog"] == backlog,
            "the acknowledgements to be applied",
        )


Steps = Generator[None, None, None]


def seek(at: Moving) -> Steps:
    """Seeks by id and by time after the move; and a seek before the move still counts."""
    subscribed = partial(at.client.subscribe, at.topic, start_message_id_inclusive=True, initial_position=EARLIEST)
    consumers = {name: subscribed(name) for name in ("by-id", "by-time", "before")}
    ids = publish(at.client, at.topic, numbered(range(30)))
    messages = take(consumers["by-time"], 30)
    consumers["by-time"].acknowledge_cumulative(messages[-1])
    for name in ("by-id", "before"):
        assert received(consumers[name], 30) == numbered(range(30))
    for name in consumers:
        at.acknowledged(0, name)
    consumers["before"].seek(ids[24])
    consumers["before"].close()
    yield
    consumers["before"] = subscribed("before")
    assert drain(consumers["before"], 6) == numbered(range(30))[24:]
    wait_until(
        lambda: all(one["consumers"] for one in at.stats(at.heir)["subscriptions"].values()), "the consumers to return"
    )
    consumers["by-id"].seek(ids[11])
    assert drain(consumers["by-id"], 19) == numbered(range(30))[11:]
    since = messages[17].publish_timestamp()
    expected = [message.data() for message in messages if message.publish_timestamp() >= since]
    consumers["by-time"].seek(since)
    assert drain(consumers["by-time"], len(expected)) == expected


def compaction(at: Moving) -> Steps:
    """The next owner serves the view, and compacts on from it."""
    rows = [(f"k{number % 7}", b"%d" % number) for number in range(50)]
    compaction_steps.publish(at.client, at.topic, rows)
    compaction_steps.compact(at.owner, at.topic)
    later = [("k1", b""), ("k2", b"later")]
    compaction_steps.publish(at.client, at.topic, later)
    yield
    assert compaction_steps.read(at.client, at.topic) == [*rows[43:], *later]
    assert compaction_steps.read(at.client, at.topic, compacted=False) == [*rows, *later]
    compaction_steps.compact(at.heir, at.topic)
    kept = [row for row in rows[43:] if row[0] not in ("k1", "k2")]
    assert compaction_steps.read(at.client, at.topic) == [*kept, later[1]]


def delayed_delivery(at: Moving) -> Steps:
    """Neither early nor lost, whether due while nobody owns the topic or later."""
    consumer = at.client.subscribe(at.topic, "s", SHARED)
    producer = at.client.create_producer(at.topic, batching_enabled=False, send_timeout_millis=0)
    now = time.time_ns() // 1_000_000
    due: dict[bytes, int] = {}
    for number in range(40):
        body = b"%d" % number
        due[body] = now + (1_500 if number % 2 else LONGEST_OUTAGE[at.how] + 10 * number)
        producer.send(body, deliver_at=due[body])
    yield
    producer.send(b"now")
    due[b"now"] = 0
    came: dict[bytes, int] = {}
    acked: set[bytes] = set()
    while acked != due.keys():
        message = consumer.receive(PATIENCE_MS)
        body = bytes(message.data())
        came.setdefault(body, time.time_ns() // 1_000_000)
        consumer.acknowledge(message)
        acked.add(body)
    assert not [body for body, when in came.items() if when < due[body]]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(QUIET_MS)


def deduplication(at: Moving) -> Steps:
    """Messages that a producer resends with the same sequence ids are stored once, by the next owner as well."""
    producer = at.client.create_producer(at.topic, "p", batching_enabled=False, send_timeout_millis=0)

    def resend(first: int, last: int) -> None:
        results: list[pulsar.Result] = []
        for number in range(first, last + 1):
            producer.send_async(b"%d" % number, lambda result, _: results.append(result), sequence_id=number)
        producer.flush()
        wait_until(lambda: len(results) == last + 1 - first, "all receipts to arrive")
        assert set(results) == {pulsar.Result.Ok}

    resend(1, 36)  # some are in the stored snapshot of sequence ids, some after it
    yield
    resend(10, 40)
    producer.close()
    producer = at.client.create_producer(at.topic, "p", batching_enabled=False)
    assert producer.last_sequence_id() == 40
    resend(5, 44)
    assert everything(at.client, at.topic) == numbered(range(1, 45))


def key_shared(at: Moving) -> Steps:
    """Each key's messages come in order, and none is missing, to consumers that stay across the move."""
    consumers = [at.client.subscribe(at.topic, "s", KEY_SHARED, initial_position=EARLIEST) for _ in range(2)]
    producer = at.client.create_producer(at.topic, batching_enabled=False, send_timeout_millis=0)
    results: list[pulsar.Result] = []
    seen: dict[str, list[int]] = {f"key-{number}": [] for number in range(12)}
    acked: list[tuple[str, int]] = []

    def send(first: int, last: int) -> None:
        for number, key in itertools.product(range(first, last), seen):
            producer.send_async(b"%d" % number, lambda result, _: results.append(result), partition_key=key)

    def collect(done: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_MS / 1000
        while not done():
            assert time.monotonic() < until, seen
            for consumer in consumers:
                with contextlib.suppress(pulsar.Timeout):
                    message = consumer.receive(1)
                    seen[message.partition_key()].append(int(message.data()))
                    acked.append((message.partition_key(), int(message.data())))
                    consumer.acknowledge(message)

    send(0, 10)
    producer.flush()
    collect(lambda: len(acked) >= 60)
    at.acknowledged(120 - len(acked))
    before = set(acked)
    send(10, 15)  # under way when the topic moves
    yield
    send(15, 20)
    producer.flush()
    acked.clear()
    collect(lambda: all(19 in values for values in seen.values()))
    assert set(results) == {pulsar.Result.Ok}
    for key, values in seen.items():
        assert list(dict.fromkeys(values)) == list(range(20)), key
    assert not before & set(acked)


def acks_inside_batches(at: Moving) -> Steps:
    """Acknowledged messages of a batch do not come again; the others do."""
    subscribed = partial(at.client.subscribe, at.topic, "s", SHARED, initial_position=EARLIEST)
    consumer = subscribed(batch_index_ack_enabled=True)
    ids = publish(at.client, at.topic, numbered(range(90)), batching=True, batching_max_messages=30)
    assert len({(one.ledger_id(), one.entry_id()) for one in ids}) < 10
    for message in take(consumer, 90):
        if int(message.data()) % 3:
            consumer.acknowledge(message)
    consumer.close()
    yield
    consumer = subscribed(batch_index_ack_enabled=True)
    assert drain(consumer, 30) == [b"%d" % number for number in range(0, 90, 3)]


def non_persistent(at: Moving) -> Steps:
    """Consumers and producers find the next owner; what was sent meanwhile may be lost."""
    consumer = at.client.subscribe(at.topic, "s", SHARED)
    producer = at.client.create_producer(at.topic, batching_enabled=False, send_timeout_millis=0)
    producer.send(b"before")
    assert received(consumer, 1) == [b"before"]
    yield

    def arrives() -> bool:
        producer.send_async(b"after", lambda _result, _place: None)
        with contextlib.suppress(pulsar.Timeout):
            return bytes(consumer.receive(100).data()) == b"after"
        return False

    wait_until(arrives, "a message to arrive on the non-persistent topic")


FEATURES: Final[list[Callable[[Moving], Steps]]] = [
    seek,
    compaction,
    delayed_delivery,
    deduplication,
    key_shared,
    acks_inside_batches,
    non_persistent,
]


@pytest.fixture(scope="module")
def shared_region(bookies: Bookies, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    with running(Region(bookies, tmp_path_factory.mktemp("moving"), SETTINGS)) as region:
        compaction_steps.retain(region.brokers["a"], -1)
        yield region


@pytest.fixture(scope="module", params=[HANDED_OVER, KILLED])
def moved(request: pytest.FixtureRequest, shared_region: Region) -> Iterator[dict[str, tuple[Moving, Steps]]]:
    """Every feature's topic has moved from one broker to the other, between its two steps."""
    owner, heir = shared_region.brokers.values()
    if request.param == KILLED:  # the bundles were all handed over before
        owner, heir = heir, owner
    with connected(heir.service_url) as client:
        found: dict[str, tuple[Moving, Steps]] = {}
        for feature in FEATURES:
            topic = _topic_of(shared_region, owner, "non-persistent" if feature is non_persistent else "persistent")
            at = Moving(shared_region, request.param, client, topic, owner, heir)
            steps = feature(at)
            found[feature.__name__] = at, steps
            next(steps)
        _move(owner, heir, request.param)
        yield found


def _topic_of(region: Region, owner: BrokerProcess, kind: str) -> str:
    """A new topic of this broker; its full name if it is not persistent."""
    while True:
        topic = f"moving-{next(_numbers)}"
        if region.owner(topic, owner, kind) is owner:
            return topic if kind == "persistent" else f"{kind}://public/default/{topic}"


def _move(owner: BrokerProcess, heir: BrokerProcess, how: str) -> None:
    if how == KILLED:
        owner.kill()
        return
    namespace = "/admin/v2/namespaces/public/default"
    borders = owner.http("GET", f"{namespace}/bundles").json["boundaries"]
    for bundle in itertools.pairwise(borders):
        path = f"{namespace}/{'_'.join(bundle)}/unload?destinationBroker=127.0.0.1:{heir.http_port}"
        assert owner.http("PUT", path).status in (204, 307, 412)  # 412: it is there already


@pytest.mark.parametrize("feature", [feature.__name__ for feature in FEATURES])
def test_a_feature_goes_on_at_the_next_owner(moved: dict[str, tuple[Moving, Steps]], feature: str) -> None:
    at, steps = moved[feature]
    kind, _, name = at.topic.rpartition("://public/default/")
    wait_until(
        lambda: at.region.owner(name, at.heir, kind or "persistent") is at.heir, "the other broker to own the topic"
    )
    next(steps, None)
