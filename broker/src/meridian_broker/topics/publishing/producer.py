# SPDX-License-Identifier: Apache-2.0
"""A producer of a topic, and the port through which its connection is reached."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions.position import Position
from meridian_broker.topics.publishing.access_modes import AccessMode
from meridian_broker.wire.pulsar.metadata import plain_start

if TYPE_CHECKING:
    from meridian_broker.ledgers.pending import OwnEntry
    from meridian_broker.ledgers.scheduling import Scheduler
    from meridian_broker.topics.journal.topic_record import TopicMetadata
    from meridian_broker.topics.limits import TopicLimits
    from meridian_broker.wire.pulsar.frames import Send


class ProducerPort(Protocol):
    """What a producer needs from its client's connection."""

    def stored(self, producer: Producer, sends: list[Send], first: Position) -> None:
        """The entries are durable, at consecutive positions from ``first`` on: send the receipts. In the order of the
        sends.
        """
        ...

    def dropped(self, sends: list[Send]) -> None:
        """The entries were not stored, and the topic is fenced or moves: the client resends them elsewhere."""
        ...

    def repeated(self, producer: Producer, send: Send) -> None:
        """The entry is stored already: send a receipt without a position. In the order of the sends."""
        ...

    def refused(self, producer: Producer, send: Send, error: Exception) -> None:
        """The entry was not stored: send the error. The connection is not affected otherwise."""
        ...

    def has_read(self, producer: Producer, send: Send, position: Position) -> None:
        """A shadow has read everything up to here, as its source's replicator asked: send the receipt."""
        ...

    def hold(self, wait_ms: Callable[[], int]) -> None:
        """Publishing exceeded a rate: read nothing more from the client until ``wait_ms()`` is 0."""
        ...

    def disconnect_producer(self, producer: Producer) -> None:
        """Tell the client to look up and create its producer again; it resends everything without a receipt."""
        ...


class ProducerGate(Protocol):
    """Filters out what a producer sent before (``deduplication.py``)."""

    def sift(self, entries: list[OwnEntry], sends: list[Send], /) -> tuple[list[OwnEntry], list[Send]]:
        """Returns what is to be stored, and answers the rest."""
        ...

    def done(self, sends: list[Send], result: Position | LedgerError) -> None:
        """The result from the log, as for ``Producer.done``."""
        ...


class SourceNotices(Protocol):
    """Takes what a shadow replicator sends (``from_source.py``)."""

    def take(self, producer: Producer, send: Send, /) -> None:
        """:raises NotAllowed: it says nothing that can be."""
        ...

    def close(self) -> None:
        """The producer is gone: nothing is answered any more."""
        ...


class ProducerHost(Protocol):
    """What a producer publishes to: a topic of either kind."""

    @property
    def name(self) -> str: ...

    @property
    def limits(self) -> TopicLimits: ...

    @property
    def scheduler(self) -> Scheduler: ...

    @property
    def metadata(self) -> TopicMetadata | None:
        """Where an exclusive producer's epoch is recorded; None: nowhere."""
        ...

    @property
    def failure(self) -> str | None:
        """Why it is not served any more; None: it is."""
        ...

    @property
    def producers(self) -> dict[str, Producer]:
        """Admitted producers, by name."""
        ...

    def check_open(self) -> None:
        """:raises TopicFenced: it is not served now."""
        ...

    def check_admits(self) -> None:
        """:raises TopicFenced: no client is admitted now."""
        ...

    def check_own_log(self, doing: str) -> None:
        """:raises NotAllowed: nothing can be published to it."""
        ...

    def fence(self, reason: str) -> None:
        """Stop serving, and disconnect all clients."""
        ...

    def admit(self, producer: Producer, told: Callable[[Exception | None], None], /) -> bool:
        """Admit or refuse a client's producer. ``told`` is called with the outcome, now or later. Returns True if it
        waits for others.
        """
        ...

    def entered(self, producer: Producer) -> None:
        """A producer was admitted."""
        ...

    def remove_producer(self, producer: Producer) -> None:
        """A producer left, or does not want to be admitted any more."""
        ...

    def publish(self, producer: Producer, sends: list[Send], /) -> int:
        """Store messages of a client, in order; returns the number of their bytes in flight to the disk."""
        ...

    def publish_foreign(self, producer: Producer, send: Send, /) -> None:
        """Store an entry of another region. :raises TopicError: it is refused."""
        ...


class Producer:
    """A producer: one PRODUCER."""

    __slots__ = (
        "access_mode",
        "asked_epoch",
        "bytes_in",
        "connected_since_ms",
        "epoch",
        "from_source",
        "gate",
        "messages_in",
        "metadata",
        "name",
        "name_is_given",
        "names_sources",
        "plain_start",
        "port",
        "producer_id",
        "remote_region",
        "schema_version",
        "topic",
        "topic_epoch",
    )

    def __init__(
        self,
        topic: ProducerHost,
        port: ProducerPort,
        producer_id: int,
        name: str,
        *,
        name_is_given: bool,
        epoch: int,
        connected_since_ms: int,
        remote_region: str | None = None,
        names_sources: bool | None = None,
        from_source: SourceNotices | None = None,
        metadata: dict[str, str] | None = None,
        schema_version: bytes = b"",
        access_mode: AccessMode = AccessMode.SHARED,
        asked_epoch: int | None = None,
    ) -> None:
        self.topic = topic
        self.port = port
        self.producer_id = producer_id
        self.name = name
        self.name_is_given = name_is_given
        self.epoch = epoch
        self.connected_since_ms = connected_since_ms
        self.remote_region = remote_region
        """The region whose replicator this is; None for clients (R7)."""
        self.names_sources = names_sources
        """Of a region of Apache Pulsar: whether receipts name an entry by its position there, instead of by its
        sequence id; None: it is the replicator of a Meridian region, or a client."""
        self.from_source = from_source
        """Of a shadow replicator, takes what it sends; None: it is of another kind."""
        self.metadata = metadata
        self.schema_version = schema_version
        self.access_mode = access_mode
        self.asked_epoch = asked_epoch
        """The topic's epoch in which it was admitted before, as it reports; None: it connects for the first time."""
        self.topic_epoch: int | None = None
        """The topic's epoch in which it is admitted; None: no producer ever had exclusive access."""
        self.messages_in = 0
        self.bytes_in = 0
        self.gate: ProducerGate | None = None
        """Filters repeats; None: deduplication is off."""
        self.plain_start = plain_start(name)
        """The first bytes of the metadata of its ordinary messages."""

    def gone(self) -> None:
        """It is no longer one of its topic's producers."""
        if self.from_source is not None:
            self.from_source.close()

    def done(self, sends: list[Send], result: Position | LedgerError) -> None:
        """The log's result for appended entries: the position of the first, or why none was stored."""
        if isinstance(result, Position):
            self.port.stored(self, sends, result)
        else:
            self.port.dropped(sends)
            self.topic.fence(str(result))
