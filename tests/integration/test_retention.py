# SPDX-License-Identifier: Apache-2.0
"""Space is freed once every subscription has acknowledged and retention is over; never before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from support.brokers.broker_process import BrokerProcess, wait_until
from support.brokers.region_clients import PATIENCE_MS, connect

ENTRIES_PER_LEDGER = 50


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {
        "managedLedgerMaxEntriesPerLedger": str(ENTRIES_PER_LEDGER),
        "retentionCheckIntervalInSeconds": "1",
    }
    with BrokerProcess("one", tmp_path, settings=settings) as process:
        yield process


def publish(client: pulsar.Client, topic: str, count: int) -> None:
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    for number in range(count):
        producer.send_async(b"%d" % number, lambda _result, _place: None)
    producer.flush()
    producer.close()


def ledgers(broker: BrokerProcess, topic: str) -> list[dict[str, Any]]:
    answer = broker.http("GET", f"/admin/v2/persistent/public/default/{topic}/internalStats")
    assert answer.status == 200, answer.text
    found: list[dict[str, Any]] = answer.json["ledgers"]
    return found


def retain(broker: BrokerProcess, minutes: int, megabytes: int) -> None:
    policy = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
    assert broker.http("POST", "/admin/v2/namespaces/public/default/retention", policy).status == 204


def test_ledgers_are_deleted_once_everybody_acknowledged_them_and_not_before(
    broker: BrokerProcess, client: pulsar.Client
) -> None:
    subscriptions = [client.subscribe("t", name) for name in ("one", "two")]
    publish(client, "t", 6 * ENTRIES_PER_LEDGER)
    assert len(ledgers(broker, "t")) >= 6
    for _ in range(6 * ENTRIES_PER_LEDGER):
        last = subscriptions[0].receive(PATIENCE_MS)
    subscriptions[0].acknowledge_cumulative(last)
    for _ in range(3 * ENTRIES_PER_LEDGER):
        half = subscriptions[1].receive(PATIENCE_MS)
    subscriptions[1].acknowledge_cumulative(half)
    wait_until(lambda: len(ledgers(broker, "t")) <= 4, "the acknowledged ledgers to be deleted")
    subscriptions[1].close()
    again = client.subscribe("t", "two")
    assert [again.receive(PATIENCE_MS).data() for _ in range(3 * ENTRIES_PER_LEDGER)] == [
        b"%d" % number for number in range(3 * ENTRIES_PER_LEDGER, 6 * ENTRIES_PER_LEDGER)
    ]
    again.acknowledge_cumulative(last)
    wait_until(lambda: len(ledgers(broker, "t")) <= 1, "all ledgers but the last to be deleted")


def test_retention_by_time_and_size_keeps_acknowledged_messages(broker: BrokerProcess, client: pulsar.Client) -> None:
    retain(broker, 60, 100)
    consumer = client.subscribe("kept", "s")
    publish(client, "kept", 4 * ENTRIES_PER_LEDGER)
    for _ in range(4 * ENTRIES_PER_LEDGER):
        last = consumer.receive(PATIENCE_MS)
    consumer.acknowledge_cumulative(last)
    client.create_producer("other")
    publish(client, "other", 4 * ENTRIES_PER_LEDGER)  # without a subscription retention keeps it too
    assert len(ledgers(broker, "other")) >= 4
    before = len(ledgers(broker, "kept"))
    reader = client.create_reader("kept", pulsar.MessageId.earliest)
    assert reader.read_next(PATIENCE_MS).data() == b"0"
    retain(broker, 0, 0)
    wait_until(lambda: len(ledgers(broker, "kept")) < before, "the ledgers to be deleted when retention ends")
    wait_until(lambda: len(ledgers(broker, "other")) <= 1, "a topic without subscriptions to be emptied")


def test_trimmed_and_kept_ledgers_are_the_same_after_a_restart(tmp_path: Path) -> None:
    """What was trimmed stays trimmed, what was kept is there, and the chain of origins continues."""
    settings = {"managedLedgerMaxEntriesPerLedger": str(ENTRIES_PER_LEDGER), "retentionCheckIntervalInSeconds": "1"}
    with BrokerProcess("one", tmp_path, settings=settings) as broker:
        client = connect(broker.service_url)
        consumer = client.subscribe("t", "s")
        publish(client, "t", 4 * ENTRIES_PER_LEDGER)
        for _ in range(3 * ENTRIES_PER_LEDGER):
            last = consumer.receive(PATIENCE_MS)
        consumer.acknowledge_cumulative(last)
        wait_until(lambda: len(ledgers(broker, "t")) <= 2, "the acknowledged ledgers to be deleted")
        consumer.close()
        broker.kill()
        broker.start()
        again = client.subscribe("t", "s")
        assert [again.receive(PATIENCE_MS).data() for _ in range(ENTRIES_PER_LEDGER)] == [
            b"%d" % number for number in range(3 * ENTRIES_PER_LEDGER, 4 * ENTRIES_PER_LEDGER)
        ]
        client.close()
