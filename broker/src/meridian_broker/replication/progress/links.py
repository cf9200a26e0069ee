# SPDX-License-Identifier: Apache-2.0
"""The links to the peers: who they are, whether they can be reached, and what they said of themselves.

Per peer one outgoing link, ours, carries our requests and their answers; the peer's own link carries its requests, and
``ProgressExchange.received`` gets the way to answer them. Numbers of DELTA grow over all links to a peer, so answers
that outlive their link cannot be mistaken. A peer is a region, or one of its several brokers (``routes.py``); methods
take its name, which is the region's where it has one broker.
"""

from __future__ import annotations

from collections.abc import Callable

from meridian_broker.replication.leases.manager import Greeted, LeaseManager
from meridian_broker.replication.peers import peer_name, region_of
from meridian_broker.replication.progress.anti_entropy import Comparing
from meridian_broker.replication.progress.context import ExchangeContext, ProgressHost, Reply
from meridian_broker.replication.progress.deltas import Deltas
from meridian_broker.replication.progress.divided import DividedRegions
from meridian_broker.replication.progress.messages import (
    BROKERS_VERSION,
    OLDEST_VERSION,
    OWNERS_LEASES_VERSION,
    PROTOCOL_VERSION,
    RENEWAL_VERSION,
    ExchangeLimits,
    Hello,
    PeerMessage,
    RemoteBroker,
)
from meridian_broker.replication.progress.peer import Peer
from meridian_broker.replication.progress.waits import Waits


class PeerLinks:
    """The part of ``ProgressExchange`` that knows the peers."""

    def __init__(
        self,
        host: ProgressHost,
        limits: ExchangeLimits,
        *,
        coalesce_ms: int,
        digest_interval_ms: int,
        barrier_ms: int,
        leases: LeaseManager | None,
        broker: str,
    ) -> None:
        """Parameters as in ``ProgressExchange``."""
        self._limits = limits
        self._host = host
        self._coalesce_ms = coalesce_ms
        self._digest_interval_ms = digest_interval_ms
        self._barrier_ms = barrier_ms
        self._broker = broker
        self._first_number = 1
        """Number of the next peer's first DELTA: a peer that goes and comes back gets no number twice."""
        self._context = ExchangeContext(host, limits, lambda name: self.divided.wanted(name))
        self._peers = self._context.peers
        self.divided = DividedRegions(self._context, self.add_peer, self._remove, self._moved)
        self._waits = Waits(wait_ms=barrier_ms, most=limits.waiters)
        self._comparing = Comparing(self._context)
        self._deltas = Deltas(self._context, self._waits, self._comparing)
        self.leases = leases

    # -- up and down

    def add_peer(self, name: str) -> None:
        """Exchange with this peer from now on; no effect if it is known, or its region has too many."""
        region = region_of(name)
        if region == self._host.region or name in self._peers:
            return
        if name != region and sum(peer.region == region for peer in self._peers.values()) > self._limits.brokers:
            return
        peer = self._peers[name] = Peer(name, coalesce_ms=self._coalesce_ms, limits=self._limits)
        peer.next_number = self._first_number

    def remove_peer(self, region: str) -> None:
        """The region is no longer a peer, and the messages of its brokers are ignored."""
        if (peer := self._peers.get(region)) is not None:
            self.divided.unite(peer)
            self._remove(region)

    def _remove(self, name: str) -> None:
        self.disconnected(name, self._context.now_ms)
        self._first_number = max(self._first_number, self._peers.pop(name).next_number)
        if self.leases is not None:
            self.leases.gone(name)
        self._context.digests.forget_summary(name)

    def connected(self, name: str, send: Callable[[PeerMessage], None], now_ms: int) -> None:
        """Our link to the peer is up. ``send`` puts a message on it; it has no effect once the link is down.

        :raises KeyError: no such peer.
        """
        peer = self._peers[name]
        if peer.send is not None:
            self.disconnected(name, now_ms)
        self._context.now_ms = now_ms
        if peer.is_divided:
            self.divided.linked(peer, send)
        else:
            self._begin(peer, send)
        send(self._hello(peer))

    def _begin(self, peer: Peer, send: Callable[[PeerMessage], None]) -> None:
        now_ms = self._context.now_ms
        peer.send, peer.incompatible, peer.is_awaited = send, "", False
        peer.up_since_ms = now_ms
        peer.catching.begin(now_ms, self._digest_interval_ms)
        peer.in_sync.clear()  # the region may have crashed, or been restored, since
        peer.next_digest_ms = now_ms + self._digest_interval_ms

    def _hello(self, peer: Peer, *, answer: bool = False) -> Hello:
        return Hello(
            PROTOCOL_VERSION,
            self._host.region,
            peer.next_number,
            answer,
            self.leases is not None,
            self._broker,
            not answer and peer.name == peer.region,
        )

    def unreachable(self, name: str) -> None:
        """A link to a peer could not be opened."""
        if (peer := self._peers.get(name)) is not None and not peer.is_divided:
            peer.is_awaited = False

    def disconnected(self, name: str, now_ms: int) -> None:
        """Our link to the peer is down. Deltas in flight to it are offered to the others, to be passed on."""
        self._context.now_ms = now_ms
        peer = self._peers.get(name)
        if peer is not None and peer.is_divided:
            self.divided.unlinked(peer)
        elif peer is not None:
            self._down(peer)

    def _down(self, peer: Peer, *, is_back_soon: bool = False) -> None:
        if peer.send is None:
            return
        now_ms = self._context.now_ms
        peer.look_behind(now_ms)  # it may have caught up since the last look: then this is another absence
        peer.send = peer.next_digest_ms = None
        peer.down_since_ms = now_ms
        lost = peer.drop()
        if peer.behind_since_ms is None:
            peer.behind_since_ms = min((pending.since_ms for _, pending in lost), default=now_ms)
        self._waits.peer_gone(peer.name, is_back_soon=is_back_soon)
        self._deltas.offer_again(peer.region, lost)
        for other in self._peers.values():
            if other.next_digest_ms is not None:
                # The lost region may have reached some of us with changes that others lack.
                other.next_digest_ms = min(other.next_digest_ms, now_ms + self._barrier_ms)

    def was_away(self, region: str, since_ms: int) -> None:
        """The region left at that time and had not returned before this broker started."""
        self.add_peer(region)
        if (peer := self._peers.get(region)) is not None:
            peer.behind_since_ms = peer.down_since_ms = since_ms

    def is_up(self, name: str) -> bool:
        """Whether a peer can be reached; a region of several brokers never can."""
        return (peer := self._peers.get(name)) is not None and peer.up and not peer.is_divided

    def broker(self, peer: str) -> RemoteBroker | None:
        """How to reach one of the several brokers of a region; None: it is gone."""
        return self._context.routes.broker(peer)

    def is_connecting(self, region: str) -> bool:
        """Whether links to a reached region that open topics need are still being opened."""
        peers = [peer for peer in self._peers.values() if peer.region == region]
        if any(peer.is_divided for peer in peers):
            return not self._context.routes.is_complete(region) or any(
                peer.is_awaited for peer in peers if not peer.is_divided
            )
        return any(peer.send is not None and not peer.is_greeted and not peer.incompatible for peer in peers)

    def _moved(self, region: str) -> None:
        """Other brokers of a region may own topics now."""
        if self.leases is not None:
            self.leases.moved(region)

    # -- greetings

    def greeting(self) -> Hello:
        """Answers a link that asks only who owns what."""
        leases = self.leases is not None
        return Hello(PROTOCOL_VERSION, self._host.region, 1, answer=True, leases=leases, broker=self._broker)

    def _greeted(self, peer: Peer, hello: Hello, reply: Reply) -> None:
        if hello.answer and peer.name == peer.region and hello.version >= OLDEST_VERSION:
            self._follow_division(peer, hello)
        if objection := self._objection(peer, hello):
            peer.incompatible = objection
            peer.drop()
            peer.down_since_ms = self._context.now_ms
            self._waits.peer_gone(peer.name)
        elif not peer.is_divided:
            peer.incompatible = ""
            peer.version = hello.version
            peer.is_greeted |= hello.answer
            if hello.answer and peer.send is not None:
                self._comparing.announce(peer, is_new=True)
        if not hello.answer:
            peer.early = None
            peer.incoming.restarted(hello.next_delta)
            reply(self._hello(peer, answer=True))
        if self.leases is not None:
            supported = Greeted(
                leases=hello.leases and not peer.incompatible,
                renewals=hello.version >= RENEWAL_VERSION,
                finds_owners=hello.version >= OWNERS_LEASES_VERSION,
                is_divided=bool(hello.broker),
            )
            self.leases.greeted(peer.name, supported)

    def _objection(self, peer: Peer, hello: Hello) -> str:
        """Why nothing can be exchanged with the peer; empty: it can."""
        oldest = BROKERS_VERSION if self._broker else OLDEST_VERSION
        if hello.version < oldest:
            return (
                f"region {peer.region} speaks version {hello.version} of the peer protocol, this broker "
                f"{oldest} to {PROTOCOL_VERSION}: upgrade {peer.region}"
            )
        if hello.answer and peer.name != peer.region and peer.name != peer_name(peer.region, hello.broker):
            return (
                f"another broker answers at the address of {peer.name}: {hello.broker or 'the only one of its region'}"
            )
        return ""

    def _follow_division(self, peer: Peer, hello: Hello) -> None:
        """The region answered on our link to it: it has several brokers, or one."""
        if hello.broker and not peer.is_divided:
            send = peer.send
            self._down(peer, is_back_soon=True)
            if send is not None:
                self.divided.divide(peer, send)
        elif not hello.broker and peer.is_divided and (send := self.divided.unite(peer)) is not None:
            self._begin(peer, send)
