# SPDX-License-Identifier: Apache-2.0
"""How a message gets into a topic's log: from a client, or with its origin from another region's replicator.

A message from a client becomes an entry whose origin is here. One from a replicator is stored once, in its origin's
order, and only as its origin stored it (R3, R4, R7); ``from_pulsar.py`` has those from regions of Apache Pulsar.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.entry import CHUNK, MARKER
from meridian_broker.ledgers.pending import OwnEntry
from meridian_broker.positions.bitruns import ENTRY_LIMIT
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics import validation
from meridian_broker.topics.context import WindingDown
from meridian_broker.topics.entry_metadata import foreign_header, own_entry
from meridian_broker.topics.errors import NotAllowed, OriginConflict, ReplicationGap, TopicError
from meridian_broker.topics.publishing.from_pulsar import FromPulsar
from meridian_broker.topics.publishing.producer import Producer
from meridian_broker.wire.pulsar import origin_fields
from meridian_broker.wire.pulsar.frames import Send
from meridian_broker.wire.pulsar.metadata import BodyError, plain_facts

if TYPE_CHECKING:
    from meridian_broker.ledgers.store import LedgerError
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.publishing.rates import PublishRates

_ORDINARY: Final = (1, False, False, None, None, False)
"""What a ``Send`` of one whole message has from ``num_messages`` to ``transactional``."""


class Storing:
    """Stores the messages of one topic, and counts them since it was opened."""

    __slots__ = (
        "_append_own",
        "_check_pushed",
        "_from_pulsar",
        "_rates",
        "_topic",
        "bytes_in",
        "bytes_replicated_in",
        "messages_in",
        "messages_replicated_in",
    )

    def __init__(
        self,
        topic: TopicContext,
        rates: PublishRates,
        check_pushed: Callable[[str, int], None],
        from_pulsar: FromPulsar,
    ) -> None:
        """:param check_pushed: raises if an entry of another region, of this size in bytes, is not accepted."""
        self._topic = topic
        self._from_pulsar = from_pulsar
        self._append_own = topic.log.append_own
        self._rates = rates
        self._check_pushed = check_pushed
        self.messages_in = 0
        self.bytes_in = 0
        self.messages_replicated_in = 0
        self.bytes_replicated_in = 0

    def own(self, producer: Producer, sends: list[Send]) -> int:
        """Store messages of a client, in order. The producer's port is told the outcome of each.

        Returns the number of their bytes in flight to the disk.

        The messages are those of one read of the connection, so that the cost per call is shared by all of them.
        """
        topic = self._topic
        if topic.winding_down is WindingDown.IGNORES_MESSAGES:
            producer.port.dropped(sends)
            return 0
        if topic.is_ended:
            for send in sends:
                producer.port.refused(producer, send, topic.refusal())
            return 0
        largest, longest_delay, plain_start = topic.bounds.body_bytes, topic.bounds.delay_ms, producer.plain_start
        entries: list[OwnEntry] = []
        taken: list[Send] = []
        messages = size = 0
        for send in sends:
            body = send[-1]
            length = len(body)
            facts = plain_facts(body, plain_start) if send[4:10] == _ORDINARY and length <= largest else None
            if facts is not None:
                entries.append((0, 1, 0, facts[1], facts[0], b"", body))  # nothing in it could be refused
            else:
                try:
                    view = validation.message(send, largest, longest_delay)
                    entries.append(own_entry(CHUNK if send.is_chunk else 0, view, body))
                except (TopicError, BodyError) as error:
                    producer.port.refused(producer, send, error)
                    continue
            taken.append(send)
            messages += send[4]
            size += length
        done = producer.done
        if producer.gate is not None:
            entries, taken = producer.gate.sift(entries, taken)
            messages, size = sum(send.num_messages for send in taken), sum(len(send.body) for send in taken)
            done = producer.gate.done
        if not taken:
            return 0
        producer.messages_in += messages
        producer.bytes_in += size
        self.messages_in += messages
        self.bytes_in += size
        self._append_own(entries, done, taken)
        if self._rates.throttles:
            self._rates.published(producer, messages, size)
        return size

    def foreign(self, producer: Producer, send: Send) -> None:
        """Store an entry of another region, once and in its origin's order.

        :raises NotAllowed: the sender is not the replicator of the entry's region, or chose the message id (R7).
        :raises ReplicationGap: it is not the next one of its origin (R4).
        :raises OriginConflict: its bytes differ from those its origin stored (R7).
        :raises TopicTerminated, BacklogQuotaHold, MessageTooLarge: it is refused (``backfill/intake.py``).
        """
        if producer.names_sources is not None:
            if messages := self._from_pulsar.take(producer, send):
                self._count_foreign(producer, messages, len(send.body))
            return
        topic, stamp = self._topic, send.origin
        if topic.winding_down is WindingDown.IGNORES_MESSAGES:
            producer.port.dropped([send])
            return
        if stamp is None or producer.remote_region is None or stamp.region != producer.remote_region:
            raise NotAllowed("only the replicator of a region may send that region's entries")
        if send.message_id is not None:
            raise NotAllowed(
                f"the replicator of {stamp.region} chose a message id: ids are given where a message is stored, and "
                "only shadow replicators send them (R7)"
            )
        if stamp.region == topic.region:
            raise NotAllowed(f"{topic.region} does not accept its own entries from a replicator")
        origin, prev = Position(stamp.ledger, stamp.entry), Position(stamp.prev_ledger, stamp.prev_entry)
        if not EARLIEST <= prev < origin or not 0 <= origin.entry < ENTRY_LIMIT or prev.entry >= ENTRY_LIMIT:
            raise NotAllowed(
                f"{stamp.region} says that its entry {origin} comes after {prev}, which is not a valid chain (R3)"
            )
        last = topic.log.last_origin.get(stamp.region, EARLIEST)
        if stamp.flags & MARKER:
            self._marker(producer, send, last)
            return
        if origin <= last:
            topic.log.when_durable(lambda error: producer.done([send], last if error is None else error))
            return
        self._check_pushed(stamp.region, len(send.body) - stamp.appended_metadata_bytes)
        if Position(stamp.sent_prev_ledger, stamp.sent_prev_entry) != last:
            raise ReplicationGap(
                f"{stamp.region} sent {origin} after {stamp.sent_prev_ledger}:{stamp.sent_prev_entry}, "
                f"but the last entry stored from there is {last}: resume from it"
            )
        if origin_fields.origin_checksum(send.body, stamp.appended_metadata_bytes) != stamp.checksum:
            raise OriginConflict(f"entry {stamp.region}/{origin} arrived with different bytes than its origin stored")
        header = foreign_header(send, stamp, prev, origin, topic.scheduler.now_ms())
        self._count_foreign(producer, header.messages, len(send.body))
        topic.log.append_foreign(header, send.body, producer.done, send)

    def _marker(self, producer: Producer, send: Send, last: Position) -> None:
        """Take note of a marker of another region. It is not stored: what counts is that everything its region sent
        before it is.

        :param last: the last entry of that region.
        :raises ReplicationGap: an entry before it is missing.
        :raises OriginConflict: its bytes differ from those its origin stored.
        """
        topic, stamp = self._topic, send.origin
        before = Position(stamp.sent_prev_ledger, stamp.sent_prev_entry)
        if before > last:
            raise ReplicationGap(
                f"{stamp.region} sent a marker after {before}, but the last entry stored from there is {last}: resume "
                "from it"
            )
        if origin_fields.origin_checksum(send.body, stamp.appended_metadata_bytes) != stamp.checksum:
            raise OriginConflict(f"a marker of {stamp.region} arrived with different bytes than its origin stored")

        body = bytes(send.body)

        def durable(error: LedgerError | None) -> None:
            if error is None and topic.snapshots is not None and topic.failure is None:
                topic.snapshots.received(body, stamp.region)
            producer.done([send], last if error is None else error)

        topic.log.when_durable(durable)

    def _count_foreign(self, producer: Producer, messages: int, size: int) -> None:
        producer.messages_in += messages
        producer.bytes_in += size
        self.messages_replicated_in += messages
        self.bytes_replicated_in += size
