# SPDX-License-Identifier: Apache-2.0
"""Messages between candidates for a lease and the voters on it (R26).

A *stream* is anything that only one region may read at a time; these modules do not interpret its name. One message
covers many streams that its two ends have in common, and grants that both know are renewed without being named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from meridian_broker.replication.leases.quorums import Voters, VoterSets

Stream: TypeAlias = tuple[str, str, str]
"""Between regions: topic or partition, subscription, origin region."""

ITEMS_MAX: Final = 256
"""Streams in one message; more take several."""

OTHER_VOTERS: Final = "OtherVoters"
"""Candidate and voter know different voters or, with two voters, different preferred holders: they have to agree
first."""
NOT_SERVED: Final = "NotServed"
"""The voter has not read its earlier votes yet, so it does not know whom it promised the stream."""
HELD: Final = "Held"
"""The vote is promised to another holder."""
PAST: Final = "Past"
"""The term is over, or another's."""


@dataclass(frozen=True, slots=True)
class AskItem:
    """One stream that the asker wants to hold, or to keep holding."""

    stream: Stream
    term: int
    """Grows with each attempt at a stream, by any candidate; renewals keep it."""
    mark: int
    """Identifies the voters that the asker knows of (``VoterSets.mark``)."""
    preferred: str


@dataclass(frozen=True, slots=True)
class LeaseAsk:
    """Requests a vote for the asker, for ``duration_ms``."""

    number: int
    """Names the moment at which the asker asked; only the asker knows which."""
    holder: str
    """A run of a broker: after a restart, the same region is another holder."""
    duration_ms: int
    items: tuple[AskItem, ...]


@dataclass(frozen=True, slots=True)
class AnswerItem:
    """A vote, which is durable, or the reason for refusing it."""

    stream: Stream
    term: int
    granted: bool
    known_term: int = 0
    """The highest term that the voter knows: an attempt needs a higher one."""
    left_ms: int = 0
    """How long the vote is promised to another holder."""
    holder: str = ""
    """The holder that has the vote."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """Answer to a :class:`LeaseAsk`, or to a part of it."""

    number: int
    items: tuple[AnswerItem, ...]


@dataclass(frozen=True, slots=True)
class LeaseRenewal:
    """Requests that the voter renew everything it granted to the asker, as far as the asker knows
    (``grant_digests.py``).
    """

    number: int
    """As in :class:`LeaseAsk`, with which it shares the sequence."""
    holder: str
    parts: tuple[tuple[int, int], ...]
    """Each non-empty part, and its digest."""


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """Answer to a :class:`LeaseRenewal`: all of it is granted again, for as long as before."""

    number: int
    differing: tuple[int, ...] = ()
    """Parts for which the voter's digest differs: their streams have to be requested by name."""


@dataclass(frozen=True, slots=True)
class LeaseRelease:
    """The holder has stopped: its votes for these streams, of these terms, are free again."""

    holder: str
    items: tuple[tuple[Stream, int], ...]


@dataclass(frozen=True, slots=True)
class VotersItem:
    """A region's knowledge of the voters on the streams of one subscription, on disk."""

    topic: str
    subscription: str
    known: VoterSets
    wanted: Voters = ()
    """The voters according to the sender's own settings; empty: it has none about this."""
    is_clean: bool = False
    """Nothing that it promised while it knew less is still binding."""


@dataclass(frozen=True, slots=True)
class VotersAsk:
    """Asks whether the receiver knows these voters."""

    items: tuple[VotersItem, ...]


@dataclass(frozen=True, slots=True)
class VotersAnswer:
    """The asked voter's knowledge after it merged the question."""

    items: tuple[VotersItem, ...]


LeaseMessage: TypeAlias = LeaseAsk | LeaseAnswer | LeaseRenewal | LeaseRenewed | LeaseRelease | VotersAsk | VotersAnswer
