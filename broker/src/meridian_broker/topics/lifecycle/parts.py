# SPDX-License-Identifier: Apache-2.0
"""What opening and deleting a topic takes of the broker that does it."""

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
    """See the module's text. ``service/open_topics.py`` has them."""

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
    """Of all topics together."""
    backlog_quotas: bool
    """They are enforced."""
    exchange: Exchange | None
    before: Before | None

    @property
    def peers(self) -> Peers | None:
        """The other regions, asked for what is missing here; None: there are none."""
        ...

    def new_lock(self) -> AbstractAsyncContextManager[Any]:
        """A lock that nobody holds."""
        ...

    def rules(self, name: TopicName) -> Rules:
        """What holds for a topic, as last seen in the metadata."""
        ...

    def regions_of(self, topic: str) -> frozenset[str]:
        """Regions of a topic, this one included."""
        ...

    def is_shared(self, name: TopicName) -> bool:
        """Whether the topic lives in other regions, too."""
        ...

    async def add_schema(self, name: TopicName, schema: pb.Schema, check: Callable[[], None], /) -> bytes:
        """The version of the schema, which is added when it is new; ``check`` raises when it must not be any more."""
        ...

    def fenced(self, topic: Topic) -> None:
        """The topic cannot go on."""
        ...

    def deleted_elsewhere(self, topic: Topic, told: DeletionNotice) -> None:
        """Another region knows of another deletion of the topic than we do (R8)."""
        ...

    def forget(self, name: str) -> None:
        """The topic is no longer on record."""
        ...

    def open_later(self, name: TopicName) -> None:
        """The topic is on record and should be open; nobody has asked for it yet."""
        ...
