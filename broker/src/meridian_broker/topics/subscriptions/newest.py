# SPDX-License-Identifier: Apache-2.0
"""The newest entry of a topic of many subscriptions, as it goes to those that have read everything before it.

A message for tens of thousands of subscriptions finds nearly all of them in the same state: one consumer, ready, which
was sent everything before, and nothing that changes what an entry means to it. The usual way through dispatcher and
cursor then decides the same each time, and costs more than the message itself. So the first subscription is sent the
entry on that way and notes it here. Each of the others asks its dispatcher and its cursor one question, and is sent it
at once; whoever is not in that state takes the usual way (``Subscription.next_turn``). An ``Offer`` is the turn of some
of them, one after the other in one loop: a turn for each would cost as much as these questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from meridian_broker.ledgers.entry import CHUNK, MARKER, messages
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.context import WindingDown

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.cursors.cursor import Cursor
    from meridian_broker.topics.dispatch.dispatcher import Dispatcher

TOGETHER: Final = 16
"""Subscriptions of an offer. Sending to them takes some tens of microseconds, but those that take the usual way may
have much to read."""
FEW: Final = 16
"""Subscriptions of a topic for which noting would save nothing."""
NOTED_BYTES: Final = 4 << 10
"""Larger entries are not noted: each topic keeps one in memory, and sending them costs more than deciding it."""


class Offered(Protocol):
    """A subscription."""

    is_waiting: bool
    messages_out: int
    bytes_out: int

    @property
    def dispatcher(self) -> Dispatcher | None: ...

    @property
    def cursor(self) -> Cursor: ...

    @property
    def durable(self) -> bool: ...

    @property
    def barrier(self) -> bool: ...

    @property
    def streams(self) -> object | None: ...

    @property
    def pace(self) -> object | None: ...

    def follow(self) -> None:
        """An entry arrived, and it has no consumer."""
        ...

    def dispatch(self) -> None:
        """Dispatch now."""
        ...

    def dispatch_soon(self) -> None:
        """Dispatch in a turn of its own."""
        ...


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

    def offer(self, subscriptions: Iterable[Offered]) -> None:
        """An entry arrived: let these dispatch in the next turn of the loop, those without consumers aside."""
        some: list[Offered] = []
        for subscription in subscriptions:
            if subscription.dispatcher is None:
                if subscription.durable:
                    subscription.follow()
            elif not subscription.is_waiting:
                subscription.is_waiting = True
                some.append(subscription)
        for first in range(0, len(some), TOGETHER):
            self._topic.turns.add(Offer(self, some[first : first + TOGETHER]))

    def send(self, subscriptions: Iterator[Offered]) -> Offered | None:
        """Send the newest entry, as their ``pump`` and ``send`` would. Call it only if it ``may_be_sent``.

        :returns: the first that was sent nothing and has to ask these; those after it are left. None: none is left.
        """
        after, position, entry, region, origin = self.after, self.position, self.entry, self.region, self.origin
        size = len(entry)
        # Sums that are equal become one object: an object for each costs memory, and waiting for it.
        had = has = consumer_had = consumer_has = -1
        for subscription in subscriptions:
            subscription.is_waiting = False
            dispatcher = subscription.dispatcher
            if dispatcher is None:
                continue
            consumer = dispatcher.ready_after(after)
            if (
                consumer is None
                or subscription.barrier
                or subscription.streams is not None
                or subscription.pace is not None
                or not subscription.cursor.simply_owes(region, origin, position)
            ):
                return subscription
            dispatcher.read = position
            consumer.permits -= 1
            consumer.messages_out += 1
            subscription.messages_out += 1
            if consumer.bytes_out is not consumer_had:
                consumer_had = consumer.bytes_out
                consumer_has = consumer_had + size
            consumer.bytes_out = consumer_has
            if subscription.bytes_out is not had:
                had = subscription.bytes_out
                has = had + size
            subscription.bytes_out = has
            consumer.port.deliver(consumer, position, entry, 0, None)
        return None


class Offer:
    """The turn of some subscriptions, after an entry arrived (``Waiting``)."""

    __slots__ = ("_newest", "_subscriptions")

    def __init__(self, newest: Newest, subscriptions: list[Offered]) -> None:
        self._newest = newest
        self._subscriptions = subscriptions

    def next_turn(self) -> None:
        """Let all of them dispatch. If one fails, the others go on in turns of their own."""
        newest, left = self._newest, iter(self._subscriptions)
        other: Offered | None
        try:
            while (other := newest.send(left) if newest.may_be_sent() else next(left, None)) is not None:
                other.dispatch()  # which may note it
        finally:
            for subscription in left:
                subscription.is_waiting = False
                subscription.dispatch_soon()
