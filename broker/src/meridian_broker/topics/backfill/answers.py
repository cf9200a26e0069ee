# SPDX-License-Identifier: Apache-2.0
"""Entries that another region asks for: what this region answers, and how an answer is checked where it arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from meridian_broker.ledgers.damage import is_damaged
from meridian_broker.ledgers.entry import UNCHAINED, EntryFormatError, EntryHeader, pack_foreign, unpack
from meridian_broker.ledgers.finding import origins_between, stored_at
from meridian_broker.ledgers.holes import is_break
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.topics.backfill.questions import Found, Want
from meridian_broker.topics.errors import NotAllowed, OriginConflict
from meridian_broker.wire.pulsar import metadata as message_metadata
from meridian_broker.wire.pulsar import origin_fields
from meridian_broker.wire.pulsar.metadata import BodyError

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext

ANSWER_ENTRIES: Final = 1000
ANSWER_BYTES: Final = 1 << 20
"""Limit of one answer in bytes. It always contains at least one entry, whatever its size."""


class Completeness(Protocol):
    """What an answer depends on: ``Backfill`` of the topic."""

    @property
    def is_complete(self) -> bool:
        """Whether all entries of this region's own are stored here."""
        ...

    def left(self, region: str, /) -> None:
        """A region left the topic, or another one has entries of it."""
        ...


async def find(topic: TopicContext, backfill: Completeness | None, asker: str, want: Want) -> Found:
    """Answer another region: the longest chained run of entries, or the first entry there is if none follows
    ``want.after``.

    :raises LedgerError: the entries cannot be read.
    """
    is_own = want.origin == topic.region
    if want.origin in topic.log.unchained:
        if want.before == LATEST:
            return Found((), is_chained=True, is_complete=False)  # a copy of one that is damaged may be asked for
    elif backfill is not None and want.origin not in topic.remotes:
        backfill.left(want.origin)  # the asker has entries of it
    is_authority = is_own and want.before != LATEST  # of a hole: what its origin trimmed is missed nowhere
    end = topic.log.last_own if is_own else topic.log.last_origin.get(want.origin, EARLIEST)
    after, skipped = want.after, topic.skipped_for(asker) if is_own else None
    if skipped is not None and skipped.applies_to(after):
        after = skipped.own  # as the replicator does
    await topic.scheduler.answer(topic.log.when_durable)  # what is not stored below the end counts as trimmed
    is_complete = is_own and backfill is not None and backfill.is_complete
    if after >= min(end, want.before):  # true for nearly all questions; no ledger was read
        return Found((), is_chained=True, is_complete=is_complete, last=end)
    last, entries, size, is_chained = after, list[bytes](), 0, True
    spans = topic.log.spans()
    given_back = spans[0].origins_before.get(want.origin, EARLIEST) if spans else EARLIEST
    places = await origins_between(topic.log, want.origin, after, want.before, ANSWER_ENTRIES)
    async for origin, (place, stored) in stored_at(topic.log, places):
        header = unpack(stored)
        if is_damaged(stored):
            if place in topic.log.damage.lost:
                continue  # as if it had been trimmed
            if not entries:
                return Found((), is_chained=False, is_complete=False, last=end)
            is_complete = False
            break
        # A break names no predecessor; only a region that trimmed nothing in between can say that there was none.
        before = topic.log.own_before(place.ledger) if is_own else given_back
        follows = header.prev == last or (is_break(header.prev, origin) and before <= last)
        if not (is_authority or follows):
            if entries:
                break
            is_chained = False
        last = origin
        if asker != want.origin and header.replicate_to is not None and asker not in header.replicate_to:
            continue
        entries.append(_as_foreign(stored, header, topic.region, origin))
        size += len(stored)
        if size >= ANSWER_BYTES or len(entries) >= ANSWER_ENTRIES:
            break
    return Found(tuple(entries), is_chained or not entries, is_complete, end)


def _as_foreign(stored: bytes, header: EntryHeader, region: str, origin: Position) -> bytes:
    """An entry in the form in which another region stores it, wherever it was published."""
    body = stored[header.body_offset :]
    if header.region is not None and header.region != region:
        return stored
    appended, _ = origin_fields.append_replication(body, region, origin.ledger, origin.entry)
    return pack_foreign(header._replace(region=region, origin=origin)) + appended


def _checksum(header: EntryHeader, region: str, origin: Position, body: bytes) -> int:
    """:raises BodyError: the body is not valid."""
    if header.flags & UNCHAINED:
        origin_fields.origin_checksum(body, 0)
        return message_metadata.checksum_everywhere(body, message_metadata.scan(body))
    return origin_fields.origin_checksum(body, origin_fields.appended_bytes(body, region, *origin))


def checked(entry: bytes, want: Want, after: Position) -> tuple[EntryHeader, bytes]:
    """Header and body of an entry that was requested.

    :raises NotAllowed: it was not requested, or cannot be read.
    :raises OriginConflict: its bytes differ from those its origin stored (R7).
    """
    try:
        header = unpack(entry)
        if header.region != want.origin or header.origin is None or not after < header.origin < want.before:
            raise NotAllowed(f"asked for {want.origin} after {after}, got {header.region}/{header.origin}")
        body = entry[header.body_offset :]
        if _checksum(header, want.origin, header.origin, body) != header.origin_checksum:
            raise OriginConflict(
                f"entry {want.origin}/{header.origin} arrived with different bytes than its origin stored"
            )
    except (EntryFormatError, BodyError) as error:
        raise NotAllowed(f"an entry of {want.origin} after {after} cannot be read: {error}") from error
    return header, body
