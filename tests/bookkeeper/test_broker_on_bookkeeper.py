# SPDX-License-Identifier: Apache-2.0
"""A broker whose ledgers are on bookies: it can die, and one on another machine continues where it stopped."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from support.brokers.bookies import Bookies
from support.brokers.broker_process import BrokerProcess
from support.brokers.free_ports import free_port
from support.brokers.region_clients import EARLIEST, PATIENCE_MS, SHARED, connect

_regions = itertools.count(1)


class Machines:
    """Brokers of one region at one address, each on an empty data directory."""

    def __init__(self, bookies: Bookies, directory: Path) -> None:
        self.region = f"region-{next(_regions)}"
        self._etcd = f"etcd:{bookies.url}"
        self._directory = directory
        self._ports = free_port(), free_port()
        self._numbers = itertools.count(1)
        self.broker: BrokerProcess

    def start(self) -> BrokerProcess:
        """A broker on the next machine."""
        port, http_port = self._ports
        self.broker = BrokerProcess(
            self.region,
            self._directory / f"machine-{next(self._numbers)}",
            settings={"managedLedgerStorage": "bookkeeper"},
            port=port,
            http_port=http_port,
            metadata_url=self._etcd,
        )
        return self.broker.start()


@pytest.fixture
def machines(bookies: Bookies, tmp_path: Path) -> Iterator[Machines]:
    made = Machines(bookies, tmp_path)
    made.start()
    yield made
    made.broker.kill()


class Publisher:
    """Sends numbers, and remembers which got a receipt."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self.receipts: set[bytes] = set()
        self._numbers = itertools.count()
        self._producer = client.create_producer(
            topic, batching_enabled=False, block_if_queue_full=True, send_timeout_millis=0
        )

    def send(self, count: int) -> None:
        for number in itertools.islice(self._numbers, count):
            body = b"%d" % number
            self._producer.send_async(body, lambda result, _, body=body: self._sent(result, body))

    def _sent(self, result: pulsar.Result, body: bytes) -> None:
        if result == pulsar.Result.Ok:
            self.receipts.add(body)

    def flush(self) -> None:
        self._producer.flush()


def received(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    return [consumer.receive(PATIENCE_MS) for _ in range(count)]


def rows(broker: BrokerProcess, table: str) -> list[dict[str, Any]]:
    """A table of the export."""
    snapshot = broker.http("POST", "/meridian/v1/export").json["snapshot"]
    answer = broker.http("GET", f"/meridian/v1/export/{snapshot}/{table}")
    assert answer.status == 200, answer.text
    found: list[dict[str, Any]] = pa.ipc.open_stream(answer.body).read_all().to_pylist()
    return found


def test_another_broker_takes_over_with_an_empty_directory(machines: Machines, bookies: Bookies) -> None:
    """Nothing with a receipt is lost and nothing acknowledged comes again, even if a bookie dies, too."""
    client = connect(machines.broker.service_url)
    options = {"consumer_type": SHARED, "initial_position": EARLIEST}
    client.subscribe("t", "s", **options).close()
    publisher = Publisher(client, "t")
    publisher.send(300)
    publisher.flush()
    bookies.kill(1)
    publisher.send(100)
    consumer = client.subscribe("t", "s", **options)
    acknowledged = set()
    for message in received(consumer, 200):
        consumer.acknowledge(message)
        acknowledged.add(message.data())
    publisher.flush()
    consumer.close()  # answered once the acknowledgements are stored
    publisher.send(200)
    machines.broker.kill()
    machines.start()
    publisher.send(200)
    publisher.flush()
    assert len(publisher.receipts) == 800
    consumer = client.subscribe("t", "s", **options)
    owed = publisher.receipts - acknowledged
    seen: set[bytes] = set()
    while not owed <= seen:
        message = consumer.receive(PATIENCE_MS)
        assert message.data() not in acknowledged
        seen.add(message.data())
        consumer.acknowledge(message)
    client.close()
    bookies.start(1)


def test_a_planned_stop_hands_over_everything(machines: Machines, bookies: Bookies) -> None:
    client = connect(machines.broker.service_url)
    consumer = client.subscribe("t", "s", initial_position=EARLIEST)
    publisher = Publisher(client, "t")
    publisher.send(100)
    publisher.flush()
    for message in received(consumer, 50):
        consumer.acknowledge(message)
    consumer.close()
    exported = rows(machines.broker, "entries")
    assert [row["entry"] for row in exported] == list(range(100)), "also those that only the writer knows as confirmed"
    assert bookies.keys("/meridian") == 0, "bookies watch every key that begins with a slash"
    assert machines.broker.stop() == 0
    kept = [path.name for path in machines.broker.data_dir.rglob("*") if path.is_file()]
    assert kept == [], "a broker keeps nothing on its own disk"
    machines.start()
    consumer = client.subscribe("t", "s", initial_position=EARLIEST)
    assert [message.data() for message in received(consumer, 50)] == [b"%d" % number for number in range(50, 100)]
    client.close()


def test_a_topic_has_as_few_ledgers_as_it_needs(machines: Machines, bookies: Bookies) -> None:
    """Bookies cannot list more than about 100,000 ledgers."""
    client = connect(machines.broker.service_url)
    before = bookies.ledgers()

    def more() -> int:
        return bookies.ledgers() - before

    producer = client.create_producer("t")
    assert more() == 0, "a topic that stores nothing has no ledger"
    producer.send(b"one")
    assert more() == 1, "messages have a ledger"
    consumer = client.subscribe("t", "s", initial_position=EARLIEST)
    assert more() == 2, "acknowledgements have a ledger of their own"
    consumer.acknowledge(consumer.receive(PATIENCE_MS))
    consumer.close()
    client.close()
    assert more() == 2
    for _ in range(2):
        assert machines.broker.stop() == 0
        machines.start()
        assert more() <= 3, "restarts of a broker add no ledger, except for a log that is begun anew"
    assert machines.broker.http("PUT", "/admin/v2/persistent/public/default/t/unload").status == 204
    assert more() == 1, "an unused topic keeps its acknowledgements in its record"
    machines.broker.kill()
    machines.start()
    assert more() == 1, "a broker that opens it needs no other ledger"
    client = connect(machines.broker.service_url)
    client.create_producer("t").send(b"two")
    consumer = client.subscribe("t", "s", initial_position=EARLIEST)
    message = consumer.receive(PATIENCE_MS)
    assert message.data() == b"two", "what was acknowledged does not come again"
    consumer.acknowledge(message)
    consumer.close()
    client.close()
    assert more() <= 3, "the next publish and the next acknowledgement begin a ledger each"
