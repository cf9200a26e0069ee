# SPDX-License-Identifier: Apache-2.0
"""What opening and deleting a topic need from the broker, and what connects its topics to other regions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from meridian_broker.metadata.rules import unlimited
from meridian_broker.topics.backfill.questions import Peers
from meridian_broker.topics.backfill.skipping import Replicators
from meridian_broker.topics.snapshots.host import SnapshotSettings
from meridian_broker.wire.pulsar import topic_name

if TYPE_CHECKING:
    from meridian_broker.ledgers.chapters import CacheBudget, LogLimits
    from meridian_broker.ledgers.scheduling import Scheduler
    from meridian_broker.ledgers.store import LedgerStore
    from meridian_broker.ledgers.throttling import Throttle
    from meridian_broker.metadata.catalog import Catalog
    from meridian_broker.metadata.rules import Rules
    from meridian_broker.positions import HybridClock, Stamp
    from meridian_broker.replication.entries.source import ReplicationSource
    from meridian_broker.topics.compaction.compaction import CompactionResources
    from meridian_broker.topics.directory.schemas import SchemaRegistry
    from meridian_broker.topics.lifecycle.labels import Labels
    from meridian_broker.topics.lifecycle.unconfirmed import Before
    from meridian_broker.topics.lifecycle.unfinished import Unfinished
    from meridian_broker.topics.limits import TopicLimits
    from meridian_broker.topics.ports import Exchange, Leasing, Ownership
    from meridian_broker.wire.pulsar.topic_name import TopicName


@dataclass(frozen=True, kw_only=True)
class BrokerParts:
    """The parts of a broker that its topics use. None of them needs a topic, so they are constructed first."""

    region: str
    catalog: Catalog
    store: LedgerStore
    scheduler: Scheduler
    clock: HybridClock
    ownership: Ownership
    """Which topics this broker may open, and the fences that refuse the writes of their earlier owners (R10)."""
    defaults: Callable[[], Rules]
    """Returns the rules from the broker's settings, which policies of namespaces and topics override; the same object
    until a setting is changed."""
    topic_limits: TopicLimits
    log_limits: LogLimits
    cache: CacheBudget
    new_lock: Callable[[], AbstractAsyncContextManager[Any]]
    """A new lock, not held."""
    loading: AbstractAsyncContextManager[Any]
    """Held while a topic is opened: limits how many topics are opened at the same time."""
    schemas: SchemaRegistry
    labels: Labels
    compaction_resources: CompactionResources
    unfinished: Unfinished
    publishing: Callable[[], Throttle | None] = lambda: None
    """Returns the rate limits of all topics together; None: there are none."""
    backlog_quotas: bool = True
    """Whether backlog quotas are enforced."""
    snapshots: Callable[[], SnapshotSettings] = SnapshotSettings
    """Returns the rules for snapshots of subscriptions (PIP-33)."""
    carries_events: Callable[[str], bool] = lambda _: False
    """Whether a topic carries the metadata events of this region, so that no policy may limit it."""

    def rules(self, name: TopicName) -> Rules:
        """The rules of a topic, as last read from the metadata. An open topic keeps them as ``topic.rules``."""
        found = self.catalog.rules(self.defaults(), name)
        return unlimited(found) if self.carries_events(str(name)) else found

    def regions_of(self, topic: str) -> frozenset[str]:
        """The regions of a topic that run Meridian, including this one; only this one if the topic no longer belongs
        here."""
        listed = self.catalog.regions(topic_name.parse(topic))
        if self.region not in listed:
            return frozenset((self.region,))
        foreign = self.catalog.pulsar_regions()
        return listed if foreign.isdisjoint(listed) else listed - foreign

    def pulsar_regions_of(self, topic: str) -> frozenset[str]:
        """Those that run Apache Pulsar: they get and send messages, and take no part in anything else."""
        if not (foreign := self.catalog.pulsar_regions()):
            return foreign
        listed = self.catalog.regions(topic_name.parse(topic))
        return listed & foreign if self.region in listed else frozenset()

    def is_in_other_regions(self, topic: str) -> bool:
        """Whether it is replicated at all."""
        return len(self.regions_of(topic)) > 1 or bool(self.pulsar_regions_of(topic))

    def is_multi_region(self, name: TopicName) -> bool:
        """Whether the topic exists in other regions, too."""
        return len(self.regions_of(str(name))) > 1


class GeoReplication(Peers, Replicators, Protocol):
    """Runs replicators, and sends requests to other regions."""

    def start(self, topic: ReplicationSource, remote: str, /) -> None: ...

    def stop(self, topic_name: str, remote: str | None = None, /) -> object: ...

    def is_sending(self, topic_name: str, remote: str, /) -> bool:
        """Whether entries of the topic reach the remote now."""
        ...

    async def make_partitioned(
        self, region: str, topic: str, partitions: int, incarnation: str, created: Stamp | None, /
    ) -> None:
        """Have a region create a partitioned topic with at least this many partitions.

        :param incarnation: stamp of its last deletion (R8).
        :param created: stamp of its creation.
        :raises OtherKind: the region created one without partitions earlier.
        :raises PeerAway: the region did not create it.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class OtherRegions:
    """The parts that connect the topics of a broker to other regions."""

    exchange: Exchange
    leasing: Leasing
    replication: GeoReplication
    before: Before | None = None
    """What other regions lacked before this broker started; None: not tracked."""
