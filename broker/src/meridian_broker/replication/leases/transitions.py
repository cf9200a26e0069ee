# SPDX-License-Identifier: Apache-2.0
"""What becomes of a holder's request for a stream: the table of its states and of what happens to it (R26).

=====================  ===================  ===================  ===================  ===================
what happens           idle                 asking               held                 yielding
=====================  ===================  ===================  ===================  ===================
due                    asking: ask          idle: give up        held: ask again
enough promises                             held: win            held: extend         yielding: extend
cannot succeed                              idle: give up
promises end                                                     idle: lose           idle: lose
preferred holder asks                       idle: give up        yielding: hand over
another goes first                          idle: give up
given back             idle: let go         idle: let go         idle: let go         idle: let go
=====================  ===================  ===================  ===================  ===================

An empty field: it changes nothing. ``leases.py`` finds out what happens, and does what the table says.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class State(Enum):
    """State of a request."""

    IDLE = "idle"
    """Not requested at the moment."""
    ASKING = "asking"
    """Voters are being asked."""
    HELD = "held"
    """Ours until it expires, and renewed."""
    YIELDING = "yielding"
    """Held, and being handed over: it is not renewed."""


class Event(Enum):
    """What happens to a request."""

    DUE = "due"
    """The time of its next step has come."""
    ENOUGH = "enough promises"
    """Enough voters promised it, for longer than until now."""
    HOPELESS = "cannot succeed"
    """Too many voters refused, or cannot be reached."""
    ENDED = "promises end"
    """It expired, or the promises are not enough any more."""
    PREFERRED_ASKS = "preferred holder asks"
    """The preferred holder of this stream requests it from this region's voter."""
    ANOTHER_ASKS = "another goes first"
    """Another candidate asks whose attempt goes before this one's."""
    GIVEN_BACK = "given back"
    """The stream is not read here any more."""


class Action(Enum):
    """What the holder does."""

    ASK = "ask"
    """Begin an attempt, if enough voters can be reached; the request stays idle otherwise."""
    ASK_AGAIN = "ask again"
    """Request it from every voter by name."""
    WIN = "win"
    """It may be read from now on."""
    EXTEND = "extend"
    """It may be read for longer."""
    GIVE_UP = "give up"
    """End the attempt, and plan the next one."""
    LOSE = "lose"
    """Stop reading, and plan the next attempt."""
    HAND_OVER = "hand over"
    """Stop reading in an orderly way, then release it."""
    LET_GO = "let go"
    """Tell the voters that they are free, and forget their promises."""


TRANSITIONS: Final[dict[tuple[State, Event], tuple[State, Action]]] = {
    (State.IDLE, Event.DUE): (State.ASKING, Action.ASK),
    (State.IDLE, Event.GIVEN_BACK): (State.IDLE, Action.LET_GO),
    (State.ASKING, Event.DUE): (State.IDLE, Action.GIVE_UP),
    (State.ASKING, Event.ENOUGH): (State.HELD, Action.WIN),
    (State.ASKING, Event.HOPELESS): (State.IDLE, Action.GIVE_UP),
    (State.ASKING, Event.PREFERRED_ASKS): (State.IDLE, Action.GIVE_UP),
    (State.ASKING, Event.ANOTHER_ASKS): (State.IDLE, Action.GIVE_UP),
    (State.ASKING, Event.GIVEN_BACK): (State.IDLE, Action.LET_GO),
    (State.HELD, Event.DUE): (State.HELD, Action.ASK_AGAIN),
    (State.HELD, Event.ENOUGH): (State.HELD, Action.EXTEND),
    (State.HELD, Event.ENDED): (State.IDLE, Action.LOSE),
    (State.HELD, Event.PREFERRED_ASKS): (State.YIELDING, Action.HAND_OVER),
    (State.HELD, Event.GIVEN_BACK): (State.IDLE, Action.LET_GO),
    (State.YIELDING, Event.ENOUGH): (State.YIELDING, Action.EXTEND),
    (State.YIELDING, Event.ENDED): (State.IDLE, Action.LOSE),
    (State.YIELDING, Event.GIVEN_BACK): (State.IDLE, Action.LET_GO),
}
