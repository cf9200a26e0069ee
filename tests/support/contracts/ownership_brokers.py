# SPDX-License-Identifier: Apache-2.0
"""Brokers of one region that own bundles: the real rules on a real metadata store, with counted topics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from meridian_broker.metadata.store import MetadataStore
from meridian_broker.ownership.bundles import Bundle
from meridian_broker.ownership.owner import BundleOwner
from meridian_broker.ownership.records import BrokerRecord
from meridian_broker.ownership.transactions import BundleTransactions
from meridian_broker.server.loop import LoopScheduler
from meridian_broker.wire.pulsar.topic_name import TopicName, parse

BUNDLES = 4
FLOOR = 100
"""Fences at or below it were used before terms existed; no term may have one."""


def topics(count: int, namespace: str = "public/default") -> list[TopicName]:
    return [parse(f"persistent://{namespace}/topic-{number}") for number in range(count)]


class CountedTopics:
    """Records what happens to the topics of bundles. Each step waits for its event: ``may_open``, ``may_close``,
    ``may_drop``."""

    def __init__(self) -> None:
        self.gains: list[Bundle] = []
        self.closed: list[Bundle] = []
        self.dropped: list[Bundle] = []
        self.opened: list[Bundle] = []
        self.may_open = asyncio.Event()
        self.may_open.set()
        self.may_close = asyncio.Event()
        self.may_close.set()
        self.may_drop = asyncio.Event()
        self.may_drop.set()

    def gained(self, bundle: Bundle) -> None:
        self.gains.append(bundle)

    async def open(self, bundle: Bundle) -> None:
        self.opened.append(bundle)
        await self.may_open.wait()

    async def close(self, bundle: Bundle) -> None:
        self.closed.append(bundle)
        await self.may_close.wait()

    async def drop(self, bundle: Bundle) -> None:
        self.dropped.append(bundle)
        await self.may_drop.wait()


async def _floor() -> int:
    return FLOOR


class BrokerOfTest:
    """A broker's part in ownership. Subclasses bind topics."""

    def __init__(self, name: str, store: MetadataStore, lease_seconds: float) -> None:
        self.name = name
        self.store = store
        self.scheduler = LoopScheduler()
        self.owner = BundleOwner(
            store,
            self.scheduler,
            BundleTransactions(store, name, lambda _: BUNDLES, _floor),
            lambda lease, draining: BrokerRecord(name, f"{name}#{lease}", draining=draining),
            asyncio.Lock(),
            lease_seconds,
        )

    async def owns(self, topic: TopicName) -> bool:
        """Whether this broker owns the topic's bundle, and so may open the topic."""
        return self.owner.term((await self.owner.bundles(topic.namespace_name)).of(topic)) is not None


class OwningBroker(BrokerOfTest):
    """A broker whose topics are only counted."""

    def __init__(self, name: str, store: MetadataStore, lease_seconds: float) -> None:
        super().__init__(name, store, lease_seconds)
        self.topics = CountedTopics()
        self.owner.bind(self.topics)


@contextlib.asynccontextmanager
async def owning(name: str, store: MetadataStore, lease_seconds: float = 30.0) -> AsyncIterator[OwningBroker]:
    """A broker that dies at the end of the block, without handing anything over."""
    broker = OwningBroker(name, store, lease_seconds)
    try:
        await broker.owner.start()
        yield broker
    finally:
        await broker.scheduler.close()
