# SPDX-License-Identifier: Apache-2.0
"""A real Apache Pulsar is the other region: messages go both ways, whatever is killed in between.

It needs Java 17 and the jars that `scripts/pulsar` fetches.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar.schema import JsonSchema, Record, String
from support.brokers.broker_process import BrokerProcess, wait_until
from support.brokers.pulsar_process import PulsarProcess
from support.brokers.region_clients import connected
from support.brokers.two_kinds import NAMESPACE, Side, numbered, publish

SECONDS = 600


class Letter(Record):  # type: ignore[misc]
    text = String()


def received(side: Side, topic: str, count: int) -> list[pulsar.Message]:
    """The next messages of a subscription, and any that follow within a second."""
    with connected(side.service_url) as client:
        consumer = client.subscribe(topic, "reader", initial_position=pulsar.InitialPosition.Earliest)
        found: list[pulsar.Message] = []
        while True:
            try:
                found.append(consumer.receive(60_000 if len(found) < count else 1000))
            except pulsar.Timeout:
                return found
            consumer.acknowledge(found[-1])


def assert_holds(side: Side, topic: str, expected: list[bytes]) -> None:
    """The topic holds each of these messages once."""
    found = Counter(message.data() for message in received(side, topic, len(expected)))
    missing = [message for message in expected if message not in found]
    assert not missing, f"{len(missing)} messages are missing, the first is {missing[0]!r}"
    repeated = {message: times for message, times in found.items() if times > 1}
    assert not repeated and len(found) == len(expected), f"delivered more than once: {repeated}"


CODECS = [
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]


@pytest.mark.timeout(SECONDS)
def test_messages_go_both_ways_while_either_side_is_killed(apache: PulsarProcess, meridian: BrokerProcess) -> None:
    topic = f"persistent://{NAMESPACE}/killed"
    sent: list[bytes] = []
    for name, side, codec in (("m0", meridian, 0), ("p0", apache, 1)):
        sent += numbered(name, 300)
        publish(side, topic, numbered(name, 300), batching_enabled=True, compression_type=CODECS[codec])

    def link() -> Any:
        return meridian.http("GET", f"/admin/v2/{topic.replace('://', '/')}/stats").json["replication"]["apache"]

    def is_told() -> bool:
        shown = link()
        return not shown["connected"] and shown["replicationBacklog"] > 0 and bool(shown["lastError"])

    # A Pulsar that is killed before it has confirmed a message may store it a second time (docs/with-pulsar.md).
    wait_until(lambda: link()["connected"] and link()["replicationBacklog"] == 0, "Pulsar to confirm what it was sent")
    apache.kill()
    sent += numbered("m1", 300)
    publish(meridian, topic, numbered("m1", 300), batching_enabled=True, compression_type=CODECS[2])
    wait_until(is_told, "the link to Pulsar to be reported down")
    apache.start()
    sent += numbered("p1", 300)
    publish(apache, topic, numbered("p1", 300), batching_enabled=False)
    meridian.kill()
    sent += numbered("p2", 300)
    publish(apache, topic, numbered("p2", 300), batching_enabled=True, compression_type=CODECS[3])
    meridian.start()
    sent += numbered("m2", 300)
    publish(meridian, topic, numbered("m2", 300), batching_enabled=False)
    for side in (meridian, apache):
        assert_holds(side, topic, sent)


@pytest.mark.timeout(SECONDS)
def test_partitions_of_either_side(apache: PulsarProcess, meridian: BrokerProcess) -> None:
    for side, other in ((meridian, apache), (apache, meridian)):
        path = f"/admin/v2/persistent/{NAMESPACE}/parts-of-{'meridian' if side is meridian else 'apache'}"
        topic = path.removeprefix("/admin/v2/").replace("persistent/", "persistent://")
        assert side.http("PUT", path + "/partitions", 3).status == 204
        publish(side, topic, numbered("a", 30))
        assert_holds(other, topic, numbered("a", 30))
        assert other.http("GET", path + "/partitions").json["partitions"] == 3


@pytest.mark.timeout(SECONDS)
def test_one_that_hangs_is_shown_and_gets_everything_once(apache: PulsarProcess, meridian: BrokerProcess) -> None:
    topic = f"persistent://{NAMESPACE}/hangs"

    def link() -> Any:
        return meridian.http("GET", f"/admin/v2/{topic.replace('://', '/')}/stats").json["replication"]["apache"]

    publish(meridian, topic, numbered("before", 20))
    wait_until(lambda: link()["connected"] and link()["replicationBacklog"] == 0, "Pulsar to confirm what it was sent")
    with apache.hanging():
        publish(meridian, topic, numbered("while", 20))
        wait_until(lambda: link()["replicationDelayInSeconds"] > 0, "the delay to be shown")
        assert link()["replicationBacklog"] > 0
    assert_holds(apache, topic, numbered("before", 20) + numbered("while", 20))


@pytest.mark.timeout(SECONDS)
def test_schemas_chunks_and_messages_for_one_side(apache: PulsarProcess, meridian: BrokerProcess) -> None:
    for side, other in ((meridian, apache), (apache, meridian)):
        name = "meridian" if side is meridian else "apache"
        topic = f"persistent://{NAMESPACE}/kinds-of-{name}"
        with connected(side.service_url) as one, connected(other.service_url) as two:
            letters = one.create_producer(topic, schema=JsonSchema(Letter))
            letters.send(Letter(text="here only"), disable_replication=True)
            letters.send(Letter(text="everywhere"))
            letters.send(Letter(text="there"), replication_clusters=["apache", "meridian"])
            consumer = two.subscribe(
                topic, "s", schema=JsonSchema(Letter), initial_position=pulsar.InitialPosition.Earliest
            )
            assert [consumer.receive(60_000).value().text for _ in range(2)] == ["everywhere", "there"]
            if side is apache:
                continue  # its replicator silently skips chunks of the full size
            large = os.urandom(6 << 20)
            one.create_producer(f"{topic}-chunks", chunking_enabled=True, batching_enabled=False).send(large)
            chunks = two.subscribe(f"{topic}-chunks", "s", initial_position=pulsar.InitialPosition.Earliest)
            assert chunks.receive(60_000).data() == large


@pytest.mark.timeout(SECONDS)
def test_a_copy_of_a_replicated_message_is_not_taken_for_a_repeat(
    apache: PulsarProcess, meridian: BrokerProcess
) -> None:
    """Clients copy properties to dead-letter topics, including a source position."""
    topic = f"persistent://{NAMESPACE}/copies"
    with connected(meridian.service_url) as client:
        producer = client.create_producer(topic)
        producer.send(b"first")
        producer.send(b"copy", properties={"__MSG_PROP_REPL_SOURCE_POSITION": "1:0"})
    assert_holds(apache, topic, [b"first", b"copy"])


@pytest.mark.timeout(SECONDS)
def test_batches_of_every_codec_and_encrypted_messages_go_both_ways(
    apache: PulsarProcess, meridian: BrokerProcess, tmp_path: Path
) -> None:
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    subprocess.run(["openssl", "genrsa", "-out", private, "2048"], check=True, capture_output=True)
    subprocess.run(["openssl", "rsa", "-in", private, "-pubout", "-out", public], check=True, capture_output=True)
    keys = pulsar.CryptoKeyReader(str(public), str(private))
    for side, other in ((meridian, apache), (apache, meridian)):
        name = "meridian" if side is meridian else "apache"
        topic = f"persistent://{NAMESPACE}/codecs-of-{name}"
        sent: list[bytes] = []
        for codec in (pulsar.CompressionType.NONE, *CODECS):
            messages = numbered(f"{codec.name}", 20)
            publish(side, topic, messages, batching_enabled=True, compression_type=codec)
            sent += messages
        assert_holds(other, topic, sent)
        secret = f"{topic}-encrypted"
        publish(side, secret, [b"secret"], encryption_key="key", crypto_key_reader=keys)
        with connected(other.service_url) as client:
            consumer = client.subscribe(
                secret, "s", initial_position=pulsar.InitialPosition.Earliest, crypto_key_reader=keys
            )
            assert consumer.receive(60_000).data() == b"secret"


@pytest.mark.timeout(SECONDS)
def test_partitions_grow_on_the_other_side(apache: PulsarProcess, meridian: BrokerProcess) -> None:
    for side, other in ((meridian, apache), (apache, meridian)):
        path = f"/admin/v2/persistent/{NAMESPACE}/grows-in-{'meridian' if side is meridian else 'apache'}/partitions"
        topic = path.removeprefix("/admin/v2/").removesuffix("/partitions").replace("persistent/", "persistent://")
        assert side.http("PUT", path, 1).status == 204
        publish(side, topic, numbered("a", 10))
        assert_holds(other, topic, numbered("a", 10))
        assert side.http("POST", path, 4).status == 204
        publish(side, topic, numbered("b", 40))
        wait_until(lambda: other.http("GET", path).json["partitions"] == 4, "the other region to have four partitions")  # noqa: B023
        assert_holds(other, topic, numbered("b", 40))


@pytest.mark.timeout(SECONDS)
def test_a_namespace_that_is_missing_there_is_said_and_nothing_is_lost(
    apache: PulsarProcess, meridian: BrokerProcess
) -> None:
    topic = "persistent://shop/late/one"
    policy = {"replication_clusters": ["apache", "meridian"]}
    assert meridian.http("PUT", "/admin/v2/namespaces/shop/late", policy).status == 204
    publish(meridian, topic, numbered("a", 20))

    def told() -> str:
        shown = meridian.http("GET", f"/admin/v2/{topic.replace('://', '/')}/stats").json["replication"]["apache"]
        return str(shown["lastError"] or "") if shown["replicationBacklog"] else ""

    print(wait_until(told, "the statistics to say why nothing is replicated"))
    assert apache.http("PUT", "/admin/v2/namespaces/shop/late", {}).status == 204
    assert_holds(apache, topic, numbered("a", 20))
