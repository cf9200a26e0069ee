# SPDX-License-Identifier: Apache-2.0
"""Operations of an administrator on a subscription, as if by a consumer. Each is durable when it returns.

Skipped entries are acknowledged without a consumer (R12: they are acks, and merge as such). They are acknowledged one
by one in short commands, so that a long backlog does not block the loop and consumers can go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from meridian_broker.bounds.clients import LATEST_TIME_MS
from meridian_broker.ledgers.scheduling import next_turn
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions.position import Position
from meridian_broker.topics import names
from meridian_broker.topics.cursors import rewinding, seeking
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.errors import InvalidName, NotAllowed, SubscriptionNotFound, TopicFenced

if TYPE_CHECKING:
    from meridian_broker.ledgers.store import Done
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.subscriptions.subscribing import Subscribing
    from meridian_broker.topics.subscriptions.subscription import Subscription

COMMAND: Final = 2000
"""Entries acknowledged in one command."""
LOOK: Final = 3000
"""Entries examined before others run."""


class NoClient:
    """Consumer port for acknowledgements without a consumer: nothing is ever sent to it."""

    def deliver(
        self, consumer: Consumer, position: Position, entry: bytes, redeliveries: int, remaining: int | None
    ) -> None:
        """Nothing."""

    def writable(self) -> bool:
        return False

    def disconnect_consumer(self, consumer: Consumer) -> None:
        """Nothing."""

    def active_consumer_changed(self, consumer: Consumer, active: bool) -> None:
        """Nothing."""

    def reached_end(self, consumer: Consumer) -> None:
        """Nothing."""


async def skip(subscription: Subscription, entries: int | None) -> None:
    """Acknowledge the next ``entries`` that are not acked yet; None: all that are stored now. Durable when it
    returns.

    :raises NotAllowed: the subscription is not durable.
    :raises TopicFenced: the topic was closed; what was skipped before that stays skipped.
    """
    if not subscription.durable:
        raise NotAllowed(f"{subscription.name!r} is a reader's subscription: it keeps no acknowledgements")
    end = subscription.topic.log.last_confirmed
    after = subscription.cursor.mark_delete
    left = entries
    while after < end and (left is None or left > 0):
        found, after = await _next(subscription, after, end, COMMAND if left is None else min(left, COMMAND))
        if found:
            await _acknowledge(subscription, found)
        else:
            await next_turn(subscription.topic.scheduler)
        if left is not None:
            left -= len(found)


async def damage(subscription: Subscription, entries: int) -> list[Position]:
    """Fault injection: record the next entries as acknowledged although no consumer acknowledged them, which loses
    messages on purpose, as a wrong message from another region would. Only a broker under test offers it. Durable
    when it returns.

    :raises NotAllowed: the subscription is not durable.
    """
    if not subscription.durable:
        raise NotAllowed(f"{subscription.name!r} is a reader's subscription: it keeps no acknowledgements")
    log = subscription.topic.log
    found, _ = await _next(subscription, subscription.cursor.mark_delete, log.last_confirmed, entries)
    delta = subscription.cursor.progress.empty_delta()
    for position in found:
        place = log.place(position)
        if place is not None:
            delta.ack(subscription.cursor.progress.epoch, place.region, place.prev, place.origin)
    await subscription.topic.scheduler.answer(lambda ready: rewinding.merge(subscription.cursor, delta, ready))
    return found


async def _next(
    subscription: Subscription, after: Position, end: Position, most: int
) -> tuple[list[Position], Position]:
    """Owed entries in ``(after, end]``, and the position up to which was examined: at most ``LOOK`` entries."""
    log = subscription.topic.log
    found: list[Position] = []
    looked = 0
    while len(found) < most and looked < LOOK:
        following = log.after(after)
        if following is None or following > end:
            return found, end
        looked += 1
        index = log.index(following.ledger) or await log.load_index(following.ledger)
        place = index.place(following.entry)
        times = subscription.cursor.times
        if place is not None and times is not None and not times.of(following):
            await times.load(following)
        if place is not None and subscription.cursor.is_owed(place.region, place.origin, following):
            found.append(following)
        after = following
    return found, after


async def _acknowledge(subscription: Subscription, positions: list[Position]) -> None:
    subscription.check_open()
    topic = subscription.topic
    if subscription.cursor.resent is not None:  # an administrator skips them whatever was sent to which consumer
        for position in positions:
            subscription.cursor.resent.note(position)
    nobody = Consumer(
        subscription, NoClient(), 0, "", 0, topic.scheduler.now_ms(), None, None, subscription.cursor.progress.epoch
    )
    await confirmed(topic, lambda done: subscription.acknowledge(nobody, positions, None, done))


async def remove_subscriptions(found: Sequence[Subscription], *, forced: bool = False) -> None:
    """Delete subscriptions, such as those of one name on all partitions, in all regions that share them (R16).

    All or none: whether they have consumers is checked in the same turn of the loop that deletes them.

    :param forced: disconnect their consumers.
    :raises SubscriptionNotFound: one was deleted since it was looked up.
    :raises SubscriptionInUse: one has consumers, and ``forced`` is not set.
    """
    for subscription in found:
        if not subscription.is_there:
            name = subscription.topic.name
            raise SubscriptionNotFound(f"subscription {subscription.name!r} of {name} was deleted in the meantime")
        if not forced:
            subscription.registry.check_unused(subscription.name)
    for subscription in found:
        subscription.registry.delete(subscription.name, forced=forced)
    for subscription in found:
        await confirmed(subscription.topic, subscription.topic.progress_log.when_durable)


async def make_subscription(
    subscribing: Subscribing, name: str, place: Position, *, replicated: bool, properties: dict[str, str]
) -> None:
    """Create a durable subscription whose next entry is ``place``.

    :raises SubscriptionExists: the name is in use.
    :raises LimitReached: the topic has reached its limit of subscriptions.
    """
    if not names.is_free(name):
        raise InvalidName(f"{name!r} is not a valid subscription name")
    topic, registry = subscribing.topic, subscribing.registry
    registry.check_room(name)
    places = await seeking.for_new(topic, place)

    def make(done: Done) -> None:
        subscribing.create_subscription(
            name, place, replicated=replicated, properties=properties, places=places, done=done
        )

    await confirmed(topic, make)


async def move_subscription(subscription: Subscription, place: Position) -> None:
    """Move the subscription so that ``place`` is its next entry; consumers are disconnected and subscribe again
    (R12).
    """
    await seeking.seek(subscription.cursor, place)
    await confirmed(subscription.topic, subscription.topic.progress_log.when_durable)


async def move_subscription_to_time(subscription: Subscription, time_ms: int) -> None:
    """Move to the first message published at ``time_ms`` or later; as ``move_subscription``."""
    await seeking.seek_to_time(subscription.cursor, min(time_ms, LATEST_TIME_MS))
    await confirmed(subscription.topic, subscription.topic.progress_log.when_durable)


async def replicate_subscription(subscription: Subscription, replicated: bool) -> None:
    """Set the replicated flag, if it differs (R17).

    :raises NotAllowed: the subscription is not durable.
    :raises TopicFenced: the topic was closed, or the subscription deleted, since it was looked up.
    """
    if not subscription.durable:
        raise NotAllowed(f"{subscription.name!r} is a reader's subscription: it cannot be replicated")
    if subscription.replicated != replicated:
        subscription.check_open()
        topic = subscription.topic
        await confirmed(topic, lambda done: subscription.registry.set_replicated(subscription, replicated, done))


async def scope_subscription(
    subscription: Subscription, scope: str, preferred: Mapping[str, str], witness: str | None = None
) -> None:
    """Set which region dispatches which of its messages, for all regions (R25, R26). ``witness`` None: unchanged.

    :raises TopicFenced: the topic was closed, or the subscription deleted, since it was looked up.
    """
    subscription.check_open()
    topic = subscription.topic
    await confirmed(
        topic, lambda done: subscription.registry.set_scope(subscription, scope, preferred, done, witness=witness)
    )


async def confirmed(topic: TopicContext, change: Callable[[Done], None]) -> None:
    """Make a change and wait until it is durable. :raises TopicFenced: it did not become durable."""
    try:
        await topic.scheduler.answer(change)
    except LedgerError as error:
        raise TopicFenced(f"{topic.name} was closed in the meantime, and the change may be lost: {error}") from error
