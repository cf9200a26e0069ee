# SPDX-License-Identifier: Apache-2.0
"""One number for all topics that are shared with a region, and 256 below it: what an idle exchange costs (R19).

Regions at rest compare that one number every few seconds, whatever they hold. Where it differs, the 256 numbers tell in
which *buckets* of topics, and the digests of those topics travel, as they do for topics that are in motion.

The numbers are sums over topics, kept up to date where something was marked as changed. A topic's regions and its
incarnation change without a mark, so a part of all topics is counted again each round; a number that is out of date
differs, and costs a listing, or says of a topic what was true some minutes ago: records of such changes travel by
themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Final

BUCKETS: Final = 256
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


def bucket_of(topic: str) -> int:
    """In which bucket a topic is, in every region."""
    return number_of(topic.encode()) % BUCKETS


class Summary:
    """The numbers of what is shared with one region."""

    __slots__ = ("_changed", "_counted", "_number", "_recount", "buckets")

    def __init__(self, number: Callable[[str], int]) -> None:
        """:param number: of a topic; 0 when it is not shared."""
        self._number = number
        self._counted: dict[str, tuple[int, int]] = {}
        """Topic -> its bucket, and what it adds there."""
        self._changed: set[str] = set()
        self._recount: list[str] = []
        self.buckets = [0] * BUCKETS

    def changed(self, topic: str) -> None:
        """Count it anew before the numbers are asked for."""
        self._changed.add(topic)

    def begin_round(self) -> None:
        """Some topics of which nobody said that they changed are counted again."""
        if not self._recount:
            self._recount = list(self._counted)
        share = -(-len(self._counted) // RECOUNT_ROUNDS)
        self._changed.update(self._recount[:share])
        del self._recount[:share]

    def work_out(self) -> int:
        """The one number. ``buckets`` are up to date then, too."""
        changed, self._changed = self._changed, set()
        for topic in changed:
            bucket, before = self._counted.pop(topic, (-1, 0))
            if bucket < 0:
                bucket = bucket_of(topic)
            now = self._number(topic)
            self.buckets[bucket] = (self.buckets[bucket] + now - before) & _MASK
            if now:
                self._counted[topic] = bucket, now
        return number_of(*(bucket.to_bytes(8, "big") for bucket in self.buckets)) if self._counted else 0

    def topics(self, buckets: set[int] | None = None) -> list[str]:
        """The topics that are counted, or those in some buckets. After ``work_out``."""
        if buckets is None:
            return list(self._counted)
        return [topic for topic, (bucket, _) in self._counted.items() if bucket in buckets]
