# SPDX-License-Identifier: Apache-2.0
"""The exchange between regions with several brokers: each topic's owners find each other, and follow the topic."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from functools import partial

import pytest
from meridian_broker.bounds.regions import OWNERS_TEXT, REGION_BROKERS
from meridian_broker.ledgers.store import Done
from meridian_broker.ownership.bundles import LAST, place_of
from meridian_broker.positions import ZERO, Position, Progress
from meridian_broker.replication.peers import peer_name, region_of
from meridian_broker.replication.progress import codec, routes
from meridian_broker.replication.progress.exchange import ProgressExchange
from meridian_broker.replication.progress.messages import (
    Delta,
    DeltaAck,
    ExchangeLimits,
    Hello,
    NamespaceOwners,
    Owners,
    PeerMessage,
    RemoteBroker,
)
from meridian_broker.replication.progress.waits import BarrierResult
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.frames import Command, FrameDecoder

Merged = Callable[[str | None], None]
NAMESPACE = "public/default"
MIDDLE = 1 << 31
STEP_MS = 1


def named(is_upper: bool) -> str:
    """A topic in the upper or lower of the namespace's two bundles."""
    names = (f"persistent://{NAMESPACE}/t{number}" for number in range(100))
    return next(name for name in names if (place_of(topic_name.parse(name)) >= MIDDLE) is is_upper)


LOWER, UPPER = named(False), named(True)


class Broker:
    """One broker: the exchange's host. Its changes are durable at once in the log that its region's brokers share."""

    def __init__(self, world: World, region: str, broker: str) -> None:
        self.world = world
        self.region = region
        self.broker = broker
        self.name = peer_name(region, broker)
        self.is_alive = True
        self.owned: set[str] = set()
        self.exchange = ProgressExchange(self, broker=broker)
        self.exchange.divided.open_link = lambda peer: world.later(partial(world.link, self, peer))
        for other in world.regions:
            self.exchange.add_peer(other)

    @property
    def log(self) -> dict[tuple[str, str], Progress]:
        return self.world.logs[self.region]

    def is_served(self, topic: str) -> bool:
        return topic in self.owned

    def owns(self, topic: str) -> bool:
        return topic in self.owned

    def open_soon(self, topic: str) -> None:
        raise AssertionError(f"{topic} is open where it is owned")

    def progress(self, topic: str, subscription: str) -> Progress | None:
        return self.log.get((topic, subscription)) if topic in self.owned else None

    def record(self, topic: str, subscription: str) -> bytes | None:
        return None if self.progress(topic, subscription) is None else b"r"

    def incarnation(self, topic: str) -> str:
        return ""

    def open_topics(self) -> Collection[str]:
        return self.owned

    def is_replicated(self, topic: str) -> bool:
        return bool(self.replicated_in(topic))

    def replicated_in(self, topic: str) -> Iterable[str]:
        return [name for other, name in self.log if other == topic and topic in self.owned]

    def regions_of(self, topic: str) -> frozenset[str]:
        return frozenset(self.world.regions)

    def when_durable(self, topic: str, done: Done) -> None:
        done(None)

    def merge(  # the host's port in this world
        self, topic: str, subscription: str, _incarnation: str, delta: Progress, _record: bytes | None, done: Merged
    ) -> None:
        self.log.setdefault((topic, subscription), Progress()).join(delta)
        done(None)

    def ack(self, topic: str, entry: int) -> None:
        """Acknowledge the entry of this number, with all before it."""
        delta = Progress()
        delta.ack(ZERO, self.region, Position(-1, -1) if not entry else Position(1, entry - 1), Position(1, entry))
        self.log.setdefault((topic, "s"), Progress()).join(delta)
        self.exchange.local_ack(topic, "s", delta, self.world.now_ms, lambda done: done(None))

    def barrier(self, topic: str) -> list[BarrierResult]:
        """Its result, once it has ended."""
        found: list[BarrierResult] = []
        self.exchange.barrier(topic, "s", self.world.now_ms, found.append)
        return found


class World:
    """Brokers of two regions, and links on which every message is encoded and decoded."""

    def __init__(self, us: Collection[str], eu: Collection[str]) -> None:
        self.now_ms = 1_000_000
        self.regions = ("us", "eu")
        self.logs: dict[str, dict[tuple[str, str], Progress]] = {"us": {}, "eu": {}}
        self.sent: Counter[tuple[str, str, type[PeerMessage]]] = Counter()
        self.slow: set[str] = set()
        """Brokers that no link can reach."""
        self._queue: deque[Callable[[], None]] = deque()
        self._followers: list[tuple[Broker, Callable[[PeerMessage], None]]] = []
        self.brokers: dict[str, Broker] = {}
        for region, ids in (("us", us), ("eu", eu)):
            for broker in ids:
                made = Broker(self, region, broker)
                self.brokers[made.name] = made
        for region, ids in (("us", us), ("eu", eu)):
            names = sorted(ids)
            self.give(LOWER, self.brokers[peer_name(region, names[0])])
            self.give(UPPER, self.brokers[peer_name(region, names[-1])])

    def later(self, action: Callable[[], None]) -> None:
        self._queue.append(action)

    def of(self, region: str) -> list[Broker]:
        return [one for one in self.brokers.values() if one.region == region]

    def owner(self, region: str, topic: str) -> Broker:
        return next(one for one in self.of(region) if topic in one.owned)

    def give(self, topic: str, broker: Broker) -> None:
        """This broker owns the topic from now on; nobody is told."""
        for one in self.of(broker.region):
            one.owned.discard(topic)
        broker.owned.add(topic)

    def start(self) -> None:
        for broker in self.brokers.values():
            self.link(broker, "eu" if broker.region == "us" else "us")
        self.run(100)

    def link(self, broker: Broker, peer: str) -> None:
        """From a broker to a peer, or to any broker of a region."""
        target = self.brokers.get(peer) or self.of(region_of(peer))[0]
        if target.name in self.slow or not target.is_alive:
            return
        is_introduced = False

        def reply(message: PeerMessage) -> None:
            self._put(target, broker, lambda read: broker.exchange.received(peer, read, send, self.now_ms), message)

        def send(message: PeerMessage) -> None:
            nonlocal is_introduced
            if isinstance(message, Hello) and message.asks_owners and target.broker:
                self.later(partial(self._follow, target, reply))
                return
            if not is_introduced:
                is_introduced = True
                self.later(partial(target.exchange.divided.arrived, broker.name))
            self._put(
                *(broker, target),
                lambda read: target.exchange.received(broker.name, read, reply, self.now_ms),
                message,
            )

        broker.exchange.connected(peer, send, self.now_ms)

    def _follow(self, target: Broker, reply: Callable[[PeerMessage], None]) -> None:
        reply(target.exchange.greeting())
        reply(self.owners(target.region, is_whole=True))
        self._followers.append((target, reply))

    def tell(self, region: str) -> None:
        """Tell the region's current owners on all links that ask for them."""
        for target, reply in self._followers:
            if target.region == region:
                reply(self.owners(region))

    def owners(self, region: str, *, is_whole: bool = False) -> Owners:
        alive = [one for one in self.of(region) if one.is_alive]
        found = [next((one.broker for one in alive if topic in one.owned), "") for topic in (LOWER, UPPER)]
        told = NamespaceOwners(NAMESPACE, (0, MIDDLE, LAST), tuple(found))
        brokers = tuple(RemoteBroker(one.broker, f"pulsar://{one.broker}", "") for one in alive)
        return Owners(brokers, (told,), is_whole, is_whole)

    def _put(self, source: Broker, target: Broker, arrive: Callable[[PeerMessage], None], message: PeerMessage) -> None:
        self.sent[source.name, target.name, type(message)] += 1
        (command,) = FrameDecoder().feed(codec.encode(message))
        assert isinstance(command, Command)
        read = codec.decode(command.type, command.message)
        self.later(lambda: arrive(read) if source.is_alive and target.is_alive else None)

    def run(self, for_ms: int) -> None:
        for _ in range(for_ms // STEP_MS):
            while self._queue:
                self._queue.popleft()()
                for broker in self.brokers.values():
                    due = broker.exchange.next_deadline()
                    if due is not None and due <= self.now_ms:
                        broker.exchange.tick(self.now_ms)
            self.now_ms += STEP_MS
            for broker in self.brokers.values():
                broker.exchange.tick(self.now_ms)

    def deltas(self) -> set[tuple[str, str]]:
        """Sender and receiver of each delta."""
        return {(source, target) for source, target, kind in self.sent if kind is Delta}

    def assert_same(self, topic: str) -> None:
        assert self.logs["us"][topic, "s"] == self.logs["eu"][topic, "s"]


@pytest.mark.parametrize(("us", "eu"), [("ab", "cd"), ("ab", [""]), ([""], "cd")])
def test_acknowledgements_are_sent_from_owner_to_owner(us: Collection[str], eu: Collection[str]) -> None:
    world = World(us, eu)
    world.start()
    for topic in (LOWER, UPPER):
        world.owner("us", topic).ack(topic, 0)
        world.owner("eu", topic).ack(topic, 0)
    world.run(100)
    pairs = {(world.owner("us", topic).name, world.owner("eu", topic).name) for topic in (LOWER, UPPER)}
    assert world.deltas() == pairs | {(eu, us) for us, eu in pairs}
    for topic in (LOWER, UPPER):
        world.assert_same(topic)


def test_only_brokers_that_share_topics_have_links() -> None:
    world = World("ab", "cd")
    world.start()
    linked = {(source, target) for source, target, kind in world.sent if kind is Hello}
    # The second set: the answers of brokers that were asked for owners.
    assert linked == {("us/a", "eu/c"), ("us/b", "eu/d"), ("eu/c", "us/a"), ("eu/d", "us/b")} | {
        (target, source)
        for target in ("us/a", "eu/c")
        for source in ("us/a", "us/b", "eu/c", "eu/d")
        if region_of(source) != region_of(target)
    }


def test_a_topic_that_moves_is_compared_at_once_and_followed() -> None:
    world = World("ab", "cd")
    world.start()
    c, d = world.brokers["eu/c"], world.brokers["eu/d"]
    world.owner("us", LOWER).ack(LOWER, 0)
    world.run(50)
    world.give(LOWER, d)
    world.owner("us", LOWER).ack(LOWER, 1)  # to the earlier owner, which refuses it
    world.run(50)
    assert world.sent["us/a", "eu/c", Delta] == 2
    assert world.logs["us"][LOWER, "s"] != world.logs["eu"][LOWER, "s"]
    world.tell("eu")
    world.run(100)
    world.assert_same(LOWER)
    assert c.exchange.counters.refused_here == 1
    found = d.barrier(LOWER)
    world.run(200)
    assert [result.complete for result in found] == [True]
    world.sent.clear()
    world.owner("us", LOWER).ack(LOWER, 2)
    d.ack(LOWER, 0)
    world.run(50)
    assert world.deltas() == {("us/a", "eu/d"), ("eu/d", "us/a")}
    world.assert_same(LOWER)


def test_what_a_region_lacks_is_counted_until_the_next_owner_has_it() -> None:
    world = World("ab", "cd")
    world.start()
    a, c, d = (world.brokers[name] for name in ("us/a", "eu/c", "eu/d"))
    a.ack(LOWER, 0)
    world.run(50)
    c.owned.clear()
    a.ack(LOWER, 1)  # refused
    world.run(20)
    world.tell("eu")
    world.run(20)
    a.ack(LOWER, 2)  # to nobody
    (status,) = a.exchange.status(LOWER, "s", world.now_ms)
    assert status.lag_entries == 0 and status.lag_ms > 0
    assert (LOWER, "eu") in a.exchange.lags(world.now_ms)
    d.owned.add(LOWER)
    world.tell("eu")
    world.run(6000)
    world.assert_same(LOWER)
    assert a.exchange.lags(world.now_ms) == {}
    world.run(11000)
    assert a.exchange.apart(world.now_ms) == {"eu": {}}


def test_a_new_owner_without_a_link_pulls_what_it_lacks_before_it_dispatches() -> None:
    world = World("ab", "cd")
    world.start()
    a, b = world.brokers["us/a"], world.brokers["us/b"]
    a.ack(LOWER, 0)
    world.run(50)
    world.brokers["eu/c"].exchange.disconnected("us/a", world.now_ms)
    world.brokers["eu/c"].ack(LOWER, 0)  # us is not told
    world.slow = {"eu/c"}
    world.give(LOWER, b)
    found = b.barrier(LOWER)
    world.run(400)
    assert not found, "dispatch waits for the link"
    world.slow.clear()
    world.link(b, "eu/c")
    world.run(200)
    assert [result.complete for result in found] == [True]
    world.assert_same(LOWER)


def test_a_barrier_does_not_wait_for_an_unreachable_broker() -> None:
    world = World("ab", "cd")
    world.start()
    b = world.brokers["us/b"]
    world.slow = {"eu/c"}
    world.give(LOWER, b)
    found = b.barrier(LOWER)
    world.run(50)
    b.exchange.unreachable("eu/c")
    world.run(200)
    assert [result.missing for result in found] == [{"eu": "LinkDown"}]


def test_an_earlier_owner_does_not_answer_a_barrier() -> None:
    world = World("ab", "cd")
    world.start()
    a, d = world.brokers["us/a"], world.brokers["eu/d"]
    a.ack(LOWER, 0)
    world.run(50)
    world.give(LOWER, d)
    found = a.barrier(LOWER)  # eu has not said yet that d owns it now
    world.run(1000)
    assert not found
    world.tell("eu")
    world.run(300)
    assert [result.complete for result in found] == [True]


def test_nothing_waits_for_a_topic_without_an_owner_for_long() -> None:
    world = World("ab", "cd")
    world.start()
    world.brokers["eu/c"].owned.clear()
    world.tell("eu")
    world.run(10)
    found = world.brokers["us/a"].barrier(LOWER)
    world.run(2000)
    assert not found
    (status,) = world.brokers["us/a"].exchange.status(LOWER, "s", world.now_ms)
    assert (status.region, status.connected) == ("eu", False)
    world.run(5000)
    assert [set(result.missing) for result in found] == [{"eu"}]


def test_a_region_reduced_to_one_broker_is_one_peer_again() -> None:
    world = World("ab", "cd")
    world.start()
    a = world.brokers["us/a"]
    a.ack(LOWER, 0)
    world.run(50)
    ended: list[str] = []
    a.exchange.divided.close_link = ended.append
    alone = Broker(world, "eu", "")
    world.brokers = {one.name: one for one in world.of("us")} | {"eu": alone}
    alone.owned = {LOWER, UPPER}
    for broker in world.of("us"):
        world.link(broker, "eu")
    world.link(alone, "us")
    world.run(50)
    assert ended == ["eu/c"]
    a.ack(LOWER, 1)
    alone.ack(UPPER, 0)
    world.run(100)
    assert {("us/a", "eu"), ("eu", "us/b")} <= world.deltas()
    world.assert_same(LOWER)
    world.assert_same(UPPER)


def test_one_of_several_brokers_sends_nothing_to_a_version_that_knows_only_one() -> None:
    world = World("ab", [""])
    a, sent = world.brokers["us/a"], list[PeerMessage]()
    a.exchange.connected("eu", sent.append, world.now_ms)
    a.exchange.received("eu", Hello(4, "eu", 1, answer=True), sent.append, world.now_ms)
    a.ack(LOWER, 0)
    a.exchange.received("eu", Delta(1, ()), sent.append, world.now_ms)
    world.run(20)
    assert [type(message) for message in sent] == [Hello]
    assert "upgrade eu" in a.exchange.apart(world.now_ms)["eu"][""]
    assert DeltaAck not in {type(message) for message in sent}


def test_another_broker_at_the_address_of_an_owner_gets_nothing() -> None:
    world = World("ab", "cd")
    world.start()
    a, sent = world.brokers["us/a"], list[PeerMessage]()
    a.exchange.connected("eu/c", sent.append, world.now_ms)
    a.exchange.received("eu/c", Hello(5, "eu", 1, answer=True, broker="x"), sent.append, world.now_ms)
    a.ack(LOWER, 0)
    a.exchange.tick(world.now_ms)
    assert [type(message) for message in sent] == [Hello]


@pytest.mark.parametrize("is_listed_again", [True, False])
def test_a_peer_with_a_link_to_us_is_heard_whatever_the_directory_says(is_listed_again: bool) -> None:
    """The directory comes from another broker of its region, which may not know yet that this one has started."""
    world = World("ab", [""])
    world.start()
    eu, a = world.brokers["eu"], world.owner("us", LOWER)
    (told,) = world.owners("us").namespaces
    without = Owners((RemoteBroker("b", "pulsar://b", ""),), (told._replace(owners=("", "b")),))
    eu.exchange.received("us", without, lambda _: None, world.now_ms)
    world.run(20)
    if is_listed_again:
        world.tell("us")
    a.ack(LOWER, 0)
    world.run(50)
    world.assert_same(LOWER)
    found = a.barrier(LOWER)
    world.run(50)
    assert [result.missing for result in found] == [{}]


def test_a_departed_peer_is_removed_with_its_link() -> None:
    world = World("ab", [""])
    world.start()
    eu = world.brokers["eu"]
    world.brokers["us/a"].is_alive = False
    eu.exchange.received("us", world.owners("us"), lambda _: None, world.now_ms)
    assert "us/a" in eu.exchange._peers, "its link to us is open"
    eu.exchange.divided.hung_up("us/a")
    assert "us/a" not in eu.exchange._peers
    eu.exchange.divided.hung_up("us/b")
    assert "us/b" in eu.exchange._peers


def test_a_region_with_more_brokers_than_allowed_peers_harms_nobody() -> None:
    world = World("ab", [""])
    world.start()
    eu = world.brokers["eu"]
    count = ExchangeLimits().brokers
    for number in range(count + 1):
        eu.exchange.divided.arrived(f"us/x{number}")
    brokers = tuple(RemoteBroker(f"y{number}", "pulsar://y", "") for number in range(count))
    borders = (*(number << 22 for number in range(count)), LAST)
    owners = tuple(one.broker for one in brokers)
    told = Owners(brokers, (NamespaceOwners(NAMESPACE, borders, owners),), is_first=True, is_last=True)
    eu.exchange.received("us", codec_and_back(told), lambda _: None, world.now_ms)
    for topic in (LOWER, UPPER):
        eu.ack(topic, 0)
    assert len(eu.exchange._peers) <= count + 2
    world.run(100)


def codec_and_back(message: PeerMessage) -> PeerMessage:
    (command,) = FrameDecoder().feed(codec.encode(message))
    assert isinstance(command, Command)
    return codec.decode(command.type, command.message)


def test_a_directory_is_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "DIRECTORY_NAMESPACES", 10)
    monkeypatch.setattr(routes, "DIRECTORY_BUNDLES", 15)
    found = routes.Routes(lambda _: frozenset(("us", "eu")), lambda _: None)
    found.divide("us")
    brokers = (RemoteBroker("a", "", ""),)

    def tell(first: int, last: int, owners: tuple[str, ...] = ("a",), *, is_whole: bool = False) -> None:
        borders = (*(number << 20 for number in range(len(owners))), *((LAST,) if owners else ()))
        told = tuple(NamespaceOwners(f"public/n{number}", borders, owners) for number in range(first, last))
        found.take("us", Owners(brokers, told, is_whole, is_whole))

    tell(0, 12, is_whole=True)
    namespaces = found._directories["us"].namespaces
    assert len(namespaces) == 10
    tell(0, 3, ())
    tell(12, 20, ("a",) * 3)
    assert len(namespaces) == 9 and found._directories["us"].bundles == 13
    tell(12, 14, ("a",))
    assert (len(namespaces), found._directories["us"].bundles) == (9, 9)


@pytest.mark.parametrize(
    "brokers",
    [
        [RemoteBroker("a", "", ""), RemoteBroker("a", "x", "")],
        [RemoteBroker("a/b", "", "")],
        [RemoteBroker("", "", "")],
        [RemoteBroker("a" * (OWNERS_TEXT + 1), "", "")],
        [RemoteBroker("a", "x" * (OWNERS_TEXT + 1), "")],
        [RemoteBroker(f"b{number}", "", "") for number in range(REGION_BROKERS + 1)],
    ],
)
def test_an_invalid_directory_is_refused(brokers: list[RemoteBroker]) -> None:
    with pytest.raises(codec.PeerFormatError):
        codec_and_back(Owners(tuple(brokers), (), is_first=True, is_last=True))
