# SPDX-License-Identifier: Apache-2.0
"""Where topics are, how many partitions they have, which exist, and their schemas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from meridian_broker.gateway.pulsar import permitted
from meridian_broker.gateway.pulsar.patience import patiently
from meridian_broker.gateway.pulsar.refusals import REFUSALS, code_of
from meridian_broker.metadata.authorizing import Wish
from meridian_broker.topics.errors import NO_TRANSACTIONS, IncompatibleSchema, NotAllowed
from meridian_broker.topics.service import creation
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode, topic_name
from meridian_broker.wire.pulsar.errors import ServerError, ServiceNotReadyError, TooManyRequestsError

if TYPE_CHECKING:
    from meridian_broker.gateway.pulsar.broker import Broker
    from meridian_broker.gateway.pulsar.connection import Connection
    from meridian_broker.wire.pulsar.topic_name import TopicName

T = TypeVar("T")


def lookup(connection: Connection, command: Any) -> None:
    """LOOKUP: the broker that serves a topic, or the one that should and is to be asked again."""
    connection.run(_lookup(connection, command.message))


@contextmanager
def _counted(broker: Broker) -> Iterator[None]:
    """:raises TooManyRequestsError: the broker has reached its limit of concurrent lookups."""
    if broker.lookups >= broker.concurrent_lookups:
        raise TooManyRequestsError(
            f"{broker.lookups} lookups are in progress, which is the limit: try again in a moment"
        )
    broker.lookups += 1
    try:
        yield
    finally:
        broker.lookups -= 1


async def _lookup(connection: Connection, asked: pb.CommandLookupTopic) -> None:
    answer = pb.CommandLookupTopicResponse(request_id=asked.request_id)
    try:
        with _counted(connection.broker):
            name, service = topic_name.parse(asked.topic), connection.broker.service
            permitted.check(connection, Wish.FIND, name)
            (service.registry.check_exists if connection.is_peer else service.registry.check_lives_here)(name)
            listener = asked.advertised_listener_name or connection.listener
            locate, place = connection.broker.locate, None
            if locate is not None:
                place = await _patiently(connection, partial(locate, name, listener, asked.authoritative))
            if place is not None and place.owns and await _waits(connection, name, asked):
                return
        addresses = connection.broker.addresses(listener) if place is None else place.addresses
        if addresses is None:
            raise ServiceNotReadyError(f"the broker advertises no listener {listener!r}: see advertisedListeners")
        is_there = place is None or place.owns
        answer.response = pb.CommandLookupTopicResponse.Connect if is_there else pb.CommandLookupTopicResponse.Redirect
        if addresses.service_url is not None:
            answer.brokerServiceUrl = addresses.service_url
        if addresses.service_url_tls is not None:
            answer.brokerServiceUrlTls = addresses.service_url_tls
        answer.authoritative = True
        answer.proxy_through_service_url = False
    except REFUSALS as error:
        answer.response = pb.CommandLookupTopicResponse.Failed
        answer.error, answer.message = code_of(error), str(error)
    connection.write(encode.simple(24, answer))


async def _patiently(connection: Connection, attempt: Callable[[], Awaitable[T]]) -> T:
    """The result of an attempt, repeated for a while if a failure may pass, unless another region asks. Once the client
    waits for very many answers it gets errors at once, because beyond a limit nothing of what it sends is read.

    :raises ServiceNotReadyError: the attempt took too long, and was given up.
    """
    if connection.is_peer:
        return await attempt()
    reason: Exception | None = None

    def late(last: Exception) -> bool:
        nonlocal reason
        reason = last
        return False

    try:
        return await patiently(attempt, connection.may_wait, late)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if reason is None or (task is not None and task.uncancel()):  # the connection ended, too
            raise
        raise ServiceNotReadyError(str(reason)) from None


async def _waits(connection: Connection, name: TopicName, asked: pb.CommandLookupTopic) -> bool:
    """Whether the answer waits for a new owner of the topic, because the present one died: until then, looking it up
    again is useless, and each attempt lengthens the client's next pause.

    A waiting answer counts as a lookup, but does not stop reading from the connection."""
    broker = connection.broker

    def again() -> None:
        broker.lookups -= 1
        if connection.transport is not None:
            connection.run(_lookup(connection, asked))

    if broker.when_moved is None or not await broker.when_moved(name, again):
        return False
    broker.lookups += 1
    return True


def partitions(connection: Connection, command: Any) -> None:
    """PARTITIONED_METADATA."""
    connection.run(_partitions(connection, command.message))


async def _partitions(connection: Connection, asked: pb.CommandPartitionedTopicMetadata) -> None:
    answer = pb.CommandPartitionedTopicMetadataResponse(request_id=asked.request_id)
    try:
        name = topic_name.parse(asked.topic)
        permitted.check(connection, Wish.FIND, name)
        with _counted(connection.broker):
            service, create = connection.broker.service, asked.metadata_auto_creation_enabled
            service.registry.check_lives_here(name)
            count = await _patiently(connection, partial(creation.partitions, service.opener, name, create=create))
        answer.response = pb.CommandPartitionedTopicMetadataResponse.Success
        answer.partitions = count
    except REFUSALS as error:
        answer.response = pb.CommandPartitionedTopicMetadataResponse.Failed
        answer.error, answer.message = code_of(error), str(error)
    connection.write(encode.simple(22, answer))


@asynccontextmanager
async def long_answer(connection: Connection) -> AsyncIterator[None]:
    """Wait to build a long answer until the client has read earlier ones and few others are being built."""
    while True:
        await connection.room()
        async with connection.broker.long_answers:
            if connection.transport is None or connection.writable():
                yield
                return


def get_schema(connection: Connection, command: Any) -> None:
    """GET_SCHEMA."""
    connection.run(_get_schema(connection, command.message))


async def _get_schema(connection: Connection, asked: pb.CommandGetSchema) -> None:
    answer = pb.CommandGetSchemaResponse(request_id=asked.request_id)
    async with long_answer(connection):
        try:
            name = topic_name.parse(asked.topic)
            permitted.check(connection, Wish.FIND, name)
            version = asked.schema_version if asked.HasField("schema_version") else None
            if version == b"":
                raise IncompatibleSchema("a schema version cannot be empty: leave it out to get the newest schema")
            found = await connection.broker.service.parts.schemas.get(name, version)
            if found is None:
                answer.error_code = ServerError.TOPIC_NOT_FOUND
                answer.error_message = f"{asked.topic} has no such schema"
            else:
                answer.schema.CopyFrom(found[0])
                answer.schema_version = found[1]
        except REFUSALS as error:
            answer.error_code, answer.error_message = code_of(error), str(error)
        connection.write(encode.simple(35, answer))


def get_or_create_schema(connection: Connection, command: Any) -> None:
    """GET_OR_CREATE_SCHEMA."""
    connection.run(_get_or_create_schema(connection, command.message))


async def _get_or_create_schema(connection: Connection, asked: pb.CommandGetOrCreateSchema) -> None:
    answer = pb.CommandGetOrCreateSchemaResponse(request_id=asked.request_id)
    try:
        name = topic_name.parse(asked.topic)
        permitted.check(connection, Wish.REGISTER, name)
        if not connection.is_peer:  # a replicator's topic exists, if only as a partition
            connection.broker.check_for_clients(str(name))
            await creation.partitions(connection.broker.service.opener, name, create=False)
        schemas = connection.broker.service.parts.schemas
        answer.schema_version = await schemas.add(name, asked.schema, author=connection.author)
    except REFUSALS as error:
        answer.error_code, answer.error_message = code_of(error), str(error)
    connection.write(encode.simple(40, answer))


def no_transactions(connection: Connection, command: Any) -> None:
    """Refuse a transaction clearly: none are ever served."""
    connection.fail(command.message.request_id, NotAllowed(NO_TRANSACTIONS))
