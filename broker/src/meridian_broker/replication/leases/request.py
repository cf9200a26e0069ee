# SPDX-License-Identifier: Apache-2.0
"""A holder's request for one stream (R26): which voters it asked, which promised, and until when it may read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from meridian_broker.positions import ZERO
from meridian_broker.replication.leases.messages import AnswerItem, AskItem, Stream
from meridian_broker.replication.leases.quorums import Voters, VoterSets, preferred_among
from meridian_broker.replication.leases.transitions import State

Quorums: TypeAlias = tuple[tuple[Voters, int], ...]
"""Pairs of voters and the number of votes needed from them; every pair must be satisfied."""
FOREVER: Final = 1 << 62
"""A time that does not come, in milliseconds."""


def quorums_of(voter_sets: VoterSets, preferred: str, me: str) -> Quorums:
    """The votes that ``me`` needs. Of two voters, the preferred holder needs its own only, unless no list of voters was
    ever committed."""
    is_first = voter_sets.committed == ZERO
    return tuple(
        ((me,), 1)
        if len(voters) == 2 and not is_first and preferred_among(voters, preferred) == me
        else (voters, voter_sets.enough(voters))
        for _, voters in voter_sets.lists
    )


@dataclass(slots=True)
class LeaseRequest:
    """A holder's request for one stream, from the first attempt until it is not wanted any more."""

    stream: Stream
    voter_sets: VoterSets
    preferred: str
    voters: Voters = ()
    """All voters that are asked."""
    quorums: Quorums = ()
    by_name: set[str] = field(default_factory=set)
    """Voters not known to have promised what is requested now: they are asked by name."""
    granted_by: dict[str, str] = field(default_factory=dict)
    """The other voters, each with the peer that answered for it."""
    state: State = State.IDLE
    until_ms: int = 0
    """The stream may be read before this time, by the holder's clock; 0: not at all."""
    term: int = 0
    known_term: int = 0
    """The highest term seen."""
    asked_ms: dict[str, int] = field(default_factory=dict)
    """Voter -> when it was asked for what it promised."""
    refusals: dict[str, AnswerItem] = field(default_factory=dict)
    """Refusals in this attempt, by voter."""
    next_ms: int = 0
    """The next attempt; during an attempt, its end; while held, the time of a renewal before the regular one."""
    tries: int = 0
    unwanted_ms: int | None = None
    """Since when the stream is no longer wanted."""

    @property
    def is_held(self) -> bool:
        return self.until_ms > 0

    @property
    def item(self) -> AskItem:
        """What voters are sent."""
        return AskItem(self.stream, self.term, self.voter_sets.mark, self.preferred)

    def promised_since(self, asked_ms: Mapping[str, int]) -> int | None:
        """The moment since which the promises of enough voters of each list count; None: there are not enough.

        :param asked_ms: when each voter that promised was asked.
        """
        first = FOREVER
        for voters, enough in self.quorums:
            asked = sorted([asked_ms[voter] for voter in voters if voter in asked_ms])
            if len(asked) < enough:
                return None
            first = min(first, asked[-enough])
        return first if first < FOREVER else None

    def may_succeed(self, can_ask: Callable[[str], bool]) -> bool:
        """Whether an attempt may succeed: not if too many voters refused, or cannot be reached and did not promise
        before.
        """
        possible = [
            voter for voter in self.voters if voter in self.asked_ms or (voter not in self.refusals and can_ask(voter))
        ]
        return self.promised_since(dict.fromkeys(possible, 1)) is not None
