# SPDX-License-Identifier: Apache-2.0
"""Deduplication: a message that a producer sends again is stored once, across restarts as well.

Each producer publishes through a *gate*. It answers repeats with a receipt without a position, in the order of the
sends, and refuses what cannot be decided yet; the client resends that once what is in flight is durable. After a number
of entries the last sequence ids are written to the progress log with the position up to which they apply. After a
restart the entries beyond that position are read once, so nothing is paid per message.

A batch is a repeat if its last message is. A chunked message counts by its last chunk, which completes it. Entries of
other regions, those of Apache Pulsar included, are not considered: their origins determine their order (R4), and
another producer may use the name there. This region's own entries that were lost and returned by others (R5) do count,
because their producers may send them again.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.entry import FOREIGN, HEADER, MARKER, unpack
from meridian_broker.ledgers.pending import OwnEntry
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics import entry_metadata
from meridian_broker.topics.errors import CannotTellRepeat, NotAllowed, TopicError
from meridian_broker.topics.journal.changes import Kind
from meridian_broker.topics.publishing.sequence_ids import (
    FRESH,
    NONE,
    OFF,
    Outcome,
    Record,
    SequenceIds,
    decode,
    encode,
    last_id,
)
from meridian_broker.wire.pulsar import metadata as message_metadata

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.publishing.producer import Producer
    from meridian_broker.wire.pulsar.frames import Send

RECORD_BYTES: Final = 64 << 20
"""Published bytes after which sequence ids are written, whatever the number of entries."""
SCAN_ENTRIES: Final = 1000
SCAN_BYTES: Final = 1 << 20


class Deduplication:
    """The sequence ids of one topic's producers."""

    def __init__(self, topic: TopicContext, producers: Mapping[str, Producer]) -> None:
        """:param producers: those of the topic, by name; a live view."""
        self._topic = topic
        self._producers = producers
        self._ids = SequenceIds(topic.limits.dedup_producers, lambda name: name in producers)
        self.enabled = False
        self._switches = 0
        self._switching = 0
        """Number of the switch that is being written; 0: none."""
        self._accounted = EARLIEST
        """The ids include entries up to here."""
        self._on_record: Position | None = None
        """The durable ids include entries up to here; None: nothing is recorded."""
        self._changed: dict[str, None] = {}
        self._entries = self._bytes = 0
        """Entries since the last record."""

    # -- opening -------------------------------------------------------------------------------------------------

    def replay(self, payload: bytes) -> None:
        """Replay a record of the progress log. :raises SequencesError: it cannot be read."""
        record = decode(payload)
        if record.flags & (FRESH | OFF):
            self._ids.clear()
            self._on_record = None
        if not record.flags & OFF:
            self._ids.join(record.names)
            self._on_record = max(self._on_record or EARLIEST, record.upto)

    async def open(self, wanted: bool) -> None:
        """Finish the replay. Producers that connect afterwards can rely on the result, also after a crash.

        :raises LedgerError: the entries after the last record cannot be read, or switching on or off cannot be
            recorded.
        """
        if wanted != (self._on_record is not None):
            if wanted:
                self._switch_on()
            else:
                self._switch_off()
            await self._topic.scheduler.answer(self._topic.progress_log.when_durable)
        elif wanted:
            await self._go_on()

    async def _go_on(self) -> None:
        assert self._on_record is not None
        self._accounted = self._on_record
        while entries := await self._topic.log.read_after(self._accounted, SCAN_ENTRIES, SCAN_BYTES):
            for position, entry in entries:
                self._account(entry)
                self._accounted = position
        self.enabled = True
        self._record_when_due()

    def _account(self, entry: bytes) -> None:
        self._entries += 1
        self._bytes += len(entry)
        if entry[1] & MARKER or (entry[1] & FOREIGN and unpack(entry).region != self._topic.region):
            return
        if entry[2] << 8 | entry[3] != HEADER.size and unpack(entry).came_from is not None:
            return
        self._learn(entry)

    def given_back(self, entry: bytes) -> None:
        """An entry of this region's own was fetched back and is durable: its message counts as stored (R5)."""
        if self.enabled:
            self._learn(entry)

    def _learn(self, entry: bytes) -> None:
        try:
            view = entry_metadata.view(entry)
        except (message_metadata.BodyError, struct.error):
            return  # it was accepted once; without a readable name it is no producer's repeat
        if view.chunk_id is not None and view.chunk_id + 1 < view.num_chunks:
            return
        stored_ms = HEADER.unpack_from(entry)[7]
        last = last_id(view.sequence_id, view.highest_sequence_id, view.num_messages)
        self._ids.known(view.producer_name, stored_ms).raise_to(last)
        self._changed[view.producer_name] = None

    # -- on and off ----------------------------------------------------------------------------------------------

    def follow(self, wanted: bool) -> None:
        """Follow the policy: switch deduplication on or off."""
        if wanted and not self.enabled:
            self._switch_on()
        elif not wanted and self.enabled:
            self._switch_off()
        else:
            return
        for producer in self._producers.values():
            self.attach(producer)

    def _switch_on(self) -> None:
        self.enabled = True
        self._forget()
        self._accounted = self._topic.log.last_confirmed
        self._switch(Record(FRESH, self._accounted, []))

    def _switch_off(self) -> None:
        self.enabled = False
        self._forget()
        self._on_record = None
        self._switch(Record(OFF, EARLIEST, []))

    def _switch(self, record: Record) -> None:
        self._switches += 1
        self._switching = number = self._switches

        def switched() -> None:
            if self._switching == number:
                self._switching = 0

        self._write([record], switched)

    @property
    def status(self) -> str:
        """State as shown by the admin API. On and off are reported once they are durable."""
        if self._switching:
            return "Recovering" if self.enabled else "Removing"
        return "Enabled" if self.enabled else "Disabled"

    def _forget(self) -> None:
        self._ids.clear()
        self._changed.clear()
        self._entries = self._bytes = 0

    def attach(self, producer: Producer) -> None:
        """Put a connecting producer behind the gate, or remove its gate."""
        is_client = producer.remote_region is None
        producer.gate = Gate(self, producer, self._ids) if self.enabled and is_client else None

    def last_sequence_id(self, name: str) -> int:
        """The last durable id of that name; -1 if unknown."""
        return self._ids.last(name) if self.enabled else NONE

    def now_ms(self) -> int:
        return self._topic.scheduler.now_ms()

    # -- records -------------------------------------------------------------------------------------------------

    def stored(self, name: str, upto: Position, entries: int, size: int) -> None:
        """Entries of that producer became durable."""
        if not self.enabled:
            return
        self._accounted = max(self._accounted, upto)
        self._changed[name] = None
        self._entries += entries
        self._bytes += size
        self._record_when_due()

    def _record_when_due(self) -> None:
        if self._entries >= self._topic.limits.dedup_entries or self._bytes >= RECORD_BYTES:
            self.record()

    def record(self) -> None:
        """Write what changed since the last record."""
        if self.enabled and (self._changed or self._accounted != self._on_record):
            self._write(self._ids.records(self._changed, self._accounted))
            self._changed.clear()
            self._entries = self._bytes = 0

    def _write(self, records: Iterable[Record], then: Callable[[], None] = lambda: None) -> None:
        """:param then: called once they are durable."""
        *before, last = records
        for record in before:
            self._topic.progress_log.append(Kind.SEQUENCES, "", encode(record))

        def written(error: LedgerError | None) -> None:
            if error is not None:
                return
            if self.enabled:
                self._on_record = max(self._on_record or EARLIEST, last.upto)
            then()

        self._topic.progress_log.append(Kind.SEQUENCES, "", encode(last), written)

    def tidy(self) -> None:
        """Called periodically, but not from a callback of the log: forget idle names, allow old entries to be
        trimmed.
        """
        if self.enabled:
            timeout_ms = self._topic.limits.dedup_idle_minutes * 60_000
            self._ids.forget_unused_since(self._topic.scheduler.now_ms() - timeout_ms)
            self._accounted = self._topic.log.last_confirmed
            self.record()

    def snapshot(self) -> list[tuple[Kind, str, bytes]]:
        """The records that a new progress ledger begins with."""
        if not self.enabled:
            return []
        return [(Kind.SEQUENCES, "", encode(record)) for record in self._ids.records(None, self._accounted)]

    @property
    def needed_from(self) -> Position | None:
        """Entries after this position are read after a restart; None: none are."""
        return (self._on_record or EARLIEST) if self.enabled else None


class Gate:
    """Filters the repeats of one producer."""

    __slots__ = ("_dedup", "_flight", "_ids", "_passed", "_producer", "_repeats", "_told")

    def __init__(self, dedup: Deduplication, producer: Producer, ids: SequenceIds) -> None:
        self._dedup = dedup
        self._ids = ids
        self._producer = producer
        self._flight: deque[int] = deque()
        """The sequence id that each in-flight entry completes, or ``NONE``."""
        self._passed = self._told = 0
        """Entries passed to the log, and those of them that the producer got an answer for."""
        self._repeats: deque[tuple[int, Send]] = deque()
        """Repeats that arrived while earlier entries were in flight, with the number of entries passed by then."""

    def sift(self, entries: list[OwnEntry], sends: list[Send]) -> tuple[list[OwnEntry], list[Send]]:
        """Returns what is to be stored, and answers the rest."""
        known = self._ids.known(self._producer.name, self._dedup.now_ms())
        kept: list[OwnEntry] = []
        taken: list[Send] = []
        for entry, send in zip(entries, sends, strict=True):
            try:
                last = last_id(send.sequence_id, send.highest_sequence_id or 0, send.num_messages)
                completes = self._completes(send)
                outcome = known.judge(last)
                if outcome is Outcome.UNKNOWN:
                    raise CannotTellRepeat(
                        f"message {send.sequence_id} arrived before and is not durable yet: whether this is a "
                        "repeat is still unknown, send it again"
                    )
            except (TopicError, message_metadata.BodyError) as error:
                self._producer.port.refused(self._producer, send, error)
                continue
            if outcome is Outcome.REPEAT:
                self._repeat(send)
                continue
            if completes:
                known.pushed = last
            self._flight.append(last if completes else NONE)
            self._passed += 1
            kept.append(entry)
            taken.append(send)
        return kept, taken

    def _completes(self, send: Send) -> bool:
        """Whether the entry completes its message; only chunks other than the last do not.

        :raises NotAllowed: its metadata names another producer, whose ids it would corrupt after a restart.
        """
        if not send.is_chunk and message_metadata.begins_with(send.body, self._producer.plain_start):
            return True
        view = message_metadata.scan(send.body)
        if view.producer_name != self._producer.name:
            raise NotAllowed(f"the message belongs to producer {view.producer_name!r}, not {self._producer.name!r}")
        return view.chunk_id is None or view.chunk_id + 1 >= view.num_chunks

    def _repeat(self, send: Send) -> None:
        if self._told == self._passed:
            self._producer.port.repeated(self._producer, send)
        else:
            self._repeats.append((self._passed, send))

    def done(self, sends: list[Send], result: Position | LedgerError) -> None:
        """The result from the log, as for ``Producer.done``. Receipts of repeats are sent in order with the others."""
        if not isinstance(result, Position):
            self._producer.port.dropped([send for _, send in self._repeats])
            self._repeats.clear()
            self._producer.done(sends, result)
            return
        name, flight, size = self._producer.name, self._flight, 0
        last = NONE
        for send in sends:
            last = max(last, flight.popleft())
            size += len(send.body)
        if last > NONE:
            self._ids.known(name, self._dedup.now_ms()).raise_to(last)
        self._dedup.stored(name, Position(result.ledger, result.entry + len(sends) - 1), len(sends), size)
        at, before = 0, self._told
        while at < len(sends):
            stop = min(len(sends), self._repeats[0][0] - before) if self._repeats else len(sends)
            self._producer.done(sends[at:stop], Position(result.ledger, result.entry + at))
            at = stop
            self._told = before + at
            while self._repeats and self._repeats[0][0] == self._told:
                self._producer.port.repeated(self._producer, self._repeats.popleft()[1])
