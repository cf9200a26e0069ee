# SPDX-License-Identifier: Apache-2.0
"""How far other regions have the entries of an origin that does not send them itself (R6).

While an origin cannot be reached, the other regions repeatedly compare the last entry that they store from it, for all
topics they share. Topics are ordered by a hash of their names, and split into slices of bounded size; a slice is sent
as the numbers of its *buckets*, a few topics each, and the other region answers with the ends in buckets that differ.
So a round costs some bytes per topic and no disk access, and only topics of which the other region has more are
requested.

Each side starts its own rounds, so the side that is ahead does nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Final, Protocol

from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.replication.progress.context import ExchangeContext, Reply
from meridian_broker.replication.progress.digest_tree import number_of
from meridian_broker.replication.progress.messages import (
    PARTS_VERSION,
    Digest,
    EndsSlice,
    OriginEnds,
    State,
    TopicEnd,
)
from meridian_broker.replication.progress.peer import Peer

TOPICS: Final = 2000
"""In one slice: some milliseconds."""
PER_BUCKET: Final = 16
"""Topics, at most about; at least half of it."""
ROUND_MS: Final = 5000
"""Minimum time from the start of a round to that of the next."""
ANSWERED: Final = 1000
"""Topics in one answer; those left out differ in the next round as well."""
HASHED: Final = 5000
"""New topics that are taken up at once."""
MOST_BITS: Final = 20
_HASH_BITS: Final = 64
_MASK: Final = (1 << 64) - 1


class EndsSource(Protocol):
    """The topics of this region."""

    def open_topics(self) -> Set[str]:
        """Topics whose entries are known."""

    def end(self, topic: str, origin: str) -> Position:
        """The last entry of an origin that was ever stored here; ``EARLIEST``: none, or the topic is not open."""

    def more_elsewhere(self, topic: str) -> None:
        """Another region stores entries that this one lacks: it should be asked."""


@dataclass(slots=True)
class _Round:
    """Where a comparison with one peer, of one origin, has got to."""

    began_ms: int
    bits: int
    bucket: int = 0
    """The next one to tell."""


class Ends:
    """Compares with all peers that can."""

    def __init__(self, context: ExchangeContext, source: EndsSource) -> None:
        self._context = context
        self._source = source
        self._order: list[tuple[int, str]] = []
        """All open topics by the hash of their names."""
        self._ordered_ms: int | None = None
        self._rounds: dict[tuple[str, str], _Round] = {}
        """By peer and origin."""
        self._last: tuple[str, str] = ("", "")

    def compares_with(self, region: str) -> bool:
        """Whether the region can be compared with."""
        peer = self._context.peers.get(region)
        return peer is not None and peer.up and peer.version >= PARTS_VERSION

    def look(self, origins: Collection[str]) -> None:
        """Called every second: tell one slice more.

        :param origins: those that do not bring their entries themselves; nothing else is compared.
        """
        pairs = sorted((r, o) for r in self._context.peers if self.compares_with(r) for o in origins)
        self._rounds = {pair: one for pair, one in self._rounds.items() if pair in pairs}
        following = [pair for pair in pairs if pair > self._last] + [pair for pair in pairs if pair <= self._last]
        for pair in following:
            if self._tell_slice(self._context.peers[pair[0]], pair[1]):
                self._last = pair
                return

    def _tell_slice(self, peer: Peer, origin: str) -> bool:
        """:returns: False when the round is through, and the next has time."""
        key, now_ms = (peer.region, origin), self._context.now_ms
        at = self._rounds.get(key)
        if at is None or at.bucket >> at.bits:
            if at is not None and now_ms - at.began_ms < ROUND_MS:
                return False
            if not self._put_in_order():
                return True
            bits = min(MOST_BITS, (len(self._order) // PER_BUCKET).bit_length())
            at = self._rounds[key] = _Round(now_ms, bits)
        if not self._order or peer.send is None:
            return False
        buckets = max(1, (TOPICS << at.bits) // len(self._order))
        first, at.bucket = at.bucket, min(at.bucket + buckets, 1 << at.bits)
        numbers = tuple(self._number(ends) for ends in self._buckets(peer, origin, at.bits, first, at.bucket))
        sent, applied = peer.next_number - 1, peer.incoming.applied()
        peer.send(Digest(sent, applied, (), ends=EndsSlice(origin, at.bits, first, numbers)))
        return True

    def answer(self, peer: Peer, theirs: EndsSlice, reply: Reply) -> None:
        """A slice of the peer's: tell the ends in those buckets that differ."""
        last = theirs.first + len(theirs.numbers)
        if theirs.bits > MOST_BITS or last > 1 << theirs.bits:
            return
        is_old = self._ordered_ms is None or self._context.now_ms - self._ordered_ms >= ROUND_MS
        if is_old and not self._put_in_order():
            return
        found: list[TopicEnd] = []
        buckets = self._buckets(peer, theirs.origin, theirs.bits, theirs.first, last)
        for number, ends in zip(theirs.numbers, buckets, strict=True):
            if self._number(ends) != number:
                found += ends
        if found:
            reply(State((), OriginEnds(theirs.origin, tuple(found[:ANSWERED]))))

    def take(self, peer: Peer, theirs: OriginEnds) -> None:
        """The peer's ends, where they differ from ours: where it has more, request it."""
        known = self._source.open_topics()
        for end in theirs.topics:
            if end.topic not in known or end.end <= self._source.end(end.topic, theirs.origin):
                continue
            if self._context.objection(peer.region, end.topic, end.incarnation) is None:
                self._source.more_elsewhere(end.topic)

    def _put_in_order(self) -> bool:
        """Add new topics and drop removed ones. False: there are more new ones than are added at once."""
        topics = self._source.open_topics()
        known = {topic for _, topic in self._order}
        if known != topics:
            new = list(topics - known)
            fresh = [(number_of(topic.encode()), topic) for topic in new[:HASHED]]
            self._order = sorted([one for one in self._order if one[1] in topics] + fresh)
            if len(new) > HASHED:
                return False
        self._ordered_ms = self._context.now_ms
        return True

    def _buckets(self, peer: Peer, origin: str, bits: int, first: int, last: int) -> Iterator[list[TopicEnd]]:
        """Per bucket the ends of the topics that are shared with the peer."""
        order, shift = self._order, _HASH_BITS - bits
        at = bisect_left(order, (first << shift, ""))
        for bucket in range(first, last):
            ends: list[TopicEnd] = []
            while at < len(order) and order[at][0] >> shift == bucket:
                topic = order[at][1]
                at += 1
                end = self._source.end(topic, origin)
                if end != EARLIEST and peer.region in self._context.host.regions_of(topic):
                    ends.append(TopicEnd(topic, self._context.host.incarnation(topic), end))
            yield ends

    def _number(self, ends: Iterable[TopicEnd]) -> int:
        return sum(number_of(e.topic.encode(), f"{e.incarnation} {e.end}".encode()) for e in ends) & _MASK
