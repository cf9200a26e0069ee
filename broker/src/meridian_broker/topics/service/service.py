# SPDX-License-Identifier: Apache-2.0
"""All topics of a broker: finding, making, opening, growing, deleting and closing them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

from meridian_broker.ledgers.periodic import SomeFailed
from meridian_broker.ledgers.scheduling import run_all
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.ledgers.under_way import all_over
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions import Stamp
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.replication.entries.source import DeletionNotice
from meridian_broker.topics.backfill.backfill import find
from meridian_broker.topics.backfill.questions import NOTHING_TO_SEND, Found, Want
from meridian_broker.topics.cursors import seeking
from meridian_broker.topics.directory import listing
from meridian_broker.topics.directory.watching import TopicWatchers
from meridian_broker.topics.errors import (
    NotAllowed,
    NotInThisRegion,
    TopicFenced,
    TopicNotFound,
)
from meridian_broker.topics.lifecycle import orphans
from meridian_broker.topics.nonpersistent.topic import NonPersistentTopic
from meridian_broker.topics.service import creation, incarnations, kinds, partition_growth, removal
from meridian_broker.topics.service.backfill_rounds import Missing
from meridian_broker.topics.service.open_topics import OpenTopics
from meridian_broker.topics.service.preloading import Loading
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.topic_name import TopicName

log = logging.getLogger(__name__)


@dataclass
class TopicService(OpenTopics):
    """See the module's text."""

    _followed: int = -1
    """The catalog's revision that open topics go by."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.watchers = TopicWatchers(self.scheduler, self.topic_names)
        self.catalog.topics.on_change = self.watchers.changed
        self.missing = Missing()
        self.loader = Loading(self)

    # -- finding and opening -------------------------------------------------------------------------------------

    async def check_lives_here(self, name: TopicName) -> None:
        """For clients. :raises TopicNotFound: as ``check_exists``. :raises NotInThisRegion: it lives elsewhere only."""
        await self.check_exists(name)
        regions = self.catalog.regions(name)
        if regions and self.region not in regions:
            raise NotInThisRegion(
                f"{name} exists in {', '.join(sorted(regions))} but not in {self.region}: connect there, or add "
                f"{self.region} to the clusters of namespace {name.namespace_name}"
            )

    async def served(
        self, name: TopicName, *, create: bool, incarnation: str | None = None, created: Stamp | None = None
    ) -> Topic | NonPersistentTopic:
        """The topic of whatever kind, for clients. :raises TopicError: see ``topic``."""
        if name.is_persistent:
            return await self.topic(name, create=create, incarnation=incarnation, created=created)
        await self.check_exists(name)
        return await self.non_persistent.topic(name, create=create)

    def deleted_elsewhere(self, topic: Topic, told: DeletionNotice) -> None:
        """Another region knows of another deletion of the topic than we do (R8)."""
        self.scheduler.spawn(incarnations.follow(self, topic, told), "follow a deletion in another region")

    async def make_topics(self) -> None:
        """Put on record what only the volume knows, before anybody asks. :raises MetadataError: it cannot be read."""
        await orphans.make_topics(self)

    async def load_all(self) -> None:
        """Open every topic on record, see ``Loading.load_all``. Call it again after an error, and now and then."""
        await self.loader.load_all()

    async def partitions(self, name: TopicName, *, create: bool) -> int:
        """Number of partitions, 0 for a topic without. A partitioned topic is made when it may and none is there; one
        without partitions is made by its first client.

        :raises TopicNotFound: there is none, and none may be made.
        """
        return await creation.partitions(self, name, create=create)

    async def create_topic(self, name: TopicName, properties: dict[str, str]) -> None:
        """Make a topic without partitions. :raises AlreadyExists: there is one of that name."""
        await creation.create_plain(self, name, properties)

    async def create_partitioned(self, name: TopicName, partitions: int, properties: dict[str, str]) -> None:
        """Make a partitioned topic, in all its regions that can be reached. :raises AlreadyExists: there is one."""
        await creation.create_partitioned(self, name, partitions, properties)

    async def grow(self, name: TopicName, partitions: int, known: str | None = None) -> None:
        """More partitions; the subscriptions of the topic start at the earliest message of the new ones (R15).

        :param known: see ``partition_growth.grow``.
        """
        await partition_growth.grow(self, name, partitions, known)

    async def topic_names(self, namespace: str) -> list[str]:
        """Every topic of a namespace, partitions by their own names; sorted."""
        return await listing.names_of(await self.catalog.topics.listing(namespace), self.scheduler)

    async def partitioned_names(self, namespace: str, domain: str) -> list[str]:
        """Every partitioned topic of a namespace, sorted."""
        return await listing.names_of(await self.catalog.partitioned.listing(namespace, domain), self.scheduler)

    async def delete_topic(self, name: TopicName, *, force: bool) -> None:
        """Delete a topic, or a partitioned one with its partitions.

        :raises TopicInUse: clients or subscriptions are there and ``force`` is not given.
        :raises NotFound: there is none.
        """
        await removal.delete(self, name, force=force)

    async def unload(self, name: TopicName) -> None:
        """Close the topic in good order; it is opened again for whoever asks."""
        self.failing.end_pause(str(name), self.scheduler.monotonic_ms())
        topic = await self.topic(name, create=False)
        async with self.lock(topic.name):
            topic.reopen = False
            await self._close(topic, "the topic was unloaded: look it up again")

    async def _close(self, topic: Topic, reason: str) -> None:
        """It is not open any more afterwards, but until then: what it still tells of its acknowledgements says of which
        topic it is."""
        try:
            await topic.close(reason)
        finally:
            await self.drop(topic)

    async def send_consumers_away(self) -> None:
        """Consumers have to come again, and what was acknowledged is told to other regions."""
        self.closing = True
        topics = list(self.topics.values())
        for topic in topics:
            for subscription in topic.subscriptions.values():
                subscription.disconnect_consumers()
        await all_over([work for topic in topics for work in topic.look_ups()], self.scheduler)
        for topic in topics:
            topic.take_acknowledgements()

    async def close(self) -> None:
        """The end of a drain: hand every client away and seal what is open."""
        self.closing = True
        self.non_persistent.close("this broker is shutting down")
        jobs = [partial(self._close_for_good, topic) for topic in self.topics.values()]
        await run_all(self.scheduler, jobs, "close a topic")  # together, for they share the group commit

    async def _close_for_good(self, topic: Topic) -> None:
        topic.reopen = False
        try:
            await self._close(topic, "this broker is shutting down: look the topic up again")
        except (LedgerError, MetadataError) as error:  # the others are closed all the same
            log.warning("%s was not closed cleanly; the next start recovers it: %s", topic.name, error)
        except Exception:
            log.exception("%s was not closed cleanly; the next start recovers it", topic.name)

    # -- subscriptions and schemas -------------------------------------------------------------------------------

    async def subscription(
        self,
        topic: Topic,
        name: str,
        *,
        durable: bool,
        replicated: bool | None,
        initial: Position,
        properties: dict[str, str],
        read_compacted: bool = False,
    ) -> Subscription:
        """Find or make one; durable, and at its place, when this returns.

        :param replicated: None: as the policies say, as they are now; the topic hears of a change a moment later.
        :raises TopicError: refused.
        """
        places = None
        if durable and name not in topic.subscriptions:
            if replicated is None:
                replicated = self.rules(topic_name.parse(topic.name)).replicate_subscriptions
            places = await seeking.for_new(topic, initial)
        if read_compacted:
            await topic.compaction.prepare()
        answer: Subscription = await self.scheduler.answer(
            lambda ready: topic.subscribe(
                name,
                durable=durable,
                replicated=replicated,
                initial=initial,
                properties=properties,
                may_create=topic.rules.auto_subscription_creation.allowed,
                read_compacted=read_compacted,
                ready=ready,
                places=places,
            )
        )
        return answer

    async def ensure_subscription(self, topic: Topic, name: str) -> None:
        """Make the subscription at the earliest message when there is none (a producer's initial subscription).

        :raises NotAllowed: there is none, and consumers may not make any by themselves either.
        """
        if name not in topic.subscriptions and not topic.rules.auto_subscription_creation.allowed:
            raise NotAllowed(f"there is no subscription {name!r}, and automatic creation is disabled")
        await self.subscription(topic, name, durable=True, replicated=None, initial=EARLIEST, properties={})

    # -- other regions -------------------------------------------------------------------------------------------

    def recall_missing(self) -> None:
        """Ask other regions for what topics lack, where there is reason to (R5, R6)."""
        self.missing.look(self)

    async def answer(self, asker: str, want: Want) -> Found:
        """What is here of what another region asks for.

        :raises TopicError: this region cannot say now.
        :raises LedgerError: it cannot be read.
        """
        name = topic_name.parse(want.topic)
        try:
            topic = await self.topic(name, create=False)
        except TopicNotFound:
            await kinds.check_kind(self, name)
            return Found((), is_chained=True, is_settled=False, feed=NOTHING_TO_SEND)
        except NotAllowed:
            await kinds.check_kind(self, name)
            raise
        is_outside = asker not in self.regions_of(topic.name)
        if is_outside and want.origin != asker:
            raise NotAllowed(f"{asker} is not a region of {topic.name} here")
        if topic.incarnation != want.incarnation:
            raise TopicFenced(
                f"{asker} refers to another incarnation of {topic.name}: wait until both regions know it (R8)"
            )
        found = await find(topic, topic.recall, asker, want)
        feed = None if self.replication is None else self.replication.feed(topic.name, asker)
        if feed is not None:
            shared = sum(one.durable and one.replicated for one in topic.subscriptions.values())
            feed = feed._replace(end=topic.log.last_confirmed, subscriptions=shared)
        own = {self.region} if topic.log.last_own > EARLIEST else set()
        origins = frozenset(topic.log.last_origin.keys() | own)
        return found._replace(origins=origins, feed=feed, is_outside=is_outside)

    def follow_policies(self) -> None:
        """Do what policies say now, when any changed: a topic's regions, and whatever rules it.

        :raises SomeFailed: it failed for some topics, which the next call tries again.
        """
        if self._followed == self.catalog.revision:
            return
        self.non_persistent.follow_policies()
        failures: dict[str, Exception] = {}
        for topic in list(self.topics.values()):
            if topic.failure is None:
                try:
                    self._follow(topic)
                except Exception as error:
                    failures[topic.name] = error
        if failures:
            raise SomeFailed(failures, len(self.topics))
        self._followed = self.catalog.revision
