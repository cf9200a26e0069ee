# SPDX-License-Identifier: Apache-2.0
"""One outgoing connection that speaks the client's side of the Pulsar protocol.

Replicators and peer links use it to reach another region, ``meridian produce`` and ``consume`` to reach their own. It
pairs requests with answers, keeps the connection alive, and hands everything else that arrives to whoever it concerns:
a producer, a consumer, or ``on_command``. It starts no task: bytes are handled in ``data_received``, time in loop
timers, and a waiting caller owns its wait. Callbacks run on the loop and must not block; one that raises ends the
connection. The errors are in ``client_errors``.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from meridian_broker.gateway.client_errors import (
    ClientError,
    ConnectFailed,
    ConnectionLost,
    MisbehavedPeer,
    RequestRefused,
    RequestTimedOut,
    code_name,
)
from meridian_broker.gateway.client_options import ClientOptions, split_url
from meridian_broker.wire.proto import peer_pb2
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from meridian_broker.wire.pulsar.frames import MESSAGE, FrameDecoder, FrameError, Message
from meridian_broker.wire.pulsar.limits import FRAME_PADDING_BYTES, PEER_PROTOCOL_VERSION, PROTOCOL_VERSION

if TYPE_CHECKING:
    from google.protobuf.message import Message as ProtoMessage

logger = logging.getLogger(__name__)

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
    """What a producer hears."""

    def receipt(self, receipt: pb.CommandSendReceipt) -> None: ...

    def send_error(self, error: pb.CommandSendError) -> None: ...

    def producer_closed(self, reason: str) -> None:
        """By the broker, or with the connection. The last thing this producer hears."""
        ...


class ConsumerEvents(Protocol):
    """What a consumer hears."""

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


class PulsarClientConnection(asyncio.Protocol):
    """A connection to one broker. Make it with ``connect``; end it with ``close``."""

    def __init__(
        self,
        url: str,
        options: ClientOptions,
        on_command: Callable[[int, Any], None] | None = None,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        self.url = url
        self.options = options
        self.server_version = ""
        self.protocol_version = 0
        self.max_message_size = 0
        self.peer_version = 0
        """Version of the peer protocol the other side announced; 0: it is no Meridian broker."""
        self.failure: ClientError | None = None
        """Why the connection is over; None while it is not."""
        self._on_command = on_command
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder()
        self._outbox: list[bytes] = []
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._over = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._slots = asyncio.Semaphore(options.max_pending_requests)
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._producers: dict[int, ProducerEvents] = {}
        self._consumers: dict[int, ConsumerEvents] = {}
        self._last_id = 0
        self._heard = True
        self._pinged = False
        self._timer: asyncio.TimerHandle | None = None

    # -- opening and closing ----------------------------------------------------------------------------------------

    @classmethod
    async def connect(
        cls,
        url: str,
        options: ClientOptions | None = None,
        *,
        on_command: Callable[[int, Any], None] | None = None,
        on_lost: Callable[[str], None] | None = None,
    ) -> PulsarClientConnection:
        """Connect and shake hands. Of several addresses in ``url`` the first that answers counts.

        :param on_command: gets (type, message) of every command that is neither an answer nor a producer's or a
            consumer's, the peer protocol's among them.
        :param on_lost: called once with the reason when the connection ends, also after ``close``.
        :raises ConnectFailed: no address answered, or the broker turned us away.
        """
        options = options or ClientOptions()
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

    async def close(self) -> None:
        """End the connection and wait until it is gone. What was written before is still sent, for a second at most."""
        if self._transport is None:
            return
        if self.failure is None:
            self.failure = ConnectionLost(f"the connection to {self.url} was closed on this side")
        self._flush()
        self._transport.close()
        try:
            async with asyncio.timeout(1.0):
                await self._over.wait()
        except TimeoutError:
            self._transport.abort()
            await self._over.wait()

    async def wait_lost(self) -> str:
        """Wait for the end of the connection and say why."""
        await self._over.wait()
        return str(self.failure)

    @property
    def is_open(self) -> bool:
        return self.failure is None and self._connected.done()

    def fail(self, error: ClientError) -> None:
        """End the connection at once, for a reason."""
        if self.failure is None:
            self.failure = error
        if self._transport is not None:
            self._transport.abort()

    def _give_up(self, error: ClientError) -> None:
        """Of a connection nobody ever got."""
        self._on_lost = None
        self.failure = error
        if self._connected.done() and not self._connected.cancelled():
            self._connected.exception()
        if self._transport is not None:
            self._transport.abort()

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
        """Number of partitions of a topic; 0: it has none, or (without ``create``) there may be no such topic.

        :raises RequestRefused: also when there is no such topic, from brokers that tell.
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

        :param listener: under which of its advertised addresses it shall name itself; None: its usual one.
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

    async def open_producer(self, command: pb.CommandProducer, events: ProducerEvents) -> OpenedProducer:
        """Open a producer; ids are filled in here. ``events`` hears nothing when this raises."""
        command.producer_id = producer_id = self.next_id()
        self._producers[producer_id] = events
        try:
            answer: pb.CommandProducerSuccess = await self.request(_T.PRODUCER, command)
        except BaseException as error:
            self._producers.pop(producer_id, None)
            if not isinstance(error, RequestRefused) and self.failure is None:  # it may come about all the same
                close = pb.CommandCloseProducer(producer_id=producer_id, request_id=self.next_id())
                self.write([encode.simple(_T.CLOSE_PRODUCER, close)])
            raise
        replication = answer.replication if answer.HasField("replication") else None
        return OpenedProducer(
            producer_id, answer.producer_name, answer.last_sequence_id, answer.schema_version, replication
        )

    async def close_producer(self, producer_id: int) -> None:
        """The producer hears nothing any more, from the call on."""
        if self._producers.pop(producer_id, None) is not None:
            await self.request(_T.CLOSE_PRODUCER, pb.CommandCloseProducer(producer_id=producer_id, request_id=0))

    async def subscribe(self, command: pb.CommandSubscribe, events: ConsumerEvents) -> int:
        """Open a consumer and return its id. Nothing comes before ``flow``."""
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
        """The consumer hears nothing any more, from the call on."""
        if self._consumers.pop(consumer_id, None) is not None:
            await self.request(_T.CLOSE_CONSUMER, pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=0))

    # -- writing ----------------------------------------------------------------------------------------------------

    def write(self, frames: Sequence[bytes]) -> None:
        """Write buffers that make up complete frames. All writes of one turn of the loop leave in one piece.

        Wait for ``drain`` before writing much.

        :raises ConnectionLost: there is no connection any more.
        """
        if self.failure is not None or self._transport is None:
            raise self._lost()
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox += frames

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        if outbox and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(outbox)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for the socket."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def writable(self) -> bool:
        """False while ``drain`` would wait."""
        return self._writable.is_set()

    async def drain(self) -> None:
        """Wait until the socket has room again.

        :raises ConnectionLost: there is no connection any more.
        """
        if not self._writable.is_set():
            await self._writable.wait()
        if self.failure is not None:
            raise self._lost()

    def _lost(self) -> ClientError:
        failure = self.failure or ConnectionLost(f"there is no connection to {self.url}")
        return type(failure)(str(failure)) if not isinstance(failure, RequestRefused) else ConnectionLost(str(failure))

    # -- what the loop calls ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self.options.write_buffer)
        connect = pb.CommandConnect(
            client_version=self.options.client_version,
            protocol_version=PROTOCOL_VERSION,
            feature_flags=pb.FeatureFlags(
                supports_get_partitioned_metadata_without_auto_creation=True,
                peer_protocol_version=PEER_PROTOCOL_VERSION if self.options.peer else None,
            ),
        )
        if self.options.auth_method is not None:
            connect.auth_method_name = self.options.auth_method
            connect.auth_data = self.options.auth_data or b""
        self._transport.write(encode.simple(_T.CONNECT, connect))
        self._timer = self._loop.call_later(self.options.keep_alive, self._tick)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        broken: FrameError | None = None
        try:
            commands = self._decoder.feed(data)
        except FrameError as error:
            commands, broken = error.before, error
        try:
            for command in commands:
                if self.failure is not None:
                    return
                self._dispatch(command)
        except Exception as error:
            logger.exception("%s: handling a command failed; the connection ends", self.url)
            self.fail(ConnectionLost(f"handling a command of {self.url} failed: {error!r}"))
        if broken is not None:
            self.fail(MisbehavedPeer(f"{self.url} sent what is no Pulsar frame: {broken}"))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self.failure is None:
            self.failure = ConnectionLost(f"{self.url} closed the connection{f': {exc}' if exc else ''}")
        reason = str(self.failure)
        if self._timer is not None:
            self._timer.cancel()
        self._over.set()
        self._writable.set()
        if not self._connected.done():
            self._connected.set_exception(self.failure)
        for answer in self._requests.values():
            if not answer.done():
                answer.set_exception(self._lost())
        producers, self._producers = self._producers, {}
        consumers, self._consumers = self._consumers, {}
        for producer in producers.values():
            producer.producer_closed(reason)
        for consumer in consumers.values():
            consumer.consumer_closed(reason)
        if self._on_lost is not None:
            self._on_lost(reason)

    def _tick(self) -> None:
        """Twice in a row nothing heard, the second time in spite of a PING: nobody is there."""
        if self._heard:
            self._heard = self._pinged = False
        elif self._pinged:
            self.fail(ConnectionLost(f"{self.url} has been silent for {2 * self.options.keep_alive:g} s"))
            return
        if not self._pinged and self.failure is None and self._transport is not None:
            self._pinged = True
            self._transport.write(encode.PING)
        self._timer = self._loop.call_later(self.options.keep_alive, self._tick)

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
        elif kind == _T.AUTH_CHALLENGE:
            answer = pb.AuthData(auth_method_name=self.options.auth_method, auth_data=self.options.auth_data)
            response = pb.CommandAuthResponse(client_version=self.options.client_version, response=answer)
            self.write([encode.simple(_T.AUTH_RESPONSE, response)])
        elif kind == _T.CLOSE_PRODUCER:
            producer = self._producers.pop(message.producer_id, None)
            if producer is not None:
                producer.producer_closed(f"{self.url} closed the producer: its topic moves or closes")
        elif kind == _T.CLOSE_CONSUMER:
            consumer = self._consumers.pop(message.consumer_id, None)
            if consumer is not None:
                consumer.consumer_closed(f"{self.url} closed the consumer: its topic moves or closes")
        elif self._on_command is not None:
            self._on_command(kind, message)

    def _refused(self, error: pb.CommandError) -> None:
        refused = RequestRefused(error.error, error.message)
        answer = self._requests.get(error.request_id)
        if answer is not None:
            if not answer.done():
                answer.set_exception(refused)
        elif error.request_id == _NO_REQUEST or not self._connected.done():
            self.fail(ConnectionLost(f"{self.url} ended the connection: {error.message} ({code_name(error.error)})"))

    def _shake(self, connected: pb.CommandConnected) -> None:
        self.server_version = connected.server_version
        self.protocol_version = connected.protocol_version
        if connected.max_message_size > 0:
            self.max_message_size = connected.max_message_size
            self._decoder.max_frame_bytes = connected.max_message_size + FRAME_PADDING_BYTES
        self.peer_version = min(connected.feature_flags.peer_protocol_version, PEER_PROTOCOL_VERSION)
        if not self._connected.done():
            self._connected.set_result(None)
