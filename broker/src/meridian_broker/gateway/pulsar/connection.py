# SPDX-License-Identifier: Apache-2.0
"""One client connection: bytes in, commands to their handlers. What goes out is in ``outgoing.py``.

The connection is the unit of failure. A bad frame, a handler that raises, a client that does not answer: each ends this
connection and nothing else. It is also the unit of flow control. Reading from a client pauses while

- the limit of its messages that are not durable yet is reached, or the limit in bytes for all clients,
- it published faster than a rate allows,
- the limit of its pending requests is reached,
- it does not read what was written to it (Pulsar's PIP-434); its consumers pause then, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, cast

from meridian_broker.bounds.clients import FIRST_FRAME_BYTES, FRAME_PADDING_BYTES, MESSAGE_BYTES
from meridian_broker.gateway.authentication import METHOD
from meridian_broker.gateway.pulsar import next_owner
from meridian_broker.gateway.pulsar.broker import Broker
from meridian_broker.gateway.pulsar.flow import (
    BYTES,
    PENDING,
    UNANSWERED,
    UNREAD,
    UNSENT_BYTES,
)
from meridian_broker.gateway.pulsar.outgoing import Outgoing
from meridian_broker.gateway.pulsar.refusals import code_of
from meridian_broker.positions.position import Position
from meridian_broker.topics.errors import TopicError
from meridian_broker.topics.publishing.producer import Producer, SourceNotices
from meridian_broker.wire.peer_proof import Answering
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from meridian_broker.wire.pulsar.errors import ChecksumError
from meridian_broker.wire.pulsar.frames import SEND, FrameDecoder, FrameError, Send
from meridian_broker.wire.pulsar.metadata import BodyError

REQUESTS: Final = 1000
"""Limit for requests under way; at the limit the connection is not read. Clients have far fewer under way."""
REFRESH: Final = b"PulsarAuthRefresh"
"""Data of the AUTH_CHALLENGE that asks for a new token, as in Pulsar."""
CLOSED_REMEMBERED: Final = 1000
"""Ids of closed producers and consumers whose late commands are ignored."""
_BEFORE_CONNECT: Final = (
    pb.BaseCommand.CONNECT,
    pb.BaseCommand.AUTH_RESPONSE,
    pb.BaseCommand.PING,
    pb.BaseCommand.PONG,
)
log = logging.getLogger(__name__)

Handler = Callable[["Connection", Any], None]
RunHandler = Callable[["Connection", Sequence[Any], int], int]
"""Handles a run of commands of its kinds from an index on; returns the index of the first other command."""


class Connection(Outgoing):
    """One accepted connection. Handlers are in the modules beside this one."""

    __slots__ = (
        "_closed_ids",
        "_decoder",
        "_handlers",
        "_heard",
        "_pending",
        "_pending_bytes",
        "_run_handlers",
        "_taken",
        "_tasks",
        "_unsent",
        "_was_new",
        "address",
        "can_refresh",
        "introducing",
        "is_own_broker",
        "is_peer",
        "names_sources",
        "peer_name",
        "peer_region",
        "peer_secret",
        "peer_version",
        "producers",
        "protocol_version",
        "proving",
        "role",
        "started",
        "subscribing",
        "waiting_producers",
    )

    def __init__(
        self,
        broker: Broker,
        handlers: Mapping[int, Handler],
        run_handlers: Mapping[int, RunHandler],
        loop: asyncio.AbstractEventLoop,
        listener: str = "",
    ) -> None:
        """:param handlers: the handler of each kind of command.
        :param run_handlers: handlers of kinds that come many in a row.
        """
        super().__init__(broker, loop, listener)
        self._handlers = handlers
        self._run_handlers = run_handlers
        self._decoder = FrameDecoder(FIRST_FRAME_BYTES, joins=True)
        self._pending = 0
        self._pending_bytes = 0
        self._heard = True
        self._was_new = False
        self._taken = self._unsent = 0
        """At the last check: bytes the client had taken, and bytes left to take."""
        self.address = ""
        """The client's address, without the port."""
        self._tasks: set[asyncio.Task[None]] | None = None
        self._closed_ids: dict[int, None] | None = None
        self.producers: dict[int, Producer] | None = None
        self.introducing: dict[int, pb.CommandProducer] = {}
        """Requests of producers being created, except those that the client closed meanwhile."""
        self.waiting_producers: dict[int, Producer] | None = None
        """Producers waiting for others to close."""
        self.subscribing: dict[int, pb.CommandSubscribe] = {}
        """The same for consumers."""
        self.started = False
        self.proving: tuple[Answering, pb.CommandConnect] | None = None
        """The handshake of a client that says it is a broker, and its CONNECT."""
        self.is_peer = False
        self.is_own_broker = False
        """It has proven to be a broker of this region."""
        self.peer_name = ""
        """The region that a peer has proven to be."""
        self.names_sources = False
        """It understands receipts that name a replicated entry by its source position."""
        self.peer_region = ""
        """The peer's name (``replication/progress/routes.py``), once it has sent HELLO."""
        self.peer_secret = b""
        """Id of the secret that a peer proved."""
        self.peer_version = 0
        self.protocol_version = 0
        self.role = ""
        """Role from the token; empty if no token is required."""
        self.can_refresh = False
        """The client answers AUTH_CHALLENGE with a new token."""

    # -- the transport -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's class is not asyncio's
        self.transport.set_write_buffer_limits(high=UNSENT_BYTES)
        self.address = str((transport.get_extra_info("peername") or ("",))[0])
        self.broker.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.broker.disconnected(self)
        self._ended = True
        self.transport = None
        self._wake_writers()
        for task in tuple(self._tasks or ()):
            task.cancel()
        for producer in (self.producers or {}).values():
            producer.topic.remove_producer(producer)
        for consumer in (self.consumers or {}).values():
            consumer.subscription.leave(consumer)
        for watcher in (self.watchers or {}).values():
            self.broker.service.watchers.remove(watcher)
        self.producers = self.consumers = self.watchers = None
        self._out.clear()
        self.broker.publish_bytes -= self._pending_bytes
        self._pending_bytes = 0
        self.broker.let_on()
        self.broker.expiries.forget(self)
        if self.peer_region:
            self.broker.peer_gone(self)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        try:
            commands = self._decoder.feed(data)
        except FrameError as error:
            self._handle(error.before)
            self.end(f"bad frame: {error}")
            return
        self._handle(commands)

    def _handle(self, commands: list[Any]) -> None:
        at, count, kind = 0, len(commands), -1
        try:
            while at < count and not self._ended:
                command = commands[at]
                at += 1
                kind = command[0]
                if kind == SEND:
                    sends, producer_id = [command], command.producer_id
                    while at < count and commands[at][0] == SEND and commands[at][1] == producer_id:
                        sends.append(commands[at])
                        at += 1
                    self._publish(sends)
                elif not self.started and kind not in _BEFORE_CONNECT:
                    self.end(f"command {kind} before CONNECT")
                elif (run := self._run_handlers.get(kind)) is not None:
                    at = run(self, commands, at - 1)
                elif (handler := self._handlers.get(kind)) is not None:
                    handler(self, command)
                else:
                    log.info("%s: ignoring unknown command %d", self, kind)
        except Exception:
            log.exception("%s: command %d failed unexpectedly, so the connection is closed", self, kind)
            self.end("internal error")

    def end(self, reason: str) -> None:
        """Close after the written data is sent, and log the reason. Further input of the client is ignored."""
        if self.transport is not None and not self._ended:
            log.info("%s: closing, %s", self, reason)
            self._ended = True
            self._flush()
            self.transport.close()

    def __str__(self) -> str:
        if self.transport is None:
            return "a closed connection"
        return f"connection of {self.transport.get_extra_info('peername')}"

    @property
    def author(self) -> str | None:
        """Who is charged for this connection's load: its role or its address; None: another region."""
        return None if self.is_peer else self.role or self.address

    def started_with(self, max_message_bytes: int) -> None:
        """CONNECT was received: from now on frames may be as large as messages. A peer's may always be as large as
        regions send them: they cannot be split, so refusing one would break the link."""
        self.started = True
        if self.is_peer:
            max_message_bytes = max(max_message_bytes, MESSAGE_BYTES)
        self._decoder.max_frame_bytes = max_message_bytes + FRAME_PADDING_BYTES

    @property
    def clients(self) -> int:
        """Producers and consumers, including those that are being created."""
        made = sum(len(there or ()) for there in (self.producers, self.consumers))
        return made + len(self.introducing) + len(self.subscribing)

    def may_wait(self) -> bool:
        """Whether a request may take long: the client is there, and so few of its requests are under way that they do
        not stop reading."""
        return self.transport is not None and len(self._tasks or ()) < REQUESTS // 2

    def ask_for_token(self) -> None:
        """The client's token has expired."""
        challenge = pb.AuthData(auth_method_name=METHOD, auth_data=REFRESH)
        asked = pb.CommandAuthChallenge(challenge=challenge, protocol_version=self.protocol_version)
        self.write(encode.simple(pb.BaseCommand.AUTH_CHALLENGE, asked))

    def keep_alive(self) -> None:
        """Called every keep-alive interval: ping the client; close the connection if the last ping was not answered.

        Bytes without a CONNECT are not a sign of life.
        """
        if self._ended:
            if self.transport is not None:
                self.transport.abort()  # it does not read the last data
        elif not self.started:
            if self._was_new:
                self.end("no CONNECT in time")
            self._was_new = True
        elif self._is_alive():
            self._heard = False
            self.write(encode.PING)
        else:
            self.end("no answer to a ping")

    def _is_alive(self) -> bool:
        """Whether the client has sent anything since the last check, or could not.

        While reading is paused, nothing can be received. And a client that is busy reading receives the ping only after
        everything written before it: as long as it reads some of that, it is alive.
        """
        unsent = self._not_taken()
        taken = self._written - unsent
        moved = self._unsent > 0 and taken > self._taken
        self._unsent, self._taken = unsent, taken
        return self._heard or moved or (self._paused > 0 and not self._paused & UNREAD)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a handler's slow part; it ends with the connection."""
        if self._tasks is None:
            self._tasks = set()
        task = self._loop.create_task(work)
        self._tasks.add(task)
        if len(self._tasks) >= REQUESTS:
            self.pause(UNANSWERED)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        if self._tasks is not None:
            self._tasks.discard(task)
            if len(self._tasks) <= REQUESTS // 2:
                self.read_on(UNANSWERED)
            if not self._tasks:
                self._tasks = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: a request failed unexpectedly, so the connection is closed", self, exc_info=error)
            self.end("internal error")

    # -- publishing (ProducerPort) -------------------------------------------------------------------------------

    def _publish(self, sends: list[Send]) -> None:
        """SENDs of one producer that arrived in one read."""
        producer_id = sends[0].producer_id
        producer = (self.producers or {}).get(producer_id)
        if producer is None:
            if producer_id not in (self._closed_ids or ()):
                self.end(f"SEND for producer {producer_id}, which this connection does not have")
            return
        if producer.from_source is not None:
            self._take_ids(producer, producer.from_source, sends)
            return
        self._pending += len(sends)
        sound = [send for send in sends if send.checksum_ok]
        if len(sound) < len(sends):
            error = ChecksumError("the checksum does not match: the message was damaged in transit")
            for send in sends:
                if not send.checksum_ok:
                    self.refused(producer, send, error)
        broker = self.broker
        size = 0
        if producer.remote_region is None:
            size = producer.topic.publish(producer, sound)
        else:
            for send in sound:
                try:
                    producer.topic.publish_foreign(producer, send)
                    size += len(send.body)
                except (TopicError, BodyError) as error:
                    self.refused(producer, send, error)
        if self._pending:
            self._pending_bytes += size
            broker.publish_bytes += size
        if self._pending >= broker.pending_publishes:
            self.pause(PENDING)
        if broker.publish_bytes >= broker.publish_bytes_max:
            self.pause(BYTES)
            broker.held_back.add(self)

    def _take_ids(self, producer: Producer, source: SourceNotices, sends: list[Send]) -> None:
        """What a shadow replicator sends. Nothing is stored, so nothing is held back."""
        for send in sends:
            try:
                source.take(producer, send)
            except TopicError as error:
                self.write(encode.send_error(producer.producer_id, send.sequence_id, code_of(error), str(error)))

    def has_read(self, producer: Producer, send: Send, position: Position) -> None:
        if self.transport is not None:
            self.write(encode.send_receipts(producer.producer_id, [send], position.ledger, position.entry))

    def dropped(self, sends: list[Send]) -> None:
        """These messages will get no receipt: their topic was fenced, and the client resends them."""
        self._answered(len(sends))

    def _answered(self, count: int) -> None:
        """Count messages that were stored, or failed. Their bytes are estimated as the average: exact sums would cost
        time on every message."""
        broker, pending = self.broker, self._pending
        released = self._pending_bytes * count // pending if count < pending else self._pending_bytes
        self._pending = pending - count
        self._pending_bytes -= released
        broker.publish_bytes -= released
        if broker.held_back:
            broker.let_on()
        if self._paused and self._pending <= broker.pending_publishes // 2:
            self.read_on(PENDING)

    def stored(self, producer: Producer, sends: list[Send], first: Position) -> None:
        self._answered(len(sends))
        if self.transport is not None:
            self.write(encode.send_receipts(producer.producer_id, sends, first.ledger, first.entry))

    def repeated(self, producer: Producer, send: Send) -> None:
        self._answered(1)
        if self.transport is not None:
            highest = send.highest_sequence_id
            self.write(encode.send_receipt(producer.producer_id, send.sequence_id, -1, -1, highest))

    def refused(self, producer: Producer, send: Send, error: Exception) -> None:
        self._answered(1)
        self.write(encode.send_error(producer.producer_id, send.sequence_id, code_of(error), str(error)))

    def disconnect_producer(self, producer: Producer) -> None:
        if self.producers is not None and self.producers.get(producer.producer_id) is producer:
            del self.producers[producer.producer_id]
            self._remember(producer.producer_id)
            to = self._next_owner(producer.topic.name)
            self.write(encode.simple(15, next_owner.close_producer(producer.producer_id, to)))

    def _remember(self, closed_id: int) -> None:
        if self._closed_ids is None:
            self._closed_ids = {}
        self._closed_ids[closed_id] = None
        while len(self._closed_ids) > CLOSED_REMEMBERED:
            del self._closed_ids[next(iter(self._closed_ids))]

    def forget_producer(self, producer_id: int) -> None:
        """The client closed it; SENDs for it that are still on their way are ignored."""
        self.introducing.pop(producer_id, None)
        if self.producers is not None:
            self.producers.pop(producer_id, None)
        self._remember(producer_id)
