# SPDX-License-Identifier: Apache-2.0
"""One number for all topics that are shared with a region, and a tree below it: what an idle exchange costs (R19).

Regions at rest compare that one number every few seconds, whatever they hold, and when they connect. Where it differs,
256 numbers tell in which *buckets* of topics, 64 numbers of each such bucket in which *parts* of it, and the digests of
those topics travel, as they do for topics that are in motion. So what a comparison costs goes with what differs.

The numbers are sums over topics, kept up to date where something was marked as changed. A topic's regions and its
incarnation change without a mark, so a part of all topics is counted again each round; a number that is out of date
differs, and costs a listing, or says of a topic what was true some minutes ago: records of such changes travel by
themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from hashlib import blake2b
from typing import Final

BUCKETS: Final = 256
PARTS: Final = 64
"""Of a bucket."""
RECOUNT_ROUNDS: Final = 60
"""In so many rounds each topic is counted again."""
_MASK: Final = (1 << 64) - 1


def number_of(*parts: bytes) -> int:
    """64 bits over the parts, each with its length so that no two lists of parts run together."""
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(4, "big"))
        digest.update(part)
    return int.from_bytes(digest.digest(), "big")


def place_of(topic: str) -> tuple[int, int]:
    """In which bucket a topic is, and in which part of it, in every region."""
    part, bucket = divmod(number_of(topic.encode()), BUCKETS)
    return bucket, part % PARTS


def bucket_of(topic: str) -> int:
    return place_of(topic)[0]


class Summary:
    """The numbers of what is shared with one region."""

    __slots__ = ("_all", "_changed", "_counted", "_number", "_recount", "buckets")

    def __init__(self, number: Callable[[str], tuple[int, int]], topics: Collection[str]) -> None:
        """
        :param number: of a topic, 0 when it is not shared; and what it cost, in subscriptions looked at.
        :param topics: those there are, now and later: also those that are not shared yet are counted again.
        """
        self._number = number
        self._all = topics
        self._counted: list[dict[str, tuple[int, int]]] = [{} for _ in range(BUCKETS)]
        """Per bucket: topic -> its part, and what it adds."""
        self._changed: set[str] = set(topics)
        self._recount: list[str] = []
        self.buckets = [0] * BUCKETS

    def changed(self, topic: str) -> None:
        """Count it anew before the numbers are asked for."""
        self._changed.add(topic)

    def begin_round(self) -> None:
        """Some topics of which nobody said that they changed are counted again."""
        if not self._recount:
            self._recount = list(self._all)
        share = -(-len(self._all) // RECOUNT_ROUNDS)
        self._changed.update(self._recount[:share])
        del self._recount[:share]

    def count(self, topics: int, subscriptions: int) -> bool:
        """Count so many topics that changed, or as many as have so many subscriptions; the last may have more.

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
        is_empty = not any(self._counted)
        return 0 if is_empty else number_of(*(bucket.to_bytes(8, "big") for bucket in self.buckets))

    def _count(self, topic: str) -> int:
        bucket, part = place_of(topic)
        counted = self._counted[bucket]
        _, before = counted.pop(topic, (part, 0))
        now, cost = self._number(topic)
        self.buckets[bucket] = (self.buckets[bucket] + now - before) & _MASK
        if now:
            counted[topic] = part, now
        return cost

    def topics(self, buckets: Iterable[int] | None = None) -> list[str]:
        """The topics that are counted, or those in some buckets. After ``work_out``."""
        chosen = self._counted if buckets is None else [self._counted[bucket] for bucket in buckets]
        return [topic for counted in chosen for topic in counted]

    def groups(self, without: Collection[int]) -> list[Collection[str]]:
        """The topics of all buckets but some, group by group. After ``work_out``."""
        return [counted for bucket, counted in enumerate(self._counted) if counted and bucket not in without]

    def parts(self, bucket: int) -> list[int]:
        """The numbers of a bucket's parts. After ``work_out``."""
        numbers = [0] * PARTS
        for part, number in self._counted[bucket].values():
            numbers[part] = (numbers[part] + number) & _MASK
        return numbers

    def split(self, bucket: int, parts: Collection[int]) -> tuple[list[str], list[str]]:
        """The bucket's topics: those in some parts, and the others."""
        within: list[str] = []
        others: list[str] = []
        for topic, (part, _) in self._counted[bucket].items():
            (within if part in parts else others).append(topic)
        return within, others
