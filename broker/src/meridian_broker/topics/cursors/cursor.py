# SPDX-License-Identifier: Apache-2.0
"""A cursor: what one subscription is still owed of a topic in this region.

*Progress*, in origin coordinates, is the source of truth (R10). Mark-delete, and what is acked beyond it, is its image
under this region's local <-> origin index: ``advance`` walks forward while entries are acked, in whatever region.

The acknowledgements of one turn of the loop become one delta (R18): one record in the progress log, durable with the
group commit, and one message to each peer. ``acknowledging.py`` resolves individual and cumulative acknowledgements,
``rewinding.py`` rewinds and ``drops.py`` drops. All of them change a cursor through its methods.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.entry import MARKER, publish_time_ms
from meridian_broker.ledgers.index import LedgerIndex
from meridian_broker.ledgers.notifying import notify_all
from meridian_broker.ledgers.store import Done, LedgerError
from meridian_broker.ledgers.times import PublishTimes
from meridian_broker.ledgers.under_way import Over, UnderWay
from meridian_broker.positions import ZERO, Dropped, Progress
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.cursors import log_walks
from meridian_broker.topics.cursors.resent import Resent
from meridian_broker.topics.cursors.state import CursorState
from meridian_broker.topics.journal.changes import Kind
from meridian_broker.topics.journal.common_acks import REMEMBERED, CommonAck

if TYPE_CHECKING:
    from meridian_broker.ledgers.index import Place
    from meridian_broker.ledgers.log import TopicLog
    from meridian_broker.topics.compaction.compaction import Compaction
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.cursors.ack_state import AckState
    from meridian_broker.topics.cursors.ports import CursorOwner, ViewReading

WALK: Final = 3000
"""Entries that a cursor passes in one turn of the loop: a few milliseconds."""
LEAP: Final = 64
"""After this many entries it checks whether the rest of the ledger can be passed at once."""
READ_AGAIN_SECONDS: Final = 5.0
"""Pause between two attempts to read an index that a cursor waits for."""

log = logging.getLogger(__name__)


class Cursor(CursorState):
    """What one subscription is owed. Each subscription has one."""

    __slots__ = (
        "_confirmations",
        "_delta",
        "_entries",
        "_has_skipped",
        "_is_flushing",
        "_is_loading",
        "compacted",
        "context",
        "durable",
        "last_acked_ms",
        "look_ups",
        "mark_delete",
        "owner",
        "resent",
        "times",
    )

    def __init__(self, context: TopicContext, owner: CursorOwner, progress: Progress, durable: bool) -> None:
        self.context = context
        self.owner = owner
        super().__init__(progress)
        self.durable = durable
        """False: a reader's cursor, which is one position in memory."""
        self.mark_delete: Position = EARLIEST
        self.resent: Resent | None = None
        """What was sent since the newest rewind; None: it was never rewound (R13)."""
        self.times: PublishTimes | None = None
        """Publish times of entries, while a seek by time is part of the progress (R12)."""
        self.compacted: ViewReading | None = None
        """Set as long as the active consumer reads the compacted view."""
        self.look_ups: UnderWay | None = None
        """Acknowledgements that were received and whose entries are being looked up; created for the first one."""
        self.last_acked_ms = 0
        self._has_skipped = False
        """Entries were skipped since the last ``advance``, which may pass them."""
        self._is_loading = False
        """It is waiting for an index."""
        self._delta: Progress | CommonAck | None = None
        """What this turn's acknowledgements claim; not sent to other regions yet."""
        self._entries = 0
        self._confirmations: list[Done] | None = None
        self._is_flushing = False

    @property
    def name(self) -> str:
        return self.owner.record.name

    @property
    def replicated(self) -> bool:
        return self.owner.record.replicated

    @property
    def source(self) -> TopicLog | Compaction:
        """Where entries are read from: the log, or the compacted view."""
        return self.context.log if self.compacted is None else self.compacted.compaction

    def start(self) -> Position:
        """The position behind which a dispatcher begins to read."""
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
        index = self.context.log.index(position.ledger)
        origin = None if index is None else index.origin(position.entry)
        if origin is None:
            return position <= self.mark_delete
        acked = self.progress.is_acked(*origin, 0 if self.times is None else publish_time_ms(entry))
        if acked or (self.dropped is not None and self.dropped.contains(*origin)):
            self._has_skipped = True
            return True
        share = self.owner.share
        return share is not None and not share.holds(origin[0])

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

    def are_done(self, index: LedgerIndex, first: int, last: int) -> bool | None:
        """Whether all entries of a stretch of a ledger are acked (True), or none is acked, dropped or damaged (False).
        None: only a look at each (``is_owed``) can tell."""
        return log_walks.are_done(self.context.log, self.progress, self.dropped, index, first, last)

    def passes(self, place: Place, position: Position) -> bool:
        """Whether a damaged entry need not be waited for: nothing of it is owed here, or it belongs to another
        region's share.
        """
        if not self.durable:
            return position <= self.mark_delete
        if not self.is_owed(place.region, place.origin, position):
            return True
        share = self.owner.share
        return share is not None and not share.holds(place.region)

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

        It continues by itself, also after loading an index that it needs. Until it arrives, acked entries behind
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
        """Start behind a position whatever is acked: the end of the log, or where a reader begins."""
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

        A read that fails is tried again after a pause. Until then acked entries behind mark-delete are passed over
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
            log.warning("the cursor of %s of %s cannot advance for now: %s", self.name, context.name, error)
            context.scheduler.later(READ_AGAIN_SECONDS, self._loaded)
        else:
            self._loaded()

    def _loaded(self) -> None:
        self._is_loading = False
        if self.context.failure is None:
            self.advance()

    # -- acknowledgements that are not sent to other regions yet -------------------------------------------------

    def open_delta(self) -> Progress:
        """This turn's acknowledgements: add to them, then call ``changed``."""
        delta = self._delta
        if isinstance(delta, CommonAck):
            self._delta = delta = delta.delta.copy()
        elif delta is None:
            self._delta = delta = self.progress.empty_delta()
        return delta

    def claim_common(self, acker: AckState, position: Position, confirmed: Done | None) -> bool:
        """Claim one whole entry as other subscriptions did, perhaps behind those of this turn. False: nothing was done,
        it has to be claimed by itself."""
        delta = self._delta
        if delta is not None and not isinstance(delta, CommonAck):
            return False
        if not self.durable or self.resent is not None or acker.epoch is not ZERO or not self._is_plain():
            return False
        context = self.context
        known = context.progress_log.common_acks
        common = known.get(position)
        if common is None:
            index = context.log.index(position.ledger) if context.log.holds(position) else None
            place = None if index is None else index.place(position.entry)
            if place is not None:
                if len(known) >= REMEMBERED:
                    known.clear()
                again = position in known
                known[position] = CommonAck(position, place, context.log.before(position)) if again else None
            return False
        if delta is not None and (common := delta.and_then(common)) is None:
            return False
        self._delta = common
        self.owner.release(acker, position)
        self.changed(confirmed, 1)
        return True

    def _is_plain(self) -> bool:
        """Whether its acknowledgements are those of any other subscription: it was never rewound nor deleted, other
        regions do not know it, and it reads the log."""
        return self.compacted is None and self.progress.is_plain and not self.owner.record.replicated

    def claim(self, delta: Progress, entries: int, confirmed: Done | None) -> None:
        """Also claim the entries in a piece of progress that is not used elsewhere. Otherwise as ``changed``."""
        if self._delta is not None:
            self.open_delta().join(delta)
        elif entries:
            self._delta = delta
        self.changed(confirmed, entries)

    def changed(self, confirmed: Done | None, entries: int) -> None:
        """``entries`` entries were claimed. They are written at the end of this turn; ``confirmed`` is called once
        they are durable.
        """
        self._entries += entries
        if confirmed is not None:
            if self._confirmations is None:
                self._confirmations = []
            self._confirmations.append(confirmed)
        if not self._is_flushing:
            self._is_flushing = True
            self.context.turns.add(self)

    def next_turn(self) -> None:
        """The turn in which something was acknowledged is over."""
        self._is_flushing = False
        common = self._delta
        if isinstance(common, CommonAck) and self._confirmations is None and self._is_plain():
            self._flush_common(common)
        else:
            self.flush()

    def _flush_common(self, common: CommonAck) -> None:
        """As ``flush`` of what many acknowledge, and of nothing else."""
        self._delta, self._entries = None, 0
        context, owner = self.context, self.owner
        self.last_acked_ms = context.scheduler.now_ms()
        if self.progress.ack(ZERO, common.region, common.after, common.upto):
            if owner.is_there:
                context.progress_log.append_acked(owner.record.name, common.encoded)
            if self.mark_delete == common.before and common.position >= context.log.last_confirmed:
                self.mark_delete = common.position  # as ``advance`` would, and one object for all
                owner.moved(common.position)
            else:
                self.advance()

    def flush_pending(self) -> None:
        """As ``flush``, if there is anything pending."""
        if self._delta is not None or self._confirmations is not None:
            self.flush()

    def flush(self) -> None:
        """Turn this turn's acknowledgements into one record and one message to each peer."""
        delta, self._delta = self._delta, None
        confirmations, self._confirmations = self._confirmations, None
        entries, self._entries = self._entries, 0
        self.last_acked_ms = self.context.scheduler.now_ms()
        if delta is None or not self._join_own(delta):
            if confirmations:
                self.context.progress_log.when_durable(lambda error: self._confirm(confirmations, error))
            return
        self.make_known(delta, confirmations, entries)
        self.advance()

    def _join_own(self, delta: Progress | CommonAck) -> bool:
        """:returns: whether anything was new."""
        if isinstance(delta, CommonAck):
            if self._is_plain():
                return self.progress.ack(ZERO, delta.region, delta.after, delta.upto)
            delta = delta.delta
        return self.join(delta)

    def make_known(
        self, delta: Progress | CommonAck, confirmations: list[Done] | None = None, entries: int = 0
    ) -> None:
        """Write what is already joined, and send it to the other regions.

        :param entries: how many entries it acknowledges.
        """
        context = self.context
        if not self.owner.is_there:
            gone = LedgerError(f"subscription {self.name!r} was deleted: no state of it is kept")
            notify_all(confirmations or (), gone)
            return
        if isinstance(delta, CommonAck):
            context.progress_log.append_acked(self.name, delta.encoded)
            delta = delta.delta.copy() if self.replicated else delta.delta
        else:
            context.progress_log.append(Kind.ACKED, self.name, delta.encode())
        try:
            if self.replicated:
                self.join_first_hand(delta)
                context.tell_others(self.name, delta, entries=entries)
        finally:
            if confirmations:
                context.progress_log.when_durable(lambda error: self._confirm(confirmations, error))

    def _confirm(self, confirmations: Sequence[Done], error: LedgerError | None) -> None:
        """Send clients their receipts. The acknowledgements are sent to other regions before: if the broker is killed
        right afterwards, none of those messages is repeated there, as long as its links hold (R19).
        """
        try:
            if self.replicated and self.context.exchange is not None:
                self.context.exchange.send_pending()
        finally:
            notify_all(confirmations, error)

    def looking_up(self) -> UnderWay:
        """Counts the acknowledgements whose entries are being looked up; a close waits for them."""
        if self.look_ups is None:
            self.look_ups = UnderWay()
        return self.look_ups

    def when_resolved(self, callback: Over) -> None:
        """Call ``callback`` once all acknowledgements received so far are in the progress, at once if they are, or
        with the error that prevents it.
        """
        if self.look_ups is None:
            callback(None)
        else:
            self.look_ups.when_over(callback)

    # -- drops and rewinds ---------------------------------------------------------------------------------------

    def record_dropped(self, ranges: Dropped, done: Done | None = None) -> None:
        """Record drops. ``done`` is called once they are durable."""
        journal = self.context.progress_log
        if self.join_dropped(ranges):
            journal.append(Kind.DROPPED, self.name, ranges.encode(), done)
        elif done is not None:
            journal.when_durable(done)

    def rewound(self) -> None:
        """It was rewound, or was loaded with a rewind in its progress: nothing counts as sent again yet (R13)."""
        self.resent = Resent(self.context.log.last_confirmed)
        self.follow_moments()

    def follow_moments(self) -> None:
        """Look up publish times as far as seeks by time in the progress need them."""
        moments = self.progress.moments()
        self.times = PublishTimes(self.context.log, moments) if moments else None

    def was_acked_at(self, time_ms: int) -> None:
        """Time of the last acknowledgement, from the progress log, in milliseconds since 1970."""
        self.last_acked_ms = time_ms
