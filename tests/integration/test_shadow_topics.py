# SPDX-License-Identifier: Apache-2.0
"""Shadow topics with real clients: the same messages under the same ids, with cursors of their own (PIP-180)."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pulsar
import pytest
from meridian_verifier.align.verdicts import State
from support.brokers.broker_process import BrokerProcess, wait_until
from support.brokers.forked_meridian import meridian_text
from support.brokers.region_clients import PATIENCE_MS, connect
from support.verifier.verifier_live import live_verdict

SETTINGS = {"managedLedgerMaxEntriesPerLedger": "10", "retentionCheckIntervalInSeconds": "1"}
BASE = "/admin/v2/persistent/public/default"
SOURCE = "PULSAR.SHADOW_SOURCE"


class Line(pulsar.schema.Record):  # type: ignore[misc]
    """A schema that no topic has."""

    number = pulsar.schema.Integer()


def full(topic: str) -> str:
    return f"persistent://public/default/{topic}"


def make(broker: BrokerProcess, source: str, shadow: str, **more: Any) -> None:
    """Create it as the proposal says: with one request."""
    answer = broker.http("POST", f"{BASE}/{source}/shadowTopics", {"topic": full(shadow), **more})
    assert answer.status == 204, answer.text


@contextmanager
def kept(broker: BrokerProcess, client: pulsar.Client, topic: str) -> Iterator[None]:
    """A subscription retains what is published; otherwise the broker deletes unneeded ledgers every second."""
    client.subscribe(topic, "keeper").close()
    yield
    assert broker.http("DELETE", f"{BASE}/{topic}/subscription/keeper").status == 204


def publish(client: pulsar.Client, topic: str, count: int, first: int = 0, **options: Any) -> list[str]:
    """Publish that many messages, one entry each, and return their ids."""
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [str(producer.send(f"message {number}".encode(), **options)) for number in range(first, first + count)]
    producer.close()
    return ids


def read(consumer: pulsar.Consumer, count: int, *, ack: bool = True) -> list[str]:
    """The ids of the next messages."""
    found = []
    for _ in range(count):
        message = consumer.receive(PATIENCE_MS)
        found.append(str(message.message_id()))
        if ack:
            consumer.acknowledge(message)
    return found


def nothing(consumer: pulsar.Consumer) -> None:
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)


def stats(broker: BrokerProcess, topic: str) -> Any:
    return broker.http("GET", f"{BASE}/{topic}/stats").json


def acknowledged(broker: BrokerProcess, topic: str, left: int = 0) -> None:
    """Wait: clients send acknowledgements a little later. :param left: messages that stay unacknowledged."""
    wait_until(
        lambda: stats(broker, topic)["subscriptions"]["s"]["msgBacklog"] == left, "the acknowledgements to be applied"
    )


def ledgers(broker: BrokerProcess, topic: str) -> list[int]:
    return [one["ledgerId"] for one in broker.http("GET", f"{BASE}/{topic}/internalStats").json["ledgers"]]


def test_a_shadow_has_the_messages_of_its_source_under_the_same_ids(
    broker: BrokerProcess, client: pulsar.Client
) -> None:
    with kept(broker, client, "orders"):
        early = publish(client, "orders", 15)
        make(broker, "orders", "orders-view")
        source = client.subscribe("orders", "s", initial_position=pulsar.InitialPosition.Earliest)
        shadow = client.subscribe("orders-view", "s", initial_position=pulsar.InitialPosition.Earliest)
    latest = client.subscribe("orders-view", "new")
    late = publish(client, "orders", 12, first=15)
    assert read(source, 27) == early + late
    assert read(shadow, 27) == early + late
    assert read(latest, 12) == late
    nothing(latest)
    shown = stats(broker, "orders")
    of_shadow = shown["shadowReplication"][full("orders-view")]
    assert of_shadow["connected"] and of_shadow["replicationBacklog"] == 0
    assert stats(broker, "orders-view")["meridian"]["shadow"] == {
        "source": full("orders"),
        "connected": True,
        "holdsSourceLedgers": True,
        "gapEntries": 0,
        "autoResetBacklogEntries": 0,
        "autoResets": 0,
    }
    assert set(shown["subscriptions"]) == {"s"}
    assert broker.http("GET", f"{BASE}/orders-view/lastMessageId").json["ledgerId"] == int(late[-1].split(",")[0][1:])


def test_pulsars_clients_create_a_shadow_with_a_property_and_write_the_list(
    broker: BrokerProcess, client: pulsar.Client
) -> None:
    publish(client, "listed", 1)
    path = f"{BASE}/listed/shadowTopics"
    assert broker.http("PUT", f"{BASE}/listed-view", {SOURCE: full("listed"), "owner": "me"}).status == 204
    assert broker.http("PUT", f"{BASE}/listed-view", {SOURCE: full("listed")}).status == 409
    assert broker.http("GET", f"{BASE}/listed-view/properties").json == {SOURCE: full("listed"), "owner": "me"}
    assert broker.http("GET", path).json == []
    assert broker.http("PUT", path, [full("listed-view")]).status == 204
    assert broker.http("GET", path).json == [full("listed-view")]
    assert broker.http("PUT", path, []).status == 412
    assert broker.http("PUT", path, [full("orders")]).status == 412
    assert broker.http("DELETE", path).status == 204
    assert broker.http("GET", path).json == []
    refused = broker.http("DELETE", f"{BASE}/listed")
    assert refused.status == 412 and full("listed-view") in refused.reason
    assert broker.http("DELETE", f"{BASE}/listed?force=true").status == 412
    assert broker.http("DELETE", f"{path}?topic={full('listed-view')}").status == 204
    assert broker.http("GET", f"{BASE}/listed-view/stats").status == 404
    assert broker.http("DELETE", f"{BASE}/listed").status == 204


def test_what_a_shadow_refuses(broker: BrokerProcess, client: pulsar.Client) -> None:
    publish(client, "taken", 1)
    make(broker, "taken", "taken-view")
    with pytest.raises(pulsar.NotAllowedError):
        client.create_producer("taken-view")
    for method, path in (("POST", "terminate"), ("DELETE", "truncate"), ("PUT", "compaction")):
        answer = broker.http(method, f"{BASE}/taken-view/{path}")
        assert answer.status == 405 and full("taken") in answer.reason, answer.text
    client.subscribe("taken-view", "s").close()
    with pytest.raises(pulsar.NotAllowedError):
        client.subscribe("taken-view", "r", replicate_subscription_state_enabled=True)
    switch = f"{BASE}/taken-view/subscription/s/replicatedSubscriptionStatus"
    mode = "/meridian/v1/subscriptions/persistent/public/default/taken-view/s/mode"
    for path, wanted in ((switch, True), (mode, {"replicated": True})):
        answer = broker.http("POST", path, wanted)
        assert answer.status == 405 and f"replicate subscriptions of {full('taken')}" in answer.reason, answer.text
    assert broker.http("PUT", f"{BASE}/taken-view/subscription/r?replicated=true").status == 405
    schemas = "/admin/v2/schemas/public/default/taken-view/schema"
    assert broker.http("POST", schemas, {"type": "STRING", "schema": ""}).status == 405
    assert broker.http("DELETE", schemas).status == 405
    properties = f"{BASE}/taken-view/properties"
    assert broker.http("PUT", properties, {SOURCE: full("orders")}).status == 412
    assert broker.http("DELETE", f"{properties}?key={SOURCE}").status == 412
    assert broker.http("PUT", f"{BASE}/taken/properties", {SOURCE: full("orders")}).status == 412

    def refused(source: str, shadow: str, status: int) -> str:
        answer = broker.http("POST", f"{BASE}/{source}/shadowTopics", full(shadow))
        assert answer.status == status, answer.text
        return str(answer.reason)

    assert "is a shadow of" in refused("taken-view", "taken-view-2", 412)
    refused("taken", "taken", 412)
    refused("taken", "taken-view", 409)
    refused("orders", "taken", 412)
    client.create_producer("somebody-elses").close()
    refused("taken", "somebody-elses", 409)
    refused("taken", "x-partition-1", 412)
    refused("nowhere", "taken-view-3", 404)
    assert broker.http("POST", f"{BASE}/taken/shadowTopics", 7).status == 400
    view = {"topic": full("taken-view-4")}
    mistyped = broker.http("POST", f"{BASE}/taken/shadowTopics", view | {"holdsSourceLedgers": False})
    assert (
        mistyped.status == 400 and "'holdsSourceLedgers'" in mistyped.reason and "holdSourceLedgers" in mistyped.reason
    )
    of_another = view | {"properties": {SOURCE: full("orders")}}
    assert broker.http("POST", f"{BASE}/taken/shadowTopics", of_another).status == 412
    stores_nothing = "/admin/v2/non-persistent/public/default"
    assert broker.http("PUT", f"{stores_nothing}/taken-view-4", {SOURCE: full("taken")}).status == 412
    assert broker.http("PUT", f"{BASE}/taken-view-4", {SOURCE: "non-persistent://public/default/x"}).status == 412
    assert broker.http("PUT", f"{BASE}/taken/shadowTopics", ["non-persistent://public/default/x"]).status == 412
    assert broker.http("GET", f"{stores_nothing}/taken/shadowTopics").status == 412
    assert broker.http("GET", f"{BASE}/taken-partition-0/shadowTopics").status == 412
    regions = broker.http("POST", f"{BASE}/taken-view/replication", ["solo"])
    assert regions.status == 405 and f"choose the regions of {full('taken')}" in regions.reason
    assert broker.http("PUT", f"{BASE}/taken-view-4", {SOURCE: full("nowhere")}).status == 404
    assert (
        broker.http(
            "PUT", f"{BASE}/taken-view-4/partitions", {"partitions": 2, "properties": {SOURCE: full("taken")}}
        ).status
        == 412
    )
    assert broker.http("PUT", f"{BASE}/taken-view-4", {SOURCE: "not a//topic/at/all"}).status == 412
    assert broker.http("PUT", f"{BASE}/taken-view-4", {"meridian.holdSourceLedgers": "true"}).status == 412
    for value in ("-1", "1000000001", "many", "1" * 1000):
        having = {SOURCE: full("taken"), "meridian.autoResetBacklogEntries": value}
        assert broker.http("PUT", f"{BASE}/taken-view-4", having).status == 412
        limit = {"meridian.autoResetBacklogEntries": value}
        assert broker.http("PUT", f"{BASE}/taken-view/properties", limit).status == 412
    for wrong in (True, "7", -1, 1 << 70):
        given = {"topic": full("taken-view-4"), "autoResetBacklogEntries": wrong}
        assert broker.http("POST", f"{BASE}/taken/shadowTopics", given).status in (400, 412)
    assert broker.http("PUT", f"{BASE}/taken-view-4", {"meridian.autoResetBacklogEntries": "7"}).status == 412
    assert broker.http("GET", f"{BASE}/taken-view-4/stats").status == 404
    assert broker.http("PUT", f"{BASE}/taken-view/properties", {"meridian.autoResetBacklogEntries": "7"}).status == 204
    assert stats(broker, "taken-view")["meridian"]["shadow"]["autoResetBacklogEntries"] == 7


def test_names_of_shadows_and_sources(broker: BrokerProcess, client: pulsar.Client) -> None:
    ids = publish(client, "named", 3)
    assert broker.http("PUT", f"{BASE}/named-parts/partitions", 2).status == 204

    def asked(shadow: str, source: str = full("named"), *, parted: bool = False) -> int:
        domain, _, rest = shadow.partition("://")
        path = f"/admin/v2/{domain}/{rest}"
        if parted:
            return broker.http("PUT", f"{path}/partitions", {"partitions": 2, "properties": {SOURCE: source}}).status
        return broker.http("PUT", path, {SOURCE: source}).status

    long = "n" * 200
    for wrong, status in {
        "non-persistent://public/default/named-view": 412,
        full("named-view-partition-0"): 412,
        "persistent://public/nowhere/named-view": 404,
        "persistent://nobody/default/named-view": 404,
        full("named%0Aview"): 412,
        full("n" * 5000): 412,
    }.items():
        assert asked(wrong) == status, wrong[:60]
        assert asked(wrong, full("named-parts"), parted=True) in (status, 405, 412), wrong[:60]
    for source in ("non-persistent://public/default/x", full("named-parts-partition-0"), "persistent://public/default"):
        assert asked(full("named-view"), source) in (404, 412), source
    names = broker.http("GET", BASE).json
    assert not [name for name in names if "named-view" in name or long in name]

    assert broker.http("PUT", "/admin/v2/namespaces/public/elsewhere").status == 204
    for shadow in ("persistent://public/elsewhere/named", full(long)):  # the same name in another namespace; a long one
        assert asked(shadow) == 204, shadow
        reader = client.create_reader(shadow, pulsar.MessageId.earliest)
        assert [str(reader.read_next(PATIENCE_MS).message_id()) for _ in ids] == ids
        reader.close()
    assert broker.http("DELETE", "/admin/v2/namespaces/public/elsewhere").status == 409
    path = f"{BASE}/named/shadowTopics"
    assert broker.http("PUT", path, [full(f"view-{number}") + "x" * 20 for number in range(10_001)]).status == 412
    many = broker.http("PUT", path, [full(f"view-{number}") + "x" * 20 for number in range(10_000)])
    assert many.status == 412 and "is not a shadow of" in many.reason, many.text
    assert broker.http("DELETE", f"{BASE}/named?cascade=true").status == 204
    assert broker.http("DELETE", "/admin/v2/namespaces/public/elsewhere").status == 204


def test_the_admin_api_reads_and_moves_a_shadow_as_its_source(broker: BrokerProcess, client: pulsar.Client) -> None:
    with kept(broker, client, "moved"):
        ids = publish(client, "moved", 12)
        between_ms = int(time.time() * 1000) + 1
        wait_until(lambda: time.time() * 1000 > between_ms + 1, "the clock to move on")
        publish(client, "moved", 13, first=12)
        make(broker, "moved", "moved-view")
        both = (f"{BASE}/moved", f"{BASE}/moved-view")
        ledger, entry = (int(one) for one in ids[5].strip("()").split(",")[:2])
        place = {"ledgerId": ledger, "entryId": entry, "partitionIndex": -1}

        def same(method: str, path: str, body: Any = ...) -> Any:
            one, other = (broker.http(method, f"{base}/{path}", body) for base in both)
            assert (one.status, one.text) == (other.status, other.text) and one.status < 300, path
            return one.text

        for path in ("lastMessageId", f"messageid/{between_ms}"):
            assert same("GET", path)
        assert int(same("PUT", "backlogSize", place)) > 0
        same("PUT", "subscription/s", "earliest")
        for path, body, backlog in (
            ("skip/3", ..., 22),
            ("resetcursor", place, 20),
            ("expireMessages", place, 19),
            (f"resetcursor/{between_ms}", ..., 13),
            ("skip_all", ..., 0),
            ("resetcursor/1", ..., 25),
        ):
            same("POST", f"subscription/s/{path}", body)
            found = [stats(broker, topic)["subscriptions"]["s"]["msgBacklog"] for topic in ("moved", "moved-view")]
            assert found == [backlog, backlog], path
        inside = [broker.http("GET", f"{base}/internalStats").json for base in both]
        for figure in ("ledgers", "lastConfirmedEntry", "numberOfEntries", "totalSize", "state"):
            assert inside[0][figure] == inside[1][figure], figure


def test_a_shadow_of_another_regions_topic_is_refused_with_an_alternative(broker: BrokerProcess) -> None:
    places = {
        "/admin/v2/clusters/far": {"serviceUrl": "http://far:8080", "brokerServiceUrl": "pulsar://far:6650"},
        "/admin/v2/tenants/away": {"allowedClusters": ["far"]},
        "/admin/v2/namespaces/away/there": {"replication_clusters": ["far"]},
    }
    for path, body in places.items():
        assert broker.http("PUT", path, body).status == 204
    answer = broker.http("PUT", f"{BASE}/away-view", {SOURCE: "persistent://away/there/t"})
    assert answer.status == 405 and "replicate the source" in answer.reason, answer.text
    assert broker.http("GET", f"{BASE}/away-view/stats").status == 404
    for path in reversed(places):
        assert broker.http("DELETE", path).status == 204


def test_everything_survives_a_restart_and_deletion_leaves_nothing(
    broker: BrokerProcess, client: pulsar.Client
) -> None:
    with kept(broker, client, "lasting"):
        ids = publish(client, "lasting", 25)
        make(broker, "lasting", "lasting-view")
        consumer = client.subscribe("lasting-view", "s", initial_position=pulsar.InitialPosition.Earliest)
    assert read(consumer, 12) == ids[:12]
    acknowledged(broker, "lasting-view", left=13)
    assert broker.http("PUT", f"{BASE}/lasting-view/subscription/later", "latest").status == 204  # on disk too
    broker.kill()
    broker.start()
    consumer.close()
    again = connect(broker.service_url)
    consumer = again.subscribe("lasting-view", "s")
    assert read(consumer, 13) == ids[12:]
    more = publish(again, "lasting", 3, first=25)
    assert read(consumer, 3) == more
    assert broker.http("GET", f"{BASE}/lasting/shadowTopics").json == [full("lasting-view")]
    consumer.close()
    assert broker.http("DELETE", f"{BASE}/lasting?cascade=true").status == 204
    for name in ("lasting", "lasting-view"):
        assert broker.http("GET", f"{BASE}/{name}/stats").status == 404
    publish(again, "lasting-view", 2)  # the name is free, for an ordinary topic
    assert "shadow" not in stats(broker, "lasting-view")["meridian"]
    again.close()


def test_subscriptions_of_a_shadow_hold_ledgers_of_the_source_unless_told_otherwise(
    broker: BrokerProcess, client: pulsar.Client
) -> None:
    with kept(broker, client, "held"):
        ids = publish(client, "held", 35)
        make(broker, "held", "held-view")
        make(broker, "held", "held-loose", holdSourceLedgers=False)
        holding = client.subscribe("held-view", "s", initial_position=pulsar.InitialPosition.Earliest)
        loose = client.subscribe(
            "held-loose", "s", initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=1
        )
    before = ledgers(broker, "held")
    assert read(holding, 5) == ids[:5]
    assert broker.http("POST", f"{BASE}/held/trim").status == 204
    assert ledgers(broker, "held") == before
    assert read(holding, 30) == ids[5:]
    wait_until(lambda: len(ledgers(broker, "held")) < len(before), "the source to be trimmed")
    wait_until(
        lambda: stats(broker, "held-loose")["meridian"]["shadow"]["gapEntries"] > 0, "the loose shadow to count its gap"
    )
    held = stats(broker, "held-loose")
    gap = held["meridian"]["shadow"]["gapEntries"]
    assert gap == 30
    loose.close()
    loose = client.subscribe("held-loose", "s")
    assert read(loose, 5) == ids[30:]


def test_truncation_and_termination_of_the_source_apply_to_its_shadows(
    broker: BrokerProcess, client: pulsar.Client
) -> None:
    publish(client, "ending", 12)
    make(broker, "ending", "ending-view")
    consumer = client.subscribe(
        "ending-view", "s", initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=1
    )
    assert broker.http("DELETE", f"{BASE}/ending/truncate").status == 204
    wait_until(
        lambda: stats(broker, "ending-view")["subscriptions"]["s"]["msgBacklog"] == 0,
        "the shadow to skip what was deleted",
    )
    consumer.close()
    consumer = client.subscribe("ending-view", "s")
    last = publish(client, "ending", 2)
    assert read(consumer, 2) == last
    assert broker.http("POST", f"{BASE}/ending/terminate").status == 200
    wait_until(
        lambda: broker.http("GET", f"{BASE}/ending-view/internalStats").json["state"] == "Terminated",
        "the shadow to end as well",
    )


def test_a_partitioned_shadow_follows_its_source_to_more_partitions(
    broker: BrokerProcess, client: pulsar.Client
) -> None:
    assert broker.http("PUT", f"{BASE}/parted/partitions", 2).status == 204
    assert broker.http("PUT", f"{BASE}/parted-view", {SOURCE: full("parted")}).status == 412
    having = {"partitions": 2, "properties": {SOURCE: full("parted")}}
    assert broker.http("PUT", f"{BASE}/parted-view/partitions", having).status == 204
    consumer = client.subscribe("parted-view", "s", initial_position=pulsar.InitialPosition.Earliest)
    ids = publish(client, "parted", 10)
    assert sorted(read(consumer, 10)) == sorted(ids)
    assert broker.http("POST", f"{BASE}/parted-view/partitions", 3).status == 405
    assert broker.http("POST", f"{BASE}/parted/partitions", 3).status == 204
    assert broker.http("GET", f"{BASE}/parted-view/partitions").json["partitions"] == 3
    consumer.close()
    consumer = client.subscribe("parted-view", "s")
    producer = client.create_producer(f"{full('parted')}-partition-2", batching_enabled=False)
    producer.send(b"in the new partition")
    assert consumer.receive(PATIENCE_MS).data() == b"in the new partition"
    shown = broker.http("GET", f"{BASE}/parted-view/partitioned-stats").json
    assert shown["meridian"]["shadow"]["source"] == full("parted")
    consumer.close()
    producer.close()
    assert broker.http("DELETE", f"{BASE}/parted/partitions").status == 412
    assert broker.http("DELETE", f"{BASE}/parted/partitions?cascade=true").status == 204
    assert not [name for name in broker.http("GET", BASE).json if "parted" in name]


def test_schemas_keys_batches_delays_seeks_and_compaction_are_as_on_the_source(
    broker: BrokerProcess, client: pulsar.Client
) -> None:
    text = pulsar.schema.StringSchema()
    producer = client.create_producer("rich", schema=text, batching_enabled=True, batching_max_messages=4)
    make(broker, "rich", "rich-view")
    of_source = broker.http("GET", "/admin/v2/schemas/public/default/rich/schema").json
    assert broker.http("GET", "/admin/v2/schemas/public/default/rich-view/schema").json == of_source
    client.subscribe("rich-view", "typed", schema=text).close()
    with pytest.raises(pulsar.PulsarException):  # a schema that the source does not have
        client.subscribe("rich-view", "typed", schema=pulsar.schema.JsonSchema(Line))
    assert broker.http("GET", "/admin/v2/schemas/public/default/rich-view/schema").json == of_source

    for number in range(12):  # three batches of four
        producer.send_async(f"{number}", lambda *_: None, partition_key=f"key-{number % 3}")
    producer.flush()
    kinds = (pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared, pulsar.ConsumerType.Failover)
    for kind in kinds:
        one = client.subscribe(
            "rich-view",
            f"of-{kind}",
            kind,
            initial_position=pulsar.InitialPosition.Earliest,
            batch_index_ack_enabled=True,
        )
        got = [one.receive(PATIENCE_MS) for _ in range(12)]
        assert sorted(int(message.data()) for message in got) == list(range(12))
        for message in got[:6]:
            one.acknowledge(message)
        one.close()
        one = client.subscribe("rich-view", f"of-{kind}", kind, batch_index_ack_enabled=True)
        again = [one.receive(PATIENCE_MS) for _ in range(6)]
        assert {m.data() for m in again} == {m.data() for m in got[6:]}
        one.close()
    reader = client.subscribe("rich-view", "seeking", initial_position=pulsar.InitialPosition.Earliest)
    first = [reader.receive(PATIENCE_MS) for _ in range(12)]
    reader.acknowledge_cumulative(first[-1])
    reader.seek(first[4].message_id())
    assert reader.receive(PATIENCE_MS).data() in (first[4].data(), first[5].data())
    reader.seek(1)
    assert reader.receive(PATIENCE_MS).data() == first[0].data()
    reader.close()

    shared = client.subscribe("rich-view", "delayed", pulsar.ConsumerType.Shared)
    due_ms = int(time.time() * 1000) + 1500
    producer.send("later", deliver_at=due_ms)
    assert shared.receive(PATIENCE_MS).data() == b"later"
    assert time.time() * 1000 >= due_ms
    shared.close()

    assert broker.http("PUT", f"{BASE}/rich/compaction").status == 204
    wait_until(
        lambda: broker.http("GET", f"{BASE}/rich-view/compaction").json["status"] == "SUCCESS",
        "the source's compacted view to be read",
    )
    compacted = client.create_reader("rich-view", pulsar.MessageId.earliest, is_read_compacted=True)
    keys: dict[str, list[bytes]] = {}
    while compacted.has_message_available():
        message = compacted.read_next(PATIENCE_MS)
        keys.setdefault(message.partition_key(), []).append(message.data())
    assert {key: len(found) for key, found in keys.items() if key} == {f"key-{number}": 1 for number in range(3)}
    producer.close()


def test_unloading_the_source_or_a_shadow_loses_and_repeats_nothing(
    broker: BrokerProcess, client: pulsar.Client
) -> None:
    ids = publish(client, "moving", 5)
    make(broker, "moving", "moving-view")
    consumer = client.subscribe("moving-view", "s", initial_position=pulsar.InitialPosition.Earliest)
    assert read(consumer, 5) == ids
    acknowledged(broker, "moving-view")
    assert broker.http("PUT", f"{BASE}/moving/unload").status == 204
    more = publish(client, "moving", 5, first=5)
    assert read(consumer, 5) == more
    acknowledged(broker, "moving-view")
    assert broker.http("PUT", f"{BASE}/moving-view/unload").status == 204
    assert publish(client, "moving", 2, first=10) == read(consumer, 2)


def meridian(broker: BrokerProcess, *line: str) -> subprocess.CompletedProcess[str]:
    """``meridian topics shadow LINE``."""
    return meridian_text("topics", "shadow", *line, "--url", broker.admin_url)


def test_the_command_creates_lists_and_deletes_them(broker: BrokerProcess, client: pulsar.Client) -> None:
    ids, _ = publish(client, "ordered", 3), publish(client, "ordinary", 1)
    assert meridian(broker, "create", "ordered", "ordered-view", "--no-hold").returncode == 0
    assert meridian(broker, "list", "ordered").stdout.split() == [full("ordered-view")]
    assert json.loads(meridian(broker, "list", "ordered", "--json").stdout) == [full("ordered-view")]
    assert not stats(broker, "ordered-view")["meridian"]["shadow"]["holdsSourceLedgers"]
    for line, advice in (
        (("create", "ordered", "ordered-view"), f"is a shadow of {full('ordered')} already"),
        (("create", "ordered", "ordered"), "its own shadow"),
        (("create", "ordered-view", "ordered-again"), f"make {full('ordered-again')} a shadow of that one"),
        (("create", "nowhere", "nowhere-view"), "create it, or publish a message to it"),
        (("create", "ordered", "ordinary"), "choose another name for the shadow, or delete that topic"),
        (("delete", "ordered", "nowhere-view", "--yes"), f"which has {full('ordered-view')}"),
    ):
        refused = meridian(broker, *line)
        assert refused.returncode == 1 and advice in refused.stderr, refused.stderr
    shown = meridian_text("topics", "stats", "ordered-view", "--url", broker.admin_url).stdout
    assert re.search(rf"^{full('ordered')} +yes +no +0$", shown, re.MULTILINE), shown
    shown = meridian_text("topics", "stats", "ordered", "--url", broker.admin_url).stdout
    assert re.search(rf"^{full('ordered-view')} +yes$", shown, re.MULTILINE), shown
    consumer = client.subscribe("ordered-view", "s", initial_position=pulsar.InitialPosition.Earliest)
    refused = meridian(broker, "delete", "ordered", "ordered-view", "--yes")
    assert refused.returncode == 1 and "1 producers and consumers" in refused.stderr
    assert read(consumer, 3) == ids
    consumer.close()
    done = json.loads(meridian(broker, "delete", "ordered", "ordered-view", "--yes", "--json").stdout)
    assert done == {"done": f"deleted {full('ordered-view')}, a shadow of {full('ordered')}"}
    assert meridian(broker, "list", "ordered").stdout.split() == []
    assert meridian(broker, "delete", "ordered", "ordered-view", "--yes").returncode == 1
    assert stats(broker, "ordered")["shadowReplication"] == {}
    assert broker.http("GET", f"{BASE}/ordered-view/stats").status == 404


def test_a_cascade_that_is_refused_deletes_no_shadow(broker: BrokerProcess, client: pulsar.Client) -> None:
    """Otherwise their subscriptions would be lost, and the source not deleted."""
    with kept(broker, client, "both"):
        publish(client, "both", 3)
    for shadow in ("both-1", "both-2"):
        make(broker, "both", shadow)
        assert broker.http("PUT", f"{BASE}/{shadow}/subscription/s", "earliest").status == 204
    for connect_to in ("both-2", "both"):
        consumer = client.subscribe(connect_to, "connected")
        refused = broker.http("DELETE", f"{BASE}/both?cascade=true")
        assert refused.status == 412 and f"{full(connect_to)} has 1 producers and consumers" in refused.reason, (
            refused.text
        )
        assert broker.http("GET", f"{BASE}/both/shadowTopics").json == [full("both-1"), full("both-2")]
        assert stats(broker, "both-1")["subscriptions"]["s"]["msgBacklog"] == 3
        consumer.close()
    assert meridian_text("topics", "delete", "both", "--yes", "--url", broker.admin_url).stderr.count("--cascade") == 1
    assert meridian_text("topics", "delete", "both", "--yes", "--cascade", "--url", broker.admin_url).returncode == 0
    assert not [name for name in broker.http("GET", BASE).json if "/both" in name]


def test_messages_expire_for_a_shadow_by_its_own_policy(broker: BrokerProcess, client: pulsar.Client) -> None:
    with kept(broker, client, "fading"):
        ids, published = publish(client, "fading", 25), time.monotonic()
        make(broker, "fading", "fading-view")
        for topic in ("fading", "fading-view"):
            assert broker.http("PUT", f"{BASE}/{topic}/subscription/s", "earliest").status == 204
    assert stats(broker, "fading-view")["subscriptions"]["s"]["msgBacklog"] == 25
    wait_until(lambda: time.monotonic() - published > 1.1, "the messages to be old")
    assert broker.http("POST", f"{BASE}/fading-view/messageTTL?messageTTL=1").status == 204
    acknowledged(broker, "fading-view")
    assert stats(broker, "fading-view")["subscriptions"]["s"]["totalMsgExpired"] == 25
    assert stats(broker, "fading")["subscriptions"]["s"]["msgBacklog"] == 25
    consumer = client.subscribe("fading", "s")
    assert read(consumer, 25) == ids  # what expired for the shadow is still stored for its source
    assert broker.http("DELETE", f"{BASE}/fading-view/messageTTL").status == 204
    publish(client, "fading", 1)
    assert stats(broker, "fading-view")["subscriptions"]["s"]["msgBacklog"] == 1


def test_the_verifier_finds_each_shadow_equal_to_its_source(broker: BrokerProcess, client: pulsar.Client) -> None:
    """Also the shadows of earlier tests, whose sources were trimmed, truncated, compacted and unloaded."""
    with kept(broker, client, "proven"):
        publish(client, "proven", 25)
        make(broker, "proven", "proven-view")
        earliest = pulsar.InitialPosition.Earliest
        consumer = client.subscribe("proven-view", "s", pulsar.ConsumerType.Shared, initial_position=earliest)
        received = [consumer.receive(PATIENCE_MS) for _ in range(25)]
        for message in [*received[:7], *received[12:15]]:
            consumer.acknowledge(message)
        acknowledged(broker, "proven-view", left=15)
        topics = [name for name in broker.http("GET", BASE).json if "shadow" not in stats_of(broker, name)]
        shadows = {name: set(stats_of(broker, name, "shadowReplication")) for name in topics}
        assert shadows[full("proven")] == {full("proven-view")}
        for topic, names in shadows.items():
            if names:
                verdict = live_verdict({"solo": broker.admin_url}, topic, shadows="|".join(names))
                assert verdict.findings == (), topic
                assert {one.topic: one.state for one in verdict.subjects} == dict.fromkeys(names, State.ALIGNED)


def stats_of(broker: BrokerProcess, topic: str, field: str = "meridian") -> Any:
    return stats(broker, topic.rpartition("/")[2])[field]
