# SPDX-License-Identifier: Apache-2.0
"""Shadows of a topic that another broker of the region serves, on real bookies, with a real client."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NamedTuple

import pulsar
import pytest
from meridian_broker.engines.etcd.metadata import EtcdMetadataStore
from meridian_broker.gateway.client import PulsarClientConnection
from meridian_broker.gateway.client_errors import ConnectFailed, RequestRefused
from meridian_broker.gateway.client_options import ClientOptions
from meridian_broker.replication.entries.shadow_replicator import producer_name
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from meridian_broker.wire.pulsar.metadata import build_body
from support.brokers.bookkeeper_region import Region, everything, published, received
from support.brokers.broker_process import BrokerProcess, HttpAnswer, wait_until
from support.brokers.peers import SECRET, as_broker, as_region
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


def replicated(pair: Pair) -> dict[str, Any]:
    """The statistics of the shadow's replicator."""
    shown = pair.at_source.http("GET", f"{TOPICS}/{pair.source}/stats").json["shadowReplication"]
    found: dict[str, Any] = shown[f"persistent://public/default/{pair.shadow}"]
    return found


def until_read(pair: Pair) -> None:
    """The shadow's broker says that it has read all."""
    wait_until(lambda: replicated(pair).get("replicationBacklog") == 0, "the shadow's broker to have read everything")


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
        wait_until(
            lambda: replicated(pair).get("replicationBacklog") == 0, "the source's broker to know that all is read"
        )
        assert replicated(pair)["connected"] and replicated(pair)["msgOutCounter"] >= 50
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
        wait_until(lambda: backlog(pair, "s") == 10, "ten acknowledgements to be applied")
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


def test_a_shadow_gets_messages_while_its_replicator_is_down(region: Region) -> None:
    """Brokers with different secrets cannot connect to each other; the store tells the same."""
    pair = made(region)
    with connected(region.url) as client:
        view = client.subscribe(pair.shadow, "s", SHARED, initial_position=EARLIEST)
        bodies = published(client, pair.source, 10)
        until_read(pair)
        secret = region.secret_of(pair.at_source)
        secret.write_bytes(b"another secret, which the other broker lacks")
        try:
            wait_until(lambda: not replicated(pair)["connected"], "the replicator to be down")
            bodies += published(client, pair.source, 10, first=10)
            assert received(view, 20) == bodies
        finally:
            secret.write_bytes(SECRET)
        wait_until(lambda: replicated(pair)["connected"], "the replicator to be up again")
        more = published(client, pair.source, 10, first=20)
        assert received(view, 10) == more
        until_read(pair)
        assert replicated(pair)["lastError"] is None


class Told:
    """What a broker answers to the producer of a shadow replicator."""

    def __init__(self) -> None:
        self.receipts: list[tuple[int, int, int]] = []
        self.errors: list[tuple[int, str]] = []
        self.closed: str | None = None
        self.news = asyncio.Event()

    def receipt(self, receipt: pb.CommandSendReceipt) -> None:
        self.receipts.append((receipt.sequence_id, receipt.message_id.ledgerId, receipt.message_id.entryId))
        self.news.set()

    def send_error(self, error: pb.CommandSendError) -> None:
        self.errors.append((error.error, error.message))
        self.news.set()

    def producer_closed(self, reason: str) -> None:
        self.closed = reason
        self.news.set()


def asked_for(topic: str, name: str) -> pb.CommandProducer:
    return pb.CommandProducer(
        topic=topic, producer_name=name, user_provided_producer_name=True, producer_id=0, request_id=0
    )


def body() -> bytes:
    described = pb.MessageMetadata(producer_name="x", sequence_id=0, publish_time=1)
    return build_body(described.SerializeToString(), b"")


async def answers_to(pair: Pair, options: ClientOptions, places: list[bytes | None]) -> Told:
    """What the shadow's broker answers to SENDs with these message ids, of its source's replicator.

    The real replicator takes its place back whenever it likes: then the test does, until all is answered.
    """
    names = [f"persistent://public/default/{one}" for one in (pair.source, pair.shadow)]
    connection = await PulsarClientConnection.connect(f"pulsar://127.0.0.1:{pair.at_shadow.port}", options)
    try:
        async with asyncio.timeout(PATIENCE_MS / 1000):
            while True:
                told = Told()
                opened = await connection.open_producer(asked_for(names[1], producer_name(*names)), told)
                for number, place in enumerate(places):
                    connection.write(encode.send(opened.producer_id, number, body(), shadow_message_id=place))
                while len(told.receipts) + len(told.errors) < len(places) and told.closed is None:
                    told.news.clear()
                    await told.news.wait()
                if told.closed is None:
                    return told
    finally:
        await connection.close()


async def test_only_brokers_of_the_region_say_what_is_confirmed_in_a_source(region: Region) -> None:
    pair = made(region)
    names = [f"persistent://public/default/{one}" for one in (pair.source, pair.shadow)]
    url = f"pulsar://127.0.0.1:{pair.at_shadow.port}"
    at_shadow = next(key for key, one in region.brokers.items() if one is pair.at_shadow)
    own = as_broker(region.name, "z", at_shadow)

    async def refusal(options: ClientOptions, topic: str, name: str) -> str:
        connection = await PulsarClientConnection.connect(url, options)
        try:
            with pytest.raises(RequestRefused) as refused:
                await connection.open_producer(asked_for(topic, name), Told())
            assert refused.value.code == pb.NotAllowedError
            return str(refused.value)
        finally:
            await connection.close()

    with connected(region.url) as client:
        producer = client.create_producer(pair.source, batching_enabled=False)
        sent = [producer.send(b"%d" % number) for number in range(3)]
        view = client.subscribe(pair.shadow, "s", SHARED, initial_position=EARLIEST)
        assert received(view, 3) == [b"0", b"1", b"2"]
        last = encode.message_id(sent[2].ledger_id(), sent[2].entry_id())
        told = await answers_to(pair, own, [last, None, encode.message_id(sent[2].ledger_id(), -1)])
        assert told.receipts == [(0, sent[2].ledger_id(), sent[2].entry_id())]
        assert [code for code, _ in told.errors] == [pb.NotAllowedError] * 2
        assert "message ids, and no messages" in told.errors[0][1] and "no entry can have" in told.errors[1][1]

        right = producer_name(*names)
        assert "only brokers of this region" in await refusal(ClientOptions(), names[1], right)
        assert "only brokers of this region" in await refusal(as_region("elsewhere", region.name), names[1], right)
        assert "is not a shadow of" in await refusal(own, names[1], producer_name(names[1], names[1]))
        assert "is not a shadow of" in await refusal(own, names[0], right)
        for wrong in (as_broker("elsewhere", "z", at_shadow), as_broker(region.name, "z", at_shadow, b"wrong" * 9)):
            with pytest.raises(ConnectFailed):
                await PulsarClientConnection.connect(url, wrong)
        more = published(client, pair.source, 3, first=3)
        assert received(view, 3) == more


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
        producer.send(b"later", deliver_after=timedelta(seconds=6))
        producer.send(b"now")
        for consumer in delayed:
            assert received(consumer, 1) == [b"now"]
        for consumer in delayed:
            assert received(consumer, 1) == [b"later"]
            assert time.monotonic() - sent >= 6


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
        wait_until(lambda: compacted(client, pair.shadow) == [b"29", b"30", b"31"], "the newest messages to be read")
        assert len(received(whole, 33)) == 33
        before = bytes_read(pair.at_source)
        assert compacted(client, pair.shadow) == [b"29", b"30", b"31"]
        assert bytes_read(pair.at_source) == before
        pair.at_source.kill()
        assert compacted(client, pair.shadow) == [b"29", b"30", b"31"]
        pair.at_source.start()
        wait_until(lambda: region.owner(pair.source, pair.at_source) is not None, "a broker to own the source")


def test_trimming_truncation_and_the_end_of_a_source_reach_shadows_at_another_broker(region: Region) -> None:
    """One shadow holds its source's ledgers; another, next to it, does not, and counts what it has to skip."""
    pair = made(region)
    names = (f"{pair.source}-loose-{number}" for number in range(50))
    loose = next(name for name in names if region.owner(name, pair.at_source) is pair.at_shadow)
    given = {"topic": f"persistent://public/default/{loose}", "holdSourceLedgers": False}
    assert pair.at_source.http("POST", f"{TOPICS}/{pair.source}/shadowTopics", given).status == 204

    def shown(topic: str) -> Any:
        return pair.at_shadow.http("GET", f"{TOPICS}/{topic}/stats").json

    def gap(topic: str) -> int:
        return int(shown(topic)["meridian"]["shadow"]["gapEntries"])

    def stored_entries() -> list[int]:
        answer = pair.at_source.http("GET", f"{TOPICS}/{pair.source}/internalStats").json
        return [one["ledgerId"] for one in answer["ledgers"]]

    def trimmed(fewer_than: int) -> bool:
        assert pair.at_source.http("POST", f"{TOPICS}/{pair.source}/trim").status == 204
        return len(stored_entries()) < fewer_than

    with connected(region.url) as client:
        client.subscribe(pair.source, "keeper").close()
        held = client.subscribe(pair.shadow, "s", SHARED, initial_position=EARLIEST)
        client.subscribe(loose, "s", SHARED, initial_position=EARLIEST).close()
        bodies = list[bytes]()
        for _ in range(3):  # unloading seals the ledger
            bodies += published(client, pair.source, 10, first=len(bodies))
            assert pair.at_source.http("PUT", f"{TOPICS}/{pair.source}/unload").status == 204
        bodies += published(client, pair.source, 5, first=30)
        assert received(held, 5) == bodies[:5]
        wait_until(lambda: backlog(pair, "s") == 30, "the acknowledgements of five to be applied")
        assert pair.at_source.http("DELETE", f"{TOPICS}/{pair.source}/subscription/keeper").status == 204
        before = len(stored_entries())
        for _ in range(2):
            assert not trimmed(before), "the slow subscription of the shadow still needs it"
        assert received(held, 30) == bodies[5:]
        wait_until(lambda: trimmed(before), "the source to be trimmed")
        wait_until(lambda: gap(loose) == 30, "the loose shadow to count its gap")
        assert gap(pair.shadow) == 0
        of_loose = client.subscribe(loose, "s", SHARED)
        assert received(of_loose, 5) == bodies[30:]

        client.subscribe(pair.shadow, "late", SHARED, initial_position=EARLIEST).close()
        assert shown(pair.shadow)["subscriptions"]["late"]["msgBacklog"] == 5
        assert pair.at_source.http("DELETE", f"{TOPICS}/{pair.source}/truncate").status == 204
        wait_until(lambda: shown(pair.shadow)["subscriptions"]["late"]["msgBacklog"] == 0, "the shadow to skip")
        assert gap(pair.shadow) == 5
        last = published(client, pair.source, 2, first=35)
        assert pair.at_source.http("POST", f"{TOPICS}/{pair.source}/terminate").status == 200
        assert received(held, 2) == last == received(of_loose, 2)
        path = f"{TOPICS}/{pair.shadow}/internalStats"
        wait_until(lambda: pair.at_shadow.http("GET", path).json["state"] == "Terminated", "the shadow to end")


def test_of_two_brokers_asked_for_one_shadow_at_once_one_makes_it(region: Region) -> None:
    """Each serves a source of its own, so that it shows which of the two it is."""
    brokers = list(region.brokers.values())
    names = [f"contended-{next(_names)}" for _ in range(50)]
    sources = [next(name for name in names if region.owner(name, brokers[0]) is broker) for broker in brokers]
    for source in sources:
        assert anywhere(region, "PUT", f"{TOPICS}/{source}").status == 204

    def ask(broker: BrokerProcess, source: str, shadow: str) -> HttpAnswer:
        return broker.http("POST", f"{TOPICS}/{source}/shadowTopics", f"persistent://public/default/{shadow}")

    with ThreadPoolExecutor() as threads:
        for number in range(8):
            shadow = f"contended-view-{number}"
            answers = list(threads.map(ask, brokers, sources, [shadow] * 2))
            assert sorted(one.status for one in answers) in ([204, 409], [204, 503]), [one.text for one in answers]
            made_of = sources[[one.status for one in answers].index(204)]
            shown = anywhere(region, "GET", f"{TOPICS}/{shadow}/stats").json["meridian"]["shadow"]
            assert shown["source"] == f"persistent://public/default/{made_of}"
            deleted = threads.map(lambda one: anywhere(region, "DELETE", one).status, [f"{TOPICS}/{shadow}"] * 2)
            assert 204 in list(deleted)
    for source in sources:
        assert anywhere(region, "DELETE", f"{TOPICS}/{source}").status == 204, "something is left of a shadow"


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
