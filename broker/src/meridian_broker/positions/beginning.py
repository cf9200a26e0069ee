# SPDX-License-Identifier: Apache-2.0
"""Where a subscription began, and which incarnation it is (rules R15, R16).

A subscription that is deleted and created again is a different one: the stamp of the deletion before it is its
*incarnation*. Within it, regions that cannot reach each other may each create the subscription; the earliest creation
then decides where it begins. Messages before that place are not delivered, but were not acked either: when an earlier
creation becomes known, the place of the later one is withdrawn, whereas its acknowledgements are kept. So places are
not acks, and are kept separately.

Beginnings are ordered - a later incarnation first, then an earlier creation - and joining two takes the first in that
order.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

from meridian_broker.positions.claims import put_position, take_position
from meridian_broker.positions.clock import ZERO, Stamp
from meridian_broker.positions.position import Position
from meridian_broker.positions.varints import Reader, put_name, put_number

NOWHERE: Final[Mapping[str, Position]] = {}
"""The places of a subscription that begins at each region's earliest entry, or whose creation is unknown."""

_ZERO_BYTES: Final = bytes(3)
"""The encoding of ``ZERO``."""


class Beginning(NamedTuple):
    """See the module's text."""

    incarnation: Stamp
    """Stamp of the deletion before it; ``ZERO`` if it was never deleted."""
    created: Stamp
    """Stamp of the creation; ``ZERO`` if none in this incarnation is known, or in a delta that does not carry it."""
    places: Mapping[str, Position]
    """Per origin region: everything up to here lies before the beginning. Regions not named begin at their earliest
    entry."""

    def bare(self) -> Beginning:
        """Only the incarnation."""
        return UNKNOWN if self.incarnation == ZERO else Beginning(self.incarnation, ZERO, {})

    def joined(self, other: Beginning) -> Beginning:
        """The one that counts; this object itself if nothing is new."""
        if self.incarnation != other.incarnation:
            return max(self, other, key=lambda one: one.incarnation)
        if other.created == ZERO or other is self:
            return self
        if self.created == ZERO:
            return other
        if self.created != other.created:
            return other if self.created > other.created else self
        if self.places == other.places:
            return self
        # One stamp is one creation; if a fault made two, nothing that either would deliver is skipped.
        both = self.places.keys() & other.places.keys()
        places = {region: min(self.places[region], other.places[region]) for region in both}
        return self if places == self.places else Beginning(self.incarnation, self.created, places)

    def digest(self) -> int:
        """64 bits, the same in every region; 0 if nothing is known."""
        if self == UNKNOWN:
            return 0
        out = bytearray()
        self.put(out)
        return int.from_bytes(blake2b(out, digest_size=8).digest(), "big")

    def put(self, out: bytearray) -> None:
        """Append the canonical encoding."""
        for stamp in (self.incarnation, self.created):
            if stamp is ZERO:  # the incarnation of nearly all
                out += _ZERO_BYTES
                continue
            put_number(out, stamp.time_ms)
            put_number(out, stamp.counter)
            put_name(out, stamp.region)
        put_number(out, len(self.places))
        for region in sorted(self.places):
            put_name(out, region)
            put_position(out, self.places[region])

    @classmethod
    def take(cls, reader: Reader) -> Beginning:
        """:raises ValueError: these bytes are not a valid beginning."""
        incarnation, created = (Stamp(reader.number(), reader.number(), reader.name()) for _ in range(2))
        places: dict[str, Position] = {}
        for _ in range(reader.count(3)):
            region = reader.name()
            if region in places:
                raise reader.broken(f"region {region!r} comes twice")
            places[region] = take_position(reader)
        if created == ZERO and places:
            raise reader.broken("a subscription that does not exist has a beginning")
        return cls(incarnation, created, places)


UNKNOWN: Final = Beginning(ZERO, ZERO, {})
"""The beginning of a progress that carries none."""
