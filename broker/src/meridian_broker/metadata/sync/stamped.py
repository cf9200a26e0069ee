# SPDX-License-Identifier: Apache-2.0
"""What a region knows of one path: a value or a deletion, with the stamp of the write (R40).

Of two states of a path the *later* one wins, in every region and whichever arrived first. The order is total:

1. the greater *generation*. It is 0 until an operator restamps the path, which ends a stamp from a wrong clock (R43);
2. the later stamp; of equal times the smaller region's name (``positions.clock``);
3. the greater hash of the content. Only a region that was restored and then wrote with its clock set back can give one
   stamp to two values.

So the states of a path are a semilattice whose join is the maximum: repeats and reorderings change nothing.

Each state says which states its writer *knew*: those that it replaced, directly or through others. That decides nothing
about which one wins, but tells a state that was replaced from one that lost to a write made independently of it (R45).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final

from meridian_broker.metadata.records import FORMAT, opened
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions.clock import ZERO, Stamp

MAX_GENERATION: Final = (1 << 32) - 1

Moment = tuple[int, int]
"""Time in milliseconds and counter of a stamp. Any region's stamp counts as up to a moment if it is not later."""

BEGINNING: Final[Moment] = (0, 0)

Turn = tuple[int, int, int]
"""Generation, time and counter of a state: one region's states of a path in the order in which it wrote them."""
NEVER: Final[Turn] = (-1, 0, 0)
MAX_KNOWN: Final = 16
"""Regions whose states a writer is said to have known. With more, a conflict may be listed that is none."""

_CANONICAL: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, sort_keys=True).encode


def moment(stamp: Stamp) -> Moment:
    return stamp.time_ms, stamp.counter


@dataclass(frozen=True)
class Stamped:
    """See the module's text."""

    stamp: Stamp
    value: bytes | None
    """JSON with sorted keys, so that equal values are equal bytes; None: the path was deleted."""
    generation: int = 0
    knows: Mapping[str, Turn] = field(default_factory=dict, compare=False)
    """By region, the last of its states that the writer of this one knew. Those of its own region need not be said."""

    @property
    def turn(self) -> Turn:
        return self.generation, self.stamp.time_ms, self.stamp.counter

    def knew(self, other: Stamped) -> bool:
        """Whether the writer of this state knew the other one, of another region."""
        return self.knows.get(other.stamp.region, NEVER) >= other.turn

    def following(self, *replaced: Stamped | None) -> Stamped:
        """The same state, written in place of these."""
        known: dict[str, Turn] = {}
        for state in replaced:
            if state is not None:
                for region, turn in (*state.knows.items(), (state.stamp.region, state.turn)):
                    known[region] = max(turn, known.get(region, turn))
        known.pop(self.stamp.region, None)
        latest = sorted(known, key=lambda region: known[region])[-MAX_KNOWN:]
        return replace(self, knows={region: known[region] for region in sorted(latest)})

    @cached_property
    def content(self) -> int:
        """64 bits that differ between contents. 0: deleted."""
        if self.value is None:
            return 0
        return int.from_bytes(blake2b(self.value, digest_size=8).digest(), "big") | 1

    @property
    def rank(self) -> tuple[int, Stamp, int]:
        """Greater for the one that wins."""
        return self.generation, self.stamp, self.content

    def beats(self, other: Stamped) -> bool:
        """Whether this state wins over the other one. None beats itself."""
        if self.generation != other.generation:
            return self.generation > other.generation
        if self.stamp != other.stamp:
            return self.stamp.beats(other.stamp)
        return self.content > other.content

    def with_value(self, value: bytes | None, stamp: Stamp) -> Stamped:
        """The state after a later write, which stays in the path's generation."""
        return replace(self, value=value, stamp=stamp)


def newest(*states: Stamped | None) -> Stamped | None:
    """The state that wins; None if there are no states."""
    found = [state for state in states if state is not None]
    return max(found, key=lambda state: state.rank) if found else None


def canonical(value: Any) -> bytes:
    """A JSON value as the bytes that travel and are compared."""
    return _CANONICAL(value).encode()


def from_store(path: str, data: bytes, *, is_deletion: bool = False) -> Stamped:
    """A stored value, or a tombstone. One without a stamp is older than any write.

    :raises MetadataError: it is damaged or of a newer format.
    """
    value, stamp, stored = opened(path, data)
    generation = stored.get("generation", 0)
    if not isinstance(generation, int) or not 0 <= generation <= MAX_GENERATION:
        raise MetadataError(f"{path} has generation {generation!r}, which no version of Meridian wrote: restore it")
    try:
        knows = {str(region): turn_of(shown) for region, shown in stored.get("knows", {}).items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise MetadataError(f"{path} holds {data[:60]!r}, which no version of Meridian wrote: restore it") from error
    return Stamped(stamp or ZERO, None if is_deletion else canonical(value), generation, knows)


def turn_of(shown: Any) -> Turn:
    """:raises TypeError: it is not one. :raises ValueError: likewise."""
    generation, time_ms, counter = map(int, shown)
    return generation, time_ms, counter


def to_store(state: Stamped, caller: str = "") -> bytes:
    """The bytes to store at the path, or at its tombstone's, in the form of ``metadata.records``.

    :param caller: the role that asked for the write. It stays in the region; empty: it is not known.
    """
    more = b',"generation":%d' % state.generation if state.generation else b""
    if state.knows:
        more += b',"knows":%b' % canonical(state.knows)
    if caller:
        more += b',"caller":%b' % canonical(caller)
    stamp = canonical(list(state.stamp))
    return b'{"format":%d,"value":%b,"stamp":%b%b}' % (FORMAT, state.value or b"null", stamp, more)


def caller_of(path: str, data: bytes) -> str:
    """The role that asked for a write of this region; empty: it is not known, or another region wrote.

    :raises MetadataError: as ``from_store``.
    """
    return str(opened(path, data)[2].get("caller", ""))
