# SPDX-License-Identifier: Apache-2.0
"""What becomes of a state that another region reports, and when tombstones may go. Decisions only, no storage.

**Deciding.** A state replaces the present one exactly if it beats it (``stamped``). It is compared with the writer's
stamp that is stored here, never with a local time or version, so every region decides alike.

**The future.** A stamp further ahead of this region's clock than ``max_ahead_ms`` would win until that time, whatever
anybody writes. Such a state is *parked*: kept, shown, and decided on once its time has come (R43). An operator ends it
earlier by restamping the path: the next generation of a path beats every stamp of the earlier ones.

**Tombstones.** A deletion has to be remembered while a region may still send an older value. A region's *mark* is a
moment up to which it sends no event that it has not sent before, and it is sent after those events. So once every
region has heard every region's mark beyond a moment, nothing up to that moment is under way for the first time: it is
the *horizon*, tombstones up to it may go (R44), and a state from before it at a path of which nothing is known is a
repeat of something deleted since. The horizon is stored before the first tombstone goes. The tombstone of a restamped
path stays, because the path's next value must be of its generation.

**Absence.** A region that is away would keep tombstones for good. So one that nobody has heard from for a long time is
*expelled*: the others no longer wait for it (R44). Most regions have to be in touch for that, so when the network is
partitioned, one part at most goes on without the others; and a region that was away itself cannot tell who was. An
expelled region that is back finds that a horizon has passed its last mark, and takes what the others have
(``catching_up``). What it wrote meanwhile, at paths of which they know nothing, may follow something that they deleted
and forgot: nobody can tell, so it is listed for people.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Final

from meridian_broker.metadata.sync.events import MAX_COUNTER, Event, Written
from meridian_broker.metadata.sync.stamped import BEGINNING, Moment, Stamped, moment

MAX_AHEAD_MS: Final = 10_000
"""How far ahead of this region's clock a stamp may be, by default. Hosts that synchronize their clocks differ by far
less."""


class Verdict(Enum):
    """What becomes of a state."""

    APPLIED = "applied"
    STALE = "stale"
    """A later one is known."""
    DUPLICATE = "duplicate"
    PARKED = "parked"
    """Its stamp is in the future."""


def decide(present: Stamped | None, offered: Stamped, horizon: Moment, latest_ms: int) -> Verdict:
    """
    :param present: value or tombstone known here; None: nothing.
    :param horizon: of this region.
    :param latest_ms: stamps after this time are in the future.
    """
    if present is not None and not offered.beats(present):
        return Verdict.DUPLICATE if offered == present else Verdict.STALE
    if present is None and moment(offered.stamp) <= horizon:
        return Verdict.STALE
    return Verdict.PARKED if offered.stamp.time_ms > latest_ms else Verdict.APPLIED


def written(state: Stamped | None) -> Written | None:
    return None if state is None else (state.generation, state.stamp)


def overwrites_unseen(present: Stamped | None, event: Event) -> bool:
    """Whether the event replaces different content that its writer did not know: two regions wrote independently (R45).

    The region that wrote the losing state always finds this out, because its own state is what the event replaces. A
    region always knows what it wrote before. What an event replaced may be unknown here still, or older than what is
    here: then what its writer knew tells.
    """
    if present is None or present.stamp.region == event.source:
        return False
    is_known = written(present) == event.replaced or event.state.knew(present)
    return present.content != event.state.content and not is_known


def hidden(known: Mapping[str, Stamped], parents: Mapping[str, str]) -> set[str]:
    """The paths that have a value but are not served, because an ancestor has none (R42).

    :param parents: the path above each path; those that stand by themselves have none.
    """
    served: dict[str, bool] = {}

    def is_served(path: str) -> bool:
        if path not in served:
            state, parent = known.get(path), parents.get(path)
            has_value = state is not None and state.value is not None
            served[path] = has_value and (parent is None or is_served(parent))
        return served[path]

    return {path for path, state in known.items() if state.value is not None and not is_served(path)}


def horizon_of(regions: Collection[str], heard: Mapping[str, Mapping[str, Moment]]) -> Moment:
    """The moment up to which every one of ``regions`` has heard all of them.

    :param heard: by region, the marks that it has heard, its own included.
    """
    return min((heard.get(one, {}).get(other, BEGINNING) for one in regions for other in regions), default=BEGINNING)


def expelled(regions: Collection[str], heard: Mapping[str, Mapping[str, Moment]], since_ms: int) -> frozenset[str]:
    """The regions that nobody has heard from since then, if most of them have been heard from.

    A region that was never heard from is awaited: it may be about to join.

    :param heard: as for ``horizon_of``.
    """
    last = {one: max((marks.get(one, BEGINNING) for marks in heard.values()), default=BEGINNING) for one in regions}
    silent = frozenset(one for one, mark in last.items() if BEGINNING < mark < (since_ms, 0))
    present = sum(mark >= (since_ms, 0) for mark in last.values())
    return silent if present * 2 > len(last) else frozenset()


def is_forgettable(deletion: Stamped, horizon: Moment) -> bool:
    """Whether a tombstone is no longer needed."""
    return not deletion.generation and moment(deletion.stamp) <= horizon


def before(at: Moment) -> Moment:
    """The last moment before this one."""
    time_ms, counter = at
    if counter:
        return time_ms, counter - 1
    return max(0, time_ms - 1), MAX_COUNTER
