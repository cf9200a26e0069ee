# SPDX-License-Identifier: Apache-2.0
"""What one holder has of one stream (R26): what it asked whom for, who promised it, and until when it may read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from meridian_broker.replication.leases.messages import AnswerItem, AskItem, Stream
from meridian_broker.replication.leases.quorums import Voters, VoterSets
from meridian_broker.replication.leases.transitions import State

Quorums: TypeAlias = tuple[tuple[Voters, int], ...]


@dataclass(slots=True)
class Claim:
    """What this holder has of one stream."""

    stream: Stream
    voter_sets: VoterSets
    home: str
    voters: Voters = ()
    """All who are asked."""
    quorums: Quorums = ()
    """Of which voters it takes how many; of each of these."""
    by_name: set[str] = field(default_factory=set)
    """Voters who did not promise what is asked for now, as far as is known: they are asked by name."""
    state: State = State.IDLE
    until_ms: int = 0
    """It may be read before this, by the holder's clock; 0: not at all."""
    term: int = 0
    known_term: int = 0
    """The highest heard of."""
    asked_ms: dict[str, int] = field(default_factory=dict)
    """Voter -> when it was asked for what it promised."""
    refusals: dict[str, AnswerItem] = field(default_factory=dict)
    """What voters said who did not, in this attempt."""
    next_ms: int = 0
    """The next attempt; while one is under way, its end; while it is held, when it is renewed before the others."""
    tries: int = 0
    unwanted_ms: int | None = None
    """Since when it is not wanted any more."""

    @property
    def is_held(self) -> bool:
        return self.until_ms > 0

    @property
    def item(self) -> AskItem:
        """What is asked for."""
        return AskItem(self.stream, self.term, self.voter_sets.mark, self.home)
