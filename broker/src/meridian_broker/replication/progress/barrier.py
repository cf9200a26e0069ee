# SPDX-License-Identifier: Apache-2.0
"""The moment of a switch (R20): pull everything before the first dispatch, push everything before a close is answered.

Either is enough for a planned switch without repeats; together they also cover a region that could do only its half.
Both ask the regions that can be reached, wait for them at most ``barrier_ms``, and report which are missing and why. A
region that refuses to answer the pull is asked again (``barrier_refusals.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from meridian_broker.positions.ackset import FLOOR
from meridian_broker.positions.clock import ZERO
from meridian_broker.positions.progress import Progress
from meridian_broker.replication.progress.context import ExchangeContext, Reply
from meridian_broker.replication.progress.deltas import Deltas
from meridian_broker.replication.progress.digests import key_digests
from meridian_broker.replication.progress.messages import Barrier, BarrierDone, SubscriptionKey
from meridian_broker.replication.progress.peer import Peer
from meridian_broker.replication.progress.waits import LINK_DOWN, Wait, WaitResult, Waits

TOO_MANY = "TooManyWaiting"
QUEUE_FULL = "QueueFull"
CONNECTING = "the link to the topic's owner is being opened"
LOOKING = "none of its brokers owns the topic, as far as known here"


class Barriers:
    """Barriers and flushes of this region, and its answers to those of others."""

    def __init__(self, context: ExchangeContext, waits: Waits, deltas: Deltas) -> None:
        self._context = context
        self._waits = waits
        self._deltas = deltas

    def pull(
        self, key: SubscriptionKey, done: Callable[[WaitResult], None], regions: Collection[str] | None = None
    ) -> None:
        """Ask every reachable region for progress that we lack, whatever its last known objection: its answer
        now counts.

        :param regions: ask only these.
        """
        host = self._context.host
        progress = host.progress(*key)
        keys = () if progress is None else key_digests(progress)
        listed = keys if len(keys) <= self._context.limits.keys_per_question else None
        if self._waits.full:
            others = frozenset(self._context.others_of(key[0]) if regions is None else regions)
            done(WaitResult(frozenset(), dict.fromkeys(others, TOO_MANY), others))
            return
        wait = self._waits.start(key, host.incarnation(key[0]), self._context.now_ms, done)
        question = Barrier(wait.number, *key, wait.incarnation, listed, wants_record=progress is None)
        for peer in self._reachable(wait, regions):
            wait.waiting[peer.name] = set()
        for name in list(wait.waiting):
            send = self._context.peers[name].send
            if send is not None:
                send(question)
        self._waits.end_if_complete(wait)

    def push(self, key: SubscriptionKey, done: Callable[[WaitResult], None]) -> None:
        """Wait until every reachable region has confirmed everything that it was, or should have been, offered."""
        host = self._context.host
        if self._waits.full:
            done(WaitResult(frozenset(), dict.fromkeys(self._context.others_of(key[0]), TOO_MANY)))
            return
        wait = self._waits.start(key, host.incarnation(key[0]), self._context.now_ms, done)
        peers = [peer for peer in self._reachable(wait) if not self._is_held(wait, peer)]
        for peer in peers:
            wait.waiting[peer.name] = set()
        whole = host.progress(*key)
        if whole is None or not peers:  # nothing is sent, so nothing has to be durable first
            self._push_to(wait, peers, None, None)
            return
        whole, record = whole.copy(), host.record(*key)

        def shown(reason: str) -> None:
            if reason:
                for peer in peers:
                    self._waits.resolve(wait, peer.name, reason)
            is_now = self._context.is_now(key[0], wait.incarnation)
            self._push_to(wait, peers, whole if is_now else None, record)

        self._context.show(key[0], shown)

    def _push_to(self, wait: Wait, peers: Iterable[Peer], whole: Progress | None, record: bytes | None) -> None:
        """:param whole: durable here, and so is all that was offered so far."""
        key, now_ms, incarnation = wait.key, self._context.now_ms, self._context.host.incarnation(wait.key[0])
        peers = [peer for peer in peers if peer.name in wait.waiting]
        for peer in peers:
            # Something may have been given up before: only the whole is certain to be complete.
            is_offered = (
                key[0] in peer.in_sync
                or whole is None
                or peer.offer((*key, False), whole, incarnation=incarnation, now_ms=now_ms, record=record)
            )
            if not is_offered:
                self._waits.resolve(wait, peer.name, QUEUE_FULL)
                continue
            numbers, queued = peer.carries(key)
            self._waits.watch_deltas(wait, peer.name, numbers, queued=queued)
        for peer in peers:
            self._deltas.send_due(peer, at_once=True)
            if peer.name not in wait.queued and wait.waiting.get(peer.name) == set():
                self._waits.resolve(wait, peer.name)
        self._waits.end_if_complete(wait)

    def answer(self, peer: Peer, question: Barrier, reply: Reply) -> None:
        """Send a region the progress that it lacks."""
        host, topic, name = self._context.host, question.topic, question.subscription
        objection = self._context.objection(peer.region, topic, question.incarnation)
        if objection is not None:
            reply(BarrierDone(question.number, reason=objection[1]))
            return
        if not host.is_served(topic):
            # Progress that is on disk but not in memory is no reason to answer that there is none.
            host.open_soon(topic)
            reply(BarrierDone(question.number, reason=f"{host.region} has not opened {topic}"))
            return
        progress = host.progress(topic, name)
        if progress is None:
            reply(BarrierDone(question.number))
            return
        part: Progress | None = progress
        wants_record = question.wants_record
        if question.keys is not None:
            have = {item.key: item.digest for item in question.keys}
            lacking = [key for key, digest in progress.digests().items() if have.get(key) != digest]
            part = progress.extract(lacking) if lacking else None
            wants_record |= (ZERO, "", FLOOR) in lacking  # deleted here, or created by another region
        encoded = b"" if part is None else part.encode()
        record = host.record(topic, name) if wants_record else None
        text = self._context.limits.objection(encoded, record)
        if text is not None:
            reply(BarrierDone(question.number, reason=text))
            return
        answer = BarrierDone(question.number, encoded, record)
        self._context.show(
            topic, lambda reason: reply(BarrierDone(question.number, reason=reason) if reason else answer)
        )

    def answered(self, peer: Peer, answer: BarrierDone) -> None:
        """A region sent its progress: the barrier is passed once that is durable here."""
        wait = self._waits.get(answer.number)
        if wait is None:
            return
        if answer.reason:
            self._waits.resolve(wait, peer.name, answer.reason, refused=True)
            return
        if self._context.is_now(wait.key[0], wait.incarnation):
            peer.release(wait.key[0])  # it accepted our incarnation
        if not answer.progress:
            self._waits.resolve(wait, peer.name)
            return

        def finished(_: str, reason: str, __: Progress | None) -> None:
            self._waits.resolve(wait, peer.name, reason, refused=True)

        self._context.merge(peer, wait.key, wait.incarnation, answer.progress, answer.record, finished)

    def _reachable(self, wait: Wait, regions: Collection[str] | None = None) -> list[Peer]:
        """The topic's peers, or some of them, that can be asked; the others are missing, with their reason."""
        reachable: list[Peer] = []
        for region in self._context.others_of(wait.key[0]):
            if regions is not None and region not in regions:
                continue
            peer = self._context.peer_in(region, wait.key[0])
            if peer is not None and peer.up:
                reachable.append(peer)
                continue
            wait.missing[region] = LINK_DOWN if peer is None else peer.incompatible or LINK_DOWN
            if peer is not None and peer.is_awaited:  # a broker that has just become the topic's owner has no link yet
                wait.missing[region] = LOOKING if peer.is_divided else CONNECTING
                wait.refused.add(region)
        return reachable

    def _is_held(self, wait: Wait, peer: Peer) -> bool:
        """Nothing is offered to the peer: it is missing, with the reason."""
        if reason := self._context.held(peer, wait.key[0]):
            wait.missing[peer.region] = reason
        return bool(reason)
