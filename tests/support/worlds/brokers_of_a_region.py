# SPDX-License-Identifier: Apache-2.0
"""Brokers of one region that serve topics from one ledger store, composed as in ``server/broker.py``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

from meridian_broker.engines.memory.ledgers import MemoryLedgerStore
from meridian_broker.engines.sqlite.metadata import SqliteMetadataStore
from meridian_broker.ledgers.chapters import CacheBudget, LogLimits
from meridian_broker.ledgers.store import LedgerError, WhenDurable
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.records import ClusterRecord
from meridian_broker.metadata.rules import Rules
from meridian_broker.metadata.store import MetadataStore
from meridian_broker.ownership.bundles import Bundle
from meridian_broker.positions import HybridClock, Position, Progress
from meridian_broker.replication.leases.manager import LeaseManager
from meridian_broker.topics.compaction.compaction import CompactionResources
from meridian_broker.topics.compaction.compactor import CompactionLimits
from meridian_broker.topics.directory.schemas import SchemaRegistry
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.lifecycle.labels import Labels
from meridian_broker.topics.lifecycle.parts import BrokerParts, GeoReplication, OtherRegions
from meridian_broker.topics.lifecycle.unfinished import Unfinished
from meridian_broker.topics.limits import TopicLimits
from meridian_broker.topics.service.backfill_rounds import Comparing, StoredEnds
from meridian_broker.topics.service.leased_topics import LeasedTopics
from meridian_broker.topics.service.owned_topics import OwnedTopics
from meridian_broker.topics.service.registry import TopicRegistry
from meridian_broker.topics.service.service import TopicService
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar.topic_name import TopicName
from support.contracts.metadata_contract import wait_until
from support.contracts.ownership_brokers import BrokerOfTest

REGION = "here"


class NoRegions:
    """Stands in for the other regions; there are none."""

    def local_change(
        self, topic: str, subscription: str, delta: Progress, durable: WhenDurable, **changed: object
    ) -> None: ...

    def opened(self, topic: str) -> None: ...

    def send_pending(self) -> None: ...

    def barrier(self, topic: str, subscription: str, passed: Callable[[], None]) -> None:
        passed()

    flush = barrier

    def start(self, _topic: object, _remote: str) -> None: ...

    def stop(self, _topic: str, _remote: str | None = None) -> None: ...

    def regions(self) -> tuple[str, ...]:
        return ()


class ServingBroker(BrokerOfTest):
    """A broker. It does not open topics by itself: see ``load``."""

    def __init__(self, name: str, store: MetadataStore, ledgers: MemoryLedgerStore, lease_seconds: float) -> None:
        super().__init__(name, store, lease_seconds)
        self.owned = OwnedTopics(self.owner)
        clock = HybridClock(self.scheduler.now_ms, REGION)
        self.catalog = Catalog(store, clock, self.scheduler.now_ms, asyncio.sleep, lambda _: 0, asyncio.Lock())
        limits, rules = TopicLimits(), Rules()
        parts = BrokerParts(
            region=REGION,
            catalog=self.catalog,
            store=ledgers,
            scheduler=self.scheduler,
            clock=clock,
            ownership=self.owned,
            defaults=lambda: rules,
            topic_limits=limits,
            log_limits=LogLimits(max_entries=20, max_bytes=1 << 20),
            cache=CacheBudget(1 << 20),
            new_lock=asyncio.Lock,
            loading=asyncio.Semaphore(10),
            schemas=SchemaRegistry(self.catalog, limits, self.scheduler.now_ms),
            labels=Labels(None),
            compaction_resources=CompactionResources(ledgers, asyncio.Lock(), CompactionLimits()),
            unfinished=Unfinished(),
        )
        registry = TopicRegistry(parts)
        leases = LeaseManager(LeasedTopics(registry), f"{REGION}#{name}", self.scheduler.monotonic_ms)
        nowhere = NoRegions()
        regions = OtherRegions(exchange=nowhere, leasing=leases, replication=cast("GeoReplication", nowhere))
        self.service = TopicService(registry, regions, StoredEnds(registry), cast("Comparing", nowhere), lambda: 1.0)
        self.owned.bind(self.service.opener)

    async def open(self, name: TopicName) -> Topic:
        return await self.service.opener.topic(name, create=True)

    async def load(self) -> None:
        """Open the topics that should be open, as a broker does every few seconds."""
        await self.service.loading.load_all()

    async def bundle(self, name: TopicName) -> Bundle:
        return (await self.owner.bundles(name.namespace_name)).of(name)

    async def give_up(self, name: TopicName, to: ServingBroker) -> None:
        """Hand the topic's bundle over; returns once the other broker owns it."""
        bundle = await self.bundle(name)
        await self.owner.give_up(bundle, to.name)
        await wait_until(lambda: to.owner.term(bundle) is not None)

    def miss_everything(self) -> None:
        """From now on, this broker ignores its lease and changes in the store, as if it were suspended."""
        for task in self.scheduler._tasks:
            if task.get_name() in ("keep the lease on this broker's bundles", "follow who owns which bundles"):
                task.cancel()


class Two(NamedTuple):
    """Two brokers, and what they share."""

    a: ServingBroker
    b: ServingBroker
    metadata: MetadataStore
    ledgers: MemoryLedgerStore


@contextlib.asynccontextmanager
async def two_serving(directory: Path, name: TopicName, store: MetadataStore | None = None) -> AsyncIterator[Two]:
    """Two brokers that know each other; the first one owns the topic.

    :param store: None: a file in the directory.
    """
    metadata = store or await SqliteMetadataStore.open(directory / "metadata")
    loop = asyncio.get_running_loop()
    ledgers = MemoryLedgerStore(schedule=lambda work: loop.call_soon(work))
    async with serving("a", metadata, ledgers) as a, serving("b", metadata, ledgers) as b:
        await wait_until(lambda: len(a.owner.view.brokers) == len(b.owner.view.brokers) == 2)
        await a.owner.acquire(await a.bundle(name))
        yield Two(a, b, metadata, ledgers)
    await metadata.close()


async def stored(topic: Topic, *bodies: bytes) -> list[Position]:
    """Append entries. :raises LedgerError: an entry will never be durable."""
    places: list[Position] = []
    for body in bodies:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(_tokens: list[Any], result: Any, answer: asyncio.Future[Any] = answer) -> None:
            answer.set_result(result)

        topic.log.append_own([(0, 1, 0, 0, topic.scheduler.now_ms(), b"", body)], done, [0])
        result = await asyncio.wait_for(answer, 30)
        if isinstance(result, LedgerError):
            raise result
        places.append(result)
    return places


class Nobody:
    """The port of a consumer that is not connected."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def acknowledge(topic: Topic, subscription: str, places: list[Position]) -> None:
    one = topic.subscriptions[subscription]
    consumer = Consumer(one, cast("Any", Nobody()), 0, "", 0, 0, None, None, one.cursor.progress.epoch)
    one.acknowledge(consumer, places)


@contextlib.asynccontextmanager
async def serving(
    name: str, store: MetadataStore, ledgers: MemoryLedgerStore, lease_seconds: float = 30.0
) -> AsyncIterator[ServingBroker]:
    """A broker that dies at the end of the block, without handing anything over."""
    broker = ServingBroker(name, store, ledgers, lease_seconds)
    try:
        await broker.catalog.refresh()
        await broker.catalog.ensure_bootstrap({REGION: ClusterRecord()})
        await broker.catalog.refresh()
        await broker.owner.start()
        broker.scheduler.spawn(broker.owned.follow_shadows(), "follow which topics are shadows")
        yield broker
    finally:
        await broker.scheduler.close()
