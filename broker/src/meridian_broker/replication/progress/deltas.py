# SPDX-License-Identifier: Apache-2.0
"""Deltas out and in: acks on their way to every peer, confirmations, and passing on (R13, R18, R19).

Out: offered progress waits in the peer's queue and leaves as DELTA messages of several subscriptions. In: each item is
judged on its own, and the message is confirmed when the last of them is durable or refused.

Passing on: an item names the regions its sender has no link to; a receiver that has one forwards the item, marked so
that it is not forwarded again. With all links up nothing is passed on, so an ack costs one message per other region.
"""

from __future__ import annotations

from functools import partial

from meridian_broker.positions.progress import Progress
from meridian_broker.replication.progress.anti_entropy import Comparing
from meridian_broker.replication.progress.context import ExchangeContext, Reply, why_of
from meridian_broker.replication.progress.lag import Why
from meridian_broker.replication.progress.messages import (
    NOT_A_REGION,
    OTHER_INCARNATION,
    UNKNOWN_SUBSCRIPTION,
    Delta,
    DeltaAck,
    DeltaItem,
    Refusal,
    SubscriptionKey,
)
from meridian_broker.replication.progress.peer import Peer
from meridian_broker.replication.progress.pending import Pending, PendingKey
from meridian_broker.replication.progress.waits import Waits

NOT_CONFIRMED = "NotConfirmedInTime"
DELETED = "the topic was deleted meanwhile"


class Deltas:
    """The delta side of the exchange."""

    def __init__(self, context: ExchangeContext, waits: Waits, comparing: Comparing) -> None:
        self._context = context
        self._waits = waits
        self._comparing = comparing
        self._encoded: tuple[Progress, bytes] | None = None

    # -- out

    def offer(
        self, key: SubscriptionKey, delta: Progress, incarnation: str, *, record: bytes | None, entries: int = 0
    ) -> None:
        """Queue progress of ours for every peer of the topic.

        :param incarnation: the topic's incarnation that the progress belongs to.
        """
        if not self._context.is_now(key[0], incarnation):
            return
        peers = self._context.peers_of(key[0])
        for name, peer in self._context.peers.items():
            if name in peers:
                if key[0] in peer.waiting:
                    self._context.held(peer, key[0])  # perhaps not withheld any more
                now_ms = self._context.now_ms
                peer.offer((*key, False), delta, incarnation=incarnation, now_ms=now_ms, record=record, entries=entries)
            elif key[0] in peer.in_sync:  # it is out of the topic, and may be back before its next digest
                peer.give_up(key[0])

    def offer_again(self, region: str, lost: list[tuple[PendingKey, Pending]]) -> None:
        """The link to a peer in the region broke with these on their way: the others may pass them on."""
        for (topic, subscription, passed_on), pending in lost:
            if not passed_on and region in self._context.host.regions_of(topic):
                self.offer((topic, subscription), pending.delta, pending.incarnation, record=pending.record)

    def send_due(self, peer: Peer, *, at_once: bool = False) -> None:
        """Send queued deltas to the peer, as far as they are due and the window allows.

        :param at_once: do not wait to combine with later ones.
        """
        while peer.send is not None:
            due = peer.due_ms()
            if due is None or (due > self._context.now_ms and not at_once):
                return
            taken, items = self._fill(peer)
            if items:
                number = peer.sent(taken, self._context.now_ms)
                self._context.counters.deltas_sent += 1
                self._waits.delta_sent(peer.name, number, [key[:2] for key, _ in taken])
                peer.send(Delta(number, tuple(items)))

    def expire(self, peer: Peer, before_ms: int) -> None:
        """Give up deltas that the peer has not confirmed for too long; digests take over."""
        for flight in peer.expire(before_ms):
            self._context.counters.given_up += 1
            self._waits.delta_lost(peer.name, flight.keys(), NOT_CONFIRMED)

    def _fill(self, peer: Peer) -> tuple[list[tuple[PendingKey, Pending]], list[DeltaItem]]:
        """As much as one DELTA holds."""
        limits = self._context.limits
        taken: list[tuple[PendingKey, Pending]] = []
        items: list[DeltaItem] = []
        size = 0
        for key, pending in peer.take():
            if not self._context.is_now(key[0], pending.incarnation):
                self._is_of_the_past(peer, key, pending)
                continue
            item = self._item(peer, key, pending)
            if item is None:
                peer.lag.given_up(key[:2], pending)
                trouble = peer.troubles.get(key[:2])
                self._waits.delta_lost(peer.name, [key[:2]], NOT_A_REGION if trouble is None else trouble.text)
                continue
            size += len(item.progress) + len(item.record or b"")
            if items and (size > limits.message_bytes or len(items) == limits.items_per_message):
                peer.put_back(key, pending)
                break
            taken.append((key, pending))
            items.append(item)
        return taken, items

    def _item(self, peer: Peer, key: PendingKey, pending: Pending) -> DeltaItem | None:
        context = self._context
        topic, subscription, passed_on = key
        if peer.name not in context.peers_of(topic):
            peer.give_up(topic)
            return None
        encoded = self._encode(pending.delta) if pending.is_borrowed else pending.delta.encode()
        text = context.limits.objection(encoded, pending.record)
        if text is not None:
            peer.note_trouble((topic, subscription), Why.TOO_LARGE, text, context.now_ms)
            peer.give_up(topic)
            return None
        unreached = () if passed_on else tuple(r for r in context.others_of(topic) if not context.is_up(r, topic))
        return DeltaItem(topic, subscription, pending.incarnation, encoded, pending.record, unreached, passed_on)

    def _is_of_the_past(self, peer: Peer, key: PendingKey, pending: Pending) -> None:
        """The topic was deleted since: the delta does not apply to its successor."""
        peer.lag.taken_back(key[:2], pending)
        self._waits.delta_lost(peer.name, [key[:2]], DELETED)

    def _encode(self, delta: Progress) -> bytes:
        """Peers without a queue get the same, immutable delta: encode it once."""
        if self._encoded is None or self._encoded[0] is not delta:
            self._encoded = delta, delta.encode()
        return self._encoded[1]

    def confirmed(self, peer: Peer, ack: DeltaAck) -> None:
        """The peer answered a DELTA."""
        flight = peer.confirm(ack.number)
        if flight is None:
            return
        refusals = {refusal.index: refusal for refusal in ack.refusals}
        for index, (key, pending) in enumerate(flight.items):
            refusal = refusals.get(index)
            if refusal is None:
                peer.troubles.pop(key[:2], None)
                peer.lag.confirmed(key[:2], pending, self._context.now_ms)
            elif not self._context.is_now(key[0], pending.incarnation):
                self._is_of_the_past(peer, key, pending)
            else:
                self._refused(peer, key, pending, refusal)
        self._waits.delta_confirmed(peer.name, ack.number, flight.keys())
        self.send_due(peer)

    def _refused(self, peer: Peer, key: PendingKey, pending: Pending, refusal: Refusal) -> None:
        """The peer did not merge an item: send the whole, wait for the topic, or leave it to digests."""
        topic, subscription, _ = key
        host = self._context.host
        self._context.counters.refused_there += 1
        if refusal.code == UNKNOWN_SUBSCRIPTION and pending.record is None:
            whole, record = host.progress(topic, subscription), host.record(topic, subscription)
            if whole is not None:
                self._waits.delta_requeued(peer.name, key[:2])
                offer_whole = partial(self._offer_whole, peer, key, pending, refusal, whole.copy(), record)
                self._context.show(topic, offer_whole)
                return
        self._leave_to_digests(peer, key, pending, refusal)

    def _offer_whole(
        self,
        peer: Peer,
        key: PendingKey,
        pending: Pending,
        refusal: Refusal,
        whole: Progress,
        record: bytes | None,
        reason: str,
    ) -> None:
        """Send the whole in place of a delta that was refused for want of it. :param reason: why it will never be on
        disk.
        """
        now_ms, incarnation = self._context.now_ms, pending.incarnation
        if not self._context.is_now(key[0], incarnation):
            self._is_of_the_past(peer, key, pending)
            return
        if not reason:
            peer.lag.taken_back(key[:2], pending)
            if peer.offer(key, whole, incarnation=incarnation, now_ms=now_ms, record=record, entries=pending.entries):
                return
        self._leave_to_digests(peer, key, pending, refusal)

    def _leave_to_digests(self, peer: Peer, key: PendingKey, pending: Pending, refusal: Refusal) -> None:
        topic = key[0]
        peer.lag.given_up(key[:2], pending)
        now_ms, why = self._context.now_ms, why_of(refusal.code)
        peer.note_trouble(key[:2], why, refusal.reason, now_ms)
        if refusal.code in (OTHER_INCARNATION, NOT_A_REGION):
            peer.hold_back(topic, why, refusal.reason, now_ms, refused=pending.incarnation)
        peer.give_up(topic)
        self._waits.delta_lost(peer.name, [key[:2]], refusal.reason)

    # -- in

    def merge(self, peer: Peer, delta: Delta, reply: Reply) -> None:
        """A DELTA arrived: merge its items, and confirm once all of them are merged or refused."""
        incoming = peer.incoming
        incoming.highest = max(incoming.highest, delta.number)
        incoming.merging.add(delta.number)
        self._context.counters.deltas_received += 1
        refusals: list[Refusal] = []
        unfinished = 1

        def finish_one() -> None:
            nonlocal unfinished
            unfinished -= 1
            if unfinished == 0:
                incoming.merging.discard(delta.number)
                reply(DeltaAck(delta.number, tuple(sorted(refusals, key=lambda refusal: refusal.index))))
                self._comparing.resume(peer)

        def merge_item(index: int, item: DeltaItem) -> None:
            def finished(code: str, reason: str, merged: Progress | None) -> None:
                if merged is None:
                    refusals.append(Refusal(index, code, reason))
                    peer.note_trouble(key, why_of(code), reason, self._context.now_ms)
                else:
                    peer.lag.of(key).applied_ms = self._context.now_ms
                    self._pass_on(peer, item, merged)
                finish_one()

            key = (item.topic, item.subscription)
            self._context.merge(peer, key, item.incarnation, item.progress, item.record, finished)

        for index, item in enumerate(delta.items):
            unfinished += 1
            merge_item(index, item)
        finish_one()

    def _pass_on(self, peer: Peer, item: DeltaItem, delta: Progress) -> None:
        """Forward a merge to the regions its sender has no link to, once (R19).

        Not a change that was ignored because the replicated flag is off here: it is not on this region's disk (R60).
        """
        context = self._context
        if item.passed_on or not context.is_now(item.topic, item.incarnation):
            return
        held = context.host.progress(item.topic, item.subscription)
        if held is None or not delta.within(held):
            return
        key = (item.topic, item.subscription, True)
        for region in sorted(set(item.unreached) & context.host.regions_of(item.topic) - {peer.region}):
            other = context.peer_in(region, item.topic)
            if other is None or not other.up:
                continue
            if other.offer(key, delta, incarnation=item.incarnation, now_ms=context.now_ms, record=item.record):
                context.counters.items_passed_on += 1
                # At once: merges become durable outside of any call, so the next ``tick`` may be far away.
                self.send_due(other, at_once=True)
