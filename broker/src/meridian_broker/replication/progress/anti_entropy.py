# SPDX-License-Identifier: Apache-2.0
"""Finding and closing differences: digests out and in, questions, states (R19).

A DIGEST of topics is compared; for a topic that differs its subscriptions are listed, for a subscription that differs
its ledgers, and the state of those ledgers travels. Each side asks only for parts of which the other may have more, so
both directions heal by both sides' digests; a side without its own link to the peer answers a differing digest with
its own listing, on the peer's link.

Digests are compared at a consistent cut. A DIGEST names the last delta sent before it and the last of ours it contains.
It waits until the former is durable here. A topic for which we sent later deltas, or that a third region's merge just
changed, is deferred to the next round, at most ``digest_skips`` times in a row, so a topic that is never quiet is
healed, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Final

from meridian_broker.positions.progress import Progress
from meridian_broker.replication.progress.context import ExchangeContext, Reply, why_of
from meridian_broker.replication.progress.lag import Why
from meridian_broker.replication.progress.messages import (
    NOT_OWNER,
    PARTS_VERSION,
    SUMMARY_VERSION,
    Digest,
    Fetch,
    Question,
    State,
    StateItem,
    TopicDigest,
)
from meridian_broker.replication.progress.peer import Peer
from meridian_broker.replication.progress.tree_comparison import COUNT_PAUSE_MS, Summing

ANNOUNCE_PAUSE_MS: Final = 10
"""Between two messages of one round of digests."""
RECONSIDERED: Final = 1000
"""Number of held-back topics that one round checks again."""


class Comparing:
    """The digest side of the exchange."""

    def __init__(self, context: ExchangeContext) -> None:
        self._context = context
        self._summing = Summing(context, self.announce_some)

    def count_some(self, peer: Peer) -> None:
        """Continue finding and counting topics, which must be complete before everything can be compared at once."""
        if peer.following is None:
            self._summing.go_on(peer)
            return
        for _ in peer.following:  # one step
            peer.next_count_ms = self._context.now_ms + COUNT_PAUSE_MS
            return
        peer.following = peer.next_count_ms = None
        self._followed(peer)

    # -- sending our state

    def announce(self, peer: Peer, *, is_new: bool = False) -> None:
        """Begin a round: one number for all topics shared with the peer, or one digest per topic, a message at a time.

        :param is_new: the link is new. Differences are compared now, even with changes in flight: anything may have
            been missed while there was no link.
        """
        peer.forget_confirmed()
        self._context.forget_finished()
        peer.is_new = is_new or (peer.is_new and (peer.to_summarize or peer.following is not None))
        peer.following = self._context.digests.follow()
        self.count_some(peer)

    def _followed(self, peer: Peer) -> None:
        """The open topics are known: go on with the round."""
        context = self._context
        peer.lag.forget(partial(self._has_topic, peer) if context.routes.is_divided else context.digests.has_topic)
        for topic in list(islice(peer.waiting, RECONSIDERED)):
            context.held(peer, topic)
        if peer.version >= SUMMARY_VERSION:
            self._summing.begin(peer)
            return
        topics = [topic for topic in context.digests.topics() if peer.name in context.peers_of(topic)]
        peer.forced = set(topics) if peer.is_new else peer.forced.intersection(topics)
        peer.to_announce = deque(topics)
        self.announce_some(peer)

    def _has_topic(self, peer: Peer, topic: str) -> bool:
        return self._context.digests.has_topic(topic) and peer.name in self._context.peers_of(topic)

    def announce_some(self, peer: Peer) -> None:
        """One more message of the round. A region of 10,000 topics is done in half a second and never blocked."""
        if peer.send is None:
            return
        limits = self._context.limits
        topics: list[str] = []
        looked_at = 0
        while peer.to_announce and len(topics) < limits.items_per_message and looked_at < limits.subscriptions_at_once:
            topic = peer.to_announce.popleft()
            subscriptions = self._context.digests.refresh(topic)
            looked_at += subscriptions
            if subscriptions:
                topics.append(topic)
        summary = self._context.digests.summary(peer.name)
        for topic in topics:
            summary.changed(topic)
        summary.work_out()  # a message's topics at a time: all of them at once would block the loop
        self._tell(peer, [self._digest_of(peer, topic) for topic in topics], peer.send)
        peer.forced.difference_update(topics)
        peer.next_announce_ms = self._context.now_ms + ANNOUNCE_PAUSE_MS if peer.to_announce else None

    def _digest_of(self, peer: Peer, topic: str) -> TopicDigest:
        context = self._context
        return TopicDigest(
            topic,
            context.host.incarnation(topic),
            context.digests.topic(topic),
            context.in_flux(topic, peer.name),
            topic in peer.forced,
        )

    def _tell(self, peer: Peer, digests: Iterable[TopicDigest], send: Reply, *, answer: bool = False) -> None:
        """Send topic digests in messages of bounded size, all at the same cut."""
        sent, applied = peer.next_number - 1, peer.incoming.applied()
        limits = self._context.limits
        batch: list[TopicDigest] = []
        listed = 0
        for digest in digests:
            subscriptions = len(digest.subscriptions or ())
            full = len(batch) == limits.items_per_message or listed + subscriptions > limits.subscriptions_per_digest
            if batch and full:
                send(Digest(sent, applied, tuple(batch), answer))
                self._context.counters.digests_sent += 1
                batch, listed = [], 0
            batch.append(digest)
            listed += subscriptions
        if batch:
            send(Digest(sent, applied, tuple(batch), answer))
            self._context.counters.digests_sent += 1

    def answer(self, peer: Peer, fetch: Fetch, reply: Reply) -> None:
        """List or send what the peer asked for. Whatever is not here (any more) is left out."""
        context, limits = self._context, self._context.limits
        listings: list[TopicDigest] = []
        items: list[StateItem] = []
        if fetch.buckets:
            self._summing.answer_buckets(peer, fetch, reply)
        if fetch.parts:
            self._summing.answer_parts(peer, fetch)
        for question in fetch.questions[: limits.items_per_message]:
            if context.objection(peer.region, question.topic, context.host.incarnation(question.topic)) is not None:
                continue
            peer.release(question.topic)  # the asking region has seen our incarnation and has no objection
            if not question.state:
                listings.extend(self._listing(peer, question.topic, question.subscription))
                continue
            item = self._state_item(peer, question)
            if item is not None:
                items.append(item)
        self._show(peer, items, reply)
        self._tell(peer, listings, reply)

    def _listing(self, peer: Peer, topic: str, subscription: str | None) -> Iterator[TopicDigest]:
        for piece in self._context.digests.listing(topic, subscription):
            yield replace(piece, in_flux=self._context.in_flux(topic, peer.name))

    def _show(self, peer: Peer, items: list[StateItem], reply: Reply) -> None:
        """Send states, once all of them are durable here."""
        durable: list[StateItem] = []
        waiting = len(items)

        def shown(item: StateItem, reason: str) -> None:
            nonlocal waiting
            waiting -= 1
            if not reason:
                durable.append(item)
            if not waiting:
                self._send_states(peer, durable, reply)

        for item in items:
            self._context.show(item.topic, partial(shown, item))

    def _send_states(self, peer: Peer, items: Iterable[StateItem], reply: Reply) -> None:
        batch: list[StateItem] = []
        size = 0
        for item in items:
            length = len(item.progress) + len(item.record)
            if batch and size + length > self._context.limits.message_bytes:
                reply(State(tuple(batch)))
                batch, size = [], 0
            batch.append(item)
            size += length
            peer.lag.state_sent((item.topic, item.subscription), self._context.now_ms)
            self._context.counters.states_sent += 1
        if batch:
            reply(State(tuple(batch)))

    def _state_item(self, peer: Peer, question: Question) -> StateItem | None:
        host, topic, name = self._context.host, question.topic, question.subscription or ""
        progress, record = host.progress(topic, name), host.record(topic, name)
        if progress is None or record is None:
            return None
        part = progress if question.keys is None else progress.extract(question.keys)
        encoded = part.encode()
        text = self._context.limits.objection(encoded, record)
        if text is not None:
            peer.note_trouble((topic, name), Why.TOO_LARGE, text, self._context.now_ms)
            return None
        return StateItem(topic, name, host.incarnation(topic), record, encoded)

    # -- their state, compared

    def compare(self, peer: Peer, digest: Digest, reply: Reply) -> None:
        """A DIGEST arrived: compare now, or when everything sent before it is durable here."""
        incoming = peer.incoming
        if any(number <= digest.sent for number in incoming.merging):
            if len(incoming.held) < self._context.limits.held_digests:
                incoming.held.append((digest, reply))
            return
        if digest.summary is not None:
            self._summing.compare(peer, digest, digest.summary, reply)
        if digest.differing:
            self._summing.divide(peer, digest.differing, reply)
        pending = peer.pending_topics()
        if not digest.answer and (digest.summary is not None or peer.version < SUMMARY_VERSION):
            peer.catching.round(self._context.now_ms)
        differing = [theirs for theirs in digest.topics if not self._same(peer, theirs)]
        questions: list[Question] = []
        for theirs in differing:
            if theirs.subscriptions is not None:
                self._compare_listing(peer, theirs)
            elif not self._moving(peer, digest, theirs, pending):
                self._context.counters.topics_differing += 1
                questions.append(Question(theirs.topic))
        # A link preserves order: a delta sent before this digest that has not arrived is lost.
        incoming.highest = max(incoming.highest, digest.sent)
        if questions:
            reply(Fetch(tuple(questions)))
        if not peer.up and not digest.answer:
            # There is no link of our own to send it on: the peer learns of our state on its own link.
            asked = {question.topic for question in questions}
            ours = [self._digest_of(peer, theirs.topic) for theirs in digest.topics if theirs.topic not in asked]
            listings = (piece for topic in asked for piece in self._listing(peer, topic, None))
            self._tell(peer, chain(ours, listings), reply, answer=True)
        elif peer.version >= PARTS_VERSION and not digest.answer:
            # What it could not send has arrived another way: report that, because it may find no other quiet moment.
            healed = [
                one.topic for one in digest.topics if one.forced and one.topic in peer.in_sync and one not in differing
            ]
            self._tell(peer, [self._digest_of(peer, topic) for topic in healed], reply, answer=True)
        self.ask(peer)

    def _same(self, peer: Peer, theirs: TopicDigest) -> bool:
        """Nothing to do for the topic: equal, or not to be compared (R8)."""
        context, topic = self._context, theirs.topic
        objection = context.objection(peer.region, topic, theirs.incarnation)
        if objection is not None and objection[0] == NOT_OWNER:
            peer.catching.same([topic])  # the peer learns who owns it
            return True
        if objection is not None:
            peer.hold_back(topic, why_of(objection[0]), objection[1], context.now_ms, shown=theirs.incarnation)
            peer.catching.same([topic])
            return True
        peer.release(topic)
        if theirs.digest != context.digests.topic(topic):
            peer.catching.differs(topic)
            return False
        peer.catching.same([topic])
        if not theirs.in_flux:
            peer.lag.same_topic(topic)
            if theirs.digest:
                peer.in_sync.add(topic)
        peer.skips.pop(topic, None)
        peer.forget_troubles(topic)
        context.counters.topics_equal += 1
        return True

    def _moving(self, peer: Peer, digest: Digest, theirs: TopicDigest, pending: set[str]) -> bool:
        """The difference may be a race with a delta, and the comparison can wait for the next digest."""
        topic = theirs.topic
        moving = (
            digest.sent > peer.incoming.highest
            or theirs.in_flux
            or topic in pending
            or peer.last_delta_of.get(topic, 0) > digest.applied
            or self._context.in_flux(topic, peer.name)
        )
        if not moving or theirs.forced or topic in peer.forced:
            peer.skips.pop(topic, None)
            return False
        return peer.put_off(topic)

    def resume(self, peer: Peer) -> None:
        """A DELTA became durable: digests that waited for it may be compared."""
        for _ in range(len(peer.incoming.held)):
            digest, reply = peer.incoming.held.popleft()
            self.compare(peer, digest, reply)

    def _compare_listing(self, peer: Peer, listing: TopicDigest) -> None:
        digests, host, topic = self._context.digests, self._context.host, listing.topic
        for theirs in listing.subscriptions or ():
            name = theirs.subscription
            asked = peer.fetching.pop((topic, name), None) is not None
            ours = digests.subscription(topic, name)
            if ours is not None and ours.digest == theirs.digest:
                if not listing.in_flux:
                    peer.lag.same((topic, name))
                continue
            progress = host.progress(topic, name)
            if ours is None or progress is None or (theirs.keys is None and asked):
                peer.want([Question(topic, name, state=True)])
                continue
            if theirs.keys is None:
                peer.want([Question(topic, name)])
                continue
            have = progress.digests()
            keys = tuple(item.key for item in theirs.keys if have.get(item.key) != item.digest)
            if not keys and theirs.record == ours.record:
                continue
            few = len(keys) <= self._context.limits.keys_per_question
            peer.want([Question(topic, name, state=True, keys=keys if few else None)])
        peer.catching.listed(topic)

    # -- fetching differences

    def ask(self, peer: Peer) -> None:
        """Ask for the next subscriptions that are wanted, when at least half the window is free."""
        speak = peer.send if peer.up else peer.back
        if speak is None or len(peer.fetching) > self._context.limits.fetching // 2:
            return
        questions = peer.next_questions(self._context.now_ms)
        if questions:
            speak(Fetch(questions))
        elif not peer.fetching:
            peer.catching.drained()

    def take(self, peer: Peer, state: State) -> None:
        """Merge received state; a subscription that is missing here is created from it (R15)."""
        for item in state.items:
            self._take_item(peer, item)

    def _take_item(self, peer: Peer, item: StateItem) -> None:
        key = (item.topic, item.subscription)

        def finished(code: str, reason: str, _: Progress | None) -> None:
            peer.fetching.pop(key, None)
            if code:
                peer.note_trouble(key, why_of(code), reason, self._context.now_ms)
            else:
                peer.lag.of(key).applied_ms = self._context.now_ms
                peer.troubles.pop(key, None)
                self._context.counters.states_merged += 1
            self.ask(peer)

        self._context.merge(peer, key, item.incarnation, item.progress, item.record, finished)
