# SPDX-License-Identifier: Apache-2.0
"""What opening and deleting a topic need from the broker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from meridian_broker.ledgers.chapters import CacheBudget, LogLimits
    from meridian_broker.ledgers.scheduling import Scheduler
    from meridian_broker.ledgers.store import LedgerStore
    from meridian_broker.ledgers.throttling import Throttle
    from meridian_broker.metadata.catalog import Catalog
    from meridian_broker.metadata.rules import Rules
    from meridian_broker.positions import HybridClock
    from meridian_broker.replication.entries.source import DeletionNotice
    from meridian_broker.topics.backfill.questions import Peers
    from meridian_broker.topics.compaction.compaction import Workshop
    from meridian_broker.topics.directory.schemas import SchemaRegistry
    from meridian_broker.topics.lifecycle.labels import Labels
    from meridian_broker.topics.lifecycle.unconfirmed import Before
    from meridian_broker.topics.limits import TopicLimits
    from meridian_broker.topics.ports import Exchange
    from meridian_broker.topics.topic import Topic
    from meridian_broker.wire.proto import pulsar_pb2 as pb
    from meridian_broker.wire.pulsar.topic_name import TopicName


class BrokerParts(Protocol):
    """The parts of a broker that topics use; ``service/open_topics.py`` provides them."""

    region: str
    catalog: Catalog
    store: LedgerStore
    scheduler: Scheduler
    clock: HybridClock
    fence: int
    topic_limits: TopicLimits
    log_limits: LogLimits
    cache: CacheBudget
    labels: Labels
    schemas: SchemaRegistry
    workshop: Workshop
    publishing: Throttle | None
    """Rate limits of all topics together."""
    backlog_quotas: bool
    """Whether backlog quotas are enforced."""
    exchange: Exchange | None
    before: Before | None

    @property
    def peers(self) -> Peers | None:
        """The other regions, which are asked for missing entries; None: there are none."""
        ...

    def new_lock(self) -> AbstractAsyncContextManager[Any]:
        """A new lock, not held."""
        ...

    def rules(self, name: TopicName) -> Rules:
        """The rules of a topic, as last read from the metadata."""
        ...

    def regions_of(self, topic: str) -> frozenset[str]:
        """The regions of a topic, including this one."""
        ...

    def is_shared(self, name: TopicName) -> bool:
        """Whether the topic exists in other regions, too."""
        ...

    async def add_schema(self, name: TopicName, schema: pb.Schema, check: Callable[[], None], /) -> bytes:
        """The version of a schema, which is added if it is new; ``check`` raises if it must not be added any more."""
        ...

    def fenced(self, topic: Topic) -> None:
        """The topic was fenced."""
        ...

    def deleted_elsewhere(self, topic: Topic, told: DeletionNotice) -> None:
        """Another region knows of another deletion of the topic than this one (R8)."""
        ...

    def forget(self, name: str) -> None:
        """The topic is no longer recorded."""
        ...

    def open_later(self, name: TopicName) -> None:
        """The topic is recorded and should be opened in the background."""
        ...
