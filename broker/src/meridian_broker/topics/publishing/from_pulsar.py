# SPDX-License-Identifier: Apache-2.0
"""Messages that the replicator of a region of Apache Pulsar brings.

That region sends each message to every region of the topic by itself. One that names its *source position* has an
origin, the same in all of them (R2), so its acknowledgement counts in all. But that region reports no chain: between
two of its messages may lie markers, messages that it got from elsewhere, and some that it withholds from this region.
So the acknowledgement of a message claims that message and nothing else (``UNCHAINED``, R3); reports of what is owed
nowhere close the holes (R11).

A message without a source position has no common origin. It is stored as an entry of this region, with its source in
the header, for this region and the one it came from alone. So is every message while the topic has no other Meridian
region: none could share its origin, and none would report what closes the holes. None of these messages is sent on, not
even to where it came from.

A message with a source position is stored once. Positions only ever grow, so a message that is refused must not be
passed over: its producer is closed, and what it sent after it is ignored until it begins again.

Markers of replicated subscriptions (PIP-33) are not stored. Each counts once everything that was brought before it is
durable, and is confirmed then; one that is not understood has no effect. A request for a snapshot that is brought again
is not answered again: Pulsar uses one id for both rounds, and would take a second answer to the first round for one to
the second (``replication/snapshots/taking.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from meridian_broker.bounds.clients import LATEST_TIME_MS
from meridian_broker.bounds.snapshots import MARKER_BODY_BYTES
from meridian_broker.ledgers.entry import CHUNK, sound_count
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions.bitruns import ENTRY_LIMIT
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.topics.context import WindingDown
from meridian_broker.topics.entry_metadata import own_entry, unchained_header
from meridian_broker.topics.errors import NO_TRANSACTIONS, NotAllowed, TopicError
from meridian_broker.topics.publishing.pulsar_places import PulsarPlaces
from meridian_broker.wire.pulsar import markers
from meridian_broker.wire.pulsar import metadata as message_metadata

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.publishing.producer import Producer
    from meridian_broker.wire.pulsar.frames import Send

log = logging.getLogger(__name__)


class FromPulsar:
    """Stores the messages of one topic."""

    __slots__ = ("_check_pushed", "_has_warned", "_places", "_topic")

    def __init__(self, topic: TopicContext, places: PulsarPlaces, check_pushed: Callable[[str, int], None]) -> None:
        """:param check_pushed: raises if an entry of another region, of this size in bytes, is not accepted."""
        self._topic = topic
        self._places = places
        self._check_pushed = check_pushed
        self._has_warned = False

    def take(self, producer: Producer, send: Send) -> int:
        """Store a message; returns how many it counts as, 0: it was not stored. The producer's port is told the
        outcome."""
        region = producer.remote_region
        assert region is not None
        if (
            self._topic.winding_down is WindingDown.IGNORES_MESSAGES
            or producer.topic.producers.get(producer.name) is not producer
        ):
            producer.port.dropped([send])
            return 0
        try:
            return self._take(producer, region, send)
        except (TopicError, message_metadata.BodyError) as error:
            log.warning(
                "%s: refused a message from %s, whose replicator will start over: %s", *self._about(region), error
            )
            producer.port.refused(producer, send, error)
            producer.topic.remove_producer(producer)
            producer.port.disconnect_producer(producer)
            return 0

    def _about(self, region: str) -> tuple[str, str]:
        return self._topic.name, region

    def _take(self, producer: Producer, region: str, send: Send) -> int:
        said = message_metadata.scan(send.body)
        if said.replicated_from != region:
            raise NotAllowed(f"the replicator of {region} sent a message of {said.replicated_from or 'no region'} (R7)")
        if said.transactional:
            raise NotAllowed(NO_TRANSACTIONS)
        if send.message_id is not None or send.origin is not None:
            raise NotAllowed("only brokers of this deployment set message ids and origins (R7)")
        if send.marker or said.marker_type is not None:
            self._take_marker(producer, region, send, said.marker_type)
            return 0
        # From a region that stamps none, it would be a client's copy of another message's.
        source = source_of(send.body) if producer.names_sources else None
        told = send
        if producer.names_sources:
            if source is None:
                raise NotAllowed(f"a message from {region} has no valid source position")
            told = send._replace(sequence_id=source.ledger, highest_sequence_id=source.entry)
        if source is not None and self._places.is_repeat(region, source):
            self._answer_repeat(producer, told)
            return 0
        if source is None and not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s: %s sends no source positions, so a message that it sends again after a failure is stored twice, "
                "and its acknowledgement counts in one region only: run Apache Pulsar 4.0.3, 3.0.10 or newer there",
                *self._about(region),
            )
        self._check_pushed(region, len(send.body))
        messages = sound_count(said.num_messages)
        flags = CHUNK if send.is_chunk else 0
        clamped = said._replace(
            num_messages=messages,
            publish_time_ms=min(said.publish_time_ms, LATEST_TIME_MS),
            deliver_at_ms=None if said.deliver_at_ms is None else min(said.deliver_at_ms, LATEST_TIME_MS),
        )
        if source is not None and len(self._topic.regions()) > 1:
            now_ms = self._topic.scheduler.now_ms()
            header = unchained_header(flags, clamped, send.body, region, source, now_ms)
            self._topic.log.append_foreign(header, send.body, producer.done, told)
            return messages
        alone = clamped._replace(replicate_to=(self._topic.region, region))
        entry = own_entry(flags, alone, send.body, came_from=(region, source or EARLIEST))
        if source is not None:
            self._places.given(region, source)

        def done(tokens: list[Any], result: Position | LedgerError) -> None:
            if source is not None and isinstance(result, Position):
                self._places.stored(region, source)
            producer.done(tokens, result)

        self._topic.log.append_own([entry], done, [told])
        return messages

    def _take_marker(self, producer: Producer, region: str, send: Send, kind: int | None) -> None:
        topic = self._topic
        source = source_of(send.body)
        is_repeat = False
        if kind == markers.REQUEST and source is not None:
            is_repeat = self._places.is_repeat(region, source)
            if not is_repeat:
                self._places.given(region, source)
        size = len(send.body)
        body = b"" if is_repeat or size > MARKER_BODY_BYTES else bytes(send.body)

        def count() -> None:
            if is_repeat or topic.snapshots is None or topic.failure is not None:
                return
            if body:
                topic.snapshots.received(body, region, source)
            else:
                topic.snapshots.refuse(f"{region} sent a marker of {size} bytes: {MARKER_BODY_BYTES} is the limit")

        told = send._replace(highest_sequence_id=markers.RECEIPT) if producer.names_sources else send

        def durable(error: LedgerError | None) -> None:
            if error is None:
                count()
            # Nobody uses this place, but Pulsar logs a warning if a marker is confirmed without one.
            producer.done([told], max(topic.log.last_confirmed, Position(0, 0)) if error is None else error)

        topic.log.when_durable(durable)

    def _answer_repeat(self, producer: Producer, send: Send) -> None:
        """Send a receipt once everything given to the log so far is durable: the message may be among it."""

        def durable(error: LedgerError | None) -> None:
            if error is None:
                producer.port.repeated(producer, send)
            else:
                producer.port.dropped([send])

        self._topic.log.when_durable(durable)


def source_of(body: bytes | memoryview) -> Position | None:
    """The source position that a message names last; None: none that is valid."""
    found = None
    for pair in message_metadata.parse(body).properties:
        if pair.key == message_metadata.SOURCE_POSITION_PROPERTY:
            found = pair.value
    ledger, separator, entry = (found or "").partition(":")
    if not separator or not all(part.isascii() and part.isdigit() and len(part) <= 19 for part in (ledger, entry)):
        return None
    position = Position(int(ledger), int(entry))
    return position if position.ledger < LATEST.ledger and position.entry < ENTRY_LIMIT else None
