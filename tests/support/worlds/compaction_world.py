# SPDX-License-Identifier: Apache-2.0
"""In-memory logs of one topic in several regions, compacted by the real compactor."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from meridian_broker.engines.memory.ledgers import MemoryLedgerStore
from meridian_broker.ledgers.chapters import CacheBudget, LogLimits
from meridian_broker.ledgers.entry import BATCH, CHUNK, FOREIGN, MARKER, EntryHeader, unpack
from meridian_broker.ledgers.log import TopicLog
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.server.loop import LoopScheduler
from meridian_broker.topics.compaction.compactor import CompactionLimits, Compactor
from meridian_broker.topics.compaction.view import CompactedView
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.batches import open_batch
from meridian_broker.wire.pulsar.compression import compress
from meridian_broker.wire.pulsar.metadata import body_checksum, build_body, parse
from support.worlds.topic_record import TopicRecord

T = TypeVar("T")


def finished(work: Generator[int, None, T]) -> T:
    """Run the work to completion, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result


@dataclass(frozen=True)
class Message:
    """One message; without a payload, it deletes its key."""

    key: str | None
    payload: bytes = b""


def batch_body(
    messages: list[Message], publish_ms: int, *, compression: int = pb.NONE, encrypted: bool = False
) -> bytes:
    """The body of a client's batch."""
    codec = pb.CompressionType.Name(compression)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=publish_ms, compression=codec)
    metadata.num_messages_in_batch = len(messages)
    if encrypted:
        metadata.encryption_keys.add(key="k", value=b"secret")
    parts = []
    for number, message in enumerate(messages):
        single = pb.SingleMessageMetadata(payload_size=len(message.payload), sequence_id=number)
        if message.key is not None:
            single.partition_key = message.key
        encoded = single.SerializeToString()
        parts += [struct.pack(">I", len(encoded)), encoded, message.payload]
    whole = b"".join(parts)
    if compression != pb.NONE:
        metadata.uncompressed_size = len(whole)
    return build_body(metadata.SerializeToString(), finished(compress(compression, whole)))


def single_body(message: Message, publish_ms: int) -> bytes:
    """The body of a message that is not in a batch."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=publish_ms)
    if message.key is not None:
        metadata.partition_key = message.key
    return build_body(metadata.SerializeToString(), message.payload)


def chunk_body(key: str, uuid: str, number: int, of: int, publish_ms: int = 1) -> bytes:
    """The body of one chunk of a message."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=publish_ms, partition_key=key)
    metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg, metadata.total_chunk_msg_size = uuid, number, of, of
    return build_body(metadata.SerializeToString(), b"%d" % number)


class Region:
    """One region's log of the topic, and its compacted view."""

    def __init__(self, name: str, *, by_time: bool = True, keys: int = 1000, keep_keyless: bool = True) -> None:
        self.name = name
        self.by_time = by_time
        self.limits = CompactionLimits(keys, 0, keep_keyless)
        loop = asyncio.get_running_loop()
        self.store = MemoryLedgerStore(schedule=lambda work: loop.call_soon(work))
        self.scheduler = LoopScheduler()
        self.metadata = TopicRecord()
        self.log = TopicLog(
            name, self.store, self.metadata, 1, LogLimits(max_entries=5), self.scheduler, CacheBudget(1 << 20)
        )
        self.view: CompactedView | None = None

    async def publish(self, body: bytes, *, flags: int = 0) -> Position:
        metadata = parse(body)
        messages = metadata.num_messages_in_batch
        flags |= BATCH if metadata.HasField("num_messages_in_batch") else 0

        def append(ready: Any) -> None:
            def told(_: list[Any], result: Position | LedgerError) -> None:
                ready(result)

            facts = (flags, messages, 0, body_checksum(body), metadata.publish_time, b"", body)
            self.log.append_own([facts], told, [0])

        found: Position = await self.scheduler.answer(append)
        return found

    async def receive(self, source: Region, position: Position) -> None:
        """An entry of ``source`` arrives here."""
        entry = await source.log.read_one(position)
        found = unpack(entry)
        header = found._replace(flags=found.flags | FOREIGN, region=source.name, origin=position)

        def append(ready: Any) -> None:
            body = entry[found.body_offset :]
            self.log.append_foreign(header, body, lambda _, result: ready(result), 0)

        await self.scheduler.answer(append)

    async def compact(self, check: Callable[[], None] = lambda: None) -> None:
        compactor = Compactor(self.log, self.view, self.name, self.limits, self.scheduler, check, by_time=self.by_time)
        writer = await self.store.create(await self.metadata.allocate_ledger_id(), 1)
        self.view = CompactedView(await compactor.run(writer), self.store)
        await self.view.load()

    async def entries(self) -> list[tuple[Position, EntryHeader, bytes]]:
        """Entries of the view: position, header, body."""
        assert self.view is not None
        found = []
        for position, entry in await self.view.read_after(EARLIEST, 1 << 30, 1 << 30):
            assert self.view.holds(position)
            header = unpack(entry)
            found.append((position, header, entry[header.body_offset :]))
        assert len(found) == len(self.view)
        assert [self.view.position(number) for number in range(len(found))] == [one[0] for one in found]
        return found

    async def messages(self) -> list[tuple[str | None, bytes, tuple[str, Position, int]]]:
        """What readers of the view see: key, payload, and ``(region, origin, index)``."""
        seen = []
        for position, header, body in await self.entries():
            metadata = parse(body)
            of = (header.region or self.name, header.origin or position)
            if not header.flags & BATCH:
                key = metadata.partition_key if metadata.HasField("partition_key") else None
                payload = body[10 + int.from_bytes(body[6:10], "big") :]
                seen.append((key, payload, (*of, 0)))
                continue
            batch = finished(open_batch(body, metadata, 1 << 20))
            assert batch is not None
            assert len(batch.singles) == header.messages
            for index, single in enumerate(batch.singles):
                is_kept = header.kept is None or bool(header.kept >> index & 1)
                assert is_kept == (not single.is_removed)
                if is_kept:
                    seen.append((single.key, batch.payload[single.payload_at : single.end], (*of, index)))
        return seen


__all__ = ["CHUNK", "MARKER", "Message", "Region", "batch_body", "chunk_body", "finished", "single_body"]
