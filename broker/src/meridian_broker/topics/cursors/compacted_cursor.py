# SPDX-License-Identifier: Apache-2.0
"""A cursor, durable or a reader's, that reads the topic's compacted view.

The cursor passes messages that compaction removed but does not claim them as acknowledged: the same subscription in
another region, or a later consumer that wants the whole log, may still need them (*never over-claim*). So mark-delete
is derived from progress *and* the view, and is never stored. An acknowledgement, individual or cumulative, claims in
the range that the view covers only what the view holds; of a batch that lost messages, the remaining ones. Such
acknowledgements therefore look up their entries in the view. Messages that the consumer was sent before compaction
removed them are claimed as well (``view_deliveries.py``).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from pyroaring import BitMap

from meridian_broker.ledgers.entry import NO_ORIGIN, EntryHeader, unpack
from meridian_broker.ledgers.index import Place
from meridian_broker.ledgers.scheduling import next_turn
from meridian_broker.ledgers.store import LedgerNotFound
from meridian_broker.positions import ZERO, AckSet, Stamp
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.cursors import acknowledging, log_walks
from meridian_broker.topics.cursors.view_acks import Epochs, LookUps, UpTo, ViewAck, note
from meridian_broker.topics.cursors.view_deliveries import ViewDeliveries

if TYPE_CHECKING:
    from meridian_broker.ledgers.store import Done
    from meridian_broker.positions import Progress
    from meridian_broker.topics.compaction.compaction import Compaction
    from meridian_broker.topics.compaction.view import CompactedView
    from meridian_broker.topics.cursors.ack_state import AckState
    from meridian_broker.topics.cursors.cursor import Cursor

SLICE_ENTRIES: Final = 500
SLICE_BYTES: Final = 1 << 20
"""Bytes looked up at a time."""
SENT_MAX: Final = 10_000
"""Batches whose sent messages are remembered. An ack covers nothing of an older batch that compaction removed."""
Ranges = dict[str, tuple[Position, Position]]


class CompactedReading:
    """Reads the compacted view for one cursor, as long as the consumers of its subscription ask for the view."""

    def __init__(self, cursor: Cursor, compaction: Compaction) -> None:
        self._cursor = cursor
        self.compaction = compaction
        self._done_upto = EARLIEST
        """Everything in the view up to here is acknowledged."""
        self._claimed = EARLIEST
        """Everything in the view up to here was claimed by cumulative acknowledgements since reading last restarted."""
        self._thinned_done: dict[int, BitMap] = {}
        """Batches that lost messages to compaction and whose remaining messages are acknowledged: ledger -> entries."""
        self._sent: dict[Position, int] = {}
        """Which messages of a batch were delivered; compaction may remove some before the ack arrives."""
        self._ids_sent = AckSet()
        """Entries that were sent and may be owed: compaction and trimming may remove one before it is acked."""
        self._held = ViewDeliveries()
        self._look_ups = LookUps(cursor)

    def reset(self) -> None:
        """The subscription was rewound: what was acknowledged may be owed again."""
        self._done_upto = self._claimed = EARLIEST
        self._ids_sent = AckSet()
        self._held = ViewDeliveries()
        self._thinned_done.clear()

    def begin_anew(self) -> None:
        """Everything that is not acknowledged is about to be sent again, as far as the view contains it."""
        self._held = ViewDeliveries()

    def compare(self, view: CompactedView) -> None:
        """A new view is in force. Entries that it removed while a consumer held them may be trimmed before they are
        acknowledged.
        """
        topic = self._cursor.context
        for ledger in self._held.compare(view):
            index = topic.log.index(ledger)
            if index is not None:
                topic.late.note(index)

    @property
    def horizon(self) -> Position:
        """Everything up to here is read from the view."""
        return EARLIEST if self.compaction.view is None else self.compaction.view.horizon

    @property
    def thinned_done(self) -> dict[int, BitMap]:
        """Batches that lost messages to compaction and whose remaining messages are acknowledged: ledger -> entries.
        A copy.
        """
        return {ledger: entries.copy() for ledger, entries in self._thinned_done.items()}

    def start(self) -> Position:
        """The position after which reading begins: before mark-delete if the view has more than the log."""
        cursor, view = self._cursor, self.compaction.view
        if view is not None and cursor.durable:
            first = view.after(self._done_upto)
            if first is not None and first < cursor.context.log.first:
                return self._done_upto
        return cursor.mark_delete

    def passes(self, position: Position) -> bool:
        """Whether mark-delete may pass this entry of the log although it is not acknowledged."""
        view = self.compaction.view
        if view is None or position > view.horizon:
            return False
        done = self._thinned_done.get(position.ledger)
        return not view.holds(position) or (done is not None and position.entry in done)

    def knows(self, position: Position) -> bool:
        """Whether this is the id of an entry of the view, or of one that was sent and then removed by compaction."""
        view = self.compaction.view
        return (view is not None and view.holds(position)) or self._ids_sent.contains(position)

    # -- dispatch ------------------------------------------------------------------------------------------------

    def note_sent(self, acker: AckState, position: Position) -> None:
        """An entry was sent, from the view or from the log after it."""
        self._ids_sent.claim_point(position)
        if self._held.acker is not acker:
            self._held = ViewDeliveries(acker)
        self._held.note(position, self.compaction.view)
        if not position.entry % SLICE_ENTRIES:
            start = self.start()
            self._ids_sent.raise_floor(start)
            self._held.forget_done(start)

    def note_batch(self, position: Position, messages: int, remaining: int | None) -> None:
        """These messages of a batch are sent, as bits; None: all."""
        self._sent[position] = (1 << messages) - 1 if remaining is None else remaining
        if len(self._sent) > SENT_MAX:
            del self._sent[next(iter(self._sent))]

    def is_done(self, position: Position, entry: bytes) -> bool:
        """Whether everything that is left of this entry of the view is acknowledged."""
        cursor, header = self._cursor, unpack(entry)
        if header.flags & NO_ORIGIN:
            return cursor.context.log.holds(position) and position <= cursor.mark_delete
        if not self._is_done(position, header):
            return False
        self._note_done(position, header)
        return True

    def _is_done(self, position: Position, header: EntryHeader) -> bool:
        progress = self._cursor.progress
        region, origin = self._origin(position, header)
        if self._is_dropped(position, header):
            return True
        if header.kept is None:
            return progress.is_acked(region, origin, header.publish_time_ms)
        remaining = progress.remaining(region, origin, header.messages, header.publish_time_ms)
        return remaining is not None and not remaining & header.kept

    def _is_dropped(self, position: Position, header: EntryHeader) -> bool:
        dropped = self._cursor.dropped
        return dropped is not None and dropped.contains(*self._origin(position, header))

    def _note_done(self, position: Position, header: EntryHeader) -> None:
        if header.kept is not None:
            self._thinned_done.setdefault(position.ledger, BitMap()).add(position.entry)
        view = self.compaction.view
        if view is not None and view.after(self._done_upto) == position:
            self._done_upto = position

    def remaining(self, position: Position, entry: bytes) -> int | None:
        """The messages of a batch to deliver, as bits; None: all."""
        header = unpack(entry)
        remaining: int | None = None
        if self._cursor.durable and not header.flags & NO_ORIGIN:
            region, origin = self._origin(position, header)
            progress = self._cursor.progress
            remaining = progress.remaining(region, origin, header.messages, header.publish_time_ms)
        if header.kept is not None:
            remaining = header.kept if remaining is None else header.kept & remaining
        return remaining

    def _origin(self, position: Position, header: EntryHeader) -> tuple[str, Position]:
        return header.region or self._cursor.context.region, header.origin or position

    # -- acknowledgements ----------------------------------------------------------------------------------------

    def acknowledge(
        self,
        acker: AckState,
        positions: list[Position],
        stale: frozenset[Position],
        batches: dict[Position, int] | None,
        confirmed: Done | None,
    ) -> list[Position]:
        """Individual acknowledgements. Returns the positions after the horizon, which are not looked up here.

        If there are none of those, ``confirmed`` is called here.
        """
        covered = [position for position in positions if position <= self.horizon]
        others = [position for position in positions if position > self.horizon]
        if covered:
            told = None if others else confirmed
            epoch = acker.epoch

            def epochs(place: Position) -> Stamp:
                return ZERO if place in stale else epoch

            self._look_ups.add(partial(self._acknowledge, epochs, covered, batches or {}, told), told)
        return others

    def acknowledge_up_to(
        self, acker: AckState, behind: Position, position: Position, part: int | None, confirmed: Done | None
    ) -> bool:
        """A cumulative acknowledgement, see ``acknowledging.up_to``. False: everything that it covers of the view,
        and of what was removed from it, is claimed already.
        """
        view = self.compaction.view
        following = None if view is None else view.after(self._claimed)
        held = self._held if self._held.acker is acker else ViewDeliveries()
        if (following is None or following > position) and not held.taken_out(behind, position, 1):
            return False
        resent, pieces = self._cursor.resent, acker.pieces
        withheld = frozenset[Position]() if pieces is None else pieces.acknowledged(position)[0]
        as_now = None if resent is None else resent.copy()
        upto = UpTo(acker, position, part, behind, as_now, held, withheld)
        self._look_ups.add(partial(self._acknowledge_up_to, upto, confirmed), confirmed)
        return True

    async def _acknowledge(
        self, epochs: Epochs, positions: list[Position], batches: dict[Position, int], confirmed: Done | None
    ) -> None:
        view_acks: list[ViewAck] = []
        for position in positions:
            header, remaining = await self._header(position), batches.get(position, 0)
            if header is None:
                view_ack = await self._taken_out(position, remaining)
            else:
                view_ack = self._in_view(position, header, remaining, self._sent.get(position, 0))
            if view_ack is not None:
                view_acks.append(view_ack)
        self._claim(epochs, view_acks, confirmed)
        for position in positions:
            if position not in batches:
                self._sent.pop(position, None)
                self._held.acked(position)

    async def _acknowledge_up_to(self, ack: UpTo, confirmed: Done | None) -> None:
        await self._acknowledge_view(ack)
        await self._acknowledge_taken_out(ack)
        rest = acknowledging.up_to(self._cursor, ack.acker, ack.behind, ack.position, ack.part, confirmed, ack.resent)
        if rest is not None:
            await rest()

    async def _acknowledge_view(self, ack: UpTo) -> None:
        """Claim the entries of the view up to a position. Withheld chunks are claimed by ``acknowledging.up_to`` once
        complete.
        """
        upto = min(ack.position, self.horizon)
        is_all, after = ack.behind <= self._claimed, max(ack.behind, self._claimed)
        while entries := await self.compaction.read_view(after, SLICE_ENTRIES, SLICE_BYTES):
            view_acks: list[ViewAck] = []
            inside = [stored for stored in entries if stored[0] <= upto]
            for position, entry in inside:
                header = unpack(entry)
                if position in ack.withheld or self._is_dropped(position, header):
                    continue
                sent = self._sent.get(position, 0) if ack.held.contains(position) else 0
                view_ack = self._in_view(position, header, ack.remaining(position), sent)
                if view_ack is not None:
                    view_acks.append(view_ack)
            self._claim(ack.epoch, view_acks, None)
            if inside:
                after = inside[-1][0]
                is_whole = ack.part is None or after != ack.position
                if is_all:
                    self._claimed = after if is_whole else Position(after.ledger, after.entry - 1)
                if not is_whole:
                    return
            if len(inside) < len(entries):
                return

    async def _acknowledge_taken_out(self, ack: UpTo) -> None:
        """Claim what the consumer holds up to a position and is no longer in the view."""
        behind = ack.behind
        while positions := ack.held.taken_out(behind, ack.position, SLICE_ENTRIES):
            view_acks: list[ViewAck] = []
            for position in positions:
                if position in ack.withheld:
                    continue
                view_ack = await self._taken_out(position, ack.remaining(position))
                dropped = self._cursor.dropped
                if view_ack is not None and (dropped is None or not dropped.contains(*view_ack.place[::2])):
                    view_acks.append(view_ack)
                if not ack.remaining(position):
                    ack.held.acked(position)
            behind = positions[-1]
            self._claim(ack.epoch, view_acks, None)
            await next_turn(self._cursor.context.scheduler)

    async def _header(self, position: Position) -> EntryHeader | None:
        """Header of an entry of the view; None: it is not in the view."""
        while (view := self.compaction.view) is not None and view.holds(position):
            try:
                entry = await view.read_one(position)
            except LedgerNotFound:
                if view is self.compaction.view:
                    raise
                continue  # a newer view replaced it meanwhile
            return None if entry is None else unpack(entry)
        return None

    def _in_view(self, position: Position, header: EntryHeader, remaining: int = 0, sent: int = 0) -> ViewAck | None:
        """The acknowledgement of an entry of the view; the consumer may have been ``sent`` more of it than is left."""
        if header.flags & NO_ORIGIN:
            return None
        region, origin = self._origin(position, header)
        having = None if header.kept is None else header.kept | sent
        return ViewAck(position, Place(region, header.prev, origin), header.messages, having, remaining, header)

    async def _taken_out(self, position: Position, remaining: int) -> ViewAck | None:
        """The acknowledgement of an entry that is not in the view: the part that was sent. None: it is nowhere, or was
        not sent.
        """
        topic = self._cursor.context
        if topic.log.holds(position):
            await log_walks.load_index(topic.log, position.ledger)
        index = topic.log.index(position.ledger) if topic.log.holds(position) else topic.late.index(position)
        place = None if index is None else index.place(position.entry)
        if index is None or place is None:
            return None
        messages = index.messages(position.entry)
        having = None if messages == 1 else self._sent.get(position, 0)
        return None if having == 0 else ViewAck(position, place, messages, having, remaining)

    def _claim(self, epochs: Epochs, view_acks: list[ViewAck], confirmed: Done | None) -> None:
        cursor = self._cursor
        delta = cursor.open_delta()
        for view_ack in view_acks:
            note(delta, epochs(view_ack.position), view_ack)
        cursor.changed(confirmed, len(view_acks))
        cursor.flush()
        for view_ack in view_acks:
            if view_ack.header is not None and self._is_done(view_ack.position, view_ack.header):
                self._note_done(view_ack.position, view_ack.header)
        cursor.advance()

    # -- seeking -------------------------------------------------------------------------------------------------

    async def move(self, delta: Progress, target: Position) -> Ranges:
        """The part of a seek that concerns entries that only the view has. Claims in ``delta`` those before
        ``target``. Returns what a rewind to ``target`` rules: per origin ``(prev of its first entry, its last]``,
        empty if nothing is acked.

        :raises LedgerError: the view cannot be read.
        """
        cursor = self._cursor
        epoch, first = cursor.progress.epoch, cursor.context.log.first
        ranges: Ranges = {}
        is_anything_acked = False
        position = EARLIEST
        while entries := await self.compaction.read_view(position, SLICE_ENTRIES, SLICE_BYTES):
            for position, entry in entries:
                if position >= first:
                    return ranges if is_anything_acked else {}
                header = unpack(entry)
                if header.flags & NO_ORIGIN:
                    continue
                if position < target:
                    if (view_ack := self._in_view(position, header)) is not None:
                        note(delta, epoch, view_ack)
                    continue
                region, origin = self._origin(position, header)
                low, high = ranges.get(region, (header.prev, origin))
                ranges[region] = (min(low, header.prev), max(high, origin))
                time_ms = header.publish_time_ms
                remaining = cursor.progress.remaining(region, origin, header.messages, time_ms)
                is_anything_acked = is_anything_acked or remaining is not None
        return ranges if is_anything_acked else {}
