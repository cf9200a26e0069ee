# SPDX-License-Identifier: Apache-2.0
"""How far other regions have the entries of an origin that does not send them itself (R6).

While an origin cannot be reached, the other regions repeatedly compare the last entry that they store from it, for all
topics they share. Topics are ordered by a hash of their names, and split into slices of bounded size; a slice is sent
as the numbers of its *buckets*, a few topics each, and the other region answers with the ends in buckets that differ.
So a round costs some bytes per topic and no disk access, and only topics of which the other region has more are
requested.

A slice covers a bounded number of the sender's topics, but perhaps all topics of a receiver that has many more.
Whatever it covers is walked in steps of bounded size, one in each turn of the loop.

Each side starts its own rounds, so the side that is ahead does nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Set
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
from meridian_broker.replication.progress.topic_order import HASH_BITS, TopicOrder, following

TOPICS: Final = 2000
"""Topics in one slice, about."""
STEPS: Final = 4000
"""Topics and buckets in one turn of the loop: some milliseconds."""
PER_BUCKET: Final = 16
"""Topics in one bucket, at most about; at least half of it."""
ROUND_MS: Final = 5000
"""Minimum time from the start of a round to that of the next."""
ANSWERED: Final = 1000
"""Topics in one answer; those left out differ in the next round as well."""
MOST_BITS: Final = 20
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
    """The next one to send."""


class _Walk:
    """Some buckets, on the way through their topics."""

    __slots__ = ("_found", "at", "bits", "bucket", "end", "ends", "number", "origin", "peer", "through")

    def __init__(
        self, peer: Peer, origin: str, bits: int, first: int, last: int, found: Callable[[int, list[TopicEnd]], None]
    ) -> None:
        """:param found: called for each bucket with its number and its ends, ``ANSWERED`` of them at most."""
        self._found = found
        self.peer, self.origin, self.bits = peer, origin, bits
        self.bucket, self.end = first, last
        self.at = (first << (HASH_BITS - bits), "")
        """The place to continue at."""
        self.number = 0
        self.ends: list[TopicEnd] = []
        self.through: Callable[[], None] = lambda: None

    def complete(self) -> None:
        """All topics of the current bucket were added; the next one begins."""
        self._found(self.number, self.ends)
        self.bucket, self.number, self.ends = self.bucket + 1, 0, []

    def add(self, end: TopicEnd) -> None:
        """A topic of the bucket has this end."""
        told = number_of(end.topic.encode(), f"{end.incarnation} {end.end}".encode())
        self.number = (self.number + told) & _MASK
        if len(self.ends) < ANSWERED:
            self.ends.append(end)


def _compares(peer: Peer) -> bool:
    return peer.up and peer.version >= PARTS_VERSION


class Ends:
    """Compares with all peers that can."""

    def __init__(self, context: ExchangeContext, source: EndsSource) -> None:
        self._context = context
        self._source = source
        self._order = TopicOrder(source.open_topics)
        self._is_passing = False
        self._passed_ms: int | None = None
        """When the order was complete last; None: it never was."""
        self._rounds: dict[tuple[str, str], _Round] = {}
        """By peer and origin."""
        self._last: tuple[str, str] = ("", "")
        self._walks: deque[_Walk] = deque()
        """Under way: a slice that is about to be sent, and an answer for each peer."""
        self._is_telling = False
        self._answering: set[str] = set()

    def compares_with(self, region: str) -> bool:
        """Whether the region can be compared with."""
        peers = [peer for peer in self._context.peers.values() if peer.region == region and not peer.is_divided]
        return bool(peers) and all(map(_compares, peers))

    def look(self, origins: Collection[str]) -> None:
        """Called every second: send one more slice.

        :param origins: those that do not send their entries themselves; nothing else is compared.
        """
        pairs = sorted((name, o) for name, peer in self._context.peers.items() if _compares(peer) for o in origins)
        self._rounds = {pair: one for pair, one in self._rounds.items() if pair in pairs}
        if not pairs or not self._follow_topics() or self._is_telling:
            return
        following_last = [pair for pair in pairs if pair > self._last] + [pair for pair in pairs if pair <= self._last]
        for pair in following_last:
            if self._tell_slice(self._context.peers[pair[0]], pair[1]):
                self._last = pair
                return

    def tick(self) -> None:
        """Go one step on with what is under way."""
        if self._walks:
            self._step(self._walks.popleft())

    def next_deadline(self) -> int | None:
        """When ``tick`` has something to do; None: it has nothing to do."""
        return self._context.now_ms + 1 if self._walks else None

    def _tell_slice(self, peer: Peer, origin: str) -> bool:
        """:returns: False when the round is over, and the next is not due."""
        key, now_ms = (peer.name, origin), self._context.now_ms
        at = self._rounds.get(key)
        if at is None or at.bucket >> at.bits:
            if at is not None and now_ms - at.began_ms < ROUND_MS:
                return False
            bits = min(MOST_BITS, (len(self._order) // PER_BUCKET).bit_length())
            at = self._rounds[key] = _Round(now_ms, bits)
        if not len(self._order):
            return False
        bits, first = at.bits, at.bucket
        buckets = max(1, (TOPICS << bits) // len(self._order))
        at.bucket = min(first + buckets, 1 << bits)
        numbers: list[int] = []

        def tell() -> None:
            self._is_telling = False
            if peer.send is not None:
                sent, applied = peer.next_number - 1, peer.incoming.applied()
                peer.send(Digest(sent, applied, (), ends=EndsSlice(origin, bits, first, tuple(numbers))))

        walk = _Walk(peer, origin, bits, first, at.bucket, lambda number, _: numbers.append(number))
        walk.through = tell
        self._is_telling = True
        self._step(walk)
        return True

    def answer(self, peer: Peer, theirs: EndsSlice, reply: Reply) -> None:
        """Answer a slice of the peer's with the ends in the buckets that differ.

        One that arrives while an earlier one is being answered is ignored: the next round asks again.
        """
        last = theirs.first + len(theirs.numbers)
        if theirs.bits > MOST_BITS or last > 1 << theirs.bits or peer.name in self._answering:
            return
        if not self._follow_topics():
            return
        numbers, found = iter(theirs.numbers), list[TopicEnd]()

        def compare(number: int, ends: list[TopicEnd]) -> None:
            if number != next(numbers):
                found.extend(ends[: ANSWERED - len(found)])

        def tell() -> None:
            self._answering.discard(peer.name)
            if found:
                reply(State((), OriginEnds(theirs.origin, tuple(found))))

        walk = _Walk(peer, theirs.origin, theirs.bits, theirs.first, last, compare)
        walk.through = tell
        self._answering.add(peer.name)
        self._step(walk)

    def take(self, peer: Peer, theirs: OriginEnds) -> None:
        """The peer's ends, where they differ from ours: where it has more, request it."""
        known = self._source.open_topics()
        for end in theirs.topics:
            if end.topic not in known or end.end <= self._source.end(end.topic, theirs.origin):
                continue
            if self._context.objection(peer.region, end.topic, end.incarnation) is None:
                self._source.more_elsewhere(end.topic)

    def _follow_topics(self) -> bool:
        """Go one step on with the order of topics, where it is time. :returns: all topics were in it once."""
        now_ms = self._context.now_ms
        if not self._is_passing and (self._passed_ms is None or now_ms - self._passed_ms >= ROUND_MS):
            self._order.begin()
            self._is_passing = True
        if self._is_passing and self._order.step():
            self._is_passing, self._passed_ms = False, now_ms
        return self._passed_ms is not None

    def _step(self, walk: _Walk) -> None:
        """Go on with a walk: ``STEPS`` topics and buckets."""
        peers_of, host, shift, left = self._context.peers_of, self._context.host, HASH_BITS - walk.bits, STEPS
        places = self._order.between(walk.at, walk.end << shift)
        while left:
            place = next(places, None)
            bucket = walk.end if place is None else place[0] >> shift
            while left and walk.bucket < bucket:
                walk.complete()
                left -= 1
            if walk.bucket < bucket:
                break
            if place is None:
                walk.through()
                return
            left -= 1
            walk.at, topic = following(place), place[1]
            end = self._source.end(topic, walk.origin)
            if end != EARLIEST and walk.peer.name in peers_of(topic):
                walk.add(TopicEnd(topic, host.incarnation(topic), end))
        self._walks.append(walk)
