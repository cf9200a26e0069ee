# SPDX-License-Identifier: Apache-2.0
"""Topics, partitions, subscriptions, schemas and statistics over real HTTP, beside the real Pulsar client."""

from __future__ import annotations

import random
from typing import Any
from urllib.parse import quote

import pulsar
import pytest
from support.brokers.broker_process import BrokerProcess, HttpAnswer, wait_until
from support.brokers.region_clients import PATIENCE_MS

SETTINGS = {"managedLedgerMaxEntriesPerLedger": "10"}

BASE = "/admin/v2/persistent/public/default"
EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "partitionIndex": -1}


def publish(client: pulsar.Client, topic: str, count: int) -> list[tuple[int, int]]:
    """Publish that many messages, one entry each, and return their ids."""
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(f"message {number}".encode()) for number in range(count)]
    producer.close()
    return [(one.ledger_id(), one.entry_id()) for one in ids]


def place(position: tuple[int, int]) -> dict[str, int]:
    return {"ledgerId": position[0], "entryId": position[1], "partitionIndex": -1}


def backlog(broker: BrokerProcess, topic: str, subscription: str) -> int:
    return int(broker.http("GET", f"{BASE}/{topic}/stats").json["subscriptions"][subscription]["msgBacklog"])


def numbers(consumer: pulsar.Consumer, count: int) -> list[int]:
    found = [consumer.receive(PATIENCE_MS) for _ in range(count)]
    return [int(message.data().split()[1]) for message in found]


def test_a_topic_is_made_listed_and_deleted(broker: BrokerProcess) -> None:
    path = f"{BASE}/made"
    assert broker.http("GET", f"{path}/stats").status == 404
    assert broker.http("DELETE", path).status == 404
    assert broker.http("PUT", path, {"owner": "me"}).status == 204
    assert broker.http("PUT", path).status == 409
    assert broker.http("PUT", "/admin/v2/persistent/public/nowhere/made").status == 404
    assert "persistent://public/default/made" in broker.http("GET", BASE).json
    assert broker.http("GET", f"{path}/properties").json == {"owner": "me"}
    assert broker.http("PUT", f"{path}/properties", {"colour": "red"}).status == 204
    assert broker.http("DELETE", f"{path}/properties?key=owner").status == 204
    assert broker.http("GET", f"{path}/properties").json == {"colour": "red"}
    assert broker.http("GET", f"{path}/partitions").json["partitions"] == 0
    assert broker.http("GET", f"{path}/partitioned-stats").status == 404
    assert broker.http("DELETE", f"{path}/partitions").status == 404
    assert broker.http("DELETE", path).status == 204
    assert "persistent://public/default/made" not in broker.http("GET", BASE).json
    assert broker.http("GET", "/admin/v2/persistent/public/nowhere").status == 404


def test_names_are_quoted_in_paths(broker: BrokerProcess) -> None:
    name = "größe & 50%:x?"
    assert broker.http("PUT", f"{BASE}/{quote(name, safe='')}").status == 204
    assert f"persistent://public/default/{name}" in broker.http("GET", BASE).json
    assert broker.http("GET", f"{BASE}/{quote(name, safe='')}/internalStats").status == 200
    assert broker.http("DELETE", f"{BASE}/{quote(name, safe='')}").status == 204


def test_partitions(broker: BrokerProcess) -> None:
    path = f"{BASE}/dealt"
    assert broker.http("GET", f"{path}/partitions").status == 404
    assert broker.http("PUT", f"{path}/partitions", {"partitions": 2, "properties": {"a": "b"}}).status == 204
    assert broker.http("PUT", f"{path}/partitions", 2).status == 409
    assert broker.http("PUT", path).status == 409
    found = broker.http("GET", f"{path}/partitions").json
    assert (found["partitions"], found["properties"]) == (2, {"a": "b"})
    assert broker.http("PUT", f"{path}/subscription/work", EARLIEST).status == 204
    assert broker.http("POST", f"{path}/partitions", 1).status == 406
    assert broker.http("POST", f"{path}/partitions", 3).status == 204
    assert broker.http("POST", f"{BASE}/dealt-not/partitions", 3).status == 404
    assert broker.http("GET", f"{path}/partitions").json["partitions"] == 3
    assert broker.http("GET", f"{path}-partition-2/subscriptions").json == ["work"]
    assert broker.http("GET", f"{BASE}/partitioned").json == ["persistent://public/default/dealt"]
    assert broker.http("PUT", f"{path}/properties", {"c": "d"}).status == 204
    assert broker.http("GET", f"{path}/properties").json == {"a": "b", "c": "d"}
    assert broker.http("GET", f"{path}/stats").status == 404
    assert broker.http("GET", f"{path}/lastMessageId").status == 405
    assert broker.http("DELETE", path).status == 409
    assert broker.http("DELETE", f"{path}/partitions").status == 204
    assert broker.http("GET", f"{path}/partitions").status == 404
    assert not [name for name in broker.http("GET", BASE).json if "dealt" in name]


def test_statistics_of_partitions_add_up(broker: BrokerProcess, client: pulsar.Client) -> None:
    path = f"{BASE}/summed"
    broker.http("PUT", f"{path}/partitions", 3)
    broker.http("PUT", f"{path}/subscription/work", EARLIEST)
    producer = client.create_producer(
        "summed", message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
    )
    for number in range(12):
        producer.send(f"message {number}".encode())
    total = broker.http("GET", f"{path}/partitioned-stats").json
    assert total["msgInCounter"] == 12
    assert len(total["publishers"]) == 3
    assert total["subscriptions"]["work"]["msgBacklog"] == 12
    assert total["metadata"]["partitions"] == len(total["partitions"]) == 3
    assert sum(one["msgInCounter"] for one in total["partitions"].values()) == 12
    assert broker.http("GET", f"{path}/partitioned-stats?perPartition=false").json["partitions"] == {}
    inside = broker.http("GET", f"{path}/partitioned-internalStats").json["partitions"]
    assert sum(one["numberOfEntries"] for one in inside.values()) == 12
    assert broker.http("POST", f"{path}/subscription/work/skip_all").status == 204
    assert broker.http("GET", f"{path}/partitioned-stats").json["subscriptions"]["work"]["msgBacklog"] == 0
    producer.close()


def test_statistics_show_clients_and_cursors(broker: BrokerProcess, client: pulsar.Client) -> None:
    path = f"{BASE}/watched"
    consumer = client.subscribe("watched", "work", pulsar.ConsumerType.Shared, consumer_name="me")
    producer = client.create_producer("watched", producer_name="you", batching_enabled=False)
    for number in range(25):
        producer.send(f"message {number}".encode())
    received = [consumer.receive(PATIENCE_MS) for _ in range(25)]
    for message in received[5:10]:
        consumer.acknowledge(message)
    wait_until(lambda: backlog(broker, "watched", "work") == 20, "five acknowledgements to be applied")
    stats = broker.http("GET", f"{path}/stats").json
    assert stats["msgInCounter"] == stats["msgOutCounter"] == 25
    assert stats["bytesInCounter"] > 0 < stats["msgRateIn"]
    (publisher,) = stats["publishers"]
    assert publisher["producerName"] == "you"
    assert publisher["address"].startswith("/127.0.0.1:")
    assert publisher["clientVersion"]
    work = stats["subscriptions"]["work"]
    assert (work["type"], work["unackedMessages"], work["isDurable"], work["isReplicated"]) == (
        "Shared",
        20,
        True,
        False,
    )
    (shown,) = work["consumers"]
    assert (shown["consumerName"], shown["unackedMessages"], shown["msgOutCounter"]) == ("me", 20, 25)
    inside = broker.http("GET", f"{path}/internalStats").json
    assert [one["entries"] for one in inside["ledgers"]] == [10, 10, 5]
    assert inside["numberOfEntries"] == 25
    first = inside["ledgers"][0]["ledgerId"]
    assert inside["cursors"]["work"]["individuallyDeletedMessages"] == f"[({first}:4..{first}:9]]"
    assert inside["lastConfirmedEntry"] == f"{inside['ledgers'][2]['ledgerId']}:4"
    assert broker.http("GET", f"{path}/stats?excludePublishers=true&excludeConsumers=true").json["publishers"] == []
    refused = broker.http("DELETE", path)
    assert refused.status == 412
    assert broker.http("DELETE", f"{path}/subscription/work").status == 412
    consumer.close()
    producer.close()
    assert broker.http("DELETE", path).status == 204


def expected_holes(ids: list[tuple[int, int]], acked: set[int]) -> list[tuple[str, str]]:
    """Computed independently: runs of acknowledged messages after the first unacknowledged one."""
    names = [f"{ledger}:{entry}" for ledger, entry in ids]
    first = next(number for number in range(len(ids)) if number not in acked)
    holes = []
    for number in range(first + 1, len(ids)):
        if number in acked and number - 1 not in acked:
            begun = names[number - 1]
        if number in acked and number + 1 not in acked:
            holes.append((begun, names[number]))
    return holes


@pytest.mark.parametrize("seed", range(5))
def test_holes_and_backlogs_are_exact_over_borders_of_ledgers(
    broker: BrokerProcess, client: pulsar.Client, seed: int
) -> None:
    topic = f"holed-{seed}"
    consumer = client.subscribe(topic, "work", pulsar.ConsumerType.Shared)
    ids = publish(client, topic, 42)
    acked = {number for number in range(42) if random.Random(seed * 100 + number).random() < 0.6} - {seed}
    for number, message in enumerate([consumer.receive(PATIENCE_MS) for _ in ids]):
        if number in acked:
            consumer.acknowledge(message)
    wait_until(lambda: backlog(broker, topic, "work") == 42 - len(acked), "the acknowledgements to be applied")
    for _ in range(2):
        cursor = broker.http("GET", f"{BASE}/{topic}/internalStats").json["cursors"]["work"]
        holes = ", ".join(f"({after}..{upto}]" for after, upto in expected_holes(ids, acked))
        assert cursor["individuallyDeletedMessages"] == f"[{holes}]"
        # Once more, with indexes that are not in memory.
        broker.http("PUT", f"{BASE}/{topic}/unload")
    consumer.close()


def test_ids_and_times(broker: BrokerProcess, client: pulsar.Client) -> None:
    broker.http("PUT", f"{BASE}/timed")
    assert broker.http("GET", f"{BASE}/timed/lastMessageId").json == EARLIEST
    ids = publish(client, "timed", 15)
    assert broker.http("GET", f"{BASE}/timed/lastMessageId").json == place(ids[-1])
    assert broker.http("GET", f"{BASE}/timed/messageid/0").json == place(ids[0])
    reader = client.create_reader("timed", pulsar.MessageId.earliest)
    times = [reader.read_next(PATIENCE_MS).publish_timestamp() for _ in ids]
    assert broker.http("GET", f"{BASE}/timed/messageid/{times[7]}").json == place(ids[times.index(times[7])])
    assert broker.http("GET", f"{BASE}/timed/messageid/never").status == 400
    reader.close()


def test_how_many_bytes_come_after_a_message(broker: BrokerProcess, client: pulsar.Client) -> None:
    ids = publish(client, "weighed", 4)

    def after(given: Any, topic: str = "weighed") -> HttpAnswer:
        return broker.http("PUT", f"{BASE}/{topic}/backlogSize", given)

    stored = broker.http("GET", f"{BASE}/weighed/stats").json["storageSize"]
    assert [after(one).json for one in (EARLIEST, place(ids[1]), place(ids[3]), LATEST)] == [stored, stored // 2, 0, 0]
    assert (after("nonsense").status, after(EARLIEST, "weighed-not").status) == (412, 404)
    assert broker.http("PUT", f"{BASE}/weighed-parts/partitions", 2).status == 204
    assert after(EARLIEST, "weighed-parts").status == 405
    assert after(EARLIEST, "weighed-parts-partition-1").json == 0


def test_a_subscription_begins_where_it_is_told(broker: BrokerProcess, client: pulsar.Client) -> None:
    ids = publish(client, "begun", 12)
    path = f"{BASE}/begun/subscription"
    for name, given in (("first", EARLIEST), ("last", LATEST), ("middle", place(ids[7])), ("word", "earliest")):
        assert broker.http("PUT", f"{path}/{name}", given).status == 204
    assert broker.http("PUT", f"{path}/silent").status == 204
    assert broker.http("PUT", f"{path}/first", EARLIEST).status == 409
    assert broker.http("PUT", f"{path}/wrong", {"ledgerId": "x"}).status == 412
    assert broker.http("PUT", f"{path}/pulsar.repl.other").status == 412
    counted = {name: backlog(broker, "begun", name) for name in ("first", "last", "middle", "word", "silent")}
    assert counted == {"first": 12, "last": 0, "middle": 5, "word": 12, "silent": 0}
    consumer = client.subscribe("begun", "middle")
    assert numbers(consumer, 5) == [7, 8, 9, 10, 11]
    consumer.close()
    assert sorted(broker.http("GET", f"{BASE}/begun/subscriptions").json) == sorted(counted)
    assert broker.http("DELETE", f"{path}/middle").status == 204
    assert broker.http("DELETE", f"{path}/middle").status == 404
    # The subscriptions survive kill -9.
    broker.kill()
    broker.start()
    assert backlog(broker, "begun", "first") == 12
    assert backlog(broker, "begun", "last") == 0
    assert "middle" not in broker.http("GET", f"{BASE}/begun/subscriptions").json


def test_a_subscription_is_moved(broker: BrokerProcess, client: pulsar.Client) -> None:
    ids = publish(client, "moved", 30)
    path = f"{BASE}/moved/subscription/work"
    broker.http("PUT", path, EARLIEST)
    assert broker.http("POST", f"{path}/resetcursor", place(ids[20])).status == 204
    assert backlog(broker, "moved", "work") == 10
    assert broker.http("POST", f"{path}/resetcursor", place(ids[5])).status == 204
    assert backlog(broker, "moved", "work") == 25
    for called in ("excluded", "isExcluded"):  # Pulsar's own tools send the first
        assert broker.http("POST", f"{path}/resetcursor", place(ids[5])).status == 204
        assert broker.http("POST", f"{path}/resetcursor", place(ids[5]) | {called: True}).status == 204
        assert backlog(broker, "moved", "work") == 24
    inside = place(ids[5]) | {"excluded": True, "batchIndex": 0}
    assert broker.http("POST", f"{path}/resetcursor", inside).status == 204
    assert backlog(broker, "moved", "work") == 25, "others of its batch may be unacknowledged"
    assert broker.http("POST", f"{path}/resetcursor/0").status == 204
    assert backlog(broker, "moved", "work") == 30
    assert broker.http("POST", f"{path}/resetcursor", LATEST).status == 204
    assert backlog(broker, "moved", "work") == 0
    assert broker.http("POST", f"{path}/resetcursor", EARLIEST).status == 204
    consumer = client.subscribe("moved", "work")
    assert numbers(consumer, 30) == list(range(30))
    consumer.close()
    assert broker.http("POST", f"{BASE}/moved/subscription/none/resetcursor/0").status == 404
    assert broker.http("POST", f"{path}/resetcursor", [1]).status == 412
    peeked = broker.http("GET", f"{path}/position/1")
    assert (peeked.status, "--no-ack" in peeked.reason) == (501, True)


def test_entries_are_skipped_and_consumers_go_on(broker: BrokerProcess, client: pulsar.Client) -> None:
    publish(client, "skipped", 20)
    path = f"{BASE}/skipped/subscription/work"
    broker.http("PUT", path, EARLIEST)
    assert broker.http("POST", f"{path}/skip/5").status == 204
    assert backlog(broker, "skipped", "work") == 15
    consumer = client.subscribe("skipped", "work", pulsar.ConsumerType.Shared)
    held = consumer.receive(PATIENCE_MS)
    assert held.data() == b"message 5"
    consumer.acknowledge(consumer.receive(PATIENCE_MS))
    wait_until(lambda: backlog(broker, "skipped", "work") == 14, "the acknowledgement to be applied")
    # The next two unacknowledged messages: 5 and 7.
    assert broker.http("POST", f"{path}/skip/2").status == 204
    assert backlog(broker, "skipped", "work") == 12
    assert broker.http("POST", f"{path}/skip_all").status == 204
    assert backlog(broker, "skipped", "work") == 0
    publish(client, "skipped", 1)
    consumer.negative_acknowledge(held)
    while consumer.receive(PATIENCE_MS).data() != b"message 0":
        pass
    consumer.close()
    assert broker.http("POST", f"{path}/skip/none").status == 400


def test_a_namespace_is_cleared(broker: BrokerProcess, client: pulsar.Client) -> None:
    broker.http("PUT", "/admin/v2/namespaces/public/cleared")
    for topic in ("one", "two"):
        publish(client, f"public/cleared/{topic}", 3)
        for name in ("a", "b"):
            broker.http("PUT", f"/admin/v2/persistent/public/cleared/{topic}/subscription/{name}", EARLIEST)

    def backlogs() -> dict[str, int]:
        return {
            f"{topic} {name}": one["msgBacklog"]
            for topic in ("one", "two")
            for name, one in broker.http("GET", f"/admin/v2/persistent/public/cleared/{topic}/stats")
            .json["subscriptions"]
            .items()
        }

    assert broker.http("POST", "/admin/v2/namespaces/public/cleared/clearBacklog/a").status == 204
    assert backlogs() == {"one a": 0, "one b": 3, "two a": 0, "two b": 3}
    assert broker.http("POST", "/admin/v2/namespaces/public/cleared/unsubscribe/a").status == 204
    assert broker.http("POST", "/admin/v2/namespaces/public/cleared/clearBacklog").status == 204
    assert backlogs() == {"one b": 0, "two b": 0}


def test_clients_return_to_an_unloaded_topic(broker: BrokerProcess, client: pulsar.Client) -> None:
    consumer = client.subscribe("unloaded", "work")
    producer = client.create_producer("unloaded")
    producer.send(b"message 0")
    assert broker.http("PUT", f"{BASE}/unloaded/unload").status == 204
    producer.send(b"message 1")
    seen = {consumer.receive(PATIENCE_MS).data() for _ in range(2)}
    assert seen == {b"message 0", b"message 1"}
    assert broker.http("PUT", f"{BASE}/unloaded-not/unload").status == 404
    consumer.close()
    producer.close()


def test_invalid_schemas_are_refused(broker: BrokerProcess) -> None:
    path = "/admin/v2/schemas/public/default/none/schema"
    none: list[Any] = [{"type": {"limit": 1}, "schema": ""}, {"type": ["JSON"]}, {"type": None}, [], "JSON"]
    for wrong in none:
        assert broker.http("POST", path, wrong).status == 422, wrong
    assert broker.http("POST", path, {"type": "STRING", "schema": "\ud800"}).status == 400


def test_schemas(broker: BrokerProcess, client: pulsar.Client) -> None:
    path = "/admin/v2/schemas/public/default/typed"
    assert broker.http("GET", f"{path}/schema").status == 404
    definition = '{"type":"record","name":"R","fields":[{"name":"n","type":"int"}]}'
    schema: dict[str, Any] = {"type": "JSON", "schema": definition, "properties": {"k": "v"}}
    assert broker.http("POST", f"{path}/schema", schema).json == {"version": {"version": 0}}
    assert broker.http("POST", f"{path}/schema", schema).json == {"version": {"version": 0}}
    assert broker.http("POST", f"{path}/schema", {"type": "STRING", "schema": ""}).json == {"version": {"version": 1}}
    first = broker.http("GET", f"{path}/schema/0").json
    assert (first["type"], first["data"], first["properties"], first["version"]) == ("JSON", definition, {"k": "v"}, 0)
    assert broker.http("GET", f"{path}/schema").json["type"] == "STRING"
    listed = broker.http("GET", f"{path}/schemas").json["getSchemaResponses"]
    assert [one["version"] for one in listed] == [0, 1]
    assert broker.http("POST", f"{path}/schema", {"type": "CUNEIFORM"}).status == 422
    assert broker.http("GET", f"{path}/schema/7").status == 404
    assert broker.http("DELETE", f"{path}/schema").json == {"version": {"version": 1}}
    assert broker.http("GET", f"{path}/schema").status == 404
    producer = client.create_producer("typed", schema=pulsar.schema.StringSchema())
    assert broker.http("GET", f"{path}/schema").json["type"] == "STRING"
    producer.close()


def test_a_topic_can_be_made_when_automatic_creation_is_off(broker: BrokerProcess, tmp_path: Any) -> None:
    with BrokerProcess("strict", tmp_path / "strict", settings={"allowAutoTopicCreation": "false"}) as strict:
        assert strict.http("PUT", f"{BASE}/wanted").status == 204
        assert strict.http("PUT", f"{BASE}/dealt/partitions", 2).status == 204
        assert strict.http("GET", f"{BASE}/wanted/stats").status == 200
        assert strict.http("GET", f"{BASE}/dealt-partition-1/stats").status == 200
        assert strict.http("GET", f"{BASE}/unwanted/partitions?checkAllowAutoCreation=true").status == 404
