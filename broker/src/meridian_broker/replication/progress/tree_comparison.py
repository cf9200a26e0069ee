# SPDX-License-Identifier: Apache-2.0
"""Compares everything with a peer at once, by numbers that stand for many topics (``digest_tree.py``).

    ours to the peer    one number for all topics              when a link is up, and every few seconds
    its answer          equal: nothing. Else its 256 numbers, of buckets of topics
    ours                the topics whose bucket differs; for large buckets first which ones differ, ...
    its answer          ... and for each its 64 numbers, of parts
    ours                the digests of the topics whose part differs, see ``anti_entropy.py``

Topics found equal in this way are in sync, except where the other side marks them as not final. With a peer that does
not divide buckets, and does not send such marks, topics that are not in sync are compared individually.

Before any of it the topics are counted, in portions: for a broker that has just met a region, that takes a while.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from meridian_broker.replication.progress.context import ExchangeContext, Reply
from meridian_broker.replication.progress.digest_tree import BUCKETS, bucket_of, place_of
from meridian_broker.replication.progress.messages import PARTS_VERSION, Digest, Fetch, Parts, Summary
from meridian_broker.replication.progress.peer import Peer

COUNT_PAUSE_MS: Final = 10
LISTED: Final = 8
"""Topics per bucket up to which they are listed at once: their digests are as long as the numbers of the parts."""


class Summing:
    """The part of the comparison that looks at no single topic."""

    def __init__(self, context: ExchangeContext, announce: Callable[[Peer], None]) -> None:
        """:param announce: begins to send the digests of ``peer.to_announce``."""
        self._context = context
        self._announce = announce

    # -- counting

    def begin(self, peer: Peer) -> None:
        """Send the peer the number of everything, as soon as everything is counted."""
        self._context.digests.summary(peer.name).begin_round()
        peer.to_summarize = True
        self.go_on(peer)

    def go_on(self, peer: Peer) -> None:
        """Count some more topics, and do what waited for it once few are left."""
        if not self._is_counted(peer):
            peer.next_count_ms = self._context.now_ms + COUNT_PAUSE_MS
            return
        peer.next_count_ms = None
        if peer.early is not None:
            early, peer.early = peer.early, None
            self.compare(peer, *early)
        if peer.to_summarize:
            peer.to_summarize = False
            self._tell(peer)

    def _is_counted(self, peer: Peer) -> bool:
        limits = self._context.limits
        return self._context.digests.summary(peer.name).count(limits.items_per_message, limits.subscriptions_at_once)

    def _tell(self, peer: Peer) -> None:
        """Send the number, and the digests of topics that are known to differ."""
        digests, peers_of = self._context.digests, self._context.peers_of
        digest = digests.summary(peer.name).work_out()
        if peer.send is None:
            return
        if digest:
            self._say(peer, digest, peer.send)
        peer.forced = {t for t in peer.forced if digests.has_topic(t) and peer.name in peers_of(t)}
        peer.announced = set(peer.forced)
        self._list(peer, sorted(peer.forced))

    def _say(self, peer: Peer, number: int, send: Reply, *, answer: bool = False) -> None:
        in_flux = self._buckets_in_flux(peer)
        sent, applied = peer.next_number - 1, peer.incoming.applied()
        send(Digest(sent, applied, (), answer, Summary(number, bool(in_flux), in_flux)))
        self._context.counters.digests_sent += 1

    def _buckets_in_flux(self, peer: Peer) -> tuple[int, ...]:
        return tuple(sorted({bucket_of(topic) for topic in self._context.topics_in_flux(peer.name)}))

    # -- their numbers, compared

    def compare(self, peer: Peer, digest: Digest, theirs: Summary, reply: Reply) -> None:
        """If equal, there is nothing to do for any topic. Otherwise send our digests of all buckets, which requests the
        differing ones."""
        summary = self._context.digests.summary(peer.name)
        if peer.following is not None or not self._is_counted(peer):
            peer.early = digest, theirs, reply
            if peer.next_count_ms is None:
                peer.next_count_ms = self._context.now_ms + COUNT_PAUSE_MS
            return
        divides = peer.version >= PARTS_VERSION
        wanted = {bucket_of(topic) for topic in peer.waiting}
        ours = summary.work_out()
        if ours == theirs.digest:
            peer.catching.equal()
        if ours == theirs.digest and not peer.waiting:
            if not peer.up and not digest.answer:  # no link of our own to say it on
                self._say(peer, ours, reply, answer=True)
            doubtful = set(theirs.buckets_in_flux) if divides else set(range(BUCKETS) if theirs.in_flux else ())
            self._found_equal(peer, summary.groups(doubtful))
            wanted = {bucket_of(topic) for topic in summary.topics(doubtful) if topic not in peer.in_sync}
            if not wanted or digest.answer:
                return
        elif digest.answer:
            return
        elif not divides:
            wanted.update(bucket_of(topic) for topic in summary.topics() if topic not in peer.in_sync)
        # A number with another last bit requests its bucket, whatever its content.
        numbers = tuple(number ^ (bucket in wanted) for bucket, number in enumerate(summary.buckets))
        reply(Fetch((), numbers, buckets_in_flux=self._buckets_in_flux(peer)))

    def _found_equal(self, peer: Peer, groups: list[Collection[str]]) -> None:
        """For all topics in these groups the peer has everything that is here, on its disk."""
        peer.in_sync.update(*groups)
        for group in groups:
            peer.catching.same(group)
        self._context.counters.topics_equal += sum(map(len, groups))
        if peer.lag.has_missed or peer.skips or peer.troubles or peer.waiting:
            equal = set[str]().union(*groups)
            peer.lag.same_topics(equal)
            peer.skips = {topic: skips for topic, skips in peer.skips.items() if topic not in equal}
            peer.waiting = {topic: trouble for topic, trouble in peer.waiting.items() if topic not in equal}
            peer.troubles = {key: trouble for key, trouble in peer.troubles.items() if key[0] not in equal}

    def answer_buckets(self, peer: Peer, fetch: Fetch, reply: Reply) -> None:
        """The peer's numbers of all buckets."""
        summary = self._context.digests.summary(peer.name)
        summary.work_out()
        pairs = zip(summary.buckets, fetch.buckets, strict=False)
        differing = [number for number, (ours, theirs) in enumerate(pairs) if ours != theirs]
        topics = summary.topics(differing)
        if peer.version >= PARTS_VERSION and len(fetch.buckets) == BUCKETS:
            doubtful = {*differing, *fetch.buckets_in_flux}
            self._found_equal(peer, summary.groups(doubtful))
            if len(topics) > LISTED * len(differing):
                sent, applied = peer.next_number - 1, peer.incoming.applied()
                reply(Digest(sent, applied, (), differing=tuple(differing)))
                self._context.counters.digests_sent += 1
                return
        self._list(peer, (topic for topic in topics if topic not in peer.announced))

    def divide(self, peer: Peer, buckets: tuple[int, ...], reply: Reply) -> None:
        """The peer found that these differ: send our numbers of their parts."""
        summary = self._context.digests.summary(peer.name)
        summary.work_out()
        wanted = {place_of(topic) for topic in peer.waiting}
        parts = tuple(
            Parts(bucket, tuple(n ^ ((bucket, part) in wanted) for part, n in enumerate(summary.parts(bucket))))
            for bucket in sorted(set(buckets))
            if bucket < BUCKETS
        )
        reply(Fetch((), parts=parts, buckets_in_flux=self._buckets_in_flux(peer)))

    def answer_parts(self, peer: Peer, fetch: Fetch) -> None:
        """The peer's numbers of the parts of some buckets."""
        summary = self._context.digests.summary(peer.name)
        summary.work_out()
        equal: list[str] = []
        differing: list[str] = []
        for theirs in {parts.bucket: parts for parts in fetch.parts if parts.bucket < BUCKETS}.values():
            pairs = zip(summary.parts(theirs.bucket), theirs.numbers, strict=False)
            same = {part for part, (ours, number) in enumerate(pairs) if ours == number}
            in_equal, others = summary.split(theirs.bucket, same)
            differing += others
            if theirs.bucket not in fetch.buckets_in_flux:
                equal += in_equal
        self._found_equal(peer, [equal])
        self._list(peer, (topic for topic in differing if topic not in peer.announced))

    def _list(self, peer: Peer, topics: Iterable[str]) -> None:
        """Send the digests of these topics. On a new link they are compared at once, even with changes in flight."""
        if peer.send is None:
            return
        known = set(peer.to_announce)
        new = [topic for topic in topics if topic not in known]
        if peer.is_new:
            peer.forced.update(new)
        peer.to_announce.extend(new)
        if new and peer.next_announce_ms is None:
            self._announce(peer)
