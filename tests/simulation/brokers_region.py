# SPDX-License-Identifier: Apache-2.0
"""A region of several brokers: they share its ledgers and its metadata, and own its topics by leases.

All of ownership is real: bundles, terms, acquisitions, placement, and what closes and drops topics. Its store is
simulated, and so is the *truth* against which everything is checked: the owners' records as the store has them at this
moment, which no broker can see. A broker may know less, but must not act on that: after its lease ends it delivers
nothing, unless it was suspended and has only just resumed, and before that nobody else owns its bundles.

Clients find the owner by lookups: they ask any broker, which answers or names another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from meridian_broker.gateway.known_owners import KnownOwners
from meridian_broker.metadata.store import MetadataError
from meridian_broker.ownership import paths
from meridian_broker.ownership.bundles import Bundle, place_of
from meridian_broker.ownership.owner import BundleOwner, Found, NotServing
from meridian_broker.ownership.records import BrokerRecord, OwnerRecord
from meridian_broker.ownership.transactions import BundleTransactions, newest_fence
from meridian_broker.topics.service import closing
from meridian_broker.topics.service.owned_topics import OwnedTopics
from meridian_broker.wire.pulsar import topic_name
from simulation.bookie_volume import BookieVolume
from simulation.broker import RESTART_US, SimBroker, SimRegion
from simulation.engine_disks import EngineStore
from simulation.loop import Lock
from simulation.metadata import MetadataVolume
from simulation.names import full_name
from simulation.network import PATIENCE_US
from simulation.owners_feed import SimFeed
from simulation.simulated_bookies import Site

if TYPE_CHECKING:
    from meridian_broker.metadata.catalog import Catalog
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.ports import Ownership
    from simulation.loop import Owner
    from simulation.stage import AnyVolume, Broker, Stage

LEASE_SECONDS: Final = 10.0
BUNDLES: Final = 2
"""Bundles of a new namespace: few, so that topics share a bundle until it is split."""
NAMESPACE: Final = "public/default"
OWNERS: Final = f"{paths.OWNERS}{NAMESPACE}/"
ONLY_BROKER: Final = "broker-0"
"""Name under which a region with one broker counts its epochs."""
STEADY_US: Final = 5_000_000
"""This long after a bundle got an owner, every broker must know it."""
LOOK_UP_US: Final = 2_000_000
"""How long a client waits for the answer to a lookup."""
REDIRECTS: Final = 5
"""How many brokers a client asks in one lookup."""


class PlannedMoves(OwnedTopics):
    """Checks that acknowledgements from before a bundle's graceful release are durable afterwards."""

    def __init__(self, broker: OwningBroker) -> None:
        super().__init__(broker.owner)
        self._broker = broker

    async def close(self, bundle: Bundle) -> None:
        topics = [topic for topic in self._broker.service.topics if place_of(topic_name.parse(topic)) in bundle]
        short = {topic.rpartition("/")[2] for topic in topics}
        stopped, term = self._broker.world.model.stopping(self._broker, short), self.owner._holding.terms.held(bundle)
        await super().close(bundle)
        if self.owner._holding.terms.held(bundle) is term:  # otherwise the term ended meanwhile, which was not planned
            stopped()


class OwningBroker(SimBroker):
    """One run of a broker that shares its region with others."""

    home: BrokersRegion
    owner: BundleOwner
    session = ""
    """The session of its present or latest lease."""
    is_leaving = False
    """Whether it drains, and will exit."""
    resumed_us = -1
    """When it was last resumed."""

    def __init__(self, world: Stage, home: BrokersRegion, name: str) -> None:
        super().__init__(world, home, name)

    def delivers(self, topic: str) -> bool:
        if self.home.broker_of(topic) is self:
            return True
        if self.world.loop.now_us > self.resumed_us:
            self.world.model.violate("served by a broker that does not own it", f"{self.name} delivers {topic}")
        return False

    async def _rank(self, catalog: Catalog) -> int:
        await catalog.refresh()
        return await catalog.next_broker_epoch(self.name, above=await newest_fence(self.metadata))

    def _ownership(self, catalog: Catalog, _fence: int) -> Ownership:
        floor = partial(catalog.newest_broker_epoch, ONLY_BROKER)
        transactions = BundleTransactions(self.metadata, self.name, lambda _: BUNDLES, floor)
        self.owner = BundleOwner(self.metadata, self.scheduler, transactions, self._described, Lock(), LEASE_SECONDS)
        self._moves = PlannedMoves(self)
        self._catalog = catalog
        return self._moves

    def _described(self, lease: str, draining: bool) -> BrokerRecord:
        self.session = f"{self.name}#{lease}"
        return BrokerRecord(self.name, self.session, draining=draining)

    def _built(self) -> None:
        self._moves.bind(self.service.opener)
        self.exchange.feed = SimFeed(KnownOwners(self.owner), self)
        self.owner.on_seen = self.exchange.feed.changed

    async def _join(self, catalog: Catalog) -> None:
        try:
            await self.owner.start()
            await catalog.next_broker_epoch(ONLY_BROKER)
        except MetadataError:  # the process ends, and its supervisor restarts it
            self.home.kill(self.name)
            self.world.loop.after(RESTART_US, None, lambda: self.home.start_one(self.name))
            raise
        self.spawn(catalog.run(), "follow the metadata")
        self.spawn(self._moves.follow_shadows(), "follow the shadows")

    async def _look(self) -> None:
        """As ``OneOfSeveral.balance``."""
        try:
            await self.owner.bundles(NAMESPACE)
            await self.owner.release_strays()
            await self.owner.take_vacant()
            if (move := self.owner.next_move({})) is not None:
                await self.owner.give_up(*move)
        except MetadataError:
            return

    async def drain(self) -> None:
        """Drain like ``MeridianBroker.drain``, and exit."""
        await self.owner.leave()
        await closing.send_consumers_away(self.service.registry)
        await self.owner.close()
        await closing.close(self.service.opener)
        self.home.kill(self.name)


class BrokersRegion(SimRegion):
    """See the module's text."""

    is_apart = False

    def __init__(self, world: Stage, name: str, brokers: int) -> None:
        super().__init__(world, name)
        self.brokers: dict[str, OwningBroker | None] = {f"b{number}": None for number in range(1, brokers + 1)}
        """The latest run of each broker."""
        self._fences: dict[int, tuple[str, Bundle]] = {}
        self._owners: dict[Bundle, OwnerRecord] = {}
        self._owners_of = -1
        self._moved_us = 0
        self._turn = 0

    # -- the truth

    def _owner_records(self) -> dict[Bundle, OwnerRecord]:
        if self._owners_of != self.metadata.changes:
            self._owners_of = self.metadata.changes
            self._owners = {
                bundle: OwnerRecord.decode(path, record.value)
                for path, record in self.metadata.records.items()
                if path.startswith(OWNERS) and (bundle := paths.bundle_of(path)) is not None
            }
        return self._owners

    def broker_of(self, topic: str) -> OwningBroker | None:
        """The owner according to the store. Without a topic: any broker."""
        if not topic:
            return next((one for one in self.everyone() if one.ready), None)
        place = place_of(topic_name.parse(full_name(topic.rpartition("/")[2])))
        record = next((one for bundle, one in self._owner_records().items() if place in bundle), None)
        broker = None if record is None else self.brokers.get(record.broker)
        if record is None or broker is None or not broker.alive or not broker.ready:
            return None
        return broker if broker.session == record.session else None

    @property
    def is_steady(self) -> bool:
        loop = self.world.loop
        return loop.now_us - self._moved_us >= STEADY_US and all(
            one is not None and one.alive and one.ready and not one.metadata.is_cut_off and not loop.is_suspended(one)
            for one in self.brokers.values()
        )

    def serves(self, broker: Broker, topic: str) -> bool:
        return self.broker_of(topic) is broker

    def reached(self, broker: str) -> OwningBroker | None:
        up = [one for one in self.everyone() if one.ready and not self.world.loop.is_suspended(one)]
        if broker:
            return next((one for one in up if one.name == broker), None)
        self._turn += 1
        return up[self._turn % len(up)] if up else None

    def trimmers(self) -> list[OwningBroker]:  # type: ignore[override]
        return [one for one in self.everyone() if one.ready]

    def shown_owners(self) -> list[str]:
        """Each bundle with its owner."""
        return [f"{bundle.range} {record.broker}" for bundle, record in sorted(self._owner_records().items())]

    def written(self, path: str, value: bytes) -> None:
        super().written(path, value)
        if isinstance(self.volume, BookieVolume):
            self.volume.written(path, value)
        bundle = paths.bundle_of(path) if path.startswith(OWNERS) else None
        if bundle is not None:
            self._moved_us = self.world.loop.now_us
            self._check_term(bundle, OwnerRecord.decode(path, value))

    def _check_term(self, bundle: Bundle, owner: OwnerRecord) -> None:
        """Check that no two brokers own the same topic, and each term has its own fence, shared by its parts."""
        violate = self.world.model.violate
        others = [paths.bundle_of(path) for path in self.metadata.records if path.startswith(OWNERS)]
        for other in others:
            if other is not None and other != bundle and other.lower < bundle.upper and bundle.lower < other.upper:
                violate("two owners", f"{owner.broker} owns {bundle.range}, but {other.range} has an owner, too")
        session, whole = self._fences.setdefault(owner.fence, (owner.session, bundle))
        is_part = session == owner.session and whole.lower <= bundle.lower and bundle.upper <= whole.upper
        earlier = [
            fence for fence, (_, one) in self._fences.items() if one.lower < whole.upper and whole.lower < one.upper
        ]
        if not is_part or (bundle == whole and owner.fence < max(earlier)):
            violate("a fence was used twice", f"{owner.fence} by {owner.session}, and before by {session}")

    def taker(self, topic: TopicContext) -> OwningBroker | None:
        return next((one for one in self.everyone() if one.ready and one.service.topics.get(topic.name) is topic), None)

    def everyone(self) -> list[OwningBroker]:  # type: ignore[override]
        return [one for one in self.brokers.values() if one is not None and one.alive]

    def empty(self) -> tuple[AnyVolume, MetadataVolume, int]:
        if not self.world.bookies:
            return super().empty()
        metadata, world = MetadataVolume(), self.world
        site = Site(
            *(self.name, world.loop, metadata, lambda: world.weather.delay_us(self.name, self.name)),
            *(self.sync_us, lambda: self.faults, lambda kind, what: world.model.violate(kind, what)),
        )
        return BookieVolume(site, world.bookies), metadata, -1

    # -- what happens to its brokers

    def start(self) -> None:
        for name in self.brokers:
            self.start_one(name)

    def start_one(self, name: str) -> None:
        before = self.brokers[name]
        if before is None or not before.alive:
            self.lives += 1
            broker = self.brokers[name] = OwningBroker(self.world, self, name)
            self.world.loop.spawn(broker, broker.start(), f"start {name}")

    def running(self, name: str) -> OwningBroker | None:
        """A broker that runs, suspended or not."""
        broker = self.brokers[name]
        return broker if broker is not None and broker.alive else None

    def kill(self, name: str) -> None:
        """SIGKILL. Writes in flight to the ledgers may have arrived."""
        if (broker := self.running(name)) is not None:
            broker.alive = False
            self.world.loop.resume(broker)
            broker.store.power_cut(self.world.weather.random)
            self.world.network.lost(broker)

    def suspend(self, name: str) -> None:
        """SIGSTOP. Writes in flight to the ledgers may arrive; clients give up after a while."""
        if (broker := self.running(name)) is None:
            return
        random = self.world.weather.random
        assert not isinstance(broker.store, EngineStore)
        broker.store.arrive(random)
        self.world.loop.suspend(broker)

        def give_up() -> None:
            if self.world.loop.is_suspended(broker):
                self.world.network.lost(broker)

        patience_us = PATIENCE_US if random is None else random.randrange(PATIENCE_US)
        self.world.loop.after(patience_us, None, give_up)

    def resume(self, name: str) -> None:
        """SIGCONT."""
        if (broker := self.running(name)) is not None:
            broker.resumed_us = self.world.loop.now_us
            self.world.loop.resume(broker)

    def crash(self, *, silently: bool = False) -> None:
        for name in self.brokers:
            self.kill(name)

    def second(self) -> bool:
        return False

    def repair(self) -> None:
        for name in self.brokers:
            if (broker := self.running(name)) is not None:
                broker.metadata.is_cut_off = False
                self.resume(name)
                if broker.is_leaving:
                    self.kill(name)
            self.start_one(name)

    # -- clients

    def look_up(self, client: Owner, topic: str, then: Callable[[SimBroker | None], None]) -> None:
        up = [one for one in self.everyone() if one.ready]
        if not up:
            then(None)
            return
        self._turn += 1
        LookUp(self, client, topic, then).ask(up[self._turn % len(up)], authoritative=False)


class LookUp:
    """One lookup of a client, which follows redirects."""

    def __init__(
        self, home: BrokersRegion, client: Owner, topic: str, then: Callable[[SimBroker | None], None]
    ) -> None:
        self._home = home
        self._loop = home.world.loop
        self._client = client
        self._topic = topic_name.parse(full_name(topic))
        self._then: Callable[[SimBroker | None], None] | None = then
        self._hops = 0
        self._loop.after(LOOK_UP_US, client, lambda: self._end(None))

    def ask(self, broker: OwningBroker, *, authoritative: bool) -> None:
        self._loop.after(
            self._delay_us(), broker, lambda: broker.spawn(self._locate(broker, authoritative), "look a topic up")
        )

    def _delay_us(self) -> int:
        return self._home.world.weather.delay_us(self._home.name, self._home.name)

    async def _locate(self, broker: OwningBroker, authoritative: bool) -> None:
        try:
            found = await broker.owner.locate(self._topic, authoritative=authoritative)
        except (NotServing, MetadataError):
            self._loop.after(self._delay_us(), self._client, lambda: self._end(None))
            return
        self._loop.after(self._delay_us(), self._client, lambda: self._answered(broker, found))

    def _answered(self, asked: OwningBroker, found: Found) -> None:
        named = self._home.running(found.broker.broker)
        self._hops += 1
        if named is None or not named.ready:
            self._end(None)
        elif named is asked or found.owns or self._hops > REDIRECTS:
            self._end(named)
        elif self._then is not None:
            self.ask(named, authoritative=True)

    def _end(self, broker: SimBroker | None) -> None:
        then, self._then = self._then, None
        if then is not None:
            then(broker)
