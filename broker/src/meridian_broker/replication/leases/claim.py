# SPDX-License-Identifier: Apache-2.0
"""A holder's state for one stream (R26): which voters it asked, which promised, and until when it may read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from meridian_broker.replication.leases.messages import AnswerItem, AskItem, Stream
from meridian_broker.replication.leases.quorums import Voters, VoterSets
from meridian_broker.replication.leases.transitions import State

Quorums: TypeAlias = tuple[tuple[Voters, int], ...]


@dataclass(slots=True)
class Claim:
    """The holder's state for one stream."""

    stream: Stream
    voter_sets: VoterSets
    preferred: str
    voters: Voters = ()
    """All voters that are asked."""
    quorums: Quorums = ()
    """Pairs of voters and the number of votes needed from them; every pair must be satisfied."""
    by_name: set[str] = field(default_factory=set)
    """Voters not known to have promised the current request: they are asked by name."""
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
        """The request sent to voters."""
        return AskItem(self.stream, self.term, self.voter_sets.mark, self.preferred)
