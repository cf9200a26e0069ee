# SPDX-License-Identifier: Apache-2.0
"""The voters on the streams of a subscription, while not all of them are known to agree (R26).

Two majorities of one list of voters intersect, so two regions cannot both have one. Majorities of two lists need not: a
list that grew from two to three, and a region that was cut off before it learned of that. So, as in joint consensus, a
new list does not replace the previous one but joins it: a candidate for a stream needs enough votes of *each* list in
force. That ends once so many voters of one list know the others that no majority of it can form without them. Only then
is it *committed*:

- A voter votes for a candidate only if that candidate knows exactly the same lists.
- A voter confirms the lists once they are durable and none of its promises from before is still binding.
- A list may be dropped, for a later one, once a majority of it has confirmed. A candidate that knows less cannot get
  enough votes of that list any more, because every two majorities of it intersect; one that knows as much needs enough
  votes of the remaining list.
- The first list of a subscription is in force once all its members have confirmed it; before that it takes all of them.
  A majority is not enough, because nothing orders two first lists. Let ``a b c`` be set on one side of a cut and ``a b
  d``, or another witness, on the other: ``a c`` and ``b d`` are majorities, and neither would learn of the other.

Knowledge is joined: lists by union, the committed stamp by maximum. So regions that disagree about the voters can never
both have a stream; they need each other's consent until they agree. All of it travels in the subscription's
record, and to voters without such a record with the question whether they know it.

With two voters a majority is both. There the *preferred holder* of a stream needs its own vote alone, any other region
both, and a list is committed once the preferred holders of all streams know it (``leases.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from meridian_broker.positions import ZERO, Stamp

LISTS_MAX: Final = 8
"""Maximum number of lists in force: a region's own list waits until one of them is committed."""
BEGUN: Final = Stamp(0, 1, "-")
"""The first list is committed: its majority is enough."""

Voters = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VoterSets:
    """Who votes, as far as one region knows."""

    lists: tuple[tuple[Stamp, Voters], ...] = ()
    """Lists in force, by the stamp at which they were last set. Each is sorted, without repeats."""
    committed: Stamp = ZERO
    """Lists set up to this stamp are no longer in force. ``ZERO``: not even the first one is in force yet."""

    def __post_init__(self) -> None:
        # A voter named twice would count twice towards a majority.
        assert all(tuple(sorted(set(voters))) == voters for _, voters in self.lists), "sorted, without repeats"

    @classmethod
    def of(cls, *voters: str) -> VoterSets:
        """One list that all its voters know."""
        return cls(((Stamp(0, 2, "-"), tuple(sorted(set(voters)))),), BEGUN)

    @property
    def is_committed(self) -> bool:
        """Whether one list is in force, so that its majority is enough."""
        return len(self.lists) == 1 and self.committed != ZERO

    @property
    def voters(self) -> Voters:
        """All voters."""
        return tuple(sorted({voter for _, voters in self.lists for voter in voters}))

    def has(self, voters: Collection[str]) -> bool:
        return any(set(listed) == set(voters) for _, listed in self.lists)

    def is_on_pair(self, voter: str) -> bool:
        """Whether it is one of two voters, where the preferred holder's vote suffices."""
        return any(len(voters) == 2 and voter in voters for _, voters in self.lists)

    def joined(self, other: VoterSets) -> VoterSets:
        """The knowledge of both, combined."""
        committed = max(self.committed, other.committed)
        newest: dict[Voters, Stamp] = {}
        for stamp, voters in (*self.lists, *other.lists):
            if stamp > committed:
                newest[voters] = max(stamp, newest.get(voters, ZERO))
        lists = sorted((stamp, voters) for voters, stamp in newest.items())
        return VoterSets(tuple(lists), committed)

    def knows(self, other: VoterSets) -> bool:
        """Whether this includes everything the other knows."""
        return self.joined(other) == self

    def also(self, voters: Iterable[str], stamp: Stamp) -> VoterSets:
        """Add a list. Returns itself if it has the list already, or has as many as allowed."""
        if self.has(wanted := tuple(sorted(set(voters)))) or len(self.lists) >= LISTS_MAX:
            return self
        return self.joined(VoterSets(((stamp, wanted),)))

    def may_commit(
        self, wanted: Collection[str], heard: Collection[str], preferred: Mapping[Voters, Collection[str]]
    ) -> bool:
        """Whether enough voters of each other list know all lists, so that ``wanted`` alone suffices.

        :param heard: voters that have confirmed.
        :param preferred: for lists of two: the preferred holders of all streams.
        """
        if not self.has(wanted):
            return False
        if self.committed == ZERO:
            return set(heard) >= set(self.voters)
        for _, voters in self.lists:
            if set(voters) == set(wanted):
                continue
            if len(voters) == 2:
                if not set(preferred[voters]) <= set(heard):
                    return False
            elif len(set(voters) & set(heard)) < majority(voters):
                return False
        return True

    def commit(self, wanted: Collection[str], stamp: Stamp) -> VoterSets:
        """Make one list the only one in force if it is the newest; else add it again, to be confirmed again.

        So if two regions with the same knowledge want different lists, only one succeeds; otherwise each would drop the
        other's list. :param stamp: later than all known ones.
        """
        kept = tuple(sorted(set(wanted)))
        *others, (said, last) = self.lists
        gone = others[-1][0] if others else BEGUN
        if last != kept or gone >= said:
            return self.joined(VoterSets(((stamp, kept),), self.committed))
        return VoterSets(((said, kept),), max(gone, self.committed, BEGUN))

    def enough(self, voters: Voters) -> int:
        """The number of votes needed from one list."""
        return len(voters) if self.committed == ZERO else majority(voters)

    @property
    def mark(self) -> int:
        """A number that changes whenever anything in here does."""
        return _mark(self)


def majority(voters: Voters) -> int:
    return len(voters) // 2 + 1


def preferred_among(voters: Voters, preferred: str) -> str:
    """The preferred holder of a stream, within one list of voters."""
    return preferred if preferred in voters else voters[0]


def to_json(known: VoterSets) -> dict[str, object]:
    return {"lists": [[str(stamp), *voters] for stamp, voters in known.lists], "settled": _text(known.committed)}


def from_json(value: object) -> VoterSets:
    """:raises ValueError: these are not valid lists of voters."""
    try:
        fields = dict(value)  # type: ignore[call-overload]
        lists = tuple((Stamp.parse(said), tuple(sorted(set(map(str, voters))))) for said, *voters in fields["lists"])
        return VoterSets(lists, Stamp.parse(fields["settled"]) if fields["settled"] else ZERO)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{value!r} is not a list of voters: {error!r}") from error


def _text(stamp: Stamp) -> str:
    return "" if stamp == ZERO else str(stamp)


@lru_cache(maxsize=65536)
def _mark(known: VoterSets) -> int:
    text = repr(([(str(stamp), voters) for stamp, voters in known.lists], str(known.committed)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
