# SPDX-License-Identifier: Apache-2.0
"""What this broker owns: the state machine of a bundle, and the terms of ownership that follow from it.

=================  =================  =================  ====================  ====================  =================
what happens       free               acquiring          owned                 giving up             lost
=================  =================  =================  ====================  ====================  =================
wanted             acquiring: acquire
given              owned: serve
granted                               owned: serve
refused                               free: forget
give up                                                  giving up: close
ended                                 free: forget       lost: drop            lost: drop
closed                                                                         free: release         free: forget
=================  =================  =================  ====================  ====================  =================

In an empty field, nothing changes. The difference between *giving up* and *lost* is who may act. While giving up, the
broker still owns the bundle, so it closes the topics cleanly and then removes the owner's record. Once the term has
*ended*, another broker may own the bundle: topics are dropped without another write, and no record is touched. A bundle
that was lost while its topics were being closed is *closed* when both the closing and the dropping are done; dropping
a topic cuts short a closing of it that hangs.

A term has a *fence*, greater than the fences of all earlier terms in the region. Topics and ledgers refuse writes with
a smaller one (R10), so an owner that has not noticed the end of its term can do no harm. The lease lets it notice: the
holder counts from before it asked for the lease, with a margin, so it stops before another broker may start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from meridian_broker.ownership.bundles import Bundle


class State(Enum):
    """State of a bundle on this broker."""

    FREE = "free"
    """Not owned by this broker, and not wanted."""
    ACQUIRING = "acquiring"
    """The store was asked to record this broker as its owner."""
    OWNED = "owned"
    """Owned while the lease is valid: its topics are served."""
    GIVING_UP = "giving up"
    """Owned while the lease is valid: its topics are being closed."""
    LOST = "lost"
    """No longer owned: its topics are being dropped."""


class Event(Enum):
    """What happens to a bundle."""

    WANTED = "wanted"
    """This broker should own it."""
    GIVEN = "given"
    """Another broker handed it over: the store has recorded this broker as its owner."""
    GRANTED = "granted"
    """The store has recorded this broker as its owner."""
    REFUSED = "refused"
    """Another broker got in first, or the store did not answer."""
    GIVE_UP = "give up"
    """It is being unloaded or transferred, or this broker is stopping."""
    ENDED = "ended"
    """The lease expired by this broker's own clock, or the owner's record is gone or names another broker."""
    CLOSED = "closed"
    """None of its topics is open here any more."""


class Action(Enum):
    """What the broker does."""

    ACQUIRE = "acquire"
    """Record this broker as the owner, unless there is one."""
    SERVE = "serve"
    """Topics may be opened."""
    CLOSE = "close"
    """Close the open topics cleanly, and open no more."""
    DROP = "drop"
    """Drop the open topics without writing anything."""
    RELEASE = "release"
    """Remove the owner's record, so that other brokers may acquire the bundle."""
    FORGET = "forget"
    """Nothing is left to do."""


TRANSITIONS: Final[dict[tuple[State, Event], tuple[State, Action]]] = {
    (State.FREE, Event.WANTED): (State.ACQUIRING, Action.ACQUIRE),
    (State.FREE, Event.GIVEN): (State.OWNED, Action.SERVE),
    (State.ACQUIRING, Event.GRANTED): (State.OWNED, Action.SERVE),
    (State.ACQUIRING, Event.REFUSED): (State.FREE, Action.FORGET),
    (State.ACQUIRING, Event.ENDED): (State.FREE, Action.FORGET),
    (State.OWNED, Event.GIVE_UP): (State.GIVING_UP, Action.CLOSE),
    (State.OWNED, Event.ENDED): (State.LOST, Action.DROP),
    (State.GIVING_UP, Event.ENDED): (State.LOST, Action.DROP),
    (State.GIVING_UP, Event.CLOSED): (State.FREE, Action.RELEASE),
    (State.LOST, Event.CLOSED): (State.FREE, Action.FORGET),
}


@dataclass(frozen=True, slots=True)
class Term:
    """One period in which this broker owns a bundle."""

    fence: int
    """Greater than that of every earlier term in the region."""
    version: int
    """Version of the owner's record. The term ends when that record does."""


class Terms:
    """The bundles of one broker and their states. Free ones are not listed."""

    def __init__(self) -> None:
        self._states: dict[Bundle, State] = {}
        self._terms: dict[Bundle, Term] = {}
        self._last: dict[Bundle, int] = {}

    def happens(self, bundle: Bundle, event: Event, term: Term | None = None) -> Action | None:
        """Note an event and return what to do about it; None: nothing.

        :param term: for ``GIVEN`` and ``GRANTED``.
        """
        state, action = TRANSITIONS.get((self.state(bundle), event), (None, None))
        if state is None:
            return None
        self._states[bundle] = state
        if term is not None:
            self._terms[bundle] = term
        if state is State.FREE:
            del self._states[bundle]
            if (ended := self._terms.pop(bundle, None)) is not None:
                self._last[bundle] = ended.fence
        return action

    def is_over(self, bundle: Bundle, fence: int) -> bool:
        """Whether the term with this fence, or a later one, was this broker's and has ended."""
        return fence <= self._last.get(bundle, -1)

    def state(self, bundle: Bundle) -> State:
        return self._states.get(bundle, State.FREE)

    def term(self, bundle: Bundle) -> Term | None:
        """The term in which topics of the bundle may be opened now; None: they may not."""
        return self._terms.get(bundle) if self.state(bundle) is State.OWNED else None

    def held(self, bundle: Bundle) -> Term | None:
        """The term of a bundle that is owned or being given up; None: it is neither."""
        return self._terms.get(bundle) if self.state(bundle) in (State.OWNED, State.GIVING_UP) else None

    def split(self, bundle: Bundle, parts: Iterable[Bundle], version: int) -> None:
        """An owned bundle was split by a write of this version; its parts are owned in the same term."""
        term = self._terms.pop(bundle)
        state = self._states.pop(bundle)
        for part in parts:
            self._states[part], self._terms[part] = state, Term(term.fence, version)

    def __iter__(self) -> Iterator[Bundle]:
        """A snapshot of the bundles that are not free."""
        return iter(tuple(self._states))

    def __len__(self) -> int:
        return len(self._states)
