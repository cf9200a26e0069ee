# SPDX-License-Identifier: Apache-2.0
"""Steps of compaction tests: publish with keys, compact, read what is left."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest
from support.brokers.broker_process import BrokerProcess, HttpAnswer, http, wait_until
from support.brokers.region_clients import PATIENCE_MS

ADMIN = "/admin/v2/persistent/public/default"
NAMESPACE = "/admin/v2/namespaces/public/default"
SETTINGS = {
    "compactionRateInMBPerSecond": "0",
    "managedLedgerMaxEntriesPerLedger": "10",
    "retentionCheckIntervalInSeconds": "1",
    "brokerServiceCompactionMonitorIntervalInSeconds": "1",
}
EARLIEST = pulsar.InitialPosition.Earliest
FAILOVER = pulsar.ConsumerType.Failover
Row = tuple[str, bytes]
"""Key and value of a message; an empty key means no key."""


class Door:
    """The admin port of one of several regions."""

    def __init__(self, url: str) -> None:
        self.url = url

    def http(self, method: str, path: str) -> HttpAnswer:
        return http(method, self.url + path)


def retain(broker: BrokerProcess, minutes: int) -> None:
    policy = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": minutes}
    assert broker.http("POST", f"{NAMESPACE}/retention", policy).status == 204


def publish(client: pulsar.Client, topic: str, rows: list[Row], **options: Any) -> None:
    producer = client.create_producer(topic, **{"batching_enabled": False, "block_if_queue_full": True} | options)
    for key, value in rows:
        producer.send_async(value, lambda result, _: _check(result), **({"partition_key": key} if key else {}))
    producer.flush()
    producer.close()


def _check(result: Any) -> None:
    assert result == pulsar.Result.Ok


def status(broker: BrokerProcess | Door, topic: str) -> str:
    answer = broker.http("GET", f"{ADMIN}/{topic}/compaction")
    assert answer.status == 200, answer.text
    return str(answer.json["status"])


def compact(broker: BrokerProcess | Door, topic: str) -> None:
    answer = broker.http("PUT", f"{ADMIN}/{topic}/compaction")
    assert answer.status == 204, answer.text
    wait_until(lambda: status(broker, topic) != "RUNNING", "the compaction to end")
    assert status(broker, topic) == "SUCCESS", broker.http("GET", f"{ADMIN}/{topic}/compaction").text


def internal(broker: BrokerProcess | Door, topic: str) -> Any:
    return broker.http("GET", f"{ADMIN}/{topic}/internalStats").json


def entries(broker: BrokerProcess | Door, topic: str) -> int:
    return sum(ledger["entries"] for ledger in internal(broker, topic)["ledgers"])


def read(client: pulsar.Client, topic: str, *, compacted: bool = True) -> list[Row]:
    """Everything that a new reader gets."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=compacted)
    found = []
    while reader.has_message_available():
        message = reader.read_next(PATIENCE_MS)
        found.append((message.partition_key(), message.data()))
    reader.close()
    return found


def receive(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    return [consumer.receive(PATIENCE_MS) for _ in range(count)]


def rows(messages: list[pulsar.Message]) -> list[Row]:
    return [(message.partition_key(), message.data()) for message in messages]


def assert_quiet(consumer: pulsar.Consumer) -> None:
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)
