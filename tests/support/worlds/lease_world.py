# SPDX-License-Identifier: Apache-2.0
"""Voters and holders of leases in one process, with clocks that run at different rates, messages that are late, lost or
duplicated, crashes that keep what is durable, and pauses in which a process stops while its clock runs."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

from meridian_broker.positions import Stamp
from meridian_broker.replication.leases.leases import Leases
from meridian_broker.replication.leases.messages import (
    NOT_SERVED,
    OTHER_VOTERS,
    LeaseAnswer,
    LeaseAsk,
    LeaseMessage,
    LeaseRelease,
    LeaseRenewal,
    LeaseRenewed,
    Stream,
    VotersAnswer,
    VotersAsk,
)
from meridian_broker.replication.leases.quorums import Voters, VoterSets, preferred_among
from meridian_broker.replication.leases.reconfiguration import Heard, Reconfiguration, Subject
from meridian_broker.replication.leases.request import LeaseRequest
from meridian_broker.replication.leases.times import CLOCK_RATE, LeaseTimes
from meridian_broker.replication.leases.voter import Vote, Voter
from meridian_broker.replication.peers import region_of

TIMES = LeaseTimes(duration=3000, step=200, linger=500)
EAGER = LeaseTimes(duration=2000, step=25, linger=100)
"""No wait is longer than the protocol requires, so that tests notice when one is too short."""
SUBJECT = ("t", "s")


class VoteBasis:
    """The state that a node's vote is based on."""

    def __init__(self, node: LeaseNode, stream: Stream) -> None:
        self._node, self._stream, self._disk = node, stream, node.disk
        self._known = node.voter_sets(stream)

    def still_valid(self) -> bool:
        return self._node.voter_sets(self._stream) == self._known and self._node.disk is self._disk


class LeaseNode:
    """One region: its durable state, and a run of its broker."""

    def __init__(self, world: LeaseWorld, name: str, rate: float, began_ms: int) -> None:
        self.world = world
        self.name = name
        self.region = region_of(name)
        self.rate = rate
        self.began_ms = began_ms
        self.disk: dict[Stream, tuple[str, int, int]] = {}
        self.known_on_disk = self.voter_sets_now = VoterSets()
        self.told: Voters = tuple(sorted(world.names))
        """The voters that an operator set here; empty: the topic is not in this region."""
        self.preferred: dict[Stream, str] = {}
        self.run = 0
        self.alive = False
        self.paused = False
        self.inbox: list[Callable[[], object]] = []
        self.wanted: set[Stream] = set()
        self.drain_ms = 100
        self._wakes = 0
        """Number of timers set; only the last one counts."""
        self._to_others = self.peer_of, self.can_ask, self.send
        self.leases: Leases
        self.voter: Voter
        self.reconfiguration: Reconfiguration
        self.know(VoterSets.of(*world.names))
        self.known_on_disk = self.voter_sets_now
        self.start()

    def now_ms(self) -> int:
        return self.began_ms + int(self.world.now_us * self.rate) // 1000

    def true_us(self, ms: int) -> float:
        """True time at which this node's clock shows ``ms``."""
        return (ms - self.began_ms) * 1000 / self.rate

    def start(self) -> None:
        self.run += 1
        self.alive, self.paused = True, False
        self.inbox.clear()
        self._writing: list[list[tuple[Stream, tuple[str, int, int]]]] = []
        self.voter = Voter(self)
        self.leases = Leases(self, self.region, f"{self.name}#{self.run}", self.world.times)
        self.voter_sets_now = self.known_on_disk
        self.reconfiguration = Reconfiguration(self, self.region, self.now_ms, self._is_clean, *self._to_others)
        self.begin()

    def begin(self) -> None:
        """Find earlier votes, and serve the streams."""
        self.find()
        for stream in sorted(self.wanted):
            self.want(stream)
        self.do(self._follow)
        self._wake()

    def find(self) -> None:
        for stream, (holder, term, duration_ms) in self.disk.items():
            self.voter.found(stream, holder, term, duration_ms, self.now_ms())

    def crash(self) -> None:
        self.alive = False

    def want(self, stream: Stream) -> None:
        self.wanted.add(stream)
        if self.alive:
            self.do(lambda: self.leases.want(stream, self.voter_sets_now, self.preferred_holder(stream), self.now_ms()))

    def unwant(self, stream: Stream) -> None:
        self.wanted.discard(stream)
        if self.alive:
            self.do(lambda: self.leases.unwant(stream, self.now_ms()))

    def preferred_holder(self, stream: Stream) -> str:
        return self.preferred.get(stream, stream[2])

    def holds(self, stream: Stream) -> bool:
        """Whether the node would read the stream if it were scheduled at this instant."""
        request = self.leases.requests.get(stream) if self.alive else None
        return request is not None and request.is_held and self.now_ms() < request.until_ms

    def do(self, work: Callable[[], object]) -> None:
        """Run something in the process as soon as it is not paused."""
        if self.paused:
            self.inbox.append(work)
            return
        work()
        self._wake()

    def resume(self) -> None:
        self.paused = False
        waiting, self.inbox = self.inbox, []
        for work in waiting:
            self.do(work)
        self._wake()

    def _wake(self) -> None:
        run = self.run

        def tick() -> None:
            if self.alive and self.run == run and self._wakes == number:
                self.do(self._tick)

        deadlines = (self.leases.next_deadline(), self.reconfiguration.next_deadline())
        deadline = min((one for one in deadlines if one is not None), default=None)
        if deadline is not None:
            self._wakes += 1
            number = self._wakes
            wait_ms = max(deadline - self.now_ms(), 1)
            self.world.after_us(int(wait_ms * 1000 / self.rate) + 500, tick)

    def _tick(self) -> None:
        self.reconfiguration.tick()
        self.leases.tick(self.now_ms())

    # -- who votes

    def tell(self, voters: Voters) -> None:
        """An operator sets the voters; empty: the topic is no longer in this region."""
        self.told = voters
        if self.alive:
            self.do(self._follow)

    def _follow(self) -> None:
        if self.told and self.voter_sets_now.lists:  # otherwise, there is no record here yet
            known = self.voter_sets_now
            self.know(known.also(self.told, self.world.stamp(self.name, known.committed)))
            if not self.voter_sets_now.is_committed:
                self.reconfiguration.ask(SUBJECT)

    def know(self, known: VoterSets, then: Callable[[], None] = lambda: None) -> None:
        """Adopt these voter sets and write them; call ``then`` once they are on disk."""
        run = self.run
        if known != self.voter_sets_now:
            self.voter_sets_now = known
            for stream in sorted(self.wanted) if self.alive else ():
                self.leases.want(stream, known, self.preferred_holder(stream), self.now_ms())

        def synced() -> None:
            if self.alive and self.run == run:
                self.known_on_disk = self.known_on_disk.joined(known)
                self.do(then)

        self.world.after_us(self.world.random.randrange(100, self.world.disk_ms * 1000), synced)

    def known(self, subject: Subject) -> tuple[VoterSets, Voters] | None:
        return (self.voter_sets_now, self.told) if self.told else None

    def hear(self, subject: Subject, told: VoterSets, heard: Heard) -> None:
        known = self.voter_sets_now.joined(told)
        self.know(known, lambda: heard(known, self.told))
        self._follow()

    def commit(self, subject: Subject, heard: frozenset[str]) -> None:
        known = self.voter_sets_now
        preferred: dict[Voters, set[str]] = {
            voters: {preferred_among(voters, stream[2]) for stream in self.world.streams}
            for _, voters in known.lists
            if len(voters) == 2
        }
        if not known.is_committed and known.may_commit(self.told, heard, preferred):
            last = max(known.committed, *(said for said, _ in known.lists))
            self.know(known.commit(self.told, self.world.stamp(self.name, last)))

    def _is_clean(self, subject: Subject, mark: int) -> bool:
        return self.voter.is_clean(*subject, mark, self.now_ms())

    # -- the host of requests

    def peer_of(self, voter: str, topic: str) -> str:
        return voter

    def can_ask(self, voter: str) -> bool:
        return voter == self.name or (voter in self.world.nodes and self.world.is_open(self.name, voter))

    def can_renew(self, voter: str) -> bool:
        return {voter, self.name}.isdisjoint(self.world.old)

    def send(self, voter: str, message: LeaseMessage) -> None:
        if voter == self.name and isinstance(message, LeaseRelease):
            self.voter.released(message)
            return
        self.world.send(self, voter, message)

    def promised_ms(self, stream: Stream) -> int:
        vote = self.voter.promised(stream, self.now_ms())
        return 0 if vote is None or vote.holder == self.leases.holder else vote.until_ms - self.now_ms()

    def won(self, request: LeaseRequest) -> None:
        self.world.check(request.stream)
        self.world.wins[request.stream] = self.world.wins.get(request.stream, 0) + 1

    def lost(self, request: LeaseRequest) -> None:
        pass

    def wanted_back(self, request: LeaseRequest) -> None:
        run = self.run

        def drained() -> None:
            if self.alive and self.run == run:
                self.do(lambda: self.leases.release(request.stream, self.now_ms()))

        self.world.after_us(self.drain_ms * 1000, drained)

    # -- the voter's ballots

    def voter_sets(self, stream: Stream) -> tuple[VoterSets, str] | None:
        return self.voter_sets_now, self.preferred_holder(stream)

    def has(self, stream: Stream, vote: Vote) -> bool:
        return self.disk.get(stream) == vote.ballot

    def basis(self, stream: Stream) -> VoteBasis:
        return VoteBasis(self, stream)

    def confirm(self, confirmed: Callable[[], None]) -> None:
        run = self.run

        def synced() -> None:
            if self.alive and self.run == run:
                self.do(confirmed)

        self.world.after_us(self.world.random.randrange(100, self.world.disk_ms * 1000), synced)

    def write(self, votes: list[tuple[Stream, Vote]], durable: Callable[[list[Stream]], None]) -> None:
        run = self.run
        written = [(stream, vote.ballot) for stream, vote in votes]

        writing = self._writing
        writing.append(written)

        def synced() -> None:
            if self.alive and self.run == run:
                while any(one is written for one in writing):  # a log: earlier writes are durable, too
                    self.disk.update(writing.pop(0))
                self.do(lambda: durable([stream for stream, _ in written]))

        self.world.after_us(self.world.random.randrange(100, self.world.disk_ms * 1000), synced)

    def received(self, peer: str, message: LeaseMessage, reply: Callable[[LeaseMessage], None]) -> None:
        region = region_of(peer)
        match message:
            case LeaseAsk():
                self.world.named += len(message.items)
                self.leases.others_asked(region, message, self.now_ms())
                self.voter.asked(message, reply, self.now_ms())
            case LeaseRenewal():
                self.voter.renew(message, reply, self.now_ms())
            case LeaseRenewed():
                self.leases.renewed(region, message, self.now_ms(), peer)
                self.world.renewed += 1
                for stream in self.world.streams:
                    self.world.check(stream)
            case LeaseRelease():
                self.voter.released(message)
                self.leases.freed(message, self.now_ms())
            case LeaseAnswer():
                self.leases.answered(region, message, self.now_ms(), peer)
                for item in message.items:
                    self.world.check(item.stream)
                if any(item.reason in (OTHER_VOTERS, NOT_SERVED) for item in message.items):
                    self.reconfiguration.tell(region, {SUBJECT})
            case VotersAsk():
                self.reconfiguration.asked(message, reply)
            case VotersAnswer():
                self.reconfiguration.answered(region, message)
                for stream in self.world.streams:
                    self.world.check(stream)


class LeaseWorld:
    """Nodes, links and disks, in true microseconds."""

    def __init__(
        self,
        names: list[str],
        seed: int,
        *,
        delay_ms: int = 50,
        loss: float = 0.0,
        twice: float = 0.0,
        disk_ms: int = 20,
        times: LeaseTimes = TIMES,
    ) -> None:
        self.random = Random(seed)
        self.now_us = 0
        self.delay_ms, self.loss, self.twice = delay_ms, loss, twice
        self.disk_ms, self.times = disk_ms, times
        self.names = names
        self.cuts: set[frozenset[str]] = set()
        self.wins: dict[Stream, int] = {}
        self.renewed = self.named = 0
        """Number of answers to renewals without names, and of streams that were asked for by name."""
        self.old: set[str] = set()
        """Nodes that renew by name only."""
        self.streams: list[Stream] = [("t", "s", name) for name in names]
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._counter = 0
        self.skews_ms = {name: self.random.choice([0, 5000, 20000]) for name in names}
        self.nodes: dict[str, LeaseNode] = {}
        self.make_nodes()

    def make_nodes(self) -> None:
        for name in self.names:
            self.nodes[name] = LeaseNode(self, name, *self.clock())

    def clock(self) -> tuple[float, int]:
        """The rate of a node's clock, and its time at the beginning."""
        return self.random.choice([1 - CLOCK_RATE, 1 + CLOCK_RATE, 1.0]), self.random.randrange(10**9)

    def stamp(self, name: str, after: Stamp) -> Stamp:
        """A stamp by a clock that is wrong."""
        now = Stamp(1000 + self.now_us // 1000 + self.skews_ms[region_of(name)], 0, name)
        return now if now > after else Stamp(after.time_ms, after.counter + 1, name)

    def is_open(self, one: str, other: str) -> bool:
        return frozenset((one, other)) not in self.cuts and self.nodes[other].alive

    def after_us(self, delay_us: int, work: Callable[[], None]) -> None:
        self._counter += 1
        heappush(self._events, (self.now_us + max(delay_us, 1), self._counter, work))

    def send(self, source: LeaseNode, target: str, message: LeaseMessage) -> None:
        node = self.nodes.get(target)
        if node is None:
            return
        if target != source.name and (not self.is_open(source.name, target) or self.random.random() < self.loss):
            return
        for _ in range(2 if self.random.random() < self.twice else 1):
            self.after_us(self.random.randrange(self.delay_ms * 1000), self._arrival(source, node, message))

    def _arrival(self, source: LeaseNode, node: LeaseNode, message: LeaseMessage) -> Callable[[], None]:
        source_run, run = source.run, node.run

        def reply(answer: LeaseMessage) -> None:
            if source.alive and source.run == source_run:
                self.send(node, source.name, answer)

        def arrive() -> None:
            if node.alive and node.run == run:
                node.do(lambda: node.received(source.name, message, reply))

        return arrive

    def run_ms(self, milliseconds: int) -> None:
        end = self.now_us + milliseconds * 1000
        while self._events and self._events[0][0] <= end:
            self.now_us, _, work = heappop(self._events)
            work()
        self.now_us = end

    def repair(self) -> None:
        """From now on, links and disks work, and every node runs."""
        self.cuts.clear()
        self.loss = self.twice = 0.0
        self.delay_ms, self.disk_ms = 20, 5
        for node in self.nodes.values():
            if not node.alive:
                node.start()
            node.resume()

    def happens(self, kind: str, one: str, other: str, stream: Stream) -> None:
        """One step of a story, which happens to node ``one`` if it is possible there."""
        node = self.nodes[one]
        if kind == "want":
            node.want(stream)
        elif kind == "unwant":
            node.unwant(stream)
        elif kind == "crash":
            node.crash()
        elif kind == "start" and not node.alive:
            node.start()
        elif kind == "pause":
            node.paused = True
        elif kind == "resume" and node.alive:
            node.resume()
        elif kind == "cut" and one != other:
            self.cuts.add(frozenset((one, other)))
        elif kind == "heal":
            self.cuts = {pair for pair in self.cuts if one not in pair}
        elif kind == "isolate":
            self.cuts |= {frozenset((one, name)) for name in self.names if name != one}

    def holders(self, stream: Stream) -> list[str]:
        return [node.name for node in self.nodes.values() if node.holds(stream)]

    def check(self, stream: Stream) -> None:
        holders = self.holders(stream)
        assert len(holders) <= 1, f"at {self.now_us} us, {holders} hold {stream} at once"
        for node in self.nodes.values():
            request = node.leases.requests.get(stream) if node.alive else None
            for voter, asked_ms in request.asked_ms.items() if request is not None else ():
                assert request is not None
                believed_us = node.true_us(asked_ms + node.leases.times.usable)
                if believed_us > self.now_us:
                    self.check_promise(node, request, voter, believed_us)

    def check_promise(self, node: LeaseNode, request: LeaseRequest, name: str, believed_us: float) -> None:
        """A voter knows each promise that a holder counts on, and keeps it at least as long."""
        voter = self.nodes[name]
        if not voter.alive:
            return
        what = f"at {self.now_us} us {node.leases.holder} believes that {voter.name} promised {request.stream}"
        vote = voter.voter.votes.get(request.stream)
        assert vote is not None, what
        assert vote.holder == node.leases.holder, f"{what}: {vote}"
        assert vote.term <= request.term, f"{what}: {vote}"
        assert believed_us <= voter.true_us(vote.until_ms), f"{what} for longer: {vote}"
