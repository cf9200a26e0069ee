# SPDX-License-Identifier: Apache-2.0
"""Shadows of a topic that another broker of the region serves, on real bookies, with a real client."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections import defaultdict
from datetime import timedelta
from typing import NamedTuple

import pulsar
import pytest
from meridian_broker.engines.etcd.metadata import EtcdMetadataStore
from support.brokers.bookkeeper_region import Region, everything, published, received
from support.brokers.broker_process import BrokerProcess, HttpAnswer, wait_until
from support.brokers.region_clients import EARLIEST, KEY_SHARED, PATIENCE_MS, SHARED, connected

TOPICS = "/admin/v2/persistent/public/default"
_names = itertools.count(1)


class Pair(NamedTuple):
    """A source and its shadow, served by different brokers."""

    source: str
    shadow: str
    at_source: BrokerProcess
    at_shadow: BrokerProcess


def made(region: Region, **more: object) -> Pair:
    asked = region.brokers["a"]
    source = f"source-{next(_names)}"
    at_source = region.owner(source, asked)
    assert at_source is not None
    names = (f"{source}-view-{number}" for number in range(50))
    shadow = next(name for name in names if region.owner(name, asked) not in (None, at_source))
    at_shadow = region.owner(shadow, asked)
    assert at_shadow is not None
    assert at_source.http("PUT", f"{TOPICS}/{source}").status == 204
    answer = at_source.http(
        "POST", f"{TOPICS}/{source}/shadowTopics", {"topic": f"persistent://public/default/{shadow}", **more}
    )
    assert answer.status == 204, answer.text
    return Pair(source, shadow, at_source, at_shadow)


def backlog(pair: Pair, subscription: str) -> int:
    """Messages that a subscription of the shadow has not acknowledged, as its broker knows it."""
    shown = pair.at_shadow.http("GET", f"{TOPICS}/{pair.shadow}/stats").json
    return int(shown["subscriptions"][subscription]["msgBacklog"])


def until_empty(view: pulsar.Consumer, pair: Pair, subscription: str) -> list[bytes]:
    """Receive and acknowledge messages until the broker has every acknowledgement. One that was sent as the consumer's
    connection ended is lost with it, because no receipt was requested, and its message comes again."""
    found = list[bytes]()
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while time.monotonic() < deadline:
        try:
            message = view.receive(500)
        except pulsar.Timeout:
            if backlog(pair, subscription) == 0:
                return found
            continue
        view.acknowledge(message)
        found.append(bytes(message.data()))
    raise AssertionError(f"{backlog(pair, subscription)} messages of {pair.shadow} were never acknowledged")


def bytes_read(broker: BrokerProcess) -> float:
    """Bytes of entries that a broker has read from bookies."""
    found = re.search(r"^meridian_ledgers?_read_bytes(?:_total)?\S* (\S+)$", broker.http("GET", "/metrics").text, re.M)
    assert found is not None
    return float(found[1])


def test_consuming_a_shadow_reads_nothing_through_the_sources_broker(region: Region) -> None:
    pair = made(region)
    with connected(region.url) as client:
        bodies = published(client, pair.source, 300)
        view = client.subscribe(pair.shadow, "s", SHARED, initial_position=EARLIEST)
        before, elsewhere = bytes_read(pair.at_source), bytes_read(pair.at_shadow)
        assert received(view, 300) == bodies
        producer = client.create_producer(pair.source, batching_enabled=False)
        took: list[float] = []
        for number in range(50):  # one at a time, in the ledger that is being written
            began = time.monotonic()
            sent = producer.send(b"late-%d" % number)
            message = view.receive(PATIENCE_MS)
            took.append(time.monotonic() - began)
            assert message.data() == b"late-%d" % number
            assert (message.message_id().ledger_id(), message.message_id().entry_id()) == (
                sent.ledger_id(),
                sent.entry_id(),
            )
            view.acknowledge(message)
        assert everything(client, pair.shadow) == [*bodies, *(b"late-%d" % number for number in range(50))]
        assert bytes_read(pair.at_source) == before
        assert bytes_read(pair.at_shadow) >= elsewhere
        shown = pair.at_source.http("GET", f"{TOPICS}/{pair.source}/stats").json["shadowReplication"]
        (of_shadow,) = shown.values()
        assert of_shadow["connected"] and "replicationBacklog" not in of_shadow, "its own broker knows how far it is"
        assert sorted(took)[25] < 5, "the readers of an idle ledger are told"
        print(f"median {sorted(took)[25] * 1000:.1f} ms, most {max(took) * 1000:.1f} ms")
        with pytest.raises(pulsar.PulsarException):
            client.create_producer(pair.shadow)


def test_it_reads_on_when_the_sources_broker_is_killed_and_another_one_takes_over(region: Region) -> None:
    pair = made(region)
    with connected(region.url) as client:
        view = client.subscribe(pair.shadow, "s", SHARED, initial_position=EARLIEST)
        bodies = published(client, pair.source, 20)
        assert received(view, 10) == bodies[:10]
        wait_until(lambda: backlog(pair, "s") == 10, "the acknowledgements of ten to be applied")
        pair.at_source.kill()
        taken = received(view, 10)
        assert sorted(taken) == sorted(bodies[10:])
        region.taken_by(pair.at_shadow, pair.source)
        again = until_empty(view, pair, "s")
        assert set(again) <= set(taken) and len(again) == len(set(again)), "acknowledged while the consumer moved"
        more = published(client, pair.source, 10, first=20)
        assert sorted(received(view, 10)) == sorted(more)
        assert everything(client, pair.shadow) == [*bodies, *more]
        pair.at_source.start()
        wait_until(lambda: region.owner(pair.source, pair.at_source) is not None, "a broker to own the source")
        more += published(client, pair.source, 10, first=30)
        assert sorted(received(view, 10)) == sorted(more[10:])


def batches(client: pulsar.Client, topic: str, first: int) -> None:
    """Twelve messages with three keys, in three entries."""
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=4, batching_max_publish_delay_ms=60_000
    )
    for number in range(first, first + 12):
        producer.send_async(b"%d" % number, lambda *_: None, partition_key=f"key-{number % 3}")
    producer.flush()
    producer.close()


def bodies_of(consumer: pulsar.Consumer, count: int) -> list[int]:
    return [int(consumer.receive(PATIENCE_MS).data()) for _ in range(count)]


def half_acknowledged(client: pulsar.Client, topic: str, broker: BrokerProcess) -> list[int]:
    """What comes again after every second message of each batch was acknowledged, and the topic was reopened."""
    consumer = client.subscribe(topic, "parts", SHARED, initial_position=EARLIEST, batch_index_ack_enabled=True)
    messages = [consumer.receive(PATIENCE_MS) for _ in range(24)]
    for message in messages:
        if int(message.data()) % 2:
            consumer.acknowledge(message)
    consumer.close()  # sends the acknowledgements
    assert broker.http("PUT", f"{TOPICS}/{topic}/unload").status == 204
    again = client.subscribe(topic, "parts", SHARED, batch_index_ack_enabled=True)
    found = bodies_of(again, 12)
    again.close()
    return found


def of_each_key(client: pulsar.Client, topic: str) -> dict[int, list[int]]:
    """By key, what two Key_Shared consumers get, each key from one of them."""
    two = [client.subscribe(topic, "keys", KEY_SHARED, initial_position=EARLIEST) for _ in range(2)]
    found: dict[int, list[int]] = defaultdict(list)
    takers: dict[int, set[int]] = defaultdict(set)
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while sum(map(len, found.values())) < 24 and time.monotonic() < deadline:
        for number, consumer in enumerate(two):
            try:
                message = consumer.receive(50)
            except pulsar.Timeout:
                continue
            key = int(message.data()) % 3
            found[key].append(int(message.data()))
            takers[key].add(number)
            consumer.acknowledge(message)
    for consumer in two:
        consumer.close()
    assert [len(takers[key]) for key in range(3)] == [1, 1, 1]
    return dict(found)


def after_seeks(client: pulsar.Client, topic: str, places: list[pulsar.MessageId], between_ms: int) -> list[list[int]]:
    """What comes after a seek to each place, and to the time between the two dozens."""
    consumer = client.subscribe(topic, "seeks", initial_position=EARLIEST)
    found = []
    for place in (*places, between_ms, 1):
        consumer.seek(place)
        found.append(bodies_of(consumer, 3))
    consumer.close()
    return found


def test_keys_delays_parts_of_batches_and_seeks_are_as_on_the_source_at_another_broker(region: Region) -> None:
    """A dozen messages are in a ledger sealed before the shadow was opened, a dozen in the one that it follows."""
    pair = made(region)
    both = ((pair.source, pair.at_source), (pair.shadow, pair.at_shadow))
    with connected(region.url) as client:
        keeper = client.subscribe(pair.source, "keeper")
        batches(client, pair.source, 0)
        for topic, broker in both:
            assert broker.http("PUT", f"{TOPICS}/{topic}/unload").status == 204
        between_ms = int(time.time() * 1000) + 1
        wait_until(lambda: time.time() * 1000 > between_ms + 1, "the clock to move on")
        batches(client, pair.source, 12)
        messages = [keeper.receive(PATIENCE_MS) for _ in range(24)]
        places = [messages[number].message_id() for number in (4, 16)]

        sought = [after_seeks(client, topic, places, between_ms) for topic, _ in both]
        assert sought[0] == sought[1]
        assert sought[1][2:] == [[12, 13, 14], [0, 1, 2]]
        in_order = {key: list(range(key, 24, 3)) for key in range(3)}
        assert [of_each_key(client, topic) for topic, _ in both] == [in_order, in_order]
        left = list(range(0, 24, 2))
        assert [half_acknowledged(client, topic, broker) for topic, broker in both] == [left, left]

        delayed = [client.subscribe(topic, "delayed", SHARED) for topic, _ in both]
        producer = client.create_producer(pair.source, batching_enabled=False)
        sent = time.monotonic()
        producer.send(b"later", deliver_after=timedelta(seconds=2))
        producer.send(b"now")
        for consumer in delayed:
            assert received(consumer, 1) == [b"now"]
        for consumer in delayed:
            assert received(consumer, 1) == [b"later"]
            assert time.monotonic() - sent >= 2


def compacted(client: pulsar.Client, topic: str) -> list[bytes]:
    """What a reader of the compacted view gets."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(PATIENCE_MS).data())
    reader.close()
    return found


def test_the_compacted_view_of_a_source_at_another_broker_is_read(region: Region) -> None:
    pair = made(region)

    def compact(client: pulsar.Client, expected: list[bytes]) -> None:
        assert pair.at_source.http("PUT", f"{TOPICS}/{pair.source}/compaction").status == 204
        for broker, topic in ((pair.at_source, pair.source), (pair.at_shadow, pair.shadow)):
            path = f"{TOPICS}/{topic}/compaction"
            wait_until(lambda b=broker, p=path: b.http("GET", p).json["status"] == "SUCCESS", "the compaction to end")
        wait_until(lambda: compacted(client, pair.shadow) == expected, "the newer view to be read")
        assert compacted(client, pair.source) == expected

    with connected(region.url) as client:
        whole = client.subscribe(pair.shadow, "s", SHARED, initial_position=EARLIEST)
        producer = client.create_producer(pair.source, batching_enabled=False)
        for number in range(30):
            producer.send(b"%d" % number, partition_key=f"key-{number % 3}")
        compact(client, [b"27", b"28", b"29"])
        producer.send(b"", partition_key="key-0")
        producer.send(b"30", partition_key="key-1")
        compact(client, [b"29", b"30"])
        producer.send(b"31", partition_key="key-2")  # after the view
        wait_until(lambda: compacted(client, pair.shadow) == [b"29", b"30", b"31"], "the newest message")
        assert len(received(whole, 33)) == 33
        before = bytes_read(pair.at_source)
        assert compacted(client, pair.shadow) == [b"29", b"30", b"31"]
        assert bytes_read(pair.at_source) == before
        pair.at_source.kill()
        assert compacted(client, pair.shadow) == [b"29", b"30", b"31"]
        pair.at_source.start()
        wait_until(lambda: region.owner(pair.source, pair.at_source) is not None, "a broker to own the source")


def test_each_broker_describes_a_shadow_and_its_source_whichever_serve_them(region: Region) -> None:
    """The operator asks any of them, and reports what it is told in the status of a ShadowTopic."""
    pair, parted = made(region), f"parted-{next(_names)}"
    assert anywhere(region, "PUT", f"{TOPICS}/{parted}/partitions", 8).status == 204
    shadow_of_parted = {"topic": f"persistent://public/default/{parted}-view", "holdSourceLedgers": False}
    assert anywhere(region, "POST", f"{TOPICS}/{parted}/shadowTopics", shadow_of_parted).status == 204
    with connected(region.url) as client:
        for source, shadow in ((pair.source, pair.shadow), (parted, f"{parted}-view")):
            client.subscribe(shadow, "s", initial_position=EARLIEST).close()
            published(client, source, 40)
    wanted = {
        pair.shadow: (f"persistent://public/default/{pair.source}", 0, True, 40),
        f"{parted}-view": (f"persistent://public/default/{parted}", 8, False, 40),
    }
    asked = {"topics": [{"topic": f"persistent://public/default/{name}", "subscriptions": ["s"]} for name in wanted]}

    def told(broker: BrokerProcess) -> dict[str, tuple[object, ...]]:
        found = broker.http("POST", "/meridian/v1/describe", asked).json["topics"]
        return {
            name: (
                (
                    one["shadow"]["source"],
                    one["partitions"],
                    one["shadow"]["holdsSourceLedgers"],
                    one["shadow"]["backlog"],
                )
                if "problem" not in one and one["shadow"]["connected"] and one["subscriptions"]["s"]["backlog"] == 40
                else (one,)
            )
            for name, one in zip(wanted, found, strict=True)
        }

    def all_told() -> list[dict[str, tuple[object, ...]]]:
        return [told(broker) for broker in region.brokers.values()]

    wait_until(lambda: all_told() == [wanted, wanted], lambda: f"{wanted} from both, not {all_told()}")


def keys(region: Region) -> set[str]:
    """All of the region's keys in etcd."""

    async def scanned() -> set[str]:
        store = await EtcdMetadataStore.connect(region.etcd_url, f"meridian/{region.name}")
        try:
            return {path for path, _ in await store.scan("/")}
        finally:
            await store.close()

    return asyncio.run(scanned())


def test_deleting_with_cascade_reaches_shadows_at_other_brokers_or_none(region: Region) -> None:
    pair = made(region)
    for broker in region.brokers.values():
        refused = broker.http("DELETE", f"{TOPICS}/{pair.source}")
        assert refused.status in (307, 412), refused.text
    assert pair.at_source.http("DELETE", f"{TOPICS}/{pair.source}").status == 412
    with connected(region.url) as client:
        client.subscribe(pair.shadow, "s").close()
        for topic in (pair.source, pair.shadow):
            consumer = client.subscribe(topic, "connected")
            refused = pair.at_source.http("DELETE", f"{TOPICS}/{pair.source}?cascade=true")
            assert refused.status == 412 and f"{topic} has 1 producers and consumers" in refused.reason, refused.text
            assert backlog(pair, "s") == 0, "the shadow's subscription is gone"
            consumer.close()
        published(client, pair.source, 3)
    assert pair.at_source.http("DELETE", f"{TOPICS}/{pair.source}?cascade=true").status == 204
    for name in (pair.source, pair.shadow):
        for broker in region.brokers.values():
            assert f"persistent://public/default/{name}" not in broker.http("GET", TOPICS).json
    assert [path for path in keys(region) if pair.source in path] == [
        f"/geo/deletions/public/default/persistent/{pair.source}"
    ]


def anywhere(region: Region, method: str, path: str, body: object = ...) -> HttpAnswer:
    """The answer of the broker that does not redirect to the other one."""
    answers = (broker.http(method, path, body) for broker in region.brokers.values())
    return next(answer for answer in answers if answer.status != 307)


def test_partitions_of_a_shadow_follow_those_of_its_source_at_whichever_brokers(region: Region) -> None:
    source = f"parted-{next(_names)}"
    shadow = f"persistent://public/default/{source}-view"
    assert anywhere(region, "PUT", f"{TOPICS}/{source}/partitions", 4).status == 204
    assert anywhere(region, "POST", f"{TOPICS}/{source}/shadowTopics", {"topic": shadow}).status == 204
    with connected(region.url) as client:
        view = client.subscribe(f"{source}-view", "s", SHARED, initial_position=EARLIEST)
        parts = [f"{source}-partition-{number}" for number in range(8)]
        bodies = [body for part in parts[:4] for body in published(client, part, 5)]
        assert sorted(received(view, 20)) == sorted(bodies)
        assert anywhere(region, "POST", f"{TOPICS}/{source}/partitions", 8).status == 204
        for broker in region.brokers.values():
            assert broker.http("GET", f"{TOPICS}/{source}-view/partitions").json["partitions"] == 8
        view.close()
        view = client.subscribe(f"{source}-view", "s", SHARED, initial_position=EARLIEST)
        bodies = [body for part in parts[4:] for body in published(client, part, 5)]
        assert sorted(received(view, 20)) == sorted(bodies)
    assert anywhere(region, "DELETE", f"{TOPICS}/{source}/partitions").status == 412
    assert anywhere(region, "DELETE", f"{TOPICS}/{source}/partitions?cascade=true").status == 204
    for broker in region.brokers.values():
        assert not [name for name in broker.http("GET", TOPICS).json if source in name]
