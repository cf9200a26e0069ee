# SPDX-License-Identifier: Apache-2.0
"""One compaction: finds the newest message of each key and copies these messages to a new ledger.

It reads the previous view and the log after it, once for each pass that ``LatestByKey`` needs and once more to copy.
It works in short slices and sleeps between them, so that it takes little of the loop's time and stays within its rate.
An entry's size does not determine its cost, so work is counted in steps (``compression.STEP_BYTES``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from pyroaring import BitMap

from meridian_broker.bounds.clients import BATCH_MESSAGES
from meridian_broker.bounds.compaction import COMPACTED_BATCH_BYTES, COMPACTED_METADATA_BYTES
from meridian_broker.ledgers.entry import CHUNK, MARKER, EntryFormatError, EntryHeader, unpack, with_kept
from meridian_broker.ledgers.log import TopicLog
from meridian_broker.ledgers.reading import Stored
from meridian_broker.ledgers.scheduling import Scheduler, next_turn
from meridian_broker.ledgers.store import LedgerCorrupt, LedgerError, Writer
from meridian_broker.metadata.topic_records import CompactedRecord
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.compaction.latest_by_key import Chunk, LatestByKey
from meridian_broker.topics.compaction.view import CompactedView
from meridian_broker.topics.compaction.view_format import (
    ViewFormatError,
    pack_entry,
    pack_index,
    pack_tombstones,
    rank_of,
    unpack_tombstones,
)
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.batches import Batch, open_batch, remake
from meridian_broker.wire.pulsar.metadata import BodyError, metadata_bounds, parse

T = TypeVar("T")

SLICE_ENTRIES: Final = 100
SLICE_BYTES: Final = 256 << 10
"""Bytes examined before others run."""
MESSAGE_COST: Final = 1024
"""Minimum that a message counts against the rate, in bytes: small messages cost time, not bytes."""
TURN_STEPS: Final = 2000
"""Steps of work in one turn of the loop: some 15 ms."""
WRITE_BYTES: Final = 1 << 20
"""Written bytes not yet durable at which writing pauses."""


@dataclass(frozen=True, slots=True)
class CompactionLimits:
    """Bounds of compaction."""

    keys: int = 1_000_000
    """Keys held in memory at a time; more take additional passes."""
    bytes_per_second: int = 16 << 20
    """0: unlimited."""
    keep_keyless: bool = True
    """Whether messages without a key are kept."""


class Examined(NamedTuple):
    """An entry as compaction sees it."""

    header: EntryHeader
    metadata: pb.MessageMetadata | None
    """None: it cannot be read."""
    batch: Batch | None
    """None: it is not a batch, or cannot be opened."""

    @property
    def messages(self) -> int:
        """The number of messages that compaction sees in it."""
        if self.header.flags & MARKER:
            return 0
        return 1 if self.batch is None else len(self.batch.singles)


def examine(entry: bytes) -> Generator[int, None, Examined]:
    """Examine an entry as far as possible. Yields the number of steps taken."""
    yield 1
    header = unpack(entry)
    if header.flags & MARKER:
        return Examined(header, None, None)
    metadata = _readable(body := entry[header.body_offset :])
    if metadata is None:
        return Examined(header, None, None)
    is_batch = metadata.HasField("num_messages_in_batch") and not header.flags & CHUNK
    batch = (yield from open_batch(body, metadata, COMPACTED_BATCH_BYTES)) if is_batch else None
    return Examined(header, metadata, batch)


def _readable(body: bytes) -> pb.MessageMetadata | None:
    try:
        start, end = metadata_bounds(body)
        metadata = parse(body) if end - start <= COMPACTED_METADATA_BYTES else None
    except BodyError:
        return None
    # The parser returns bytes for a string that is not UTF-8.
    return metadata if metadata is not None and isinstance(metadata.partition_key, str) else None


class Compactor:
    """Builds one view. ``check`` raises when it must not continue."""

    def __init__(
        self,
        log: TopicLog,
        view: CompactedView | None,
        region: str,
        limits: CompactionLimits,
        scheduler: Scheduler,
        check: Callable[[], None],
        *,
        by_time: bool,
    ) -> None:
        """:param by_time: the topic exists in several regions, so winners must be the same in all of them (R50)."""
        self.horizon = log.last_confirmed
        self.kept: dict[int, BitMap] = {}
        """Entries of the new view, by ledger of the log."""
        self._log = log
        self._view = view
        self._region = region
        self._limits = limits
        self._scheduler = scheduler
        self._check = check
        self._by_time = by_time
        self._steps = 0
        """Steps taken in this turn of the loop."""

    async def run(self, writer: Writer) -> CompactedRecord:
        """Write the new view and seal its ledger.

        :raises LedgerError: something cannot be read or written.
        """
        out = _Output(writer, self._scheduler)
        winners = await self._choose(out)
        first = out.records
        await self._copy(winners, out)
        entries = out.records - first
        for ledger in sorted(self.kept):
            await out.append(pack_index(ledger, self.kept[ledger]))
        info = await writer.seal()
        out.raise_failure()
        return CompactedRecord(info.ledger_id, self.horizon, first, entries, info.size)

    # -- what there is -------------------------------------------------------------------------------------------

    async def _entries(self) -> AsyncIterator[Stored]:
        """The old view, and the log after it up to the horizon, in slices with pauses between them."""
        position = EARLIEST
        if self._view is not None:
            while entries := await self._view.read_after(position, SLICE_ENTRIES, SLICE_BYTES):
                for stored in entries:
                    yield stored
                position = entries[-1][0]
                await self._pause(entries)
            position = self._view.horizon
        while entries := await self._log.read_after(position, SLICE_ENTRIES, SLICE_BYTES):
            for stored in entries:
                if stored[0] > self.horizon:
                    return
                if stored[0] in self._log.damage.damaged:
                    raise LedgerError(
                        f"entry {stored[0]} is damaged: compaction waits until it is repaired or given up"
                    )
                yield stored
            position = entries[-1][0]
            await self._pause(entries)

    async def _pause(self, entries: list[Stored]) -> None:
        self._check()
        rate = self._limits.bytes_per_second
        cost = sum(max(len(entry), MESSAGE_COST * min(_messages(entry), BATCH_MESSAGES)) for _, entry in entries)
        seconds = cost / rate if rate else 0.0
        await self._scheduler.answer(lambda ready: self._scheduler.later(seconds, lambda: ready(None)))
        self._steps = 0

    async def _in_turns(self, work: Generator[int, None, T]) -> T:
        """Do the work and let others run in between. Calls ``check`` each time."""
        while True:
            try:
                self._steps += next(work)
            except StopIteration as done:
                result: T = done.value
                return result
            if self._steps >= TURN_STEPS:
                self._steps = 0
                await next_turn(self._scheduler)
                self._check()

    # -- phase one -----------------------------------------------------------------------------------------------

    async def _choose(self, out: _Output) -> LatestByKey:
        winners = LatestByKey(self._limits.keys, keep_tombstones=self._by_time)
        while winners.begin_pass():
            await self._offer_tombstones(winners)
            async for position, entry in self._entries():
                await self._in_turns(self._offer(winners, position, entry))
            for deleted in winners.end_pass():
                if deleted:
                    await out.append(pack_tombstones(deleted))
                await next_turn(self._scheduler)
                self._check()
        return winners

    async def _offer_tombstones(self, winners: LatestByKey) -> None:
        view = self._view
        if view is None or not self._by_time:
            return
        reader = await view.reader()
        at = 0
        while at < view.record.first:
            records = await reader.read(at, view.record.first - 1, SLICE_BYTES)
            at += len(records)
            try:
                for record in records:
                    for tombstone in unpack_tombstones(record):
                        winners.offer_tombstone(tombstone)
            except ViewFormatError as error:
                raise LedgerCorrupt(f"ledger {view.record.ledger_id}: {error}") from error
            await self._pause([])

    def _offer(self, winners: LatestByKey, position: Position, entry: bytes) -> Generator[int, None, None]:
        found = yield from examine(entry)
        header, metadata = found.header, found.metadata
        if header.flags & MARKER:
            return
        rank = rank_of(header, position, self._region, by_time=self._by_time)
        if metadata is None:
            winners.offer(None, rank)
            return
        key = metadata.partition_key if metadata.HasField("partition_key") else None
        if found.batch is not None:
            for index, single in enumerate(found.batch.singles):
                if single.is_removed or (single.key is None and not self._limits.keep_keyless):
                    winners.offer_nothing()
                else:
                    winners.offer(single.key, rank._replace(batch_index=index), is_empty=single.is_empty)
                yield 1
        elif metadata.HasField("num_messages_in_batch") and not header.flags & CHUNK:
            winners.offer(None, rank)  # a batch that cannot be opened here
        elif key is None and not self._limits.keep_keyless:
            winners.offer_nothing()
        elif header.flags & CHUNK:
            message = (metadata.producer_name, metadata.uuid)
            winners.offer_chunk(key, rank, Chunk(message, metadata.chunk_id, metadata.num_chunks_from_msg))
        else:
            winners.offer(key, rank, is_empty=_is_empty(metadata, header, entry))

    # -- phase two -----------------------------------------------------------------------------------------------

    async def _copy(self, winners: LatestByKey, out: _Output) -> None:
        ordinal = 0
        async for position, entry in self._entries():
            found = await self._in_turns(examine(entry))
            count = found.messages
            kept = {index for index in range(count) if ordinal + index in winners.kept}
            ordinal += count
            if kept:
                self.kept.setdefault(position.ledger, BitMap()).add(position.entry)
                await out.append(pack_entry(position, await self._in_turns(_thinned(entry, found, kept))))
        if ordinal != winners.messages:
            raise LedgerError(f"read {ordinal} messages, expected {winners.messages}: try again")


def _is_empty(metadata: pb.MessageMetadata, header: EntryHeader, entry: bytes) -> bool:
    """Whether the message has no payload. For a compressed or encrypted one its metadata says so."""
    if metadata.HasField("uncompressed_size"):
        return metadata.uncompressed_size == 0
    return len(entry) - header.body_offset == 10 + int.from_bytes(entry[header.body_offset + 6 :][:4], "big")


def _messages(entry: bytes) -> int:
    """The number of messages that an entry says it has."""
    return int.from_bytes(entry[4:8], "big")


def _thinned(entry: bytes, found: Examined, kept: set[int]) -> Generator[int, None, bytes]:
    """The entry reduced to these of its messages."""
    if found.batch is None or found.metadata is None or len(kept) == len(found.batch.singles):
        return entry
    bits = bytearray(len(found.batch.singles) // 8 + 1)
    for index in kept:
        bits[index >> 3] |= 1 << (index & 7)
    whole = int.from_bytes(bits, "little")
    if whole == found.header.kept:
        return entry
    body = yield from remake(found.metadata, found.batch, kept)
    try:
        return with_kept(entry, whole, body)
    except EntryFormatError:
        return entry  # its header has no room for the bits: it is kept whole


class _Output:
    """Appends records, and waits for the disk from time to time."""

    def __init__(self, writer: Writer, scheduler: Scheduler) -> None:
        self.records = 0
        self._writer = writer
        self._scheduler = scheduler
        self._unsynced = 0
        self._durable = 0
        self._failure: LedgerError | None = None
        self._waiting: Callable[[None], None] | None = None

    async def append(self, record: bytes) -> None:
        """:raises LedgerError: nothing can be written."""
        self._writer.append(record, self._done)
        self.records += 1
        self._unsynced += len(record)
        if self._unsynced >= WRITE_BYTES:
            await self._scheduler.answer(self._wait)
            self._unsynced = 0
        self.raise_failure()

    def raise_failure(self) -> None:
        """:raises LedgerError: something was not written."""
        if self._failure is not None:
            raise self._failure

    def _wait(self, ready: Callable[[None], None]) -> None:
        if self._durable == self.records:
            ready(None)
        else:
            self._waiting = ready

    def _done(self, result: int | LedgerError) -> None:
        self._durable += 1
        if isinstance(result, LedgerError):
            self._failure = self._failure or result
        if self._waiting is not None and self._durable == self.records:
            ready, self._waiting = self._waiting, None
            ready(None)
