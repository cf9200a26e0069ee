# SPDX-License-Identifier: Apache-2.0
"""What acknowledgements by a reader of a compacted view claim, and the queue that looks up their entries."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from meridian_broker.ledgers.entry import EntryHeader
from meridian_broker.ledgers.index import Place
from meridian_broker.ledgers.notifying import notify_all
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions import ZERO, Progress, Stamp
from meridian_broker.positions.position import Position
from meridian_broker.topics.cursors.view_deliveries import ViewDeliveries

if TYPE_CHECKING:
    from meridian_broker.ledgers.store import Done
    from meridian_broker.topics.cursors.ack_state import AckState
    from meridian_broker.topics.cursors.acknowledging import Rest
    from meridian_broker.topics.cursors.cursor import Cursor
    from meridian_broker.topics.cursors.resent import Resent

Epochs = Callable[[Position], Stamp]
"""The epoch in which the acknowledgement of an entry counts."""


class ViewAck(NamedTuple):
    """One entry to acknowledge."""

    position: Position
    place: Place
    messages: int
    having: int | None = None
    """Those of its messages, as bits, that are in the view or were sent to the consumer; None: all."""
    remaining: int = 0
    """Messages that are not acknowledged, as bits."""
    header: EntryHeader | None = None
    """None: the entry is not in the view."""


@dataclass(slots=True)
class UpTo:
    """A cumulative acknowledgement, with the state when it arrived."""

    acker: AckState
    position: Position
    part: int | None
    behind: Position
    """It does not apply to anything at or before this position."""
    resent: Resent | None
    held: ViewDeliveries
    withheld: frozenset[Position]
    """Chunks of messages that the consumer does not have completely (R18)."""

    def epoch(self, position: Position) -> Stamp:
        """The epoch in which it counts for an entry (R13)."""
        return self.acker.epoch if self.resent is None or self.resent.holds(position) else ZERO

    def remaining(self, position: Position) -> int:
        """Messages of an entry that it does not cover, as bits."""
        return self.part or 0 if position == self.position else 0


def note(delta: Progress, epoch: Stamp, ack: ViewAck) -> None:
    """Add the acknowledgement to ``delta``."""
    region, prev, origin = ack.place
    if ack.having is None and not ack.remaining:
        delta.ack(epoch, region, prev, origin)
        return
    whole = (1 << ack.messages) - 1
    acked = (whole if ack.having is None else ack.having) & ~ack.remaining & whole
    if acked:
        delta.ack_batch(epoch, region, origin, ack.messages, acked, prev)


class LookUps:
    """Acknowledgements of one subscription whose entries are looked up, one after the other."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._jobs: deque[tuple[int, Rest, Done | None]] = deque()
        self._working = False

    def add(self, job: Rest, confirmed: Done | None) -> None:
        self._jobs.append((self._cursor.looking_up().begin(), job, confirmed))
        if not self._working:
            self._working = True
            self._cursor.context.serve(self._work, "look acknowledged entries up in a compacted view")

    async def _work(self) -> None:
        """A waiting caller gets a failure as its answer. Without one the topic is fenced, so that the consumer
        reconnects.
        """
        look_ups, lost = self._cursor.looking_up(), LedgerError("the entry of an acknowledgement was not looked up")
        unheard: LedgerError | None = None
        try:
            while self._jobs:
                number, job, confirmed = self._jobs.popleft()
                failure: LedgerError | None = lost
                try:
                    await job()
                    failure = None
                except LedgerError as error:
                    failure = error
                    if confirmed is not None:
                        confirmed(error)
                    else:
                        unheard = error
                except Exception:
                    if confirmed is not None:
                        confirmed(lost)
                    raise
                finally:
                    look_ups.end(number, failure)
        finally:
            self._working = False
            jobs, self._jobs = self._jobs, deque()
            for number, _, _ in jobs:
                look_ups.end(number, lost)
            notify_all([confirmed for _, _, confirmed in jobs if confirmed is not None], lost)
        if unheard is not None:
            raise unheard
