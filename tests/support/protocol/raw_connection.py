# SPDX-License-Identifier: Apache-2.0
"""A raw connection to a broker, with nothing between test and wire: commands out, commands in, in order."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Sequence
from typing import Any, Self

from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from meridian_broker.wire.pulsar.frames import FrameDecoder
from meridian_broker.wire.pulsar.metadata import build_body

T = pb.BaseCommand


def batch_of(payload: bytes, count: int) -> bytes:
    """The payload of a batch of ``count`` equal messages."""
    single = pb.SingleMessageMetadata(payload_size=len(payload)).SerializeToString()
    return (len(single).to_bytes(4, "big") + single + payload) * count


class RawConnection:
    """Sends commands, and keeps received commands until the test asks for them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder()
        self._heard: list[Any] = []
        self._requests = itertools.count(1)

    @classmethod
    async def open(
        cls, port: int, client_version: str = "raw", *, names_sources: bool = False, receive_bytes: int | None = None
    ) -> Self:
        """Connect to loopback and shake hands.

        :param receive_bytes: size of the kernel's receive buffer; None: the kernel's choice.
        :param names_sources: connect like a replicator of an Apache Pulsar region that stamps source positions.
        """
        wire = socket.socket()
        wire.setblocking(False)
        if receive_bytes is not None:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        await asyncio.get_running_loop().sock_connect(wire, ("127.0.0.1", port))
        made = cls(*await asyncio.open_connection(sock=wire))
        asked = pb.CommandConnect(client_version=client_version, protocol_version=21)
        if names_sources:
            asked.feature_flags.supports_repl_dedup_by_lid_and_eid = True
        made.say(T.CONNECT, asked)
        await made.hear(T.CONNECTED)
        return made

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    def say(self, kind: int, message: Any) -> None:
        self._writer.write(encode.simple(kind, message))

    def write(self, data: bytes) -> None:
        """Send encoded commands."""
        self._writer.write(data)

    async def hear(self, kind: int) -> Any:
        """The next command, which must be of this type."""
        command = await self.hear_any()
        assert command[0] == kind, command
        return command.message

    async def hear_any(self) -> Any:
        """The next command. Pings are answered meanwhile."""
        async with asyncio.timeout(60):
            while not self._heard:
                data = await self._read(1 << 16)
                assert data, "the broker closed the connection"
                self._heard.extend(self._decoder.feed(data))
        command = self._heard.pop(0)
        if command[0] == T.PING:
            self._writer.write(encode.PONG)
            return await self.hear_any()
        return command

    async def ended(self) -> bool:
        """Whether the broker closed the connection without another command. If so, this side is closed too."""
        async with asyncio.timeout(60):
            over = not self._heard and not await self._read(1)
        if over:
            await self.close()
        return over

    async def _read(self, size: int) -> bytes:
        """Empty once the broker closed the connection, with a reset if it had not read everything that was sent."""
        try:
            return await self._reader.read(size)
        except ConnectionResetError:
            return b""

    # -- consumers

    async def subscribed(self, topic: str, subscription: str, consumer_id: int, kind: int = 0) -> None:
        """SUBSCRIBE, from the earliest message on; Exclusive by default."""
        asked = pb.CommandSubscribe(
            topic=topic,
            subscription=subscription,
            subType=kind,  # type: ignore[arg-type]
            consumer_id=consumer_id,
            request_id=next(self._requests),
            initialPosition=pb.CommandSubscribe.Earliest,
        )
        self.say(T.SUBSCRIBE, asked)
        assert (await self.hear(T.SUCCESS)).request_id == asked.request_id

    # -- producers

    def ask_producer(self, topic: str, producer_id: int = 1, **fields: Any) -> int:
        """Send PRODUCER; return the id of the request."""
        request = next(self._requests)
        self.say(T.PRODUCER, pb.CommandProducer(topic=topic, producer_id=producer_id, request_id=request, **fields))
        return request

    async def producer(self, topic: str, producer_id: int = 1, **fields: Any) -> pb.CommandProducerSuccess:
        request = self.ask_producer(topic, producer_id, **fields)
        answer: pb.CommandProducerSuccess = await self.hear(T.PRODUCER_SUCCESS)
        assert answer.request_id == request
        return answer

    def close_producer(self, producer_id: int = 1) -> None:
        self.say(T.CLOSE_PRODUCER, pb.CommandCloseProducer(producer_id=producer_id, request_id=next(self._requests)))

    def send(
        self,
        name: str,
        sequence_id: int,
        payload: bytes,
        *,
        producer_id: int = 1,
        messages: int = 1,
        highest: int | None = None,
        chunk: tuple[int, int] | None = None,
    ) -> None:
        """SEND of one entry, with the payload ``messages`` times. ``chunk``: its number, and the number of chunks."""
        metadata = pb.MessageMetadata(producer_name=name, sequence_id=sequence_id, publish_time=1_700_000_000_000)
        if messages > 1:
            metadata.num_messages_in_batch = messages
            payload = batch_of(payload, messages)
        if highest is not None:
            metadata.highest_sequence_id = highest
        if chunk is not None:
            metadata.uuid = f"{name}-{sequence_id}"
            metadata.chunk_id, metadata.num_chunks_from_msg = chunk
            metadata.total_chunk_msg_size = chunk[1] * len(payload)
        body = build_body(metadata.SerializeToString(), payload)
        for part in encode.send(producer_id, sequence_id, body, messages, highest, chunk is not None):
            self._writer.write(part)

    def send_at_once(self, name: str, payloads: Sequence[bytes]) -> None:
        """SENDs of sequence ids from 0 on in one write, so that the broker gets them in one read."""
        frames = bytearray()
        for number, payload in enumerate(payloads):
            metadata = pb.MessageMetadata(producer_name=name, sequence_id=number, publish_time=1_700_000_000_000)
            for part in encode.send(1, number, build_body(metadata.SerializeToString(), payload), 1, None, False):
                frames += part
        self._writer.write(frames)

    def send_body(self, sequence_id: int, body: bytes, producer_id: int = 1) -> None:
        """SEND of an encoded entry."""
        for part in encode.send(producer_id, sequence_id, body):
            self._writer.write(part)

    async def receipt(self) -> tuple[int, bool]:
        """Sequence id of the next receipt, and whether it reports a stored entry."""
        receipt = await self.hear(T.SEND_RECEIPT)
        return receipt.sequence_id, receipt.message_id.ledgerId != (1 << 64) - 1
