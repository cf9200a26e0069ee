# SPDX-License-Identifier: Apache-2.0
"""SUBSCRIBE: the topic and the subscription are found or created, and a consumer joins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meridian_broker.gateway.pulsar import next_owner, permitted
from meridian_broker.gateway.pulsar.patience import PASSING, patiently
from meridian_broker.gateway.pulsar.refusals import REFUSALS
from meridian_broker.metadata.authorizing import Wish
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.topics import validation
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.dispatch.key_ranges import KeySharedPolicy
from meridian_broker.topics.dispatch.types import TYPES
from meridian_broker.topics.errors import NotAllowed
from meridian_broker.topics.nonpersistent.topic import NonPersistentTopic
from meridian_broker.topics.service import subscribing
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode, topic_name
from meridian_broker.wire.pulsar.errors import ServiceNotReadyError
from meridian_broker.wire.pulsar.topic_name import TopicName

if TYPE_CHECKING:
    from meridian_broker.gateway.pulsar.connection import Connection

STAY_CONNECTED: Final = "Pulsar-CPP"
"""Clients that look a topic up again after a refused SUBSCRIBE only if the consumer is closed, too.

Before they send it, they note that they are connected, so the attempt that a passing refusal makes them schedule ends
at once: they are connected already. ``CLOSE_CONSUMER`` undoes that. It comes before the refusal, because it does not
end the wait for the answer.
"""
REJECT_BY_THEMSELVES: Final = ("Pulsar-CPP", "Pulsar Go", "Pulsar-Java-v2.", "Pulsar-Java-v3.", "Pulsar-Java-v4.0.")
"""Clients that send "not replicated" for every subscription that did not ask for replication."""


def subscribe(connection: Connection, command: Any) -> None:
    """SUBSCRIBE. For an id already in use: an error while the consumer is being created, success afterwards."""
    asked: pb.CommandSubscribe = command.message
    if asked.consumer_id in connection.subscribing:
        _refuse(connection, asked, ServiceNotReadyError("this consumer is still being created"))
        return
    if asked.consumer_id in (connection.consumers or {}):
        connection.succeed(asked.request_id)
        return
    connection.subscribing[asked.consumer_id] = asked
    connection.run(_subscribe(connection, asked))


async def _subscribe(connection: Connection, asked: pb.CommandSubscribe) -> None:
    def end(refusal: Exception) -> bool:
        if connection.subscribing.get(asked.consumer_id) is asked:
            del connection.subscribing[asked.consumer_id]
            _refuse(connection, asked, refusal)
        return connection.may_wait()

    try:
        validation.consumer(asked, connection.clients - 1)
        name = topic_name.parse(asked.topic)
        permitted.check(connection, Wish.CONSUME, name)
        connection.broker.check_for_clients(str(name))
        if asked.read_compacted and (TYPES[asked.subType].tracks_holders or not name.is_persistent):
            raise NotAllowed("read_compacted is for readers, Exclusive and Failover consumers of persistent topics")
        consumer = await patiently(lambda: _joined(connection, asked, name), lambda: _is_wanted(connection, asked), end)
    except REFUSALS as error:
        end(error)
        return
    finally:
        if connection.subscribing.get(asked.consumer_id) is asked:
            del connection.subscribing[asked.consumer_id]
    if consumer is None:
        return
    consumer.consumer_epoch = asked.consumer_epoch
    connection.sent_away.back(consumer)
    if connection.consumers is None:
        connection.consumers = {}
    connection.consumers[consumer.consumer_id] = consumer  # its own int object: ``asked`` makes another
    connection.succeed(asked.request_id)


def _refuse(connection: Connection, asked: pb.CommandSubscribe, error: Exception) -> None:
    """Answer with an error, after which every client tries again if it may pass."""
    if isinstance(error, PASSING) and connection.client_version.startswith(STAY_CONNECTED):
        is_sole = connection.broker.locate is None
        if not (is_sole and connection.broker.service.registry.closing):  # else nobody serves it before a restart
            connection.write(encode.simple(16, next_owner.close_consumer(asked.consumer_id, None)))
        error = ServiceNotReadyError(str(error))
    connection.fail(asked.request_id, error)


async def _joined(connection: Connection, asked: pb.CommandSubscribe, name: TopicName) -> Consumer | None:
    """The consumer, in the same turn of the loop in which it joined its subscription; None: the client left or closed
    it meanwhile, and may have asked for another.

    :raises TopicError: refused. Topics close while subscriptions are created.
    """
    service = connection.broker.service
    service.registry.check_lives_here(name)
    topic = await service.opener.served(name, create=asked.force_topic_creation)
    if not _is_there(connection, asked):  # it has its answer: nothing is created for it any more
        return None
    if asked.HasField("schema") and asked.schema.type not in (pb.Schema.NoSchema, pb.Schema.AutoConsume):
        await service.parts.schemas.add(name, asked.schema, topic.check_open, author=connection.author)
    subscription = await _subscription(connection, asked, topic) if isinstance(topic, Topic) else None
    if not _is_there(connection, asked):
        return None
    connection.broker.check_for_clients(topic.name)  # it may have become an event topic meanwhile
    return _enter(connection, asked, topic, subscription)


def _is_wanted(connection: Connection, asked: pb.CommandSubscribe) -> bool:
    """Whether to try again: the client still waits, and this broker is not disconnecting all clients."""
    is_serving = not connection.broker.service.registry.closing
    return is_serving and connection.may_wait() and _is_there(connection, asked)


def _is_there(connection: Connection, asked: pb.CommandSubscribe) -> bool:
    """Whether the client has neither left, nor closed the consumer, nor been refused."""
    return connection.transport is not None and connection.subscribing.get(asked.consumer_id) is asked


async def _subscription(connection: Connection, asked: pb.CommandSubscribe, topic: Topic) -> Subscription:
    """Find or create the subscription, at the position the client asks for. :raises TopicError: refused."""
    return await subscribing.subscription(
        connection.broker.service.parts,
        topic,
        asked.subscription,
        durable=asked.durable,
        replicated=_replicated(connection, asked),
        initial=await _first_position(topic, asked),
        properties={pair.key: pair.value for pair in asked.subscription_properties},
        read_compacted=asked.read_compacted,
    )


def _replicated(connection: Connection, asked: pb.CommandSubscribe) -> bool | None:
    """The consumer's choice about replication; None: it has not chosen, so a policy decides (R17, PIP-398)."""
    if not asked.HasField("replicate_subscription_state"):
        return None
    rejects_by_itself = connection.client_version.startswith(REJECT_BY_THEMSELVES)
    return asked.replicate_subscription_state or (None if rejects_by_itself else False)


async def _first_position(topic: Topic, asked: pb.CommandSubscribe) -> Position:
    """Where a new subscription begins."""
    if asked.start_message_rollback_duration_sec > 0:
        since = topic.scheduler.now_ms() - 1000 * asked.start_message_rollback_duration_sec
        return await topic.position_at(since, read_compacted=asked.read_compacted)
    if asked.HasField("start_message_id"):
        start = validation.position(asked.start_message_id)
        # The entry may be trimmed; a compacted view may still have it.
        return start if start in (EARLIEST, LATEST) or asked.read_compacted else max(start, topic.log.first)
    return LATEST if asked.initialPosition == pb.CommandSubscribe.Latest else EARLIEST


def _enter(
    connection: Connection,
    asked: pb.CommandSubscribe,
    topic: Topic | NonPersistentTopic,
    subscription: Subscription | None,
) -> Consumer:
    """:raises TopicError: the subscription does not accept this consumer."""
    who = (connection, asked.consumer_id, asked.consumer_name or f"{asked.subscription}-{asked.consumer_id}")
    kind = TYPES[asked.subType]
    metadata = {pair.key: pair.value for pair in asked.metadata} or None
    key_shared = _key_shared(asked)
    if isinstance(topic, Topic):
        assert subscription is not None
        return topic.subscribing.add_consumer(
            subscription, *who, kind, asked.priority_level, metadata, key_shared, read_compacted=asked.read_compacted
        )
    return topic.subscribe(asked.subscription, *who, kind, asked.priority_level, metadata, key_shared)


def _key_shared(asked: pb.CommandSubscribe) -> KeySharedPolicy | None:
    if not asked.HasField("keySharedMeta"):
        return None
    meta = asked.keySharedMeta
    sticky = meta.keySharedMode == pb.STICKY
    ranges = tuple((one.start, one.end) for one in meta.hashRanges) if sticky else ()
    return KeySharedPolicy(sticky, meta.allowOutOfOrderDelivery, ranges)
