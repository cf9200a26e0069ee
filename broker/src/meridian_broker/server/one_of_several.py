# SPDX-License-Identifier: Apache-2.0
"""A broker that is one of several in its region: its part in ownership, put together.

No setting leads here yet; docs/architecture.md says what is missing ("A topic owned by one of several brokers").
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass

from meridian_broker.gateway.addresses import Addresses, Place
from meridian_broker.ledgers.scheduling import Scheduler
from meridian_broker.ledgers.storage import LedgerStorage
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.policies import DEFAULT_BUNDLES
from meridian_broker.metadata.store import MetadataStore
from meridian_broker.ownership.claims import Claims, OwnedElsewhere
from meridian_broker.ownership.owner import BundleOwner, NotServing
from meridian_broker.ownership.records import BrokerRecord
from meridian_broker.server.waiting import StartFailed
from meridian_broker.topics.errors import TopicFenced
from meridian_broker.topics.service.owned_topics import OwnedTopics
from meridian_broker.wire.pulsar.topic_name import TopicName

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Membership:
    """Which of the region's brokers this one is."""

    broker_id: str
    """Unique in the region, and the same after a restart."""
    lease_seconds: float = 10.0
    """How long after this broker's death its topics are not served."""


class OneOfSeveral:
    """See the module's text."""

    def __init__(
        self,
        membership: Membership,
        store: MetadataStore,
        scheduler: Scheduler,
        catalog: Catalog,
        addresses: Callable[[], Mapping[str, Addresses]],
        floor: int,
    ) -> None:
        """
        :param addresses: this broker's, by listener.
        :param floor: the greatest fence of the times in which the region had one broker.
        """
        self._membership = membership
        self._addresses = addresses
        self._catalog = catalog
        self.owner = BundleOwner(
            store,
            scheduler,
            Claims(store, membership.broker_id, self._bundles, floor),
            self._record,
            asyncio.Lock(),
            membership.lease_seconds,
        )
        self.topics = OwnedTopics(self.owner)

    def _bundles(self, namespace: str) -> int:
        record = self._catalog.namespace(namespace)
        return DEFAULT_BUNDLES if record is None else record.bundles

    def _record(self, lease: str, draining: bool) -> BrokerRecord:
        broker = self._membership.broker_id
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
        if found.broker.broker == self._membership.broker_id:
            return None
        addresses = found.broker.addresses.get(listener)
        return Place(None if addresses is None else Addresses.of(addresses), found.owns)

    async def balance(self) -> None:
        """Own the bundles that nobody owns and that this broker should, because their topics do not wait for clients;
        hand one to a broker that has too few.

        :raises MetadataError: the store did not answer.
        """
        for namespace in self._catalog.known_namespaces():
            await self.owner.bundles(namespace)
        for bundle in self.owner.vacant():
            try:
                await self.owner.acquire(bundle)
            except (OwnedElsewhere, NotServing) as error:
                log.debug("%s is not taken: %s", bundle, error)
        if (surplus := self.owner.surplus()) is not None:
            await self.owner.give_up(*surplus)


def check(region: str, ledgers: LedgerStorage, others: Collection[str]) -> None:
    """:raises StartFailed: a region like this one cannot have several brokers."""
    if ledgers.is_apart:
        raise StartFailed(
            f"region {region} cannot have several brokers: its ledgers are on this broker's volume, which others "
            "do not reach. Set managedLedgerStorage=bookkeeper, or run one broker"
        )
    if others:
        raise StartFailed(
            f"region {region} cannot have several brokers yet, because there are other regions "
            f"({', '.join(sorted(others))}): messages and acknowledgements would not reach them. Run one broker in each"
        )
