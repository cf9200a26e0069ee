# SPDX-License-Identifier: Apache-2.0
"""A region of two brokers on real bookies, and its clients."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import pulsar
from support.brokers.bookies import Bookies
from support.brokers.broker_process import BrokerProcess, wait_until
from support.brokers.peers import SECRET
from support.brokers.region_clients import PATIENCE_MS

_regions = itertools.count(1)


class Region:
    """Two brokers, a and b."""

    def __init__(self, bookies: Bookies, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        """:param settings: of both brokers, in addition to the usual ones."""
        self._settings = settings or {}
        self.name = f"shared-{next(_regions)}"
        self.etcd_url = bookies.url
        self._directory = directory
        self.brokers = {broker_id: self.broker(broker_id, {"brokerId": broker_id}) for broker_id in ("a", "b")}

    def broker(self, directory: str, more: dict[str, str]) -> BrokerProcess:
        """A broker of the region, not started."""
        settings = {"managedLedgerStorage": "bookkeeper", **self._settings, **more}
        secret = self._directory / f"{directory}.token"
        secret.write_bytes(SECRET)
        return BrokerProcess(
            self.name,
            self._directory / directory,
            settings=settings,
            metadata_url=f"etcd:{self.etcd_url}",
            peer_token_file=secret,
        )

    @property
    def url(self) -> str:
        """The addresses of both, for clients."""
        return "pulsar://" + ",".join(f"127.0.0.1:{one.port}" for one in self.brokers.values())

    def secret_of(self, broker: BrokerProcess) -> Path:
        """The file with what a broker of the region knows the others by."""
        return self._directory / f"{next(key for key, one in self.brokers.items() if one is broker)}.token"

    def is_balanced(self) -> bool:
        """Whether each owns two of the four bundles of public/default, according to their logs."""
        logs = [broker.log() for broker in self.brokers.values()]
        return all(log.count(": owns public/default/") - log.count(": gave up public/default/") == 2 for log in logs)

    def owner(self, topic: str, asked: BrokerProcess, kind: str = "persistent") -> BrokerProcess | None:
        """The broker that serves a topic, according to ``asked``."""
        path = f"/lookup/v2/topic/{kind}/public/default/{topic}"
        with contextlib.suppress(OSError):
            answer = asked.http("GET", path)
            if answer.status == 200:
                port = int(answer.json["brokerUrl"].rpartition(":")[2])
                return next(one for one in self.brokers.values() if one.port == port)
        return None

    def taken_by(self, broker: BrokerProcess, topic: str) -> None:
        wait_until(lambda: self.owner(topic, broker) is broker, "the other broker to own the topic")


@contextlib.contextmanager
def running(made: Region) -> Iterator[Region]:
    try:
        for broker in made.brokers.values():
            broker.start()
        wait_until(made.is_balanced, "both brokers to own equally many bundles")
        yield made
    finally:
        for broker in made.brokers.values():
            broker.kill()


def published(client: pulsar.Client, topic: str, count: int, first: int = 0) -> list[bytes]:
    """Publish messages numbered from ``first``, and wait for their receipts."""
    producer = client.create_producer(topic, batching_enabled=False)
    bodies = [b"%d" % number for number in range(first, first + count)]
    for body in bodies:
        producer.send(body)
    producer.close()
    return bodies


def received(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    """Receive and acknowledge ``count`` messages."""
    found = []
    for _ in range(count):
        message = consumer.receive(PATIENCE_MS)
        consumer.acknowledge(message)
        found.append(bytes(message.data()))
    return found


def everything(client: pulsar.Client, topic: str) -> list[bytes]:
    """Everything stored, duplicates included."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(bytes(reader.read_next(PATIENCE_MS).data()))
    reader.close()
    return found
