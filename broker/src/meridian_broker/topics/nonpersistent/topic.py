# SPDX-License-Identifier: Apache-2.0
"""A non-persistent topic: each message is sent at once to the consumers that can take it, and not kept.

Nothing is stored, so nothing is replicated, acknowledged, redelivered or sought. A subscription exists while it has
consumers. A consumer without permits or with a blocked connection misses messages; producers get receipts in any case.
So a slow client costs messages, never memory.

A topic exists only in memory, and is removed some time after its last client has left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.entry import pack_bare
from meridian_broker.ledgers.scheduling import Scheduler
from meridian_broker.ledgers.store import Done
from meridian_broker.metadata.rules import Rules
from meridian_broker.positions.position import Position
from meridian_broker.topics import validation
from meridian_broker.topics.dispatch.consumer import Consumer, ConsumerPort
from meridian_broker.topics.errors import (
    ConsumerBusy,
    NotAllowed,
    SubscriptionNotFound,
    TopicError,
    TopicFenced,
)
from meridian_broker.topics.limits import TopicLimits
from meridian_broker.topics.names import REPLICATION_PREFIX
from meridian_broker.topics.policies import UNLIMITED, bounds
from meridian_broker.topics.publishing.admission import Admission
from meridian_broker.topics.publishing.producer import Producer
from meridian_broker.wire.pulsar import metadata as message_metadata

if TYPE_CHECKING:
    from meridian_broker.topics.dispatch.key_ranges import KeySharedPolicy
    from meridian_broker.topics.dispatch.types import SubscriptionType
    from meridian_broker.wire.pulsar.frames import Send
    from meridian_broker.wire.pulsar.metadata import MetadataView

NOWHERE: Final = Position(0, 0)
"""The id of every message, as in Pulsar."""


class NonPersistentTopic:
    """One topic, or one partition of it."""

    metadata: Final = None
    """Nothing is recorded: an exclusive producer's epoch lasts as long as the topic."""

    def __init__(self, name: str, partition: int, scheduler: Scheduler, limits: TopicLimits) -> None:
        self.name = name
        self.partition = partition
        self.scheduler = scheduler
        self.limits = limits
        self.rules = Rules()
        self.bounds = bounds(limits, self.rules)
        self.producers: dict[str, Producer] = {}
        self.admission = Admission(self)
        self.admit = self.admission.admit
        self.subscriptions: dict[str, NonPersistentSubscription] = {}
        self.failure: str | None = None
        self.messages_in = 0
        self.bytes_in = 0
        self.dropped = 0
        """Messages that the consumers of a subscription could not take."""
        self.created_ms = self.last_used_ms = scheduler.now_ms()

    def follow(self, rules: Rules) -> None:
        """Apply these rules from now on."""
        self.rules = rules
        self.bounds = bounds(self.limits, rules)
        self.admission.follow(self.bounds.producers)

    # -- producers -----------------------------------------------------------------------------------------------

    def entered(self, _: Producer) -> None:
        """A producer was admitted."""
        self.used()

    def used(self) -> None:
        """A client came or left."""
        self.last_used_ms = self.scheduler.now_ms()

    def remove_producer(self, producer: Producer) -> None:
        """A producer left, or does not want to be admitted any more."""
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
        self.admission.gone(producer)
        self.used()

    def publish(self, producer: Producer, sends: list[Send]) -> int:
        """Send messages to every subscription, and answer. Returns the bytes in flight to a disk: none."""
        largest = self.bounds.body_bytes
        for send in sends:
            body = send.body
            try:
                view = validation.message(send, largest, UNLIMITED)
            except (TopicError, message_metadata.BodyError) as error:
                producer.port.refused(producer, send, error)
                continue
            producer.messages_in += send.num_messages
            producer.bytes_in += len(body)
            self.messages_in += send.num_messages
            self.bytes_in += len(body)
            if self.subscriptions:
                entry = pack_bare(body)
                for subscription in self.subscriptions.values():
                    self.dropped += subscription.offer(entry, send.num_messages, view)
            producer.port.stored(producer, [send], NOWHERE)
        return 0

    def publish_foreign(self, _producer: Producer, _send: Send) -> None:
        """:raises NotAllowed: always, because messages without a position have no origin."""
        raise NotAllowed(f"{self.name} stores nothing, so it cannot be replicated")

    # -- subscriptions -------------------------------------------------------------------------------------------

    def subscribe(
        self,
        name: str,
        port: ConsumerPort,
        consumer_id: int,
        consumer_name: str,
        kind: SubscriptionType,
        priority: int,
        metadata: dict[str, str] | None,
        key_shared: KeySharedPolicy | None,
    ) -> Consumer:
        """:raises ConsumerBusy, ConsumerAssignError: as on other topics."""
        self.check_open()
        if kind.name not in self.rules.subscription_types:
            raise NotAllowed(f"{self.name} does not accept {kind.name} subscriptions: its policies do not enable them")
        if not name or name.startswith(REPLICATION_PREFIX):
            raise NotAllowed(f"{name!r} is not a valid subscription name")
        subscription = self.subscriptions.get(name)
        if subscription is None:
            if len(self.subscriptions) >= self.limits.subscriptions:
                raise ConsumerBusy(f"{self.name} has {len(self.subscriptions)} subscriptions, its limit: close some")
            subscription = NonPersistentSubscription(self, name, kind, key_shared)
        now_ms = self.scheduler.now_ms()
        made = Consumer(subscription, port, consumer_id, consumer_name, priority, now_ms, metadata, key_shared)
        subscription.add_consumer(made, kind)
        self.subscriptions[name] = subscription
        self.last_used_ms = now_ms
        return made

    def delete_subscription(self, name: str, done: Done | None = None) -> None:
        """:raises SubscriptionNotFound: there is none of that name."""
        subscription = self.subscriptions.pop(name, None)
        if subscription is None:
            raise SubscriptionNotFound(f"there is no subscription {name!r} on {self.name}")
        subscription.disconnect_consumers()
        if done is not None:
            done(None)

    # -- closing -------------------------------------------------------------------------------------------------

    @property
    def clients(self) -> int:
        """The number of producers and consumers."""
        return len(self.producers) + sum(len(one.consumers) for one in self.subscriptions.values())

    def check_open(self) -> None:
        """:raises TopicFenced: it is closed."""
        if self.failure is not None:
            raise TopicFenced(f"{self.name} is not served now ({self.failure}): look it up again")

    def check_own_log(self, _doing: str) -> None:
        """Nothing: only persistent topics have shadows."""

    def check_admits(self) -> None:
        """:raises TopicFenced: it is closed."""
        self.check_open()

    def fence(self, reason: str) -> None:
        """Disconnect all clients, for good."""
        self.failure = reason
        for producer in list(self.producers.values()):
            producer.port.disconnect_producer(producer)
        self.producers.clear()
        self.admission.close(reason)
        for subscription in list(self.subscriptions.values()):
            subscription.disconnect_consumers()
        self.subscriptions.clear()


class NonPersistentSubscription:
    """The consumers of one subscription."""

    pace: Final = None
    """Consumers that cannot keep up miss messages; nothing is slowed down."""
    durable: Final = False
    replicated: Final = False

    def __init__(
        self, topic: NonPersistentTopic, name: str, kind: SubscriptionType, policy: KeySharedPolicy | None
    ) -> None:
        self.topic = topic
        self.name = name
        self.type = kind
        self._selection = kind.selection(topic.partition, policy)
        self.messages_out = 0
        self.bytes_out = 0
        self.dropped = 0

    @property
    def type_name(self) -> str:
        return self.type.name

    @property
    def consumers(self) -> Sequence[Consumer]:
        return self._selection.consumers

    @property
    def active(self) -> Consumer | None:
        """Exclusive and Failover: the consumer that gets the messages."""
        return self._selection.active

    def add_consumer(self, consumer: Consumer, kind: SubscriptionType) -> None:
        """:raises ConsumerBusy, ConsumerAssignError: it does not fit the connected consumers."""
        if kind != self.type:
            raise ConsumerBusy(f"subscription {self.name!r} has {self.type.name} consumers: use the same type")
        if self.consumers and kind.admits_one:
            raise ConsumerBusy(f"subscription {self.name!r} is {kind.name} and already has its consumer")
        self._selection.add(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        if consumer in self._selection.consumers:
            self._selection.remove(consumer)

    def leave(self, consumer: Consumer) -> None:
        """The consumer left; the subscription is removed with the last one."""
        self.remove_consumer(consumer)
        if not self.consumers:
            self.topic.subscriptions.pop(self.name, None)
        self.topic.used()

    def disconnect_consumers(self) -> None:
        """Disconnect all consumers, so that they subscribe again."""
        for consumer in list(self.consumers):
            self.remove_consumer(consumer)
            consumer.port.disconnect_consumer(consumer)

    # -- messages ------------------------------------------------------------------------------------------------

    def offer(self, entry: bytes, messages: int, view: MetadataView) -> int:
        """Send one entry to its consumer. Returns how many messages are lost because it cannot take them."""
        consumer = self._selection.pick(view)
        if consumer is None or not consumer.ready:
            self.dropped += messages
            return messages
        consumer.permits -= messages
        consumer.messages_out += messages
        consumer.bytes_out += len(entry)
        self.messages_out += messages
        self.bytes_out += len(entry)
        consumer.port.deliver(consumer, NOWHERE, entry, 0, None)
        return 0

    # -- requests of consumers: no state is kept of what they received --------------------------------------------

    def dispatch_soon(self) -> None:
        """Nothing ever waits here."""

    def acknowledge(
        self,
        _consumer: Consumer,
        _positions: list[Position],
        _parts: dict[Position, int] | None = None,
        confirmed: Done | None = None,
    ) -> None:
        if confirmed is not None:
            confirmed(None)

    def acknowledge_cumulative(
        self, _consumer: Consumer, _position: Position, _part: int | None = None, confirmed: Done | None = None
    ) -> None:
        if confirmed is not None:
            confirmed(None)

    def send_again(self, consumer: Consumer, _: list[Position] | None, consumer_epoch: int) -> None:
        consumer.consumer_epoch = max(consumer.consumer_epoch, consumer_epoch)

    def backlog(self) -> int:
        return 0
