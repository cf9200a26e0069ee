# SPDX-License-Identifier: Apache-2.0
"""Sets up ownership for a broker that is one of several in its region.

A region's sole broker owns every topic without asking, so it must not run beside others. A broker that joins a region
first registers in the metadata and then takes the next epoch of the sole broker, which stops that one (``rank.py``). A
sole broker takes its epoch first and then looks for others. So however the two interleave, at least one of them learns
of the other before it serves a topic; fences protect what was written by then (R10).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from functools import partial

from meridian_broker.gateway.addresses import Addresses, Place
from meridian_broker.gateway.known_owners import KnownOwners
from meridian_broker.gateway.owners_feed import OwnersFeed
from meridian_broker.ledgers.scheduling import Scheduler, in_slices
from meridian_broker.ledgers.storage import LedgerStorage
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.policies import DEFAULT_BUNDLES
from meridian_broker.metadata.store import MetadataStore
from meridian_broker.ownership.bundles import Bundle
from meridian_broker.ownership.owner import BundleOwner, NotServing
from meridian_broker.ownership.placement import BUSY
from meridian_broker.ownership.records import BrokerRecord
from meridian_broker.ownership.transactions import BundleTransactions, brokers_alive
from meridian_broker.server.absent_owners import AbsentOwners
from meridian_broker.server.load import BundleTraffic, Processor
from meridian_broker.server.settings_brokers import ONLY_BROKER, BrokerSettings
from meridian_broker.server.waiting import StartFailed
from meridian_broker.topics.errors import TopicFenced
from meridian_broker.topics.service.owned_topics import OwnedTopics
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.topic_name import TopicName

log = logging.getLogger(__name__)


class OneOfSeveral:
    """See the module's text."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MetadataStore,
        scheduler: Scheduler,
        catalog: Catalog,
        addresses: Callable[[], Mapping[str, Addresses]],
    ) -> None:
        """:param addresses: returns this broker's addresses, by listener."""
        self._broker_id = settings.broker_id
        self._scheduler = scheduler
        self._processor = Processor(time.process_time, time.monotonic)
        self._measuring = BundleTraffic()
        self._absent = AbsentOwners(scheduler, settings.metadata_store_session_timeout_millis / 1000)
        self._traffic: Mapping[Bundle, float] = {}
        """Traffic of this broker's bundles, measured while it is busy."""
        self._addresses = addresses
        self._catalog = catalog
        self.owner = BundleOwner(
            store,
            scheduler,
            BundleTransactions(
                store, self._broker_id, self._bundles, partial(catalog.newest_broker_epoch, ONLY_BROKER)
            ),
            self._record,
            asyncio.Lock(),
            settings.metadata_store_session_timeout_millis / 1000,
        )
        self.topics = OwnedTopics(self.owner)
        self.feed = OwnersFeed(KnownOwners(self.owner))
        self.owner.on_seen = self.feed.changed

    async def start(self) -> None:
        """Own topics from now on, and stop a broker that serves the region alone.

        :raises MetadataError: the store does not answer.
        """
        await self.owner.start()
        await self._catalog.next_broker_epoch(ONLY_BROKER)
        self._scheduler.spawn(self.topics.follow_shadows(), "follow which topics are shadows")

    def _bundles(self, namespace: str) -> int:
        record = self._catalog.namespace(namespace)
        return DEFAULT_BUNDLES if record is None else record.bundles

    def _bundle_of(self, topic: str) -> Bundle | None:
        name = topic_name.parse(topic)
        bundles = self.owner.view.bundles.get(name.namespace_name)
        return None if bundles is None else bundles.of(name)

    def _record(self, lease: str, draining: bool) -> BrokerRecord:
        broker = self._broker_id
        addresses = {
            listener: {kind: url for kind, url in asdict(found).items() if url is not None}
            for listener, found in self._addresses().items()
        }
        return BrokerRecord(broker, f"{broker}#{lease}", addresses, draining=draining)

    async def locate(self, name: TopicName, listener: str, authoritative: bool) -> Place | None:
        """See ``gateway.addresses.Locate``."""
        try:
            found = await self.owner.locate(name, authoritative=authoritative)
        except NotServing as error:
            raise TopicFenced(f"{name}: {error}") from None
        if found.broker.broker == self._broker_id:
            return None
        addresses = found.broker.addresses.get(listener)
        return Place(None if addresses is None else Addresses.of(addresses), found.owns)

    async def when_moved(self, name: TopicName, moved: Callable[[], None]) -> bool:
        """See ``gateway.addresses.WhenMoved``."""
        bundle = self._bundle_of(str(name))
        owner = None if bundle is None else self.owner.view.owner(bundle)
        if owner is None or owner.broker == self._broker_id or not await self._absent.is_absent(owner):
            return False
        return self.owner.when_moved(name, owner, moved)

    def next_owner(self, topic: str, listener: str) -> Addresses | None:
        """See ``gateway.addresses.NextOwner``."""
        found = self.owner.next_owner(topic_name.parse(topic))
        if found is None or (not listener and len(found.addresses) > 1):
            return None  # clients name their listener only in lookups, so which one this client uses is unknown
        addresses = found.addresses.get(listener)
        return None if addresses is None else Addresses.of(addresses)

    def serving(self, topic: TopicName) -> str | None:
        """See ``gateway.shadow_replication.OwnBrokers``."""
        bundles = self.owner.view.bundles.get(topic.namespace_name)
        owner = None if bundles is None else self.owner.view.owner(bundles.of(topic))
        return None if owner is None or owner.broker == self._broker_id else owner.broker

    def addresses_of(self, broker: str) -> Addresses | None:
        """As above."""
        found = self.owner.view.alive(broker)
        return None if found is None else Addresses.of(found.addresses.get("", {}))

    # -- chores ------------------------------------------------------------------------------------------------------

    async def balance(self) -> None:
        """Acquire the bundles without an owner that this broker should own, since their topics have work to do even
        without clients, and hand one bundle to a broker that has too few.

        :raises MetadataError: the store did not answer.
        """
        for namespace in self._catalog.known_namespaces():
            await self.owner.bundles(namespace)
        await self.owner.release_strays()
        await self.owner.take_vacant()
        if (move := self.owner.next_move(self._traffic)) is not None:
            log.info("handing %s to broker %s", *move)
            await self.owner.give_up(*move)

    async def report_load(self, topics: Collection[Topic]) -> None:
        """Measure this broker's load and tell the other brokers; while it is busy, find out which bundles cause it.

        :raises MetadataError: the store did not answer.
        """
        usage = self._processor.usage()
        if usage < BUSY:
            self._measuring.forget()
            self._traffic = {}
        else:
            self._traffic = await self._measuring.measure(in_slices(self._scheduler, topics), self._bundle_of)
        await self.owner.report(usage)


class BesideOthers(StartFailed):
    """Brokers that share the region are running, or were killed so recently that they may still be."""


async def require_alone(store: MetadataStore, region: str) -> None:
    """Check that no broker shares the region.

    :raises BesideOthers: some are registered.
    :raises MetadataError: the store does not answer.
    """
    if others := await brokers_alive(store):
        raise BesideOthers(
            f"region {region} is served by several brokers ({', '.join(others)}), and this one has no brokerId: set "
            "brokerId, or stop the others"
        )


def check(region: str, ledgers: LedgerStorage) -> None:
    """Check that the region can have several brokers. :raises StartFailed: it cannot."""
    if ledgers.is_apart:
        raise StartFailed(
            f"region {region} cannot have several brokers: its ledgers are on this broker's volume, which others "
            "cannot reach. Set managedLedgerStorage=bookkeeper, or run one broker"
        )
