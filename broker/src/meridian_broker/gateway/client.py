# SPDX-License-Identifier: Apache-2.0
"""One outgoing connection that speaks the client's side of the Pulsar protocol.

Replicators and peer links use it to reach another region, ``meridian produce`` and ``consume`` to reach their own. It
pairs requests with answers and passes everything else that arrives to its receiver: a producer, a consumer, or
``on_command``. A waiting caller owns its wait. Callbacks run on the loop and must not block; one that raises ends the
connection. ``client_wire`` handles the bytes and the connection's lifetime, ``client_errors`` defines the errors.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from meridian_broker.gateway.client_errors import (
    ClientError,
    ConnectFailed,
    ConnectionLost,
    RequestRefused,
    RequestTimedOut,
    code_name,
)
from meridian_broker.gateway.client_options import ClientOptions, split_url
from meridian_broker.gateway.client_wire import ClientWire
from meridian_broker.ledgers.notifying import notify_all
from meridian_broker.wire.proto import peer_pb2
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from meridian_broker.wire.pulsar.frames import MESSAGE, Message

if TYPE_CHECKING:
    from google.protobuf.message import Message as ProtoMessage

MAX_REDIRECTS: Final = 20
"""As Pulsar's own clients."""

_T = pb.BaseCommand
_NO_REQUEST: Final = (1 << 64) - 1
_ANSWERS: Final = frozenset(
    {
        _T.SUCCESS,
        _T.PRODUCER_SUCCESS,
        _T.PARTITIONED_METADATA_RESPONSE,
        _T.LOOKUP_RESPONSE,
        _T.CONSUMER_STATS_RESPONSE,
        _T.GET_LAST_MESSAGE_ID_RESPONSE,
        _T.GET_TOPICS_OF_NAMESPACE_RESPONSE,
        _T.GET_SCHEMA_RESPONSE,
        _T.ACK_RESPONSE,
        _T.GET_OR_CREATE_SCHEMA_RESPONSE,
        _T.WATCH_TOPIC_LIST_SUCCESS,
        _T.ENTRIES_FOUND,
    }
)


class ProducerEvents(Protocol):
    """Callbacks of a producer."""

    def receipt(self, receipt: pb.CommandSendReceipt) -> None: ...

    def send_error(self, error: pb.CommandSendError) -> None: ...

    def producer_closed(self, reason: str) -> None:
        """The broker or the end of the connection closed it. The last call this producer gets."""
        ...


class ConsumerEvents(Protocol):
    """Callbacks of a consumer."""

    def message(self, message: Message) -> None: ...

    def consumer_closed(self, reason: str) -> None: ...


class LookupAnswer(NamedTuple):
    """Where a topic is served."""

    url: str
    redirect: bool
    """Ask again there, with ``authoritative``."""
    authoritative: bool
    through_proxy: bool


class OpenedProducer(NamedTuple):
    """A producer the broker accepted."""

    producer_id: int
    name: str
    last_sequence_id: int
    schema_version: bytes
    replication: peer_pb2.ReplicationState | None


class PulsarClientConnection(ClientWire):
    """A connection to one broker. Make it with ``connect``; end it with ``close``."""

    def __init__(
        self,
        url: str,
        options: ClientOptions,
        on_command: Callable[[int, Any], None] | None = None,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(url, options)
        self._on_command = on_command
        self._on_lost = on_lost
        self._slots = asyncio.Semaphore(options.max_pending_requests)
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._producers: dict[int, ProducerEvents] = {}
        self._consumers: dict[int, ConsumerEvents] = {}
        self._last_id = 0

    # -- opening ----------------------------------------------------------------------------------------------------

    @classmethod
    async def connect(
        cls,
        url: str,
        options: ClientOptions | None = None,
        *,
        on_command: Callable[[int, Any], None] | None = None,
        on_lost: Callable[[str], None] | None = None,
    ) -> PulsarClientConnection:
        """Connect and shake hands. If ``url`` has several addresses, the first one that answers is used.

        :param on_command: gets (type, message) of every command that is neither an answer nor meant for a producer or
            consumer, including the peer protocol's.
        :param on_lost: called once with the reason when the connection ends, also after ``close``.
        :raises ConnectFailed: no address answered, or the broker refused the connection.
        """
        options = options or ClientOptions()
        if options.peer is not None and not options.peer.secrets():
            raise ConnectFailed(
                "this region has no peer secret: set peerTokenFile, with the same secret in all regions"
            )
        problems = []
        for host, port, tls in split_url(url):
            connection = cls(url, options, on_command, on_lost)
            context = (options.tls or ssl.create_default_context)() if tls else None
            try:
                async with asyncio.timeout(options.connect_timeout):
                    await connection._loop.create_connection(lambda c=connection: c, host, port, ssl=context)
                    await connection._connected
            except TimeoutError:
                connection._give_up(ConnectFailed(f"{host}:{port} did not answer in {options.connect_timeout:g} s"))
            except (OSError, ssl.SSLError) as error:
                connection._give_up(ConnectFailed(f"cannot connect to {host}:{port}: {error}"))
            except ClientError as error:
                connection._give_up(ConnectFailed(f"{host}:{port} did not accept the connection: {error}"))
            except BaseException:
                connection._give_up(ConnectFailed("connecting was cancelled"))
                raise
            else:
                return connection
            problems.append(str(connection.failure))
        raise ConnectFailed("; ".join(problems))

    def _give_up(self, error: ClientError) -> None:
        self._on_lost = None
        super()._give_up(error)

    # -- requests ---------------------------------------------------------------------------------------------------

    def next_id(self) -> int:
        """A number not yet used on this connection, for requests, producers and consumers alike."""
        self._last_id += 1
        return self._last_id

    async def request(self, kind: int, message: ProtoMessage, timeout: float | None = None) -> Any:
        """Send a command that has a ``request_id`` and wait for its answer.

        :raises RequestRefused: the broker's answer is an ERROR.
        :raises RequestTimedOut: there was none within ``timeout`` (default: ``request_timeout``) seconds.
        :raises ConnectionLost: there will be none.
        """
        patience = timeout or self.options.request_timeout
        request_id = self.next_id()
        cast("Any", message).request_id = request_id
        try:
            async with asyncio.timeout(patience), self._slots:
                if self.failure is not None:
                    raise self._lost()
                answer = self._requests[request_id] = self._loop.create_future()
                self.write([encode.simple(kind, message)])
                return await answer
        except TimeoutError:
            name = _T.Type.Name(cast("Any", kind))
            raise RequestTimedOut(f"{self.url} did not answer {name} within {patience:g} s") from None
        finally:
            self._requests.pop(request_id, None)

    async def partitions(self, topic: str, *, create: bool = False) -> int:
        """Number of partitions of a topic; 0: it has none, or (without ``create``) the topic may not exist.

        :raises RequestRefused: also when the topic does not exist, with brokers that report it.
        """
        answer: pb.CommandPartitionedTopicMetadataResponse = await self.request(
            _T.PARTITIONED_METADATA,
            pb.CommandPartitionedTopicMetadata(topic=topic, metadata_auto_creation_enabled=create, request_id=0),
        )
        if answer.response == pb.CommandPartitionedTopicMetadataResponse.Failed:
            raise RequestRefused(answer.error, f"{topic}: {answer.message}")
        return answer.partitions

    async def lookup(self, topic: str, *, authoritative: bool = False, listener: str | None = None) -> LookupAnswer:
        """Ask which broker serves a topic. One step: following redirects needs other connections.

        :param listener: which of its advertised addresses it should answer with; None: the default one.
        """
        answer: pb.CommandLookupTopicResponse = await self.request(
            _T.LOOKUP,
            pb.CommandLookupTopic(
                topic=topic, authoritative=authoritative, advertised_listener_name=listener, request_id=0
            ),
        )
        if answer.response == pb.CommandLookupTopicResponse.Failed:
            raise RequestRefused(answer.error, f"{topic}: {answer.message}")
        tls = self.url.startswith("pulsar+ssl://")
        url = (answer.brokerServiceUrlTls if tls else answer.brokerServiceUrl) or self.url  # never back to plain text
        redirect = answer.response == pb.CommandLookupTopicResponse.Redirect
        return LookupAnswer(url, redirect, answer.authoritative, answer.proxy_through_service_url)

    async def get_or_create_schema(self, topic: str, schema: pb.Schema) -> bytes:
        """Register a schema and return the version by which the broker knows it."""
        answer: pb.CommandGetOrCreateSchemaResponse = await self.request(
            _T.GET_OR_CREATE_SCHEMA, pb.CommandGetOrCreateSchema(topic=topic, schema=schema, request_id=0)
        )
        if answer.HasField("error_code"):
            raise RequestRefused(answer.error_code, f"{topic}: {answer.error_message}")
        return answer.schema_version

    async def get_schema(self, topic: str, version: bytes) -> pb.Schema | None:
        """The schema that the broker has under this version; None: it has none."""
        answer: pb.CommandGetSchemaResponse = await self.request(
            _T.GET_SCHEMA, pb.CommandGetSchema(topic=topic, schema_version=version, request_id=0)
        )
        if not answer.HasField("error_code"):
            return answer.schema
        if answer.error_code == pb.TopicNotFound:
            return None
        raise RequestRefused(answer.error_code, f"{topic}: {answer.error_message}")

    async def open_producer(self, command: pb.CommandProducer, events: ProducerEvents) -> OpenedProducer:
        """Open a producer; ids are filled in here. ``events`` gets no calls if this raises."""
        command.producer_id = producer_id = self.next_id()
        self._producers[producer_id] = events
        try:
            answer: pb.CommandProducerSuccess = await self.request(_T.PRODUCER, command)
        except BaseException as error:
            self._producers.pop(producer_id, None)
            if not isinstance(error, RequestRefused) and self.failure is None:  # the broker may still open it
                close = pb.CommandCloseProducer(producer_id=producer_id, request_id=self.next_id())
                self.write([encode.simple(_T.CLOSE_PRODUCER, close)])
            raise
        replication = answer.replication if answer.HasField("replication") else None
        return OpenedProducer(
            producer_id, answer.producer_name, answer.last_sequence_id, answer.schema_version, replication
        )

    async def close_producer(self, producer_id: int) -> None:
        """The producer gets no more events, from this call on."""
        if self._producers.pop(producer_id, None) is not None:
            await self.request(_T.CLOSE_PRODUCER, pb.CommandCloseProducer(producer_id=producer_id, request_id=0))

    async def subscribe(self, command: pb.CommandSubscribe, events: ConsumerEvents) -> int:
        """Open a consumer and return its id. No messages arrive before ``flow``."""
        command.consumer_id = consumer_id = self.next_id()
        self._consumers[consumer_id] = events
        try:
            await self.request(_T.SUBSCRIBE, command)
        except BaseException as error:
            self._consumers.pop(consumer_id, None)
            if not isinstance(error, RequestRefused) and self.failure is None:
                close = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=self.next_id())
                self.write([encode.simple(_T.CLOSE_CONSUMER, close)])
            raise
        return consumer_id

    async def close_consumer(self, consumer_id: int) -> None:
        """The consumer gets no more events, from this call on."""
        if self._consumers.pop(consumer_id, None) is not None:
            await self.request(_T.CLOSE_CONSUMER, pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=0))

    # -- commands ---------------------------------------------------------------------------------------------------

    def _dispatch(self, command: Any) -> None:
        kind = command[0]
        if kind == MESSAGE:
            consumer = self._consumers.get(command.command.consumer_id)
            if consumer is not None:
                consumer.message(command)
        elif kind == _T.SEND_RECEIPT:
            producer = self._producers.get(command.message.producer_id)
            if producer is not None:
                producer.receipt(command.message)
        elif kind == _T.SEND_ERROR:
            producer = self._producers.get(command.message.producer_id)
            if producer is not None:
                producer.send_error(command.message)
        elif kind in _ANSWERS:
            answer = self._requests.get(command.message.request_id)
            if answer is not None and not answer.done():
                answer.set_result(command.message)
        else:
            self._dispatch_rare(kind, command.message)

    def _dispatch_rare(self, kind: int, message: Any) -> None:
        if kind == _T.PING:
            self.write([encode.PONG])
        elif kind == _T.PONG:
            pass
        elif kind == _T.ERROR:
            self._refused(message)
        elif kind == _T.CONNECTED:
            self._shake(message)
        elif kind == _T.AUTH_CHALLENGE and self.options.peer is None:
            try:
                answer = self._credentials()
            except OSError as error:
                self.fail(ConnectionLost(f"the token for {self.url} cannot be read: {error.strerror}"))
                return
            response = pb.CommandAuthResponse(client_version=self.options.client_version, response=answer)
            self.write([encode.simple(_T.AUTH_RESPONSE, response)])
        elif kind == _T.CLOSE_PRODUCER:
            producer = self._producers.pop(message.producer_id, None)
            if producer is not None:
                producer.producer_closed(f"{self.url} closed the producer: its topic is moving or closing")
        elif kind == _T.CLOSE_CONSUMER:
            consumer = self._consumers.pop(message.consumer_id, None)
            if consumer is not None:
                consumer.consumer_closed(f"{self.url} closed the consumer: its topic is moving or closing")
        elif self._on_command is not None:
            self._on_command(kind, message)

    def _credentials(self) -> pb.AuthData:
        if self.options.token is not None:
            return pb.AuthData(auth_method_name="token", auth_data=self.options.token())
        return pb.AuthData(auth_method_name=self.options.auth_method, auth_data=self.options.auth_data)

    def _refused(self, error: pb.CommandError) -> None:
        refused = RequestRefused(error.error, error.message)
        answer = self._requests.get(error.request_id)
        if answer is not None:
            if not answer.done():
                answer.set_exception(refused)
        elif error.request_id == _NO_REQUEST or not self._connected.done():
            self.fail(ConnectionLost(f"{self.url} ended the connection: {error.message} ({code_name(error.error)})"))

    def _ended(self, reason: str) -> None:
        for answer in self._requests.values():
            if not answer.done():
                answer.set_exception(self._lost())
        producers, self._producers = self._producers, {}
        consumers, self._consumers = self._consumers, {}
        told = [producer.producer_closed for producer in producers.values()]
        told += [consumer.consumer_closed for consumer in consumers.values()]
        notify_all([*told, *([] if self._on_lost is None else [self._on_lost])], reason)
