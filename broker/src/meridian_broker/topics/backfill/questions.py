# SPDX-License-Identifier: Apache-2.0
"""What regions ask each other about entries that one of them lacks, and the answers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple, Protocol

from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.wire.proto import pulsar_pb2 as pb


class Want(NamedTuple):
    """A question: entries of one origin strictly between two of its positions."""

    topic: str
    incarnation: str
    origin: str
    after: Position
    before: Position


class Feed(NamedTuple):
    """How far a region is with sending its own entries to another one."""

    confirmed: Position
    """Position in its own log up to which the other region has everything, or is not meant to."""
    end: Position
    """The last entry of its log."""
    behind: int
    """Entries in between."""
    held: str = ""
    """Why it does not continue; empty: it does."""
    subscriptions: int = 0
    """Replicated subscriptions of the topic there."""
    remote_last: Position | None = None
    """The last of its own entries that it knows the other one to have; None: unknown. Not sent to other regions."""


NOTHING_TO_SEND: Final = Feed(EARLIEST, EARLIEST, 0)
"""The answer of a region that does not have the topic."""


class Found(NamedTuple):
    """The answer: what the region stores in the range and may send to the asker, in the origin's order."""

    entries: tuple[bytes, ...]
    """Stored entries with the header of a foreign entry."""
    is_chained: bool
    """The first entry follows ``after``, so nothing in between is missing here. If there are no entries, False means
    that the first one is damaged and cannot be sent now.
    """
    is_complete: bool
    """The origin itself answers, and has not lost anything more that it knows of."""
    last: Position = EARLIEST
    """The last entry of the origin that was ever stored there; it may have been trimmed."""
    origins: frozenset[str] = frozenset()
    """All regions of which entries were ever stored there."""
    feed: Feed | None = None
    """How far it is with sending its own entries to the asker; None: it does not send any."""
    is_outside: bool = False
    """The region does not count the asker among the topic's regions: it sends its own entries, and no others."""

    @property
    def is_damaged(self) -> bool:
        """Whether the next entry is stored there but unreadable: it may be repaired or given up later."""
        return not self.entries and not self.is_chained


class PeerAway(Exception):
    """The region cannot be asked now."""


class NotWanted(PeerAway):
    """The region does not count us among the topic's regions, so it sends nothing either."""


class HasOtherKind(PeerAway):
    """The region uses the name for a topic of the other kind, with partitions or without
    (``topics/service/kinds.py``).
    """


class Peers(Protocol):
    """The other regions' brokers."""

    def regions(self) -> Collection[str]:
        """All that can be asked, whether they have the topic or not."""
        ...

    def is_reachable(self, region: str) -> bool: ...

    async def ask(self, region: str, want: Want) -> Found:
        """:raises PeerAway: there is no answer, or the region cannot answer."""
        ...

    async def schema(self, region: str, topic: str, version: bytes) -> pb.Schema | None:
        """The schema that a region stores under this version; None: there is none. :raises PeerAway: as ``ask``."""
        ...
