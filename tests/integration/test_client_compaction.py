# SPDX-License-Identifier: Apache-2.0
"""Compaction through unmodified clients and the admin API: views, readers, table views, durable subscriptions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from support.brokers.broker_process import BrokerProcess, RegionsProcess, wait_until
from support.brokers.region_clients import PATIENCE_MS, connect
from support.worlds.compaction_steps import (
    ADMIN,
    EARLIEST,
    FAILOVER,
    SETTINGS,
    Door,
    assert_quiet,
    compact,
    entries,
    internal,
    publish,
    read,
    receive,
    retain,
    rows,
    status,
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess("one", tmp_path_factory.mktemp("broker"), settings=SETTINGS) as process:
        retain(process, -1)
        yield process


CODECS = ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY")


@pytest.mark.parametrize("codec", CODECS)
def test_the_newest_message_of_each_key_stays_also_inside_batches(
    broker: BrokerProcess, client: pulsar.Client, topic: str, codec: str
) -> None:
    old = [(f"k{number}", b"old" * 50) for number in range(6)]
    new = [("k1", b"new" * 50), ("k2", b""), ("", b"no key"), ("k3", b"new")]
    codecs = {"compression_type": getattr(pulsar.CompressionType, codec)}
    batched: dict[str, Any] = {"batching_enabled": True, "batching_max_publish_delay_ms": 1000}
    publish(client, topic, old, **codecs, **batched)
    publish(client, topic, new, **codecs, **batched)
    assert entries(broker, topic) == 2
    whole = read(client, topic, compacted=False)
    assert read(client, topic) == whole, "not compacted yet: the log as it is"
    assert status(broker, topic) == "NOT_RUN"
    compact(broker, topic)
    kept = [old[0], old[4], old[5], new[0], new[2], new[3]]
    assert read(client, topic) == kept
    publish(client, topic, [("k0", b"newest")])
    assert read(client, topic) == [*kept, ("k0", b"newest")]
    compact(broker, topic)
    assert read(client, topic) == [*kept[1:], ("k0", b"newest")]
    assert read(client, topic, compacted=False) == [*whole, ("k0", b"newest")]


def test_a_message_keeps_its_id(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    publish(client, topic, [(f"k{number % 3}", b"%d" % number) for number in range(9)], batching_enabled=True)
    before = client.create_reader(topic, pulsar.MessageId.earliest)
    ids = {message.data(): str(message.message_id()) for message in (before.read_next(PATIENCE_MS) for _ in range(9))}
    compact(broker, topic)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    for value in (b"6", b"7", b"8"):
        message = reader.read_next(PATIENCE_MS)
        assert (message.data(), str(message.message_id())) == (value, ids[value])
    assert not reader.has_message_available()


def test_a_durable_subscription_reads_the_view_and_claims_nothing_of_what_is_not_in_it(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    published = [(f"k{number % 5}", b"%d" % number) for number in range(20)]
    client.subscribe(topic, "s", initial_position=EARLIEST).close()
    publish(client, topic, published)
    compact(broker, topic)
    consumer = client.subscribe(topic, "s", is_read_compacted=True)
    messages = receive(consumer, 5)
    assert rows(messages) == published[15:]
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[3])
    consumer.close()
    consumer = client.subscribe(topic, "s", FAILOVER, is_read_compacted=True)
    messages = receive(consumer, 3)
    assert rows(messages) == [published[16], published[17], published[19]]
    consumer.acknowledge_cumulative(messages[2])
    publish(client, topic, [("k0", b"live")])
    live = receive(consumer, 1)
    consumer.acknowledge(live[0])
    wait_until(lambda: backlog(broker, topic, "s") == 0, "the cursor to pass what compaction removed")
    consumer.close()
    plain = client.subscribe(topic, "s")
    assert rows(receive(plain, 15)) == published[:15], "a consumer of the whole log gets what nobody acknowledged"
    assert_quiet(plain)


def test_a_batch_compacted_away_while_a_consumer_holds_it_is_acknowledged_as_sent(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    """The view has two of the first batch's three messages and all of the second's; then it has none of either."""
    batched: dict[str, Any] = {"batching_enabled": True, "batching_max_publish_delay_ms": 1000}
    client.subscribe(topic, "s", initial_position=EARLIEST).close()
    publish(client, topic, [("k0", b"0"), ("k1", b"1"), ("k2", b"2")], **batched)
    publish(client, topic, [("k2", b"3"), ("k3", b"4")], **batched)
    compact(broker, topic)
    consumer = client.subscribe(topic, "s", is_read_compacted=True, batch_index_ack_enabled=True)
    held = receive(consumer, 4)
    assert rows(held) == [("k0", b"0"), ("k1", b"1"), ("k2", b"3"), ("k3", b"4")]
    newest = [(f"k{number}", b"new") for number in range(4)]
    publish(client, topic, newest)
    compact(broker, topic)
    for message in held:
        consumer.acknowledge(message)
    for message in receive(consumer, 4):
        consumer.acknowledge(message)
    wait_until(lambda: backlog(broker, topic, "s") == 0, "the cursor to pass all messages")
    consumer.close()
    plain = client.subscribe(topic, "s", batch_index_ack_enabled=True)
    assert rows(receive(plain, 1)) == [("k2", b"2")], "what was never sent, and nothing that was acknowledged"
    assert_quiet(plain)


def backlog(broker: BrokerProcess, topic: str, subscription: str) -> int:
    cursor = internal(broker, topic)["cursors"][subscription]
    return int(cursor["numberOfEntriesSinceFirstNotAckedMessage"])


@pytest.mark.parametrize("compacted", [True, False])
def test_a_cumulative_acknowledgement_into_a_ledgers_first_batch_covers_what_is_before_it(
    broker: BrokerProcess, client: pulsar.Client, topic: str, compacted: bool
) -> None:
    """Unless it acknowledges single messages of a batch, this client names the entry before the batch: number -1."""
    batched: dict[str, Any] = {"batching_enabled": True, "batching_max_publish_delay_ms": 60_000}
    client.subscribe(topic, "s", initial_position=EARLIEST).close()
    before = [(f"a{number}", b"before") for number in range(10)]  # one ledger
    batch = [(f"b{number}", b"in the batch") for number in range(4)]
    publish(client, topic, before)
    publish(client, topic, batch, **batched)
    publish(client, topic, [("c", b"behind")] * 12)
    compact(broker, topic)
    behind = [("c", b"behind")] * (1 if compacted else 12)
    consumer = client.subscribe(topic, "s", is_read_compacted=compacted)
    messages = receive(consumer, 14 + len(behind))
    assert messages[10].message_id().entry_id() == 0, "the batch begins a ledger"
    consumer.acknowledge_cumulative(messages[11])
    consumer.close()
    consumer = client.subscribe(topic, "s", is_read_compacted=compacted)
    assert rows(receive(consumer, 4 + len(behind))) == [*batch, *behind]
    assert_quiet(consumer)


def test_readers_of_the_view_know_where_it_ends(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    publish(client, topic, [("a", b"1"), ("b", b"1"), ("a", b"2"), ("b", b"")])
    compact(broker, topic)
    assert read(client, topic) == [("a", b"2")]
    publish(client, topic, [("a", b"")])
    compact(broker, topic)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    assert not reader.has_message_available()
    publish(client, topic, [("c", b"3")])
    assert reader.has_message_available()
    assert reader.read_next(PATIENCE_MS).data() == b"3"
    assert not reader.has_message_available()
    latest = client.create_reader(topic, pulsar.MessageId.latest, is_read_compacted=True)
    assert not latest.has_message_available()
    whole = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [whole.read_next(PATIENCE_MS).data() for _ in range(6)] == [b"1", b"1", b"2", b"", b"", b"3"]
    assert not whole.has_message_available()


@pytest.mark.parametrize("partitions", [0, 3])
def test_table_views_hold_the_newest_of_each_key_and_follow(
    broker: BrokerProcess, client: pulsar.Client, topic: str, partitions: int
) -> None:
    if partitions:
        assert broker.http("PUT", f"{ADMIN}/{topic}/partitions", partitions).status == 204
    publish(client, topic, [(f"k{number % 7}", b"%d" % number) for number in range(40)])
    plain = client.create_table_view(topic)
    compact(broker, topic)
    view = client.create_table_view(topic)
    expected = {f"k{number % 7}": b"%d" % number for number in range(33, 40)}
    assert table(view) == table(plain) == expected
    publish(client, topic, [("k0", b"new"), ("k1", b""), ("k9", b"more")])
    expected |= {"k0": b"new", "k9": b"more"}
    del expected["k1"]
    for one in (view, plain):
        wait_until(lambda one=one: table(one) == expected, "the table view to catch up")
        one.close()
    compact(broker, topic)
    again = client.create_table_view(topic)
    assert table(again) == expected
    again.close()


def table(view: pulsar.TableView) -> dict[str, bytes]:
    """What the view holds, read key by key: the client's ``for_each`` can crash while messages arrive."""
    found = {key: view.get(key) for key in (f"k{number}" for number in range(10))}
    assert len(view) <= len(found)
    return {key: value for key, value in found.items() if value is not None}


def test_a_topic_is_compacted_by_itself_beyond_its_threshold(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, [("k", b"x" * 1000)] * 10)
    assert broker.http("POST", f"{ADMIN}/{topic}/compactionThreshold", 50_000).status == 204
    publish(client, topic, [("k", b"x" * 1000)] * 50)
    wait_until(lambda: status(broker, topic) == "SUCCESS", "the topic to be compacted")
    assert internal(broker, topic)["compactedLedger"]["entries"] == 1
    assert status(broker, topic) == "SUCCESS"


def test_only_one_consumer_at_a_time_reads_a_view(client: pulsar.Client, topic: str) -> None:
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(topic, "s", pulsar.ConsumerType.Shared, is_read_compacted=True)
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(topic, "__compaction")


def test_chunked_messages_are_compacted_whole(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    size = 11 << 20
    publish(client, topic, [("a", b"1" * size), ("b", b"2" * size), ("a", b"3" * size)], chunking_enabled=True)
    assert entries(broker, topic) > 6
    compact(broker, topic)
    found = read(client, topic)
    assert [(key, value[:1], len(value)) for key, value in found] == [("b", b"2", size), ("a", b"3", size)]


def test_regions_compact_to_the_same_view_and_claim_only_what_was_delivered(tmp_path: Path) -> None:
    with RegionsProcess(("us-east", "us-west"), tmp_path, settings=SETTINGS) as regions:
        east, west = (connect(regions.service_url(name)) for name in regions.regions)
        consumers = [
            one.subscribe("t", "s", initial_position=EARLIEST, replicate_subscription_state_enabled=True)
            for one in (east, west)
        ]
        for consumer in consumers:
            consumer.close()
        published = [(f"k{number % 4}", b"%d" % number) for number in range(12)]
        for number, row in enumerate(published):
            publish((east, west)[number % 2], "t", [row])
        admins = [Door(regions.admin_url(name)) for name in regions.regions]
        for admin in admins:
            wait_until(lambda admin=admin: entries(admin, "t") == 12, "all messages to be in both regions")
            compact(admin, "t")
        expected = sorted(published[8:])
        assert sorted(read(east, "t")) == sorted(read(west, "t")) == expected
        consumer = east.subscribe("t", "s", is_read_compacted=True, replicate_subscription_state_enabled=True)
        messages = receive(consumer, 4)
        assert sorted(rows(messages)) == expected
        consumer.acknowledge_cumulative(messages[-1])
        consumer.close()

        def owed() -> int:
            return int(admins[1].http("GET", f"{ADMIN}/t/stats").json["subscriptions"]["s"]["msgBacklog"])

        wait_until(lambda: owed() == 8, "the west to apply the acknowledgement")
        plain = west.subscribe("t", "s", replicate_subscription_state_enabled=True)
        assert sorted(rows(receive(plain, 8))) == sorted(published[:8]), "nobody acknowledged these"
        assert_quiet(plain)
        east.close()
        west.close()
