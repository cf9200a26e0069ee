# SPDX-License-Identifier: Apache-2.0
"""The acknowledgements of one turn of the loop, before they are written and sent to other regions.

They become one delta (R18): one record in the progress log, durable with the group commit, and one message to each
peer. Many subscriptions often acknowledge the same entries in the same turn: these share one ``CommonAck``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meridian_broker.ledgers.notifying import notify_all
from meridian_broker.ledgers.store import Done, LedgerError
from meridian_broker.ledgers.under_way import Over, UnderWay
from meridian_broker.positions import ZERO, Progress
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.cursors.resent import Resent
from meridian_broker.topics.cursors.state import CursorState
from meridian_broker.topics.journal.changes import Kind
from meridian_broker.topics.journal.common_acks import REMEMBERED, CommonAck, Origin

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.cursors.ack_state import AckState
    from meridian_broker.topics.cursors.ports import CursorOwner, ViewReading


class AckBuffer(CursorState):
    """The part of a cursor that collects acknowledgements and makes them known."""

    __slots__ = (
        "_confirmations",
        "_delta",
        "_entries",
        "_is_flushing",
        "compacted",
        "context",
        "durable",
        "last_acked_ms",
        "look_ups",
        "mark_delete",
        "owner",
        "resent",
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
        self.compacted: ViewReading | None = None
        """Set as long as the active consumer reads the compacted view."""
        self.look_ups: UnderWay | None = None
        """Acknowledgements that were received and whose entries are being looked up; created for the first one."""
        self.last_acked_ms = 0
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

    def advance(self) -> None:
        """Move mark-delete over what is not owed any more."""
        raise NotImplementedError

    def open_delta(self) -> Progress:
        """This turn's acknowledgements: add to them, then call ``changed``."""
        delta = self._delta
        if isinstance(delta, CommonAck):
            self._delta = delta = delta.delta.copy()
        elif delta is None:
            self._delta = delta = self.progress.empty_delta()
        return delta

    def claim_common(self, acker: AckState, position: Position, confirmed: Done | None) -> bool:
        """Claim one whole entry as other subscriptions did, perhaps after those of this turn; the caller releases it.
        False: nothing was done, it has to be claimed by itself."""
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
                known[position] = CommonAck(context, position, place, context.log.before(position)) if again else None
            return False
        if delta is not None and (common := delta.and_then(common)) is None:
            return False
        self._delta = common
        if confirmed is not None:
            self.changed(confirmed, 1)
            return True
        self._entries += 1
        common.join((self,))
        return True

    def claim_as(self, acker: AckState, common: CommonAck) -> bool:
        """As ``claim_common`` with what another subscription has claimed, if nothing else is pending. The caller lets
        it join. False: nothing was done."""
        if (
            self._delta is not None
            or common.topic is not self.context
            or not self.durable
            or self.resent is not None
            or acker.epoch is not ZERO
            or not self._is_plain()
        ):
            return False
        self._delta = common
        self._entries += 1
        return True

    def _is_plain(self) -> bool:
        """Whether it acknowledges like any other subscription: it was never rewound nor deleted, other regions do not
        know it, and it reads the log.
        """
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
        self.flush()

    def make(self, common: CommonAck, following: Origin | None, is_last: bool, now_ms: int) -> str | None:
        """As ``flush``, if nothing is pending but what many acknowledge; they write it together (``Participant``)."""
        if self._delta is not common or self._confirmations is not None:
            return None  # flushed before, or more was acknowledged: that is flushed in a turn of its own
        if not self._is_plain():
            self.flush()
            return None
        self._delta, self._entries = None, 0
        self.last_acked_ms = now_ms
        progress, owner, position = self.progress, self.owner, common.position
        if not progress.ack(ZERO, common.region, common.after, common.upto):
            return None
        if self.mark_delete == common.before and (
            is_last or (following is not None and self.dropped is None and not progress.is_acked(*following))
        ):
            self.mark_delete = position  # as ``advance`` would, and one object for all
            owner.moved(position)
        elif self.mark_delete >= common.before or common.before.entry < 0:
            self.advance()  # otherwise an entry in between is still owed: mark-delete stays before that one
        return owner.record.name if owner.is_there else None

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
            context.progress_log.append_acked((self.name,), delta.encoded)
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

    def was_acked_at(self, time_ms: int) -> None:
        """Time of the last acknowledgement, from the progress log, in milliseconds since 1970."""
        self.last_acked_ms = time_ms
