# SPDX-License-Identifier: Apache-2.0
"""What a connection sends: messages, answers and notifications, written once per turn of the loop."""

from __future__ import annotations

import asyncio
from typing import Final

from meridian_broker.gateway.addresses import Addresses
from meridian_broker.gateway.pulsar import next_owner
from meridian_broker.gateway.pulsar.broker import Broker
from meridian_broker.gateway.pulsar.flow import EARLY_BYTES, WRITE_BYTES, FlowControl
from meridian_broker.gateway.pulsar.refusals import code_of
from meridian_broker.gateway.pulsar.sent_away import SentAway
from meridian_broker.positions.position import Position
from meridian_broker.topics.directory.watching import Watcher
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from meridian_broker.wire.pulsar.encode import BroadcastMessage

CLOSE_AT_REACHED_END: Final = ("Pulsar-CPP", "Pulsar Go")
"""Clients that do not know REACHED_END_OF_TOPIC: they close the connection, and with it everything else on it. The
clients for Python and Node.js are built on the C++ client and report its name."""


class Outgoing(FlowControl):
    """The part of a connection that writes."""

    __slots__ = (
        "_flushing",
        "_handed_on",
        "_out",
        "_written",
        "broker",
        "client_version",
        "consumers",
        "listener",
        "sent_away",
        "watchers",
    )

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop, listener: str) -> None:
        super().__init__(loop)
        self.broker = broker
        self.listener = listener
        """The listener whose addresses lookups return when the client names none."""
        self._out: list[bytes | memoryview] = []
        self._flushing = False
        self._handed_on = 0
        """Bytes of this turn already handed to the transport."""
        self._written = 0
        """Total bytes handed to the transport."""
        self.consumers: dict[int, Consumer] | None = None
        self.sent_away = SentAway()
        self.watchers: dict[int, Watcher] | None = None
        """Watchers of topic lists."""
        self.client_version = ""

    def end(self, reason: str) -> None:
        """Close after the written data is sent, and log the reason."""
        raise NotImplementedError

    def resume_writing(self) -> None:
        super().resume_writing()
        for consumer in (self.consumers or {}).values():
            consumer.resume()
        for watcher in (self.watchers or {}).values():
            self.broker.service.watchers.resume(watcher)

    def write(self, data: bytes | memoryview) -> None:
        """Queue bytes; everything from one turn of the loop is written together, or in a few large pieces."""
        self._out.append(data)
        self._out_bytes += len(data)
        if not self._flushing:
            self._flush_soon()

    def _flush_soon(self) -> None:
        self._flushing = True
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        was_full = self._out_bytes >= self._turn_bytes
        self._hand_on()
        self._out_bytes = self._handed_on = 0
        self._turn_bytes = self.broker.turn_bytes
        if was_full and self._writable and self.transport is not None:
            self.resume_writing()

    def _hand_on(self) -> None:
        """Let the transport send what is queued."""
        out, self._out = self._out, []
        size, self._handed_on = self._out_bytes - self._handed_on, self._out_bytes
        self._written += size
        if self.transport is not None and out:
            if size >= WRITE_BYTES:
                self.transport.writelines(out)
            else:  # joining small buffers costs less than writing each of them
                self.transport.write(b"".join(out))

    # -- answers -------------------------------------------------------------------------------------------------

    def fail(self, request_id: int, error: Exception) -> None:
        """ERROR to one request."""
        self.write(encode.error(request_id, code_of(error), str(error)))

    def succeed(self, request_id: int) -> None:
        self.write(encode.success(request_id))

    def _next_owner(self, topic: str) -> Addresses | None:
        return None if self.broker.next_owner is None else self.broker.next_owner(topic, self.listener)

    # -- delivery (ConsumerPort) ---------------------------------------------------------------------------------

    def deliver(
        self, consumer: Consumer, position: Position, entry: bytes, redeliveries: int, remaining: int | None
    ) -> None:
        broadcast: BroadcastMessage | None = None
        if remaining is None and not redeliveries and not consumer.consumer_epoch:
            delivered = self.broker.delivered
            broadcast = delivered.last
            if broadcast.entry is not entry or broadcast.position != position:
                partition = consumer.subscription.topic.partition
                broadcast = delivered.of(entry, position, partition, entry[2] << 8 | entry[3])
        body: memoryview | None
        if broadcast is not None:
            header, body = broadcast.header(consumer.consumer_id), broadcast.body
        else:
            words: list[int] = []
            while remaining:
                words.append(remaining & 0xFFFFFFFFFFFFFFFF)
                remaining >>= 64
            body = memoryview(entry)[entry[2] << 8 | entry[3] :]
            header = encode.message_header(
                consumer.consumer_id,
                encode.message_id(position[0], position[1], consumer.subscription.topic.partition),
                len(body),
                redeliveries,
                words,
                consumer.consumer_epoch or None,
            )
        self._out.append(header)  # not by ``write``, to save calls for each message
        queued = self._out_bytes + len(header)
        if body is not None:
            self._out.append(body)
            queued += len(body)
        self._out_bytes = queued
        if not self._flushing:
            self._flush_soon()
        if queued - self._handed_on >= EARLY_BYTES and len(self.consumers or ()) > 1:
            self._hand_on()

    def disconnect_consumer(self, consumer: Consumer) -> None:
        if self.consumers is not None and self.consumers.get(consumer.consumer_id) is consumer:
            del self.consumers[consumer.consumer_id]
            self.sent_away.add(consumer)
            to = self._next_owner(consumer.subscription.topic.name)
            self.write(encode.simple(16, next_owner.close_consumer(consumer.consumer_id, to)))

    def active_consumer_changed(self, consumer: Consumer, active: bool) -> None:
        message = pb.CommandActiveConsumerChange(consumer_id=consumer.consumer_id, is_active=active)
        self.write(encode.simple(31, message))

    def reached_end(self, consumer: Consumer) -> None:
        if self.client_version.startswith(CLOSE_AT_REACHED_END):
            return
        self.write(encode.simple(27, pb.CommandReachedEndOfTopic(consumer_id=consumer.consumer_id)))

    # -- topic lists (WatcherPort) -------------------------------------------------------------------------------

    def topics_changed(self, watcher: Watcher, new: list[str], deleted: list[str], digest: str) -> None:
        message = pb.CommandWatchTopicUpdate(
            watcher_id=watcher.watcher_id, new_topics=new, deleted_topics=deleted, topics_hash=digest
        )
        self.write(encode.simple(66, message))

    def lost_watcher(self, watcher: Watcher) -> None:
        del watcher
        self.end("it does not read its topic notifications, and too many are waiting")
