# SPDX-License-Identifier: Apache-2.0
"""The newest entry of a topic of many subscriptions, as it goes to those that have read everything before it.

A message for tens of thousands of subscriptions finds nearly all of them in the same state: one consumer, ready, which
was sent everything before, and nothing that changes what an entry means to it. The usual way through dispatcher and
cursor then decides the same each time, and costs more than the message itself. So the first subscription is sent the
entry on that way and notes it here. Each of the others asks its dispatcher and its cursor one question, and is sent it
at once; whoever is not in that state takes the usual way (``Subscription.next_turn``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.entry import CHUNK, MARKER, messages
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.context import WindingDown

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext

FEW: Final = 16
"""Subscriptions of a topic for which noting would save nothing."""
NOTED_BYTES: Final = 4 << 10
"""Larger entries are not noted: each topic keeps one in memory, and sending them costs more than deciding it."""


class Newest:
    """See the module's text."""

    __slots__ = ("_topic", "after", "entry", "origin", "position", "region")

    def __init__(self, topic: TopicContext) -> None:
        self._topic = topic
        self.after: Position = EARLIEST
        """The read position of those who have everything before it."""
        self.position: Position = EARLIEST
        self.entry = b""
        """Empty: none is noted."""
        self.region = ""
        self.origin: Position = EARLIEST
        """Where it was first stored."""

    def note(self, after: Position, position: Position) -> None:
        """A subscription that had read up to ``after`` was sent what follows, up to ``position``."""
        log = self._topic.log
        if position == self.position or position != log.last_confirmed:
            return
        found = log.tail_after(after, 2, NOTED_BYTES)
        if not found or found[0][0] != position:
            return
        entry, known = found[0][1], log.origin(position)
        if known is None or entry[1] & (MARKER | CHUNK) or len(entry) > NOTED_BYTES or messages(entry) != 1:
            return
        self.region, self.origin = known
        self.after, self.position, self.entry = after, log.last_confirmed, entry

    def may_be_sent(self) -> bool:
        """Whether an entry is noted, it is the newest one, and the topic dispatches as it always does."""
        topic = self._topic
        return (
            bool(self.entry)
            and self.position is topic.log.last_confirmed
            and topic.failure is None
            and topic.terminated is None
            and topic.winding_down is WindingDown.NOT
            and not topic.log.damage.damaged
        )
