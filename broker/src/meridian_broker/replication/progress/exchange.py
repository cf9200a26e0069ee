# SPDX-License-Identifier: Apache-2.0
"""The progress exchange: how an ack made in one region becomes known, durably, in all others (R10, R13, R15, R18-R20).

One per broker, without sockets and without a clock: messages come in by ``received``, time by ``tick``, and messages to
send go out through the callables given to ``connected`` and ``received``. Progress reaches other regions in three ways:

* **Deltas**, for speed. Each change of progress goes to each peer at once, or combined with others a few
  milliseconds later. A peer confirms what it made durable.
* **Digests**, for certainty. On connect and every few seconds regions compare what they hold; only differences
  travel. Whatever deltas missed (a link that was down, a full queue, a crash) is healed here, and only here.
* **Barriers and flushes**, for the moment of a switch: pull everything before the first dispatch, push everything
  before a close is answered.

Progress is a join-semilattice, so none of the three has to happen exactly once or in order, and none can take back an
ack. Nothing here adds to progress either: only the host's progress, or a part of it, is sent.

Which peers there are, and whether they can be reached, is the part in ``links.py``.

Only durable state is sent: deltas, states and answers to barriers are read from memory, where they are
newest, and leave once the topic's log has them (``ExchangeContext.send_once_durable``). Digests mark what is
not final (``in_flux``).

Duties of the caller: call ``tick`` soon after ``wake`` (once per turn of the event loop is best: all acks that became
durable together become one DELTA) and at ``next_deadline``; call ``merge``'s ``done`` only once durable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from meridian_broker.ledgers.store import WhenDurable
from meridian_broker.positions.progress import Progress
from meridian_broker.replication.leases.manager import LeaseManager
from meridian_broker.replication.leases.messages import LeaseMessage
from meridian_broker.replication.progress.barrier import Barriers
from meridian_broker.replication.progress.barrier_refusals import Refusals
from meridian_broker.replication.progress.context import ExchangeCounters, ProgressHost, Reply
from meridian_broker.replication.progress.high_watermarks import Ends, EndsSource
from meridian_broker.replication.progress.links import PeerLinks
from meridian_broker.replication.progress.messages import (
    Barrier,
    BarrierDone,
    Delta,
    DeltaAck,
    Digest,
    EndsSlice,
    ExchangeLimits,
    Fetch,
    Hello,
    Owners,
    PeerMessage,
    State,
    SubscriptionKey,
)
from meridian_broker.replication.progress.statuses import PeerStatus, Statuses
from meridian_broker.replication.progress.waits import BarrierResult, FlushResult


class ProgressExchange(PeerLinks):
    """All of a broker's exchange of progress with the other regions."""

    def __init__(
        self,
        host: ProgressHost,
        *,
        coalesce_ms: int = 10,
        digest_interval_ms: int = 5000,
        barrier_ms: int = 250,
        limits: ExchangeLimits | None = None,
        leases: LeaseManager | None = None,
        ends: EndsSource | None = None,
        broker: str = "",
    ) -> None:
        """
        :param broker: this one's id; empty if it is its region's only one.
        :param ends: how far this region has the entries of others; without it, that is not compared.
        :param leases: handles lease messages over the same links.
        :param coalesce_ms: the longest an ack waits to be combined with others while a DELTA is unconfirmed.
        :param digest_interval_ms: between comparisons; also how long a DELTA may stay unconfirmed before it is given
            up.
        :param barrier_ms: the maximum duration of a barrier or a flush.
        """
        super().__init__(
            host,
            limits or ExchangeLimits(),
            coalesce_ms=coalesce_ms,
            digest_interval_ms=digest_interval_ms,
            barrier_ms=barrier_ms,
            leases=leases,
            broker=broker,
        )
        self._barriers = Barriers(self._context, self._waits, self._deltas)
        self._refusals = Refusals(self._context, self._waits, self._barriers.pull)
        self._statuses = Statuses(self._context, self._refusals, digest_interval_ms)
        self._ends = None if ends is None else Ends(self._context, ends)
        if leases is not None:
            leases.links = self

    def set_wake(self, wake: Callable[[], None]) -> None:
        """:param wake: asks for a ``tick`` soon, when something became durable outside of any call."""
        self._context.wake = wake

    @property
    def counters(self) -> ExchangeCounters:
        return self._context.counters

    # -- local changes, and time

    def local_ack(
        self,
        topic: str,
        subscription: str,
        delta: Progress,
        now_ms: int,
        durable: WhenDurable,
        *,
        record_changed: bool = False,
        entries: int = 0,
    ) -> None:
        """Progress changed here: acks, a rewind, a new subscription. It is sent with the first ``tick`` after it is
        durable.

        :param delta: the change; kept, so it must not be modified afterwards.
        :param durable: reports when the change is on disk, from the log that it was written to.
        :param record_changed: the subscription's record changed too; new subscriptions are recognized without it.
        :param entries: how many entries were acknowledged, to compute how far another region is behind.
        """
        self._context.now_ms = now_ms
        key = (topic, subscription)
        is_new = key not in self._context.digests
        record = self._host.record(*key) if record_changed or is_new else None
        said_of = self._host.incarnation(topic)
        self._context.changed(
            key, durable, lambda: self._deltas.offer(key, delta, said_of, record=record, entries=entries)
        )

    def opened(self, topic: str) -> None:
        """The host opened the topic and may hold another state of it than when it was open before: while it was closed,
        another broker may have owned it. So nothing that was compared then counts."""
        self._context.digests.forget(topic)
        for peer in self._peers.values():
            if topic in peer.in_sync:
                peer.give_up(topic)

    def send_pending(self, now_ms: int) -> None:
        """Send queued deltas now, as far as windows allow, because a client is about to get a confirmation."""
        self._context.now_ms = now_ms
        for peer in self._peers.values():
            if peer.up:
                self._deltas.send_due(peer, at_once=True)

    def tick(self, now_ms: int) -> None:
        """Do everything that is due."""
        self._context.now_ms = now_ms
        self.divided.tick()
        if self.leases is not None:  # first, because the messages below carry its results
            self.leases.reconfiguration.tick()
        for peer in list(self._peers.values()):
            if peer.next_count_ms is not None and peer.next_count_ms <= now_ms:
                if peer.up:  # a digest must only contain changes that were sent before it
                    self._deltas.send_due(peer, at_once=True)
                self._comparing.count_some(peer)
            if not peer.up:
                continue
            self._deltas.expire(peer, now_ms - self._digest_interval_ms)
            round_due = peer.next_digest_ms is not None and peer.next_digest_ms <= now_ms and not peer.to_announce
            more_due = peer.next_announce_ms is not None and peer.next_announce_ms <= now_ms
            # A digest is to hold nothing that was not sent before it.
            self._deltas.send_due(peer, at_once=round_due or more_due)
            if more_due:
                self._comparing.announce_some(peer)
            elif round_due:
                peer.next_digest_ms = now_ms + self._digest_interval_ms
                peer.expire_questions(now_ms - self._digest_interval_ms)
                if peer.following is None:  # otherwise the last round still looks for the open topics
                    self._comparing.announce(peer)
        self._waits.expire(now_ms)
        self._refusals.tick()
        if self._ends is not None:
            self._ends.tick()
        if self.leases is not None:  # last, because waiting callers may want leases now
            self.leases.tick()

    def next_deadline(self) -> int | None:
        """The time of the next ``tick`` by the clock of ``now_ms``; None: not before something else happens."""
        times = [self._waits.next_deadline(), self._refusals.next_deadline(), self.divided.next_deadline()]
        times.append(None if self.leases is None else self.leases.next_deadline())
        times.append(None if self._ends is None else self._ends.next_deadline())
        for peer in self._peers.values():
            times.append(peer.next_count_ms)
            if peer.up:
                oldest = peer.oldest_flight_ms()
                times += [peer.due_ms(), peer.next_announce_ms if peer.to_announce else peer.next_digest_ms]
                times.append(None if oldest is None else oldest + self._digest_interval_ms + 1)
        return min((time for time in times if time is not None), default=None)

    # -- messages of the peer

    def received(self, name: str, message: PeerMessage, reply: Reply, now_ms: int) -> None:
        """A message of the peer arrived, on its link or ours. This raises nothing, whatever the message contains."""
        self._context.now_ms = now_ms
        peer = self._peers.get(name)
        if peer is None:
            return
        peer.back, peer.heard_ms = reply, now_ms
        match message:
            case Hello():
                self._greeted(peer, message, reply)
            case _ if peer.incompatible:
                pass
            case Owners():
                self.divided.take(peer, message)
            case Delta():
                self._deltas.merge(peer, message, reply)
            case DeltaAck():
                self._deltas.confirmed(peer, message)
            case Digest(ends=EndsSlice() as ends):
                if self._ends is not None:
                    self._ends.answer(peer, ends, reply)
            case Digest():
                self._comparing.compare(peer, message, reply)
            case Fetch():
                self._comparing.answer(peer, message, reply)
            case State():
                self._comparing.take(peer, message)
                if message.ends is not None and self._ends is not None:
                    self._ends.take(peer, message.ends)
            case Barrier():
                self._barriers.answer(peer, message, reply)
            case BarrierDone():
                self._barriers.answered(peer, message)
            case _:
                if self.leases is not None:
                    self.leases.received(peer.name, message, reply)

    # -- entries that their origin does not bring (R6)

    def compare_ends(self, origins: Collection[str], now_ms: int) -> None:
        """Called every second. :param origins: regions that do not bring their entries themselves."""
        self._context.now_ms = now_ms
        if self._ends is not None:
            self._ends.look(origins)

    def compares_ends_with(self, region: str) -> bool:
        """Whether ``compare_ends`` asks that region."""
        return self._ends is not None and self._ends.compares_with(region)

    # -- the links of leases

    def peer_of(self, region: str, topic: str) -> str:
        """The peer that speaks for a region on who dispatches the topic."""
        return self._context.routes.voter_in(region, topic)

    def send_lease(self, name: str, message: LeaseMessage) -> None:
        peer = self._peers.get(name)
        if peer is not None and peer.up and peer.send is not None:
            peer.send(message)

    # -- the moment of a switch (R20)

    def barrier(self, topic: str, subscription: str, now_ms: int, done: Callable[[BarrierResult], None]) -> None:
        """Pull the newest progress of every reachable region.

        ``done`` is called once all of it is joined here, or after ``barrier_ms``, or at once if no region can be asked.
        A region that refuses to answer is asked again, and dispatch waits longer for it (``barrier_refusals.py``).
        The answers' content is durable then; the content of a delta just before may still be on its way to the disk.
        """
        self._context.now_ms = now_ms
        self.counters.barriers += 1
        self._refusals.begin((topic, subscription), done)

    def flush(self, topic: str, subscription: str, now_ms: int, done: Callable[[FlushResult], None]) -> None:
        """Wait until every reachable region confirmed all that was offered so far for the subscription.

        ``done`` is called then, or after ``barrier_ms``, or at once when nothing is on its way.
        """
        self._context.now_ms = now_ms
        self.counters.flushes += 1
        self._barriers.push((topic, subscription), done)

    def status(self, topic: str, subscription: str, now_ms: int) -> tuple[PeerStatus, ...]:
        """How the subscription stands with each other region of its topic."""
        return self._statuses.of(topic, subscription, now_ms)

    def lags(self, now_ms: int) -> dict[tuple[str, str], tuple[int, int]]:
        """``(topic, region)`` -> entries and milliseconds that the region is behind, over all subscriptions."""
        return self._statuses.lags(now_ms)

    def apart(self, now_ms: int) -> dict[str, dict[str, str]]:
        """Region -> why it and this region do not know the same, by subject: a topic, a subscription of one,
        or, if empty, everything. A link that is down is not reported here."""
        return self._statuses.apart(now_ms)

    def behind_for(self, now_ms: int) -> dict[str, int]:
        """Region -> for how long it may lack something that was acknowledged here. Called every second."""
        return self._statuses.behind_for(now_ms)

    # -- how far others were behind before this broker started

    def was_behind(self, region: str, key: SubscriptionKey, entries: int, since_ms: int) -> None:
        """The region lacks entries acknowledged before this broker started. Without effect if that is known, or if the
        region is back: then comparison finds what it lacks."""
        peer = self._context.peer_in(region, key[0])
        if peer is None or peer.up or peer.is_divided:
            return
        behind = peer.lag.get(key)
        if behind is None or behind.missed_since_ms is None:
            peer.lag.missed(key, entries, since_ms)
