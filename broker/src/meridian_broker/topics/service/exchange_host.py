# SPDX-License-Identifier: Apache-2.0
"""Where the progress exchange finds its subscriptions: those of the topics that are open here.

A change from another region opens a topic that is not open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from meridian_broker.ledgers.store import Done, LedgerError
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions import Progress
from meridian_broker.topics.errors import TopicError
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.errors import InvalidTopicNameError

if TYPE_CHECKING:
    from meridian_broker.topics.service.opener import TopicOpener
    from meridian_broker.topics.service.registry import TopicRegistry
    from meridian_broker.topics.subscriptions.registry import SubscriptionRegistry
    from meridian_broker.topics.topic import Topic

log = logging.getLogger(__name__)


class ExchangeHost:
    """See the module's text: ``ProgressHost`` of the exchange. One per broker."""

    def __init__(self, registry: TopicRegistry) -> None:
        self._registry = registry
        self._opener: TopicOpener | None = None
        self.region = registry.parts.region
        self.is_served = registry.is_served
        self.regions_of = registry.parts.regions_of
        self.owns = registry.parts.ownership.owns
        self._wanted: set[str] = set()
        """Topics being opened because another region waits for them."""

    def bind(self, opener: TopicOpener) -> None:
        """Set what opens topics: the opener needs the exchange, which needs this host, so it is constructed last.

        :raises RuntimeError: an opener was bound before.
        """
        if self._opener is not None:
            raise RuntimeError("the exchange's host is already bound to an opener")
        self._opener = opener

    async def _open(self, topic: str, *, create: bool, incarnation: str | None = None) -> Topic:
        assert self._opener is not None, "links are opened after the opener was bound"
        return await self._opener.topic(topic_name.parse(topic), create=create, incarnation=incarnation)

    def _subscriptions_of(self, topic: str) -> SubscriptionRegistry | None:
        found = self._registry.topics.get(topic)
        return None if found is None or found.failure is not None else found.subscription_registry

    def open_soon(self, topic: str) -> None:
        """Another region waits for a topic on record that is not open: open it before others."""
        if self._registry.is_unopened(topic) and topic not in self._wanted and not self._registry.closing:
            self._wanted.add(topic)
            self._registry.parts.scheduler.spawn(self._open_wanted(topic), "open a topic that another region waits for")

    async def _open_wanted(self, topic: str) -> None:
        try:
            await self._open(topic, create=False)
        except (TopicError, LedgerError, MetadataError) as error:
            log.info("%s cannot be opened for another region: %s", topic, error)
        finally:
            self._wanted.discard(topic)

    def progress(self, topic: str, subscription: str) -> Progress | None:
        """Newest progress, this turn's acknowledgements included; None: no such replicated subscription."""
        found = self._subscriptions_of(topic)
        return None if found is None else found.progress(subscription)

    def record(self, topic: str, subscription: str) -> bytes | None:
        return None if (found := self._subscriptions_of(topic)) is None else found.record(subscription)

    def when_durable(self, topic: str, done: Done) -> None:
        """Call ``done`` once all that an open topic knows now of its subscriptions is on disk, or never will be."""
        found = self._registry.topics.get(topic)
        if found is None:
            done(LedgerError(f"{topic} is no longer open"))
        else:
            found.progress_log.when_durable(done)

    def incarnation(self, topic: str) -> str:
        """The incarnation that the topic has, or will have once open; empty for a name that no topic can have."""
        found = self._registry.topics.get(topic)
        if found is not None:
            return found.incarnation
        try:
            return self._registry.parts.catalog.incarnation(topic_name.parse(topic))
        except InvalidTopicNameError:
            return ""

    def open_topics(self) -> Collection[str]:
        """Names of the open topics, including fenced ones: a live collection."""
        return self._registry.topics.keys()

    def is_replicated(self, topic: str) -> bool:
        """Whether other regions learn of an open topic's subscriptions, deleted ones included."""
        return (found := self._subscriptions_of(topic)) is not None and found.has_replicated()

    def replicated_in(self, topic: str) -> list[str]:
        """Its subscriptions that other regions have, too, deleted ones included."""
        return [] if (found := self._subscriptions_of(topic)) is None else found.replicated()

    def merge(
        self,
        topic: str,
        subscription: str,
        incarnation: str,
        delta: Progress,
        record: bytes | None,
        done: Callable[[str | None], None],
    ) -> None:
        """Join another region's change; ``done(None)`` once durable, ``done(reason)`` when refused."""
        found = self._registry.topics.get(topic)
        if found is not None and found.failure is None:
            self._merge(found, subscription, incarnation, delta, record, done)
        else:
            work = self._open_and_merge(topic, subscription, incarnation, delta, record, done)
            self._registry.parts.scheduler.spawn(work, "open a topic for another region's progress")

    async def _open_and_merge(
        self,
        topic: str,
        subscription: str,
        incarnation: str,
        delta: Progress,
        record: bytes | None,
        done: Callable[[str | None], None],
    ) -> None:
        try:
            found = await self._open(topic, create=True, incarnation=incarnation)
        except Exception as error:  # any error is reported to the peer
            done(f"{topic} cannot be opened: {error}")
            return
        try:
            self._merge(found, subscription, incarnation, delta, record, done)
        except ValueError as error:  # the two cannot be joined: no caller is left to raise to, and the peer waits
            done(str(error))

    def _merge(
        self,
        topic: Topic,
        name: str,
        incarnation: str,
        delta: Progress,
        record: bytes | None,
        done: Callable[[str | None], None],
    ) -> None:
        if incarnation != topic.incarnation:
            done(f"another incarnation of {topic.name}: {incarnation!r}, here {topic.incarnation!r} (R8)")
            return
        topic.subscription_registry.merge(name, delta, record, done)
