# SPDX-License-Identifier: Apache-2.0
"""The acknowledgement of one entry, or of a few in a row, that many subscriptions make, built and encoded once.

A message that goes to thousands of subscriptions is acknowledged thousands of times, nearly always alone and in the
same form. The first two acknowledgements of an entry are made as any other; from then on they share one. The progress
log remembers those of its topic by the position of the entry. The subscriptions that make it in one turn of the loop
are listed with it: at the end of the turn, they are handled one after the other, and written together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from meridian_broker.ledgers.index import Place
from meridian_broker.positions import ZERO, Progress

if TYPE_CHECKING:
    from meridian_broker.ledgers.log import TopicLog
    from meridian_broker.ledgers.scheduling import Scheduler
    from meridian_broker.positions.position import Position
    from meridian_broker.topics.turns import Turns

REMEMBERED: Final = 64
"""Entries that subscriptions are acknowledging at the same time; with more of them, some are built again."""


TOGETHER: Final = 256
"""Participants handled at a time, in half a millisecond: between two of these the turn may end."""

Origin = tuple[str, "Position"]


class Participant(Protocol):
    """Who makes such an acknowledgement: a cursor."""

    def make(self, common: CommonAck, following: Origin | None, is_last: bool, now_ms: int, /) -> str | None:
        """Join it, unless it was dealt with meanwhile.

        :param following: where the next entry was first stored; None: there is none, or it has to be examined.
        :param is_last: there is none.
        :returns: the subscription for which it is to be written.
        """
        ...


class Journal(Protocol):
    """Where it is written."""

    def append_acked(self, subscriptions: Sequence[str], delta: bytes) -> None: ...


class OfTopic(Protocol):
    """The topic of the entry."""

    log: TopicLog
    scheduler: Scheduler
    turns: Turns

    @property
    def progress_log(self) -> Journal: ...


class CommonAck:
    """The acknowledgement of an entry, or of some in a row, by a subscription that was never rewound nor deleted."""

    __slots__ = (
        "_longer",
        "after",
        "before",
        "delta",
        "encoded",
        "participants",
        "position",
        "region",
        "topic",
        "upto",
    )

    def __init__(self, topic: OfTopic, position: Position, place: Place, before: Position) -> None:
        """:param position: of the last entry, in this region. :param before: the last entry before the first one."""
        self.topic = topic
        self.participants: list[Participant] = []
        """Those who made it and whose acknowledgement is not written yet, in the order in which they did."""
        self.position = position
        self.before = before
        self.region, self.after, self.upto = place
        self.delta: Final = Progress()
        """Shared: copy it before it is added to."""
        self.delta.ack(ZERO, *place)
        self.encoded: Final = self.delta.encode()
        self._longer: CommonAck | None = None

    def and_then(self, following: CommonAck) -> CommonAck | None:
        """Both as one, if the other follows right after this one; None: it does not."""
        if following.region != self.region or following.after != self.upto or following.before != self.position:
            return None
        longer = self._longer
        if longer is None or longer.upto != following.upto:
            place = Place(self.region, self.after, following.upto)
            longer = self._longer = CommonAck(self.topic, following.position, place, self.before)
        return longer

    def join(self, participants: Sequence[Participant]) -> None:
        """Some more make it; ``next_turn`` is called once the turn is over."""
        had = len(self.participants)
        self.participants += participants
        for _ in range(-(-had // TOGETHER), -(-len(self.participants) // TOGETHER)):
            self.topic.turns.add_first(self)  # before dispatch, which would flush each cursor by itself

    def next_turn(self) -> None:
        """The turn in which it was made is over for ``TOGETHER`` participants. If one of them fails, the others go on
        in another turn."""
        due = iter(self.participants[:TOGETHER])
        del self.participants[:TOGETHER]
        names: list[str] = []
        topic, following = self.topic, self._following()
        now_ms = topic.scheduler.now_ms()
        is_last = following is None and self.position >= topic.log.last_confirmed
        try:
            for participant in due:
                name = participant.make(self, following, is_last, now_ms)
                if name is not None:
                    names.append(name)
        finally:
            if names:
                topic.progress_log.append_acked(names, self.encoded)
            if left := list(due):
                self.participants += left
                topic.scheduler.defer(self.next_turn)

    def _following(self) -> Origin | None:
        log = self.topic.log
        following = log.after(self.position)
        return None if following is None or following in log.damage.lost else log.origin(following)
