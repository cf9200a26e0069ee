# SPDX-License-Identifier: Apache-2.0
"""Bundles: the parts of a namespace that brokers own.

A topic's name is hashed to a *place* between 0 and 2^32 - 1, with Pulsar's function. The *borders* of a namespace
divide these places into ranges, its bundles. A topic belongs to exactly one of them. Each partition is a topic in its
own right, so partitions spread over several bundles. Splitting a bundle adds one border; no other bundle changes.
"""

from __future__ import annotations

from binascii import crc32
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from meridian_broker.metadata.policies import MAX_BUNDLES, boundaries
from meridian_broker.wire.pulsar.topic_name import TopicName

LAST: Final = 0xFFFFFFFF
"""The last place, which is also the last border: as in Pulsar, the last bundle includes it."""


class NotDivisible(ValueError):
    """A bundle cannot be split as requested. The message says why."""


@dataclass(frozen=True, slots=True, order=True)
class Bundle:
    """The places from ``lower`` up to but excluding ``upper``, which is included only if it is the last place."""

    namespace: str
    """``tenant/namespace``."""
    lower: int
    upper: int

    @property
    def range(self) -> str:
        """As Pulsar writes it: ``0x00000000_0x40000000``."""
        return f"0x{self.lower:08x}_0x{self.upper:08x}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.range}"

    def __contains__(self, place: int) -> bool:
        return self.lower <= place < self.upper or place == self.upper == LAST

    def overlaps(self, other: Bundle) -> bool:
        """Whether a topic can belong to both."""
        return self.namespace == other.namespace and self.lower < other.upper and other.lower < self.upper

    def has(self, topic: str) -> bool:
        """Whether the topic with this full name belongs to it. Callers ask about every topic, so no name is parsed."""
        return topic.partition("://")[2].startswith(f"{self.namespace}/") and crc32(topic.encode()) in self

    def parts(self, border: int) -> tuple[Bundle, Bundle]:
        """The two bundles that splitting it at a border yields."""
        return Bundle(self.namespace, self.lower, border), Bundle(self.namespace, border, self.upper)

    @property
    def middle(self) -> int:
        """The border that splits it into two halves. :raises NotDivisible: it covers a single place."""
        if self.upper - self.lower < 2:
            raise NotDivisible(f"bundle {self} is too narrow to split")
        return (self.lower + self.upper) // 2

    def median(self, places: Iterable[int]) -> int:
        """The border that splits its topics most evenly.

        :param places: the places of topics; those outside the bundle are ignored.
        :raises NotDivisible: no border has topics on both sides.
        """
        inside = sorted(place for place in places if place in self)
        most = self.upper - 1  # the last bundle includes the last place, but cannot be split there
        borders = [border for earlier, place in pairwise(inside) if earlier < (border := min(place, most))]
        if not borders:
            raise NotDivisible(f"bundle {self} has no two topics that a border can separate")
        return min(borders, key=lambda border: abs(2 * bisect_left(inside, border) - len(inside)))


def place_of(topic: TopicName) -> int:
    """Where a topic, or partition, falls in the range of hashes."""
    return crc32(str(topic).encode())


@dataclass(frozen=True, slots=True)
class Bundles:
    """The bundles of one namespace. ``equal``, ``parse`` and ``checked`` check what they are made from."""

    namespace: str
    borders: tuple[int, ...]
    """From 0 to ``LAST``, ascending."""

    @classmethod
    def equal(cls, namespace: str, count: int) -> Bundles:
        """Equal ranges, as in a new namespace. :param count: from 1 to ``MAX_BUNDLES``."""
        return cls.parse(namespace, boundaries(count))

    @classmethod
    def parse(cls, namespace: str, texts: Sequence[str]) -> Bundles:
        """Parse borders as Pulsar writes them. :raises ValueError: they are not valid."""
        return cls.checked(namespace, tuple(int(text, 16) for text in texts))

    @classmethod
    def checked(cls, namespace: str, borders: tuple[int, ...]) -> Bundles:
        """Check the borders. :raises ValueError: they are not valid."""
        is_whole = len(borders) > 1 and borders[0] == 0 and borders[-1] == LAST
        if not is_whole or len(borders) > MAX_BUNDLES + 1 or any(low >= high for low, high in pairwise(borders)):
            raise ValueError(f"{borders[:4]} are not valid borders of a namespace's bundles")
        return cls(namespace, borders)

    def texts(self) -> list[str]:
        """The borders as Pulsar writes them."""
        return [f"0x{border:08x}" for border in self.borders]

    def every(self) -> list[Bundle]:
        """All bundles, in the order of their places."""
        return [Bundle(self.namespace, low, high) for low, high in pairwise(self.borders)]

    def at(self, place: int) -> Bundle:
        """The bundle that contains a place."""
        above = min(bisect_right(self.borders, place), len(self.borders) - 1)
        return Bundle(self.namespace, self.borders[above - 1], self.borders[above])

    def of(self, topic: TopicName) -> Bundle:
        """The bundle that a topic of the namespace belongs to."""
        return self.at(place_of(topic))

    def named(self, text: str) -> Bundle | None:
        """The bundle with this ``range``; None: there is none, for instance because it was split."""
        return next((bundle for bundle in self.every() if bundle.range == text.lower()), None)

    def split(self, bundle: Bundle, border: int) -> Bundles:
        """The bundles after one of them was split.

        :raises NotDivisible: it is not one of them, the border is not inside it, or there are too many bundles.
        """
        if bundle != self.at(bundle.lower) or not bundle.lower < border < bundle.upper:
            raise NotDivisible(f"0x{border:08x} does not divide {bundle}, or there is no such bundle")
        if len(self.borders) > MAX_BUNDLES:
            raise NotDivisible(f"{self.namespace} has {MAX_BUNDLES} bundles, which is the limit")
        return Bundles(self.namespace, tuple(sorted((*self.borders, border))))
