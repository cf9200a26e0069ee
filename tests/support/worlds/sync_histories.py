# SPDX-License-Identifier: Apache-2.0
"""Which states the writer of a state knew: what it replaced in its region's store, and what the writers of that knew.

The simulated regions say so themselves (``Stamped.knows``). This is noted beside them, from what each store held.
"""

from __future__ import annotations

from collections.abc import Mapping

from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.conflicts import Conflict
from meridian_broker.metadata.sync.merging import is_merged
from meridian_broker.metadata.sync.stamped import Stamped
from meridian_broker.positions.clock import Stamp

States = Mapping[str, Stamped | None]


class Histories:
    """One for all regions: stores may go back to a copy, but what was written once was written."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Stamp], frozenset[Stamp]] = {}
        """By path and stamp of a state."""
        self._values: dict[tuple[str, Stamp], Stamped] = {}
        """By path and stamp, what was written, except where values are merged and where they go with their topic."""
        self._listed: set[tuple[str, Stamp]] = set()
        """Paths and stamps of what was listed as lost."""

    def note(self, region: str, replaced: States, now: States) -> None:
        """A region's store held some states and holds others at these paths now."""
        for path, state in now.items():
            if state is None or state.stamp.region != region or (path, state.stamp) in self._known:
                continue
            if state.value is None and paths.scope_of(path) == paths.TOPIC_POLICIES:
                continue  # it follows from a topic's deletion, in whichever region that is carried out
            before = replaced[path]
            known = frozenset[Stamp]() if before is None else self._known.get((path, before.stamp), frozenset())
            self._known[path, state.stamp] = known if before is None else known | {before.stamp}
            if state.value is not None and not is_merged(path) and paths.scope_of(path) != paths.TOPIC_POLICIES:
                self._values[path, state.stamp] = state

    def note_listed(self, path: str, conflict: Conflict) -> None:
        self._listed.add((path, conflict.lost.stamp))

    def is_false(self, path: str, conflict: Conflict) -> bool:
        """Whether the writer of what won knew what it is said to have won over."""
        return conflict.lost.stamp in self._known.get((path, conflict.won.stamp), ())

    def lost(self, final: States) -> list[tuple[str, Stamped]]:
        """Values that are gone, that no later writer knew, and that were not listed for people. It is the same value
        if somebody else wrote it again, as a restamp does.

        :param final: what every region has in the end.
        """
        known = {(path, stamp) for (path, _), stamps in self._known.items() for stamp in stamps}
        accounted = {
            (path, self._values[path, stamp].content) for path, stamp in known if (path, stamp) in self._values
        }
        accounted |= {(path, state.content) for path, state in final.items() if state is not None}
        return [
            (path, state)
            for (path, stamp), state in sorted(self._values.items(), key=lambda one: one[0])
            if (path, stamp) not in self._listed and (path, state.content) not in accounted
        ]
