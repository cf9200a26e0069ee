# SPDX-License-Identifier: Apache-2.0
"""Finds the paths in which two regions differ, at a cost that depends on how many do.

Each value's path and content make a number, and sums of numbers a tree: one number for everything, 256 *buckets*, and
64 *parts* of each bucket. Regions compare the one, then the buckets, then the parts of those that differ, and then
list what they know in parts that differ. Deletions count for nothing in a number, because regions forget them at
different times; they are listed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple

from meridian_broker.metadata.sync.stamped import BEGINNING, Moment, Stamped, moment
from meridian_broker.positions.clock import Stamp

BUCKETS: Final = 256
PARTS: Final = 64
_MASK: Final = (1 << 64) - 1


class Place(NamedTuple):
    """Where a path is counted, in every region."""

    bucket: int
    part: int


class Summary(NamedTuple):
    """What a region knows about a path, without the value."""

    generation: int
    stamp: Stamp
    content: int
    """See ``Stamped.content``; 0: deleted."""


def summary_of(state: Stamped) -> Summary:
    return Summary(state.generation, state.stamp, state.content)


def place_of(path: str) -> Place:
    rest, bucket = divmod(_number(path.encode()), BUCKETS)
    return Place(bucket, rest % PARTS)


class DigestTree:
    """The numbers over what one region knows. Changes cost as much as one path does."""

    def __init__(self) -> None:
        self._known: dict[Place, dict[str, Summary]] = {}
        self._parts: dict[int, list[int]] = {}
        self.buckets = [0] * BUCKETS
        self._count = 0

    def set(self, path: str, state: Stamped | None) -> None:
        """A path has this state now; None: nothing is known of it any longer."""
        place = place_of(path)
        inside = self._known.setdefault(place, {})
        before, now = inside.get(path), None if state is None else summary_of(state)
        added = _counted(path, now) - _counted(path, before)
        parts = self._parts.setdefault(place.bucket, [0] * PARTS)
        parts[place.part] = (parts[place.part] + added) & _MASK
        self.buckets[place.bucket] = (self.buckets[place.bucket] + added) & _MASK
        self._count += (now is not None) - (before is not None)
        if now is not None:
            inside[path] = now
            return
        inside.pop(path, None)
        if not inside:
            del self._known[place]

    def __contains__(self, path: str) -> bool:
        return path in self._known.get(place_of(path), {})

    def __len__(self) -> int:
        return self._count

    @property
    def number(self) -> int:
        """Equal in regions with the same values."""
        return _number(b"".join(one.to_bytes(8, "big") for one in self.buckets))

    def parts(self, bucket: int) -> list[int]:
        return list(self._parts.get(bucket, [0] * PARTS))

    def differing(self, buckets: Collection[int]) -> list[int]:
        """Buckets whose numbers are not those of the other region."""
        return [place for place, (mine, theirs) in enumerate(zip(self.buckets, buckets, strict=True)) if mine != theirs]

    def listing(self, places: Iterable[Place]) -> dict[str, Summary]:
        """What is known there, deletions included."""
        return {path: one for place in places for path, one in self._known.get(place, {}).items()}


@dataclass(frozen=True, slots=True)
class Difference:
    """What follows from another region's listing of some places."""

    wanted: list[str]
    """Paths for which the other region knows a newer state."""
    gone: list[str]
    """Paths that the other region knew and has forgotten: they were deleted."""


def compare(
    mine: Mapping[str, Summary], theirs: Mapping[str, Summary], their_horizon: Moment, heard: Moment = BEGINNING
) -> Difference:
    """
    :param theirs: everything that the other region knows in the same places.
    :param their_horizon: see ``converging``: it forgot nothing that was deleted later.
    :param heard: the moment up to which this region has heard every region. If that is not before the horizon, it has
        itself heard of every deletion that the other region forgot, and what it still has was not deleted.
        ``BEGINNING``: it has not heard all of them yet, so it never had anything that they could have deleted.
    """
    wanted = [path for path, one in theirs.items() if path not in mine or one > mine[path]]
    gone = [
        path
        for path, one in (mine.items() if BEGINNING < heard < their_horizon else ())
        if path not in theirs and one.content and not one.generation and moment(one.stamp) <= their_horizon
    ]
    return Difference(sorted(wanted), sorted(gone))


def forgotten(horizon: Moment) -> Stamped:
    """The deletion that stands for one that another region has forgotten: it beats everything up to the horizon, and
    nothing later. No region wrote it."""
    return Stamped(Stamp(*horizon, ""), None)


def _counted(path: str, one: Summary | None) -> int:
    if one is None or not one.content:
        return 0
    stamp = f"{one.generation} {one.stamp} {one.content} ".encode()
    return _number(stamp + path.encode())


def _number(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")
