# SPDX-License-Identifier: Apache-2.0
"""Messages that the replicator of a region of Apache Pulsar brings.

They have no common origin (R2): that region reports no chain, so what an acknowledgement claims of its messages could
not be told to another one. So each is stored as an entry of this region, for this region and the one it came from
alone, with its source in the header: it is not sent on, not even to where it came from.

One that names its source position is stored once. Positions only ever grow, so a message that is refused must not be
passed over: its producer is closed, and what it sent behind it is ignored until it begins again.

Markers of replicated subscriptions are confirmed and not stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from meridian_broker.bounds.clients import LATEST_TIME_MS
from meridian_broker.ledgers.entry import CHUNK, sound_count
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.context import Settling
from meridian_broker.topics.entry_metadata import own_entry
from meridian_broker.topics.errors import NO_TRANSACTIONS, NotAllowed, TopicError
from meridian_broker.topics.publishing.pulsar_places import PulsarPlaces
from meridian_broker.wire.pulsar import metadata as message_metadata

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.publishing.producer import Producer
    from meridian_broker.wire.pulsar.frames import Send

log = logging.getLogger(__name__)

OF_A_MARKER: Final = 1 << 63
"""In place of the highest sequence id, in receipts that name entries by their source."""


class FromPulsar:
    """Stores the messages of one topic."""

    __slots__ = ("_check_pushed", "_places", "_topic")

    def __init__(self, topic: TopicContext, places: PulsarPlaces, check_pushed: Callable[[str, int], None]) -> None:
        """:param check_pushed: raises if an entry of another region, of this size in bytes, is not accepted."""
        self._topic = topic
        self._places = places
        self._check_pushed = check_pushed

    def take(self, producer: Producer, send: Send) -> int:
        """Store a message; returns how many it counts as, 0: it was not stored. The producer's port is told the
        outcome."""
        region = producer.remote_region
        assert region is not None
        if self._topic.settling is Settling.IS_DEAF or producer.topic.producers.get(producer.name) is not producer:
            producer.port.dropped([send])
            return 0
        try:
            return self._take(producer, region, send)
        except (TopicError, message_metadata.BodyError) as error:
            log.warning(
                "%s: a message from %s is refused, its replicator begins again: %s", *self._about(region), error
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
            marked = send._replace(highest_sequence_id=OF_A_MARKER) if producer.names_sources else send
            self._answer_repeat(producer, marked)
            return 0
        source = source_of(send.body)
        told = send
        if producer.names_sources:
            if source is None:
                raise NotAllowed(f"a message from {region} has no valid source position")
            told = send._replace(sequence_id=source.ledger, highest_sequence_id=source.entry)
        if source is not None and self._places.is_repeat(region, source):
            self._answer_repeat(producer, told)
            return 0
        self._check_pushed(region, len(send.body))
        messages = sound_count(said.num_messages)
        clamped = said._replace(
            replicate_to=(self._topic.region, region),
            num_messages=messages,
            publish_time_ms=min(said.publish_time_ms, LATEST_TIME_MS),
            deliver_at_ms=None if said.deliver_at_ms is None else min(said.deliver_at_ms, LATEST_TIME_MS),
        )
        entry = own_entry(CHUNK if send.is_chunk else 0, clamped, send.body, came_from=(region, source or EARLIEST))
        if source is not None:
            self._places.given(region, source)

        def done(tokens: list[Any], result: Position | LedgerError) -> None:
            if source is not None and isinstance(result, Position):
                self._places.stored(region, source)
            producer.done(tokens, result)

        self._topic.log.append_own([entry], done, [told])
        return messages

    def _answer_repeat(self, producer: Producer, send: Send) -> None:
        """A receipt, once everything given to the log before is durable: it may be among that."""

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
    return position if max(position) < OF_A_MARKER else None
