# SPDX-License-Identifier: Apache-2.0
"""Who votes on the shares of a subscription, while nobody can be sure that all voters know (R26).

Two majorities of one list of voters meet, so two regions cannot both have one. Of two lists that need not be so: a list
that grew from two to three, and a region that was cut off before it heard. So a new list does not replace the one
before. It joins it, and whoever wants a share needs enough of *each* list that counts, until so many voters of a list
know of the others that nobody can have enough of it without hearing of them. Then, and only then, it is *settled*:

- Voters vote for whoever knows exactly the same lists as they do, and for nobody else.
- A voter says that it knows them once that is durable and nothing that it promised while it knew less is still binding.
- A list may go, for one that was said later, once a majority of it said so. Whoever knows less cannot have enough of
  that list any more, for every two majorities of it meet; whoever knows as much needs enough of the list that stays.
- The first list of a subscription counts once all who are on it said so; before that it takes all of them. A majority
  is not enough: nothing orders two first lists. Let ``a b c`` be said on one side of a cut and ``a b d``, or another
  witness, on the other: ``a c`` and ``b d`` are majorities, and neither would hear of the other.

What is known is joined: lists by union, what is settled by maximum. So regions that do not agree who votes can still
not both have a share; they need each other's consent until they do agree. All of it travels in the subscription's
record, and to voters that have no such record with the question whether they know it.

With two voters a majority is both. There the *home* of a share needs its own vote alone, everybody else both, and a
list is settled once the homes of all shares know (``leases.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from meridian_broker.positions import ZERO, Stamp

LISTS_MAX: Final = 8
"""More do not count at once: a region's own list waits until one of them is settled."""
BEGUN: Final = Stamp(0, 1, "-")
"""The first list is settled: it takes its majority only."""

Voters = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VoterSets:
    """See the module's text."""

    lists: tuple[tuple[Stamp, Voters], ...] = ()
    """Those that count, by when they were last said. Each is sorted."""
    settled: Stamp = ZERO
    """Lists said up to then count no more. ``ZERO``: not even the first one does as yet."""

    @classmethod
    def of(cls, *voters: str) -> VoterSets:
        """One list, and everybody knows it."""
        return cls(((Stamp(0, 2, "-"), tuple(sorted(voters))),), BEGUN)

    @property
    def is_settled(self) -> bool:
        """One list counts, and it takes its majority."""
        return len(self.lists) == 1 and self.settled != ZERO

    @property
    def voters(self) -> Voters:
        """All who vote."""
        return tuple(sorted({voter for _, voters in self.lists for voter in voters}))

    def has(self, voters: Collection[str]) -> bool:
        return any(set(listed) == set(voters) for _, listed in self.lists)

    def is_on_pair(self, voter: str) -> bool:
        """Is it one of two voters, of which the home is enough?"""
        return any(len(voters) == 2 and voter in voters for _, voters in self.lists)

    def joined(self, other: VoterSets) -> VoterSets:
        """What both know."""
        settled = max(self.settled, other.settled)
        newest: dict[Voters, Stamp] = {}
        for stamp, voters in (*self.lists, *other.lists):
            if stamp > settled:
                newest[voters] = max(stamp, newest.get(voters, ZERO))
        lists = sorted((stamp, voters) for voters, stamp in newest.items())
        return VoterSets(tuple(lists), settled)

    def knows(self, other: VoterSets) -> bool:
        """Everything that the other knows?"""
        return self.joined(other) == self

    def also(self, voters: Iterable[str], stamp: Stamp) -> VoterSets:
        """One more list counts; itself when it is one of them, or they are too many."""
        if self.has(wanted := tuple(sorted(voters))) or len(self.lists) >= LISTS_MAX:
            return self
        return self.joined(VoterSets(((stamp, wanted),)))

    def may_settle(
        self, wanted: Collection[str], heard: Collection[str], homes: Mapping[Voters, Collection[str]]
    ) -> bool:
        """Do so many of each other list know all lists that ``wanted`` is enough?

        :param heard: who said that it knows.
        :param homes: of lists of two: the homes of all shares.
        """
        if not self.has(wanted):
            return False
        if self.settled == ZERO:
            return set(heard) >= set(self.voters)
        for _, voters in self.lists:
            if set(voters) == set(wanted):
                continue
            if len(voters) == 2:
                if not set(homes[voters]) <= set(heard):
                    return False
            elif len(set(voters) & set(heard)) < majority(voters):
                return False
        return True

    def settle(self, wanted: Collection[str], stamp: Stamp) -> VoterSets:
        """One list counts from now on, when it is the last that was said; else it is said again, to be heard again.

        So of two regions that know the same and want different lists only one can have its own: each would else let
        the other's list go. :param stamp: later than all that are known.
        """
        kept = tuple(sorted(wanted))
        *others, (said, last) = self.lists
        gone = others[-1][0] if others else BEGUN
        if last != kept or gone >= said:
            return self.joined(VoterSets(((stamp, kept),), self.settled))
        return VoterSets(((said, kept),), max(gone, self.settled, BEGUN))

    def enough(self, voters: Voters) -> int:
        """How many of one list it takes."""
        return len(voters) if self.settled == ZERO else majority(voters)

    @property
    def mark(self) -> int:
        """A number that differs where anything does."""
        return _mark(self)


def majority(voters: Voters) -> int:
    return len(voters) // 2 + 1


def home_among(voters: Voters, home: str) -> str:
    """The home of a share, as far as one list of voters goes."""
    return home if home in voters else voters[0]


def to_json(known: VoterSets) -> dict[str, object]:
    return {"lists": [[str(stamp), *voters] for stamp, voters in known.lists], "settled": _text(known.settled)}


def from_json(value: object) -> VoterSets:
    """:raises ValueError: these are not lists of voters."""
    try:
        fields = dict(value)  # type: ignore[call-overload]
        lists = tuple((Stamp.parse(said), tuple(sorted(map(str, voters)))) for said, *voters in fields["lists"])
        return VoterSets(lists, Stamp.parse(fields["settled"]) if fields["settled"] else ZERO)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{value!r} is not a list of voters: {error!r}") from error


def _text(stamp: Stamp) -> str:
    return "" if stamp == ZERO else str(stamp)


@lru_cache(maxsize=65536)
def _mark(known: VoterSets) -> int:
    text = repr(([(str(stamp), voters) for stamp, voters in known.lists], str(known.settled)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
