# SPDX-License-Identifier: Apache-2.0
"""Leases between regions of several brokers: the broker that owns the topic speaks for its region.

The region's votes are on a disk that its brokers share, which refuses what an owner writes after the next one began
(R10). An owner counts its lease on the topic by its own clock, and may be suspended past its end. Other regions learn
late who owns the topic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from meridian_broker.replication.leases.messages import LeaseMessage, LeaseRelease, Stream
from meridian_broker.replication.leases.quorums import VoterSets
from meridian_broker.replication.leases.request import LeaseRequest
from meridian_broker.replication.leases.voter import Vote
from support.worlds.lease_world import EAGER, LeaseNode, LeaseWorld

OWNER_MS = 1500
"""Duration of the lease on the topic within a region."""
OWNERS_SHARE = 0.97
"""The fraction of it that the owner counts on, by its own clock."""
BEAT_MS = 300
SEEN_MS = 600
"""The longest time until another region knows of a new owner."""


@dataclass
class Home:
    """What the brokers of a region share."""

    disk: dict[Stream, tuple[str, int, int]] = field(default_factory=dict)
    wanted: set[Stream] = field(default_factory=set)
    owner: str = ""
    """The broker that actually owns the topic; empty: none."""
    term: int = 0
    expires_us: int = 0


class BrokerNode(LeaseNode):
    """One of the brokers of a region."""

    world: LeaseBrokersWorld

    def __init__(self, world: LeaseBrokersWorld, name: str, rate: float, began_ms: int) -> None:
        self.term = 0
        """Its term, as far as it knows; 0: it knows that it does not own the topic."""
        self.is_open = False
        self.valid_until_ms = 0
        super().__init__(world, name, rate, began_ms)

    @property
    def home(self) -> Home:
        return self.world.homes[self.region]

    def begin(self) -> None:
        self.disk, self.wanted = self.home.disk, self.home.wanted
        self.term, self.is_open = 0, False

    @property
    def serves(self) -> bool:
        """Whether it owns the topic by its own clock."""
        return self.alive and self.is_open and self.now_ms() < self.valid_until_ms

    @property
    def may_gain(self) -> bool:
        """Whether the topic may be given to it. A broker whose lease ended has no other one before it knows that it
        owns nothing (``Membership.keep``), and what it lost returns only after it forgot its votes (``Holding``)."""
        return self.alive and not self.paused and not self.term

    def want(self, stream: Stream) -> None:
        self.wanted.add(stream)
        if self.is_open:
            super().want(stream)

    def happen(self, kind: str, stream: Stream) -> None:
        """Consumers arrive in the region, or leave it."""
        if kind == "want":
            self.want(stream)
        else:
            self.unwant(stream)

    # -- ownership

    def gain(self) -> None:
        """Own the topic: read the region's votes, then vote and ask for leases."""
        home, run = self.home, self.run
        home.owner, home.term = self.name, home.term + 1
        self.term = term = home.term
        self._renew()

        def opened() -> None:
            if self.alive and (self.run, self.term) == (run, term):
                self.is_open = True
                self.find()
                for stream in sorted(self.wanted):
                    self.want(stream)

        self.world.after_us(self.world.disk_us(), lambda: self.do(opened) if self.alive else None)

    def keep(self) -> None:
        """Renew the lease on the topic, or notice that it ended."""
        has_it = self.home.owner == self.name and self.home.term == self.term
        if has_it and self.now_ms() < self.valid_until_ms:
            self._renew()
        elif self.term:
            if has_it:
                self.home.owner = ""
            self.lose()

    def _renew(self) -> None:
        self.valid_until_ms = self.now_ms() + int(OWNER_MS * OWNERS_SHARE)
        self.home.expires_us = self.world.now_us + OWNER_MS * 1000

    def lose(self) -> None:
        """Stop owning the topic. What it was writing is durable before the next owner begins, or never."""
        self.term, self.is_open, self._writing = 0, False, []
        self.leases.leave(list(self.leases.requests), self.now_ms())
        self.voter.moved({stream[0] for stream in self.world.streams})
        self._wake()

    def hand_over(self, to: BrokerNode) -> None:
        """Close the topic: release its leases, wait for the disk, and let the other broker own it."""
        term = self.term
        self.is_open = False
        self.leases.leave(list(self.leases.requests), self.now_ms())
        self._wake()

        def closed() -> None:
            if self.alive and self.term == self.home.term == term and self.now_ms() < self.valid_until_ms:
                if self._writing:
                    self.world.after_us(1000, lambda: self.do(closed))
                    return
                self.home.owner = ""
                self.lose()
                if to.may_gain:
                    to.gain()

        self.world.after_us(1000, lambda: self.do(closed))

    # -- the host of requests

    def peer_of(self, voter: str, topic: str) -> str:
        return voter if voter == self.region else self.world.seen.get((self.name, voter), voter)

    def can_ask(self, peer: str) -> bool:
        return peer == self.region or (peer in self.world.nodes and self.world.is_open(self.name, peer))

    def can_renew(self, peer: str) -> bool:
        return True

    def send(self, peer: str, message: LeaseMessage) -> None:
        if peer == self.region and isinstance(message, LeaseRelease):
            self.voter.released(message)
            return
        self.world.send(self, self.name if peer == self.region else peer, message)

    # -- the voter's ballots

    def voter_sets(self, stream: Stream) -> tuple[VoterSets, str] | None:
        return super().voter_sets(stream) if self.serves else None

    def confirm(self, confirmed: Callable[[], None]) -> None:
        if self.serves:
            confirmed()

    def write(self, votes: list[tuple[Stream, Vote]], durable: Callable[[list[Stream]], None]) -> None:
        if not self.term:
            return
        run, term, writing = self.run, self.term, self._writing
        written = [(stream, vote.ballot) for stream, vote in votes]
        writing.append(written)

        def synced() -> None:
            if self.home.term != term:
                return  # fenced by the next owner
            if self.alive and self.run == run:
                while any(one is written for one in writing):
                    self.disk.update(writing.pop(0))
                self.do(lambda: durable([stream for stream, _ in written]))

        self.world.after_us(self.world.disk_us(), synced)


class LeaseBrokersWorld(LeaseWorld):
    """Regions, with the number of brokers of each."""

    def __init__(self, brokers: dict[str, int], seed: int, *, delay_ms: int = 50, disk_ms: int = 20) -> None:
        self.brokers = brokers
        self.homes = {region: Home() for region in brokers}
        self.seen: dict[tuple[str, str], str] = {}
        """Broker, other region -> the owner there, as far as this broker knows."""
        self._shown = dict.fromkeys(brokers, "")
        super().__init__(list(brokers), seed, delay_ms=delay_ms, disk_ms=disk_ms, times=EAGER)
        self._look()

    def make_nodes(self) -> None:
        for region, count in self.brokers.items():
            for number in range(1, count + 1):
                name = f"{region}/{number}"
                self.nodes[name] = BrokerNode(self, name, *self.clock())

    def of(self, region: str) -> list[BrokerNode]:
        return [node for node in self.nodes.values() if isinstance(node, BrokerNode) and node.region == region]

    def owner(self, region: str) -> BrokerNode | None:
        """The broker that actually owns the topic."""
        node = self.nodes.get(self.homes[region].owner)
        return node if isinstance(node, BrokerNode) else None

    def disk_us(self) -> int:
        return self.random.randrange(100, self.disk_ms * 1000)

    def _look(self) -> None:
        """Renew the leases within regions, and give topics without an owner a new one."""
        for region, home in self.homes.items():
            running = [node for node in self.of(region) if node.alive and not node.paused]
            for node in running:
                node.keep()
            if home.expires_us <= self.now_us or not home.owner:
                takers = [node for node in running if node.name != home.owner] or running
                if takers:
                    takers[0].gain()
            if home.owner != self._shown[region]:
                self._shown[region] = home.owner
                for other in sorted(self.brokers.keys() - {region}):
                    for one in self.of(other):
                        self._show(one, region, home.owner)
        self.after_us(BEAT_MS * 1000, self._look)

    def _show(self, node: BrokerNode, region: str, owner: str) -> None:
        def seen() -> None:
            self.seen[node.name, region] = owner or region
            if node.alive:
                node.do(lambda: node.leases.moved(region))

        self.after_us(self.random.randrange(1000, SEEN_MS * 1000), seen)

    def check_promise(self, node: LeaseNode, request: LeaseRequest, name: str, believed_us: float) -> None:
        home, owner = self.homes[name], self.owner(name)
        what = f"at {self.now_us} us {node.leases.holder} believes that {name} promised {request.stream}"
        if owner is None or not owner.alive or not owner.is_open or owner.term != home.term:
            stored = home.disk.get(request.stream)
            assert stored is not None, what
            assert stored[0] == node.leases.holder, f"{what}: {stored}"
            return
        vote = owner.voter.votes.get(request.stream)
        assert vote is not None, what
        assert vote.holder == node.leases.holder, f"{what}: {vote}"
        assert believed_us <= owner.true_us(vote.until_ms), f"{what} for longer: {vote}"
