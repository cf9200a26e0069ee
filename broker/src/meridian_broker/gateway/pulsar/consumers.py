# SPDX-License-Identifier: Apache-2.0
"""SUBSCRIBE and the commands of consumers: FLOW, ACK, redelivery, seek, last message, close, unsubscribe."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from meridian_broker.bounds.clients import ACK_IDS
from meridian_broker.gateway.pulsar import permitted
from meridian_broker.gateway.pulsar.refusals import REFUSALS, code_of
from meridian_broker.ledgers.entry import BATCH, unpack
from meridian_broker.ledgers.finding import last_message
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.authorizing import Wish
from meridian_broker.positions.position import Position
from meridian_broker.topics import validation
from meridian_broker.topics.context import TopicContext
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.errors import NO_TRANSACTIONS, NotAllowed
from meridian_broker.topics.nonpersistent.topic import NonPersistentTopic
from meridian_broker.topics.subscriptions import alike
from meridian_broker.topics.subscriptions.administration import move_subscription, move_subscription_to_time
from meridian_broker.topics.subscriptions.closing import leave
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode, topic_name
from meridian_broker.wire.pulsar.errors import ConsumerNotFoundError, MetadataError, ServerError
from meridian_broker.wire.pulsar.frames import ACK, ACK_OF_MANY, CUMULATIVE, FLOW, FLOW_OF_MANY, INDIVIDUAL, Ack

if TYPE_CHECKING:
    from meridian_broker.gateway.pulsar.connection import Connection

_NO_CONSUMERS: Final[Mapping[int, Consumer]] = {}


def _consumer(connection: Connection, consumer_id: int) -> Consumer | None:
    return (connection.consumers or {}).get(consumer_id)


def acks_and_flows(connection: Connection, commands: Sequence[Any], first: int) -> int:
    """Handle the run of ACKs and FLOWs from ``first`` on. They make up most of what consumers send, thousands in a row,
    so they are handled together. If an ACK has a request id, the client waits until the acknowledgement is durable.

    :returns: the index of the next other command, or the number of commands.
    """
    consumers = connection.consumers or _NO_CONSUMERS
    for at in range(first, len(commands)):
        command = commands[at]
        if command[0] == ACK:
            _, consumer_id, ack_type, positions, request_id, detail = command
            consumer = consumers.get(consumer_id)
            if consumer is not None and ack_type == INDIVIDUAL and request_id is None and detail is None:
                consumer.subscription.acknowledge(consumer, positions)
            else:
                _other_ack(connection, command, consumer)
        elif command[0] == FLOW:
            _, consumer_id, permits = command
            if (consumer := consumers.get(consumer_id)) is not None:
                consumer.flow(permits)
        elif command[0] == ACK_OF_MANY:
            alike.acknowledge(_those(consumers, command.consumer_ids), command.position)
        elif command[0] == FLOW_OF_MANY:
            alike.flow(_those(consumers, command.consumer_ids), command.permits)
        else:
            return at
    return len(commands)


def _those(consumers: Mapping[int, Consumer], consumer_ids: list[int]) -> list[Consumer]:
    """The consumers of these numbers; some may be closed."""
    return [consumer for consumer_id in consumer_ids if (consumer := consumers.get(consumer_id)) is not None]


def _other_ack(connection: Connection, command: Ack, consumer: Consumer | None) -> None:
    """An ACK that is cumulative, covers parts of batches, wants an answer, or lacks its consumer."""
    confirmed = None
    if command.request_id is not None:
        request_id, consumer_id = command.request_id, command.consumer_id

        def confirmed(error: Exception | None) -> None:
            answer = pb.CommandAckResponse(consumer_id=consumer_id, request_id=request_id)
            if error is not None:
                answer.error, answer.message = code_of(error), str(error)
            connection.write(encode.simple(38, answer))

    if consumer is None:
        if command.ack_type == CUMULATIVE and command.ids:
            connection.sent_away.acknowledged(command.consumer_id, validation.end(*command.ids[0]))
        if confirmed is not None:
            confirmed(
                ConsumerNotFoundError("this connection has no such consumer (any more): nothing was acknowledged")
            )
        return
    if command.detail is not None and command.detail.HasField("txnid_most_bits"):
        if confirmed is not None:
            confirmed(NotAllowed(NO_TRANSACTIONS))
        return
    try:
        parts = {} if command.detail is None else validation.unacked_parts(command.detail)
    except NotAllowed as refusal:
        if command.request_id is None:  # no answer is due; only this gets its messages redelivered
            connection.end(f"bad ACK: {refusal}")
        elif confirmed is not None:
            confirmed(refusal)
        return
    subscription = consumer.subscription
    if command.ack_type == CUMULATIVE:
        if len(command.ids) == 1:
            position = validation.end(*command.ids[0])
            subscription.acknowledge_cumulative(consumer, position, parts.get(position), confirmed)
        elif confirmed is not None:
            confirmed(None)
        return
    subscription.acknowledge(consumer, command.ids, parts, confirmed)


def redeliver(connection: Connection, command: Any) -> None:
    """REDELIVER_UNACKNOWLEDGED_MESSAGES."""
    asked: pb.CommandRedeliverUnacknowledgedMessages = command.message
    consumer = _consumer(connection, asked.consumer_id)
    if consumer is not None and len(asked.message_ids) > ACK_IDS:
        connection.run(_redeliver_many(connection, asked, consumer))
    elif consumer is not None:
        positions = [validation.position(wire) for wire in asked.message_ids] or None
        consumer.subscription.send_again(consumer, positions, asked.consumer_epoch)


async def _redeliver_many(
    connection: Connection, asked: pb.CommandRedeliverUnacknowledgedMessages, consumer: Consumer
) -> None:
    """Everything a client holds may time out at once, so only a slice is handled in each turn of the loop."""
    for first in range(0, len(asked.message_ids), ACK_IDS):
        if _consumer(connection, asked.consumer_id) is not consumer:
            return
        positions = [validation.position(wire) for wire in asked.message_ids[first : first + ACK_IDS]]
        consumer.subscription.send_again(consumer, positions, asked.consumer_epoch)
        await asyncio.sleep(0)


def close_consumer(connection: Connection, command: Any) -> None:
    """CLOSE_CONSUMER: answered once the acknowledgements made here are durable and known to the other regions, so that
    neither a crash nor a planned switch repeats any message (R20)."""
    asked: pb.CommandCloseConsumer = command.message
    connection.subscribing.pop(asked.consumer_id, None)
    consumer = (connection.consumers or {}).pop(asked.consumer_id, None)
    if consumer is None:
        connection.sent_away.forget(asked.consumer_id)
        connection.succeed(asked.request_id)
        return

    def left(error: LedgerError | None) -> None:
        if error is None:
            connection.succeed(asked.request_id)
        else:
            connection.fail(asked.request_id, error)

    leave(consumer, left)


def unsubscribe(connection: Connection, command: Any) -> None:
    """UNSUBSCRIBE: allowed for the last consumer only, across all regions if the subscription is replicated (R16),
    unless forced."""
    asked: pb.CommandUnsubscribe = command.message
    consumer = _consumer(connection, asked.consumer_id)
    if consumer is None:
        connection.fail(asked.request_id, MetadataError("this connection has no such consumer"))
        return
    subscription = consumer.subscription
    if not _may_still(connection, asked.request_id, consumer):
        return
    if isinstance(subscription, Subscription) and subscription.replicated and not asked.force:
        connection.run(_unsubscribe_everywhere(connection, asked, consumer))
    else:
        _unsubscribe(connection, asked, consumer)


def _may_still(connection: Connection, request_id: int, consumer: Consumer) -> bool:
    """Whether the role still has permission to consume. If not, the refusal has been sent."""
    try:
        permitted.check(connection, Wish.CONSUME, topic_name.parse(consumer.subscription.topic.name))
    except REFUSALS as error:
        connection.fail(request_id, error)
        return False
    return True


async def _unsubscribe_everywhere(connection: Connection, asked: pb.CommandUnsubscribe, consumer: Consumer) -> None:
    subscription = consumer.subscription
    objection = await connection.broker.objections(subscription.topic.name, subscription.name)
    if objection is not None:
        connection.fail(asked.request_id, MetadataError(objection))
    elif _consumer(connection, asked.consumer_id) is not consumer:
        connection.fail(asked.request_id, MetadataError("this consumer was closed meanwhile"))
    else:
        _unsubscribe(connection, asked, consumer)


def _unsubscribe(connection: Connection, asked: pb.CommandUnsubscribe, consumer: Consumer) -> None:
    """Checks for other consumers in the same turn of the loop that deletes the subscription."""
    subscription = consumer.subscription
    if len(subscription.consumers) > 1 and not asked.force:
        text = f"{subscription.name!r} has other consumers: close them first, or use force"
        connection.fail(asked.request_id, MetadataError(text))
        return
    assert connection.consumers is not None
    del connection.consumers[asked.consumer_id]
    subscription.leave(consumer)

    def done(error: LedgerError | None) -> None:
        if error is None:
            connection.succeed(asked.request_id)
        else:
            connection.fail(asked.request_id, error)

    topic = subscription.topic
    if isinstance(subscription, Subscription) and subscription.name in subscription.registry.subscriptions:
        subscription.registry.delete(subscription.name, done, forced=asked.force)
    elif isinstance(topic, NonPersistentTopic) and subscription.name in topic.subscriptions:
        topic.delete_subscription(subscription.name, done)
    else:
        done(None)


def seek(connection: Connection, command: Any) -> None:
    """SEEK: consumers are disconnected first and return at the new place; success is sent once the seek is on disk."""
    asked: pb.CommandSeek = command.message
    consumer = _consumer(connection, asked.consumer_id)
    if consumer is None:
        connection.fail(asked.request_id, MetadataError("this connection has no such consumer"))
        return
    if not _may_still(connection, asked.request_id, consumer):
        return
    if not asked.HasField("message_id") and not asked.HasField("message_publish_time"):
        connection.fail(asked.request_id, MetadataError("a seek needs a message id or a time"))
    elif isinstance(consumer.subscription, Subscription):
        connection.run(_seek(connection, asked, consumer.subscription))
    else:
        connection.succeed(asked.request_id)  # a non-persistent topic has only one position


async def _seek(connection: Connection, asked: pb.CommandSeek, subscription: Subscription) -> None:
    try:
        if asked.HasField("message_id"):
            await move_subscription(subscription, validation.position(asked.message_id))
        else:
            await move_subscription_to_time(subscription, asked.message_publish_time)
    except REFUSALS as error:
        connection.fail(asked.request_id, error)
        return
    connection.sent_away.forget(asked.consumer_id)
    connection.succeed(asked.request_id)


def last_message_id(connection: Connection, command: Any) -> None:
    """GET_LAST_MESSAGE_ID: the last entry a client may see."""
    asked: pb.CommandGetLastMessageId = command.message
    consumer = _consumer(connection, asked.consumer_id)
    if consumer is None:
        connection.fail(asked.request_id, MetadataError("this connection has no such consumer"))
        return
    if isinstance(consumer.subscription, Subscription):
        connection.run(_last_message_id(connection, asked.request_id, consumer))
    else:
        text = f"{consumer.subscription.topic.name} stores nothing: it has no last message"
        connection.fail(asked.request_id, NotAllowed(text))


async def _last_message_id(connection: Connection, request_id: int, consumer: Consumer) -> None:
    subscription = consumer.subscription
    assert isinstance(subscription, Subscription)
    topic = subscription.topic
    try:
        compacted = await subscription.registry.compaction.last_message() if consumer.read_compacted else None
        last, index = compacted or await _last_in_log(topic)
    except LedgerError as error:
        connection.fail(request_id, error)
        return
    wire = pb.MessageIdData(ledgerId=last.ledger & (1 << 64) - 1, entryId=last.entry & (1 << 64) - 1)
    wire.partition = topic.partition
    wire.batch_index = index
    answer = pb.CommandGetLastMessageIdResponse(request_id=request_id, last_message_id=wire)
    place = subscription.cursor.mark_delete
    answer.consumer_mark_delete_position.CopyFrom(
        pb.MessageIdData(ledgerId=place.ledger & (1 << 64) - 1, entryId=place.entry & (1 << 64) - 1)
    )
    connection.write(encode.simple(30, answer))


async def _last_in_log(topic: TopicContext) -> tuple[Position, int]:
    last = await last_message(topic.log)
    if not topic.log.holds(last):
        return last, -1
    header = unpack(await topic.log.read_one(last))
    return last, header.messages - 1 if header.flags & BATCH else -1


def consumer_stats(connection: Connection, command: Any) -> None:
    """CONSUMER_STATS."""
    asked: pb.CommandConsumerStats = command.message
    answer = pb.CommandConsumerStatsResponse(request_id=asked.request_id)
    consumer = _consumer(connection, asked.consumer_id)
    if consumer is None:
        answer.error_code = ServerError.CONSUMER_NOT_FOUND
        answer.error_message = "this connection has no such consumer"
    else:
        answer.availablePermits = max(consumer.permits, 0)
        answer.unackedMessages = consumer.unacked_messages
        answer.blockedConsumerOnUnackedMsgs = consumer.blocked
        answer.consumerName = consumer.name
        peer = None if connection.transport is None else connection.transport.get_extra_info("peername")
        if peer:
            answer.address = f"/{peer[0]}:{peer[1]}"
        since = datetime.fromtimestamp(consumer.connected_since_ms / 1000, UTC)
        answer.connectedSince = since.isoformat(timespec="milliseconds")
        answer.type = consumer.subscription.type_name
        answer.msgBacklog = consumer.subscription.backlog()
    connection.write(encode.simple(26, answer))
