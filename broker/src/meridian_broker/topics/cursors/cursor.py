# SPDX-License-Identifier: Apache-2.0
"""A cursor: what one subscription is still owed of a topic in this region.

*Progress*, in origin coordinates, is the source of truth (R10). Mark-delete, and what is acked beyond it, is its image
under this region's local <-> origin index: ``advance`` walks forward while entries are acked, in whatever region.

``acknowledging.py`` resolves individual and cumulative acknowledgements, ``ack_buffer.py`` makes those of one turn of
the loop known, ``rewinding.py`` rewinds and ``drops.py`` drops. All of them change a cursor through its methods.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.entry import MARKER, publish_time_ms
from meridian_broker.ledgers.index import LedgerIndex
from meridian_broker.ledgers.store import Done, LedgerError
from meridian_broker.ledgers.times import PublishTimes
from meridian_broker.positions import Dropped, Progress
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.cursors import log_walks
from meridian_broker.topics.cursors.ack_buffer import AckBuffer
from meridian_broker.topics.cursors.resent import Resent
from meridian_broker.topics.journal.changes import Kind
from meridian_broker.topics.journal.common_acks import CommonAck

if TYPE_CHECKING:
    from meridian_broker.ledgers.index import Place
    from meridian_broker.ledgers.log import TopicLog
    from meridian_broker.topics.compaction.compaction import Compaction
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.cursors.ports import CursorOwner, ViewReading

WALK: Final = 3000
"""Entries that a cursor passes in one turn of the loop: a few milliseconds."""
LEAP: Final = 64
"""After this many entries it checks whether the rest of the ledger can be passed at once."""
READ_AGAIN_SECONDS: Final = 5.0
"""Pause between two attempts to read an index that a cursor waits for."""

log = logging.getLogger(__name__)


class Cursor(AckBuffer):
    """What one subscription is owed. Each subscription has one."""

    __slots__ = ("_has_skipped", "_is_loading", "times")

    def __init__(self, context: TopicContext, owner: CursorOwner, progress: Progress, durable: bool) -> None:
        super().__init__(context, owner, progress, durable)
        self.times: PublishTimes | None = None
        """Publish times of entries, while a seek by time is part of the progress (R12)."""
        self._has_skipped = False
        """Entries were skipped since the last ``advance``, which may pass them."""
        self._is_loading = False
        """It is waiting for an index."""

    @property
    def source(self) -> TopicLog | Compaction:
        """Where entries are read from: the log, or the compacted view."""
        return self.context.log if self.compacted is None else self.compacted.compaction

    def start(self) -> Position:
        """The position after which a dispatcher begins to read."""
        return self.mark_delete if self.compacted is None else self.compacted.start()

    # -- what is owed --------------------------------------------------------------------------------------------

    def is_done(self, position: Position, entry: bytes) -> bool:
        """Whether the entry must not be sent: a marker, acked in some region, or dispatched by another one."""
        if entry[1] & MARKER:
            self._has_skipped = self.durable
            return True
        if not self.durable:
            return position <= self.mark_delete
        compacted = self.compacted
        if compacted is not None and position <= compacted.horizon:
            if compacted.is_done(position, entry):
                self._has_skipped = True
                return True
            return False
        origin = self.context.log.origin(position)
        if origin is None:
            return position <= self.mark_delete
        region, place = origin
        acked = self.progress.is_acked(region, place, 0 if self.times is None else publish_time_ms(entry))
        if acked or (self.dropped is not None and self.dropped.contains(*origin)):
            self._has_skipped = True
            return True
        streams = self.owner.streams
        return streams is not None and not streams.holds(region)

    def is_owed(self, region: str, origin: Position, position: Position | None = None) -> bool:
        """Whether an entry is neither acked, in any region, nor dropped in this one (R14).

        :param position: where it is stored here. After a seek by time, its publish time is looked up by this
            position, as far as it is in memory (``times``). Without it, only unconditional acks count.
        """
        if position is not None and position in self.context.log.damage.lost:
            return False
        time_ms = 0 if self.times is None or position is None else self.times.of(position)
        if self.progress.is_acked(region, origin, time_ms):
            return False
        return self.dropped is None or not self.dropped.contains(region, origin)

    def simply_owes(self, region: str, origin: Position, position: Position) -> bool:
        """Whether an entry is owed as to any subscription that only acknowledges: there was no rewind, nothing is
        dropped or read through a view, and only an acknowledgement of earlier entries that many share may be pending,
        so that nothing has to be noted when it is sent. :param position: where it is stored here."""
        delta = self._delta
        return (
            (delta is None or (isinstance(delta, CommonAck) and delta.position < position))
            and self._confirmations is None
            and self.durable
            and not self._has_skipped
            and self.resent is None
            and self.dropped is None
            and self.compacted is None
            and self.times is None
            and not self.progress.is_acked(region, origin)
        )

    def are_done(self, index: LedgerIndex, first: int, last: int) -> bool | None:
        """Whether all entries of a stretch of a ledger are acked (True), or none is acked, dropped or damaged (False).
        None: only a look at each (``is_owed``) can tell."""
        return log_walks.are_done(self.context.log, self.progress, self.dropped, index, first, last)

    def passes(self, place: Place, position: Position) -> bool:
        """Whether a damaged entry need not be waited for: nothing of it is owed here, or it belongs to another
        region's stream.
        """
        if not self.durable:
            return position <= self.mark_delete
        if not self.is_owed(place.region, place.origin, position):
            return True
        streams = self.owner.streams
        return streams is not None and not streams.holds(place.region)

    def remaining(self, position: Position, entry: bytes, messages: int) -> int | None:
        """The messages of a batch to deliver, as bits; None: all."""
        if self.compacted is not None and position <= self.compacted.horizon:
            return self.compacted.remaining(position, entry)
        place = self.context.log.place(position) if self.durable else None
        if place is None:
            return None
        time_ms = 0 if self.times is None else publish_time_ms(entry)
        return self.progress.remaining(place.region, place.origin, messages, time_ms)

    def backlog(self) -> int:
        """Entries owed, as far as they can be counted without I/O: see ``log_walks.backlog``."""
        log = self.context.log
        if not self.durable:
            return log.distance(self.mark_delete, log.last_confirmed)
        return log_walks.backlog(log, self.progress, self.dropped, self.is_owed, self.mark_delete)

    # -- mark-delete ---------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Move mark-delete over what is not owed, ``WALK`` entries in one turn of the loop.

        It continues by itself, also after loading an index that it needs. Until the index arrives, acked entries after
        mark-delete are passed over one by one in dispatch.
        """
        log, progress, dropped, compacted = self.context.log, self.progress, self.dropped, self.compacted
        times, position, lost = self.times, self.mark_delete, log.damage.lost
        following, left = log.after(position), WALK
        while following is not None:
            index, left = log.index(following.ledger), left - 1
            if index is None or left < 0:
                self._load_soon(following)
                break
            if left and not left % LEAP and log_walks.is_rest_acked(index, progress, following):
                position = Position(following.ledger, len(index) - 1)
                following = log.after(position)
                continue
            origin = index.origin(following.entry)
            if (
                origin is None
                or progress.is_acked(*origin, 0 if times is None else times.of(following))
                or (dropped is not None and dropped.contains(*origin))
                or (compacted is not None and compacted.passes(following))
                or following in lost
            ):
                position = following
                following = log.after(position)
                continue
            if times is not None and not times.of(following) and progress.depends_on_time(*origin):
                self._load_soon(following)
            break
        assert position >= self.mark_delete, "only a rewind takes mark-delete back"
        self.mark_delete = position
        if self.resent is not None and dropped is None:  # what was dropped may still be acknowledged
            self.resent.passed(position)
        self.owner.moved(position)

    def catch_up(self) -> None:
        """Pass entries that dispatch skipped: they need no acknowledgement."""
        if self._has_skipped:
            self._has_skipped = False
            self.advance()

    def start_cursor(self, upto: Position = EARLIEST) -> None:
        """Start before the first entry that may be owed, then pass over what is acked (when opened, after a rewind).

        :param upto: nothing is owed up to here, except what a compacted view may show again.
        """
        log = self.context.log
        self.mark_delete = log.below(log.region, self.progress.floors())
        if self.compacted is not None:
            self.compacted.reset()
        else:
            self.mark_delete = max(self.mark_delete, upto)
        self.advance()

    def start_at(self, position: Position) -> None:
        """Start after a position whatever is acked: the end of the log, or where a reader begins."""
        self.mark_delete = position

    def pass_over(self, position: Position) -> None:
        """A reader is owed nothing up to here, except what a compacted view still has."""
        assert not self.durable, "a durable cursor moves only by advance, over acked or dropped entries"
        if self.compacted is None:
            self.mark_delete = max(self.mark_delete, position)
            self.owner.moved(position)
            self.owner.dispatch_soon()

    def read_through(self, view: ViewReading | None) -> None:
        """Read from the compacted view from now on; None: from the whole log."""
        self.compacted = view

    def _load_soon(self, position: Position) -> None:
        """Load what ``position`` needs into memory, then move on, unless that is under way.

        A read that fails is tried again after a pause. Until then acked entries after mark-delete are passed over
        one by one, which costs time and loses nothing.
        """
        if not self._is_loading:
            self._is_loading = True
            self.context.serve(partial(self._load, position), "move a cursor on")

    async def _load(self, position: Position) -> None:
        context = self.context
        try:
            await context.log.load_index(position.ledger)
            if self.times is not None:
                await self.times.load(position)
        except LedgerError as error:
            log.warning(
                "%s: the cursor of subscription %s cannot advance now, will retry: %s", context.name, self.name, error
            )
            context.scheduler.later(READ_AGAIN_SECONDS, self._loaded)
        else:
            self._loaded()

    def _loaded(self) -> None:
        self._is_loading = False
        if self.context.failure is None:
            self.advance()

    # -- drops and rewinds ---------------------------------------------------------------------------------------

    def record_dropped(self, ranges: Dropped, done: Done | None = None) -> None:
        """Record drops. ``done`` is called once they are durable."""
        journal = self.context.progress_log
        if self.join_dropped(ranges):
            journal.append(Kind.DROPPED, self.name, ranges.encode(), done)
        elif done is not None:
            journal.when_durable(done)

    def rewound(self) -> None:
        """The cursor was rewound, or loaded with a rewind in its progress: nothing counts as sent again yet (R13)."""
        self.resent = Resent(self.context.log.last_confirmed)
        self.follow_moments()

    def follow_moments(self) -> None:
        """Look up publish times as far as seeks by time in the progress need them."""
        moments = self.progress.moments()
        self.times = PublishTimes(self.context.log, moments) if moments else None
