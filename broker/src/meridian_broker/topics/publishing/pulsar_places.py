# SPDX-License-Identifier: Apache-2.0
"""How far the messages of one topic went to regions of Apache Pulsar, and came from there.

Such a region reports nothing about itself, so both are kept here, in the progress log, one record per region:

* *Reached*, how far its replicator here was served. Retention keeps what comes after the recorded place, and a restart
  continues there.
* *Received*, the position there of its last message that is stored here: messages up to it are repeats. Of those that
  have their source as their origin the log itself knows the last one, as of every other region. The others have their
  source in their headers, so a record says up to which entry it includes them, and a restart reads the later ones.

* *Since*, where the log ended when that region's link to here began: it sends what it published from then on, and
  nobody else sends what it published before (``replication/snapshots/vouching.py``).

A record is written within a second of a change, and when the topic is closed.

Layout, big-endian: ``u8 version``, then of each position ``i64 ledger | i64 entry``: scanned, chain, received, upto,
since. Version 1 had no ``since``: that of the next connection counts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.entry import HEADER, unpack
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions.formats import unreadable
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.topics.journal.changes import Kind

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext

WRITE_SECONDS: Final = 1.0
"""Between two records: after a crash at most what was sent in that time is sent again."""
SCAN_ENTRIES: Final = 1000
SCAN_BYTES: Final = 1 << 20
FORMAT_VERSION: Final = 2
_RECORDS: Final = {1: struct.Struct(">Bqqqqqqqq"), 2: struct.Struct(">Bqqqqqqqqqq")}


class PulsarPlacesError(ValueError):
    """A record cannot be read."""


class _Place:
    __slots__ = ("chain", "is_new", "on_record", "pushed", "received", "scanned", "since", "upto")

    def __init__(self) -> None:
        self.scanned = self.chain = EARLIEST
        self.on_record = EARLIEST
        """``scanned`` as of the durable record."""
        self.received = self.pushed = EARLIEST
        """Of its messages: the last durable one, the last one given to the log."""
        self.upto = EARLIEST
        """``LATEST``: the region left the topic."""
        self.since = LATEST
        """``LATEST``: there was no link yet."""
        self.is_new = False
        """Something changed since the last record."""


class PulsarPlaces:
    """The places of one topic."""

    def __init__(self, topic: TopicContext, keep_from: Callable[[str, Position], None]) -> None:
        """:param keep_from: called with a region and how far it was served, once durable: retention keeps the rest."""
        self._topic = topic
        self._keep_from = keep_from
        self._places: dict[str, _Place] = {}
        self._is_due = False

    # -- opening -------------------------------------------------------------------------------------------------

    def replay(self, region: str, payload: bytes) -> None:
        """Replay a record of the progress log; an empty one ends what was known.

        :raises PulsarPlacesError: it cannot be read.
        """
        self._topic.log.unchained.add(region)
        if not payload:
            self._places.pop(region, None)
            return
        layout = _RECORDS.get(payload[0])
        if layout is not None and len(payload) != layout.size:
            raise PulsarPlacesError(f"the record of region {region} is damaged: it has {len(payload)} bytes")
        if layout is None:
            raise PulsarPlacesError(unreadable(f"the record of region {region}", payload[0], FORMAT_VERSION))
        numbers = layout.unpack(payload)[1:]
        scanned, chain, received, upto, *since = (Position(*numbers[at : at + 2]) for at in range(0, len(numbers), 2))
        place = self._of(region)
        place.scanned, place.chain, place.on_record = scanned, chain, scanned
        place.received = place.pushed = max(received, place.received)
        place.upto = max(upto, place.upto)
        place.since = since[0] if since else LATEST

    async def open(self) -> None:
        """Finish the replay. :raises LedgerError: the entries after a record cannot be read."""
        at = min((place.upto for place in self._places.values()), default=None)
        while at is not None and (found := await self._topic.log.read_after(at, SCAN_ENTRIES, SCAN_BYTES)):
            for _, stored in found:
                self._learn(stored)
            at = found[-1][0]
        for place in self._places.values():
            if place.upto < LATEST:
                place.upto = self._topic.log.last_confirmed

    def _learn(self, stored: bytes) -> None:
        if stored[2] << 8 | stored[3] == HEADER.size or (source := unpack(stored).came_from) is None:
            return
        if (place := self._places.get(source[0])) is not None:
            place.received = place.pushed = max(place.received, source[1])

    def _of(self, region: str) -> _Place:
        return self._places.setdefault(region, _Place())

    # -- what is sent there --------------------------------------------------------------------------------------

    def reached(self, region: str) -> tuple[Position, Position]:
        """How far the region was served: in the log, and our last own entry up to there."""
        place = self._of(region)
        return place.scanned, place.chain

    def kept_from(self, region: str) -> Position | None:
        """Retention keeps what is after this position; None: nothing is known of the region."""
        place = self._places.get(region)
        return None if place is None else place.on_record

    def served(self, region: str, scanned: Position, chain: Position) -> None:
        """The region has everything up to there."""
        place = self._of(region)
        if scanned > place.scanned:
            place.scanned, place.chain = scanned, chain
            self._changed(place)

    # -- what comes from there -----------------------------------------------------------------------------------

    def begin(self, region: str) -> None:
        """Its replicator has connected: put on record from where on entries are read after a restart. Wait until that
        is durable before the first of its messages is stored."""
        self._topic.log.unchained.add(region)
        is_new = region not in self._places or self._places[region].upto == LATEST
        place = self._of(region)
        if is_new:
            place.upto = self._topic.log.last_confirmed
        if is_new or place.since == LATEST:
            place.since = self._topic.log.last_confirmed
            self._write(region, place)

    def since(self, region: str) -> Position:
        """See the module's text; ``LATEST``: there was no link from there yet."""
        place = self._places.get(region)
        return LATEST if place is None or place.upto == LATEST else place.since

    def is_repeat(self, region: str, source: Position) -> bool:
        """Whether its message at this position was given to the log before."""
        return source <= max(self._of(region).pushed, self._topic.log.last_origin.get(region, EARLIEST))

    def given(self, region: str, source: Position) -> None:
        """Its message was given to the log."""
        self._of(region).pushed = source

    def stored(self, region: str, source: Position) -> None:
        """Its message is durable."""
        place = self._of(region)
        place.received = max(place.received, source)
        self._changed(place)

    def asked(self, region: str, source: Position, recorded: Callable[[], None]) -> None:
        """Its request at this position is about to be answered; ``recorded`` is called once it is known for a repeat
        after a restart, too."""
        place = self._of(region)
        place.received = max(place.received, source)
        self._write(region, place, recorded)

    # -- records -------------------------------------------------------------------------------------------------

    def _changed(self, place: _Place) -> None:
        place.is_new = True
        if not self._is_due:
            self._is_due = True
            self._topic.scheduler.later(WRITE_SECONDS, self._now_due)

    def _now_due(self) -> None:
        self._is_due = False
        if self._topic.failure is None:
            self.record()

    def record(self) -> None:
        """Write what changed; not from a callback of the log, which may be about to report more."""
        for region, place in self._places.items():
            if place.is_new:
                place.is_new = False
                place.upto = self._topic.log.last_confirmed
                self._write(region, place)

    def _write(self, region: str, place: _Place, then: Callable[[], None] = lambda: None) -> None:
        scanned = place.scanned

        def written(error: LedgerError | None) -> None:
            if error is None and self._places.get(region) is place:
                place.on_record = max(place.on_record, scanned)
                self._keep_from(region, place.on_record)
                then()

        self._topic.progress_log.append(Kind.PULSAR, region, _encode(place), written)

    def left(self, region: str) -> None:
        """The region left the topic: if it returns, it begins anew. Only that it runs Apache Pulsar stays on record:
        its entries are still here.
        """
        if region in self._places:
            place = self._places[region] = _Place()
            place.upto = LATEST
            self._write(region, place)

    def snapshot(self) -> Iterator[tuple[Kind, str, bytes]]:
        """The records that a new progress ledger begins with."""
        return ((Kind.PULSAR, region, _encode(place)) for region, place in list(self._places.items()))


def _encode(place: _Place) -> bytes:
    places = (place.scanned, place.chain, place.received, place.upto, place.since)
    return _RECORDS[FORMAT_VERSION].pack(FORMAT_VERSION, *(number for one in places for number in one))
