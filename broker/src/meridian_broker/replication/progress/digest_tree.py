# SPDX-License-Identifier: Apache-2.0
"""One number for all topics shared with a region, and a tree below it: keeps the cost of an idle exchange low (R19).

Regions at rest compare that one number every few seconds, whatever they hold, and when they connect. If it differs,
256 numbers show in which *buckets* of topics, 64 numbers of each such bucket in which *parts* of it, and the digests of
those topics travel, as they do for topics with changes in flight. So the cost of a comparison depends on what differs.

The numbers are sums over topics, updated for topics that are marked as changed. A topic's regions and its
incarnation change without a mark, so a fraction of all topics is counted again each round; a number that is out of date
differs, and costs a listing, or describes a topic as it was some minutes ago: records of such changes travel by
themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import blake2b
from typing import Final

BUCKETS: Final = 256
PARTS: Final = 64
"""Parts per bucket."""
RECOUNT_ROUNDS: Final = 60
"""Number of rounds in which each topic is counted again."""
_MASK: Final = (1 << 64) - 1
_EMPTY: Final[Mapping[str, tuple[int, int]]] = {}


def number_of(*parts: bytes) -> int:
    """64 bits over the parts, each with its length so that no two lists of parts run together."""
    data = b"".join([len(part).to_bytes(4, "big") + part for part in parts])
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def place_of(topic: str) -> tuple[int, int]:
    """In which bucket a topic is, and in which part of it, in every region."""
    part, bucket = divmod(number_of(topic.encode()), BUCKETS)
    return bucket, part % PARTS


def bucket_of(topic: str) -> int:
    return place_of(topic)[0]


class Summary:
    """The numbers for what is shared with one region."""

    __slots__ = ("_all", "_changed", "_counted", "_number", "_of_all", "_recount", "buckets")

    def __init__(self, number: Callable[[str], tuple[int, int]], topics: Collection[str]) -> None:
        """
        :param number: number of a topic, 0 when it is not shared; and the cost, in subscriptions examined.
        :param topics: a live set of topics: those that are not shared yet are counted again, too.
        """
        self._number = number
        self._all = topics
        self._counted: dict[int, dict[str, tuple[int, int]]] = {}
        """Per non-empty bucket: topic -> its part, and its contribution."""
        self._changed: set[str] = set(topics)
        self._recount: list[str] = []
        self.buckets = [0] * BUCKETS
        self._of_all: int | None = None
        """The one number; None: a bucket's changed since it was worked out."""

    def changed(self, topic: str) -> None:
        """Count it again before the numbers are next used."""
        self._changed.add(topic)

    def begin_round(self) -> None:
        """Count some topics again that were not marked as changed."""
        if not self._recount:
            self._recount = list(self._all)
        count = -(-len(self._all) // RECOUNT_ROUNDS)
        self._changed.update(self._recount[:count])
        del self._recount[:count]

    def count(self, topics: int, subscriptions: int) -> bool:
        """Count up to this many changed topics, or until their subscriptions exceed the limit; the last one may exceed
        it.

        :returns: whether nothing is left for ``work_out``.
        """
        while self._changed and topics > 0 and subscriptions > 0:
            topics -= 1
            subscriptions -= self._count(self._changed.pop())
        return not self._changed

    def work_out(self) -> int:
        """The one number. ``buckets`` are up to date then, too."""
        while self._changed:
            self._count(self._changed.pop())
        if self._of_all is None:
            is_empty = not self._counted
            self._of_all = 0 if is_empty else number_of(*[bucket.to_bytes(8, "big") for bucket in self.buckets])
        return self._of_all

    def _count(self, topic: str) -> int:
        bucket, part = place_of(topic)
        _, before = self._counted.get(bucket, _EMPTY).get(topic, (part, 0))
        now, cost = self._number(topic)
        if now != before:
            self.buckets[bucket] = (self.buckets[bucket] + now - before) & _MASK
            self._of_all = None
            self._put(bucket, topic, part, now)
        return cost

    def _put(self, bucket: int, topic: str, part: int, now: int) -> None:
        counted = self._counted.setdefault(bucket, {})
        if now:
            counted[topic] = part, now
            return
        counted.pop(topic, None)
        if not counted:
            del self._counted[bucket]

    def topics(self, buckets: Iterable[int] | None = None) -> list[str]:
        """The topics that are counted, or those in some buckets. After ``work_out``."""
        chosen = self._counted if buckets is None else buckets
        return [topic for bucket in chosen for topic in self._counted.get(bucket, ())]

    def groups(self, without: Collection[int]) -> list[Collection[str]]:
        """The topics of all buckets but some, group by group. After ``work_out``."""
        return [counted for bucket, counted in self._counted.items() if bucket not in without]

    def parts(self, bucket: int) -> list[int]:
        """The numbers of a bucket's parts. After ``work_out``."""
        numbers = [0] * PARTS
        for part, number in self._counted.get(bucket, _EMPTY).values():
            numbers[part] = (numbers[part] + number) & _MASK
        return numbers

    def split(self, bucket: int, parts: Collection[int]) -> tuple[list[str], list[str]]:
        """The bucket's topics: those in some parts, and the others."""
        within: list[str] = []
        others: list[str] = []
        for topic, (part, _) in self._counted.get(bucket, _EMPTY).items():
            (within if part in parts else others).append(topic)
        return within, others
