# SPDX-License-Identifier: Apache-2.0
"""Finds or creates a subscription, and adds consumers to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from meridian_broker.ledgers.store import Done
from meridian_broker.positions import NOWHERE, Beginning, Progress
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.topics import names, validation
from meridian_broker.topics.cursors import seeking
from meridian_broker.topics.dispatch.consumer import Consumer, ConsumerPort
from meridian_broker.topics.dispatch.key_ranges import KeySharedPolicy
from meridian_broker.topics.errors import ConsumerBusy, NotAllowed, SubscriptionExists, SubscriptionNotFound, TopicError
from meridian_broker.topics.subscriptions.subscription import Subscription

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.dispatch.types import SubscriptionType
    from meridian_broker.topics.subscriptions.registry import SubscriptionRegistry


class Subscribing:
    """Subscribing to one topic. Each topic has one."""

    def __init__(self, topic: TopicContext, registry: SubscriptionRegistry) -> None:
        self.topic = topic
        self.registry = registry

    def subscribe(
        self,
        name: str,
        *,
        durable: bool,
        replicated: bool | None,
        initial: Position,
        properties: dict[str, str] | None,
        may_create: bool,
        read_compacted: bool = False,
        ready: Callable[[Subscription | Exception], None],
        places: Mapping[str, Position] | None = None,
    ) -> None:
        """Find or create a subscription. ``ready`` is called with it once its record is durable, or with the error.

        :param replicated: whether a new one is replicated.
        :param places: for an initial entry, see ``create_subscription``.
        :param read_compacted: its first consumer asks for the compacted view.
        """
        existing = self.registry.subscriptions.get(name)
        if existing is not None:
            if existing.durable != durable:
                ready(NotAllowed(f"subscription {name!r} exists and is {'not ' if durable else ''}durable"))
                return
            # What the consumer says of replication is for new ones: an existing one is switched by the admin API, which
            # says how much each region will skip (R17).
            self.topic.progress_log.when_durable(lambda error: ready(existing if error is None else error))
            return
        if durable and not may_create:
            ready(SubscriptionNotFound(f"there is no subscription {name!r}, and automatic creation is disabled"))
            return
        if not names.is_free(name):
            ready(NotAllowed(f"{name!r} is not a valid subscription name"))
            return
        try:
            if replicated:
                self.topic.check_own_log("replicate a subscription of")
            self.registry.closed_names.check(name)
            self.registry.check_room(name)
        except TopicError as error:
            ready(error)
            return
        if durable and self.registry.lost_records.in_doubt:
            initial, places = EARLIEST, None  # it may be the missing one
        made = self.create_subscription(
            name,
            initial,
            durable=durable,
            replicated=bool(replicated),
            properties=properties,
            places=places,
            read_compacted=read_compacted,
        )
        if durable:
            self.topic.progress_log.when_durable(lambda error: ready(made if error is None else error))
        else:
            ready(made)

    def create_subscription(
        self,
        name: str,
        initial: Position,
        *,
        durable: bool = True,
        replicated: bool = False,
        properties: dict[str, str] | None = None,
        places: Mapping[str, Position] | None = None,
        read_compacted: bool = False,
        done: Done | None = None,
    ) -> Subscription:
        """Create a subscription whose next entry is ``initial`` (``EARLIEST``, ``LATEST`` or an entry).

        :param places: for a durable subscription that begins at an entry: ``seeking.before`` that entry.
        :param read_compacted: it reads the compacted view, which may contain entries that the log no longer has.
        :raises SubscriptionExists: the name is in use.
        :raises NotAllowed: its name or properties exceed what a region accepts.
        :raises TopicFenced: the topic is being deleted.
        """
        self.topic.check_admits()
        if name in self.registry.subscriptions:
            raise SubscriptionExists(f"subscription {name!r} already exists")
        validation.subscription(name, (properties or {}).items())
        record = self.registry.begun(name, replicated=replicated, properties=properties or {})
        subscription = Subscription(self.topic, self.registry, record, Progress(), durable)
        self.registry.subscriptions[name] = subscription
        if not durable:
            seeking.begin_reader(subscription.cursor, initial, read_compacted=read_compacted)
            return subscription
        if initial == LATEST:
            places = seeking.latest(self.topic.log, self.topic.region)
            subscription.cursor.start_at(self.topic.log.last_confirmed)
        subscription.cursor.progress.begin(Beginning(record.deleted, record.created, places or NOWHERE))
        if initial != LATEST:
            subscription.cursor.start_cursor()
        if replicated:
            subscription.cursor.keep_first_hand()
        self.registry.write(subscription, done)
        return subscription

    def add_consumer(
        self,
        subscription: Subscription,
        port: ConsumerPort,
        consumer_id: int,
        name: str,
        kind: SubscriptionType,
        priority: int,
        metadata: dict[str, str] | None,
        key_shared: KeySharedPolicy | None = None,
        read_compacted: bool = False,
    ) -> Consumer:
        """:raises ConsumerBusy, ConsumerAssignError: see ``Subscription.add_consumer``.
        :raises NotAllowed: subscriptions of this type are disabled.
        :raises TopicFenced: the subscription was deleted since it was looked up, or the topic is being deleted.
        """
        self.topic.check_admits()
        subscription.check_open()
        self._check_new_consumer(subscription, kind)
        if read_compacted and subscription.streams is not None:
            raise NotAllowed(f"subscription {subscription.name!r} has dispatch scope origin: it reads the whole log")
        now_ms = self.topic.scheduler.now_ms()
        epoch = subscription.cursor.progress.epoch
        consumer = Consumer(
            *(subscription, port, consumer_id, name, priority, now_ms, metadata or None, key_shared, epoch),
            read_compacted,
        )
        subscription.add_consumer(consumer, kind)
        self.topic.used()
        return consumer

    def _check_new_consumer(self, subscription: Subscription, kind: SubscriptionType) -> None:
        """:raises NotAllowed: subscriptions of this type are disabled.
        :raises ConsumerBusy: the limit of consumers is reached.
        """
        topic, rules = self.topic, self.topic.rules
        if kind.name not in rules.subscription_types:
            raise NotAllowed(f"{topic.name} does not accept {kind.name} subscriptions: its policies do not enable them")
        others = self.registry.subscriptions.values()
        if (most := rules.max_consumers) and sum(len(one.consumers) for one in others) >= most:
            raise ConsumerBusy(f"{topic.name} has {most} consumers, its limit: close some")
        if (most := rules.max_consumers_per_subscription) and len(subscription.consumers) >= most:
            raise ConsumerBusy(f"subscription {subscription.name!r} has {most} consumers, its limit: close some")
