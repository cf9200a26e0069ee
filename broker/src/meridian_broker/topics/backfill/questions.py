# SPDX-License-Identifier: Apache-2.0
"""What regions ask each other about entries that one of them lacks, and what they answer."""

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
    """In its own log: everything up to here the other has, or is not meant to."""
    end: Position
    """The last entry of its log."""
    behind: int
    """Entries in between."""
    held: str = ""
    """Why it does not go on."""
    subscriptions: int = 0
    """Replicated subscriptions of the topic there."""
    remote_last: Position | None = None
    """The last of its own entries that it knows the other one to have; None: it has not heard. Not told to regions."""


NOTHING_TO_SEND: Final = Feed(EARLIEST, EARLIEST, 0)
"""Of a region that does not have the topic."""


class Found(NamedTuple):
    """The answer: what the region stores there that is meant for the asker, in the origin's order."""

    entries: tuple[bytes, ...]
    """Stored entries with the header of a foreign one."""
    is_chained: bool
    """The first follows ``after``; nothing in between is missing here. False without entries: there are some, and the
    first is damaged, so that the region cannot give it now."""
    is_settled: bool
    """The origin itself answers, and knows of nothing more that it might have lost."""
    last: Position = EARLIEST
    """The last entry of the origin that was ever stored there; given back meanwhile, perhaps."""
    origins: frozenset[str] = frozenset()
    """Every region of which entries were ever stored there."""
    feed: Feed | None = None
    """How far it is with sending its own entries to the asker; None: it does not."""
    is_outside: bool = False
    """The region does not count the asker among the topic's regions: it gives it its own entries, and nothing else."""

    @property
    def is_damaged(self) -> bool:
        """The next entry is there and cannot be read: it may be whole again, or given up, in a while."""
        return not self.entries and not self.is_chained


class PeerAway(Exception):
    """The region cannot be asked now."""


class NotWanted(PeerAway):
    """The region does not count us among the topic's regions, so it sends nothing either."""


class HasOtherKind(PeerAway):
    """The region has the name for a topic of the other kind, with partitions or without (``topics.kinds``)."""


class Peers(Protocol):
    """The other regions' brokers."""

    def regions(self) -> Collection[str]:
        """All that can be asked, whether they have a topic or not."""
        ...

    def is_reachable(self, region: str) -> bool: ...

    async def ask(self, region: str, want: Want) -> Found:
        """:raises PeerAway: there is no answer, or the region cannot say."""
        ...

    async def schema(self, region: str, topic: str, version: bytes) -> pb.Schema | None:
        """What a region calls by this number; None: nothing. :raises PeerAway: as ``ask``."""
        ...
