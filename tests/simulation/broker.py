# SPDX-License-Identifier: Apache-2.0
"""A broker in the simulator: the real topic service, progress exchange and replicators, on simulated shells.

A ``SimBroker`` is one run of a process. What outlives it (volume, metadata) belongs to its ``SimRegion``. The shells
here take the place of ``gateway/`` in a real broker. Lookups in a region find one broker (``broker_of``; in
``brokers_region.py`` it depends on the topic). Earlier brokers may still run, with their clients and links, and believe
that they own the topics: only fencing keeps them from writing.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from meridian_broker.ledgers.chapters import CacheBudget, LogLimits
from meridian_broker.ledgers.labels import Kind, Label
from meridian_broker.ledgers.periodic import SomeFailed
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata import keys
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.metadata.records import ClusterRecord, decode
from meridian_broker.metadata.rules import Rules
from meridian_broker.metadata.store import MetadataError
from meridian_broker.metadata.topic_records import TopicRecord
from meridian_broker.positions import HybridClock, Position, Stamp
from meridian_broker.replication.leases.manager import LeaseManager
from meridian_broker.replication.progress.exchange import ProgressExchange
from meridian_broker.replication.progress.messages import PROTOCOL_VERSION
from meridian_broker.topics.compaction.compaction import CompactionResources
from meridian_broker.topics.compaction.compactor import CompactionLimits
from meridian_broker.topics.directory.schemas import SchemaRegistry
from meridian_broker.topics.errors import NotAllowed, TopicError, TopicNotFound
from meridian_broker.topics.lifecycle.labels import Labels
from meridian_broker.topics.lifecycle.parts import BrokerParts, OtherRegions
from meridian_broker.topics.lifecycle.unfinished import Unfinished
from meridian_broker.topics.limits import TopicLimits
from meridian_broker.topics.ports import EveryTopic, Ownership
from meridian_broker.topics.service.backfill_rounds import StoredEnds
from meridian_broker.topics.service.cold_encoding import ColdEncoding
from meridian_broker.topics.service.exchange_host import ExchangeHost
from meridian_broker.topics.service.leased_topics import LeasedTopics
from meridian_broker.topics.service.registry import TopicRegistry
from meridian_broker.topics.service.service import TopicService
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.errors import WireError
from simulation.disk_faults import DiskFaults
from simulation.disks import Around, Volume
from simulation.engine_disks import EngineVolume
from simulation.exchange_links import ExchangeLinks
from simulation.loop import Lock, Owner, SimScheduler
from simulation.metadata import MetadataVolume, SimMetadata
from simulation.names import HEARD_US, full_name
from simulation.quotas import QuotaWatch
from simulation.replication_links import ReplicationLinks

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext
    from simulation.stage import AnyVolume, Broker, Stage

WORLD_BEGAN_MS: Final = 1_780_000_000_000
"""Wall-clock time at which a world begins."""
RESTART_US: Final = 1_000_000
"""Delay before a process that failed at its start is restarted."""
REFUSALS: Final = (TopicError, WireError, LedgerError, MetadataError)


def raise_bugs(some: SomeFailed) -> None:
    """A turn that failed for some topics is retried, unless a bug was the reason.

    :raises Exception: the first one that is not a refusal.
    """
    for error in some.failures.values():
        if not isinstance(error, REFUSALS):
            raise error


class NoPartition(TopicNotFound):
    """The topic was deleted, or does not have this partition yet."""


class SimBroker:
    """One run of a broker process."""

    def __init__(self, world: Stage, home: SimRegion, name: str = "") -> None:
        """:param name: of several brokers of a region."""
        self.name = name
        self.world = world
        self.home = home
        self.alive = True
        self.ready = False
        self.sent: dict[tuple[Subscription, Position], frozenset[Stamp]] = {}
        """The rewinds after which entries were sent to consumers."""
        self.version = home.version
        self.restores = home.restores
        """Restores of the region before this run: what an earlier run reported may be lost."""
        self.quotas = QuotaWatch(self)
        self.scheduler = SimScheduler(world.loop, self, home.wall_ms)
        self.metadata = SimMetadata(
            *(self, world.loop, home.metadata, home.metadata_us),
            *(home.written, home.moved, home.taken_back, home.faults),
        )
        self.store = home.volume.start(
            Around(
                loop=world.loop,
                owner=self,
                name=self.name,
                metadata=self.metadata,
                sync_us=home.sync_us,
                on_create=lambda ledger: world.model.ledger_made(home.name, ledger),
                on_delete=home.forget_ledger,
                on_rot=lambda ledger, entry: world.model.damage_read(home, ledger, entry),
                faults=home.faults,
            )
        )
        self.service: TopicService
        self.exchange: ExchangeLinks
        self.replication: ReplicationLinks

    @property
    def region(self) -> str:
        return self.home.name

    def delivers(self, _topic: str) -> bool:
        """Whether what it delivers counts: no later broker of the region has started."""
        return self.home.broker is self

    def mono_ms(self) -> int:
        """A monotonic clock, as the exchange requires."""
        return self.world.loop.now_us // 1000

    async def start(self) -> None:
        """Like ``server.broker``."""
        world, home = self.world, self.home
        clock = HybridClock(self.scheduler.now_ms, home.name)
        catalog = Catalog(self.metadata, clock, self.scheduler.now_ms, self.sleep, world.draw, alone=Lock())
        while True:
            try:
                fence = await self._rank(catalog)
                break
            except MetadataError:
                await self.sleep(1)
        limits, rules = TopicLimits(failover_delay_seconds=0.2), Rules()
        parts = BrokerParts(
            region=home.name,
            catalog=catalog,
            store=self.store,
            scheduler=self.scheduler,
            clock=clock,
            ownership=self._ownership(catalog, fence),
            defaults=lambda: rules,
            topic_limits=limits,
            log_limits=LogLimits(max_entries=world.ledger_entries, max_bytes=1 << 20, tail_bytes=4096),
            cache=CacheBudget(1 << 20),
            new_lock=Lock,
            loading=nullcontext(),
            schemas=SchemaRegistry(catalog, limits, self.scheduler.now_ms),
            labels=Labels(self.store if home.is_apart else None),
            compaction_resources=CompactionResources(self.store, Lock(), CompactionLimits()),
            unfinished=Unfinished(),
        )
        registry = TopicRegistry(parts)
        streams = LeasedTopics(registry, is_one_of_several=not home.is_apart)
        leases = LeaseManager(
            *(streams, f"{home.name}#{fence}", self.mono_ms),
            is_one_of_several=not home.is_apart,
        )
        if home.is_apart:
            streams.witness.bind(leases)
        host, ends = ExchangeHost(registry), StoredEnds(registry)
        core = ProgressExchange(host, leases=leases, ends=ends, broker=self.name)
        self.exchange = ExchangeLinks(self, core)
        self.replication = ReplicationLinks(self)
        regions = OtherRegions(exchange=self.exchange, leasing=leases, replication=self.replication)
        self.service = TopicService(registry, regions, ends, self.exchange, lambda: 0.5)
        host.bind(self.service.opener)
        self._built()
        is_sure = True
        while True:
            try:
                if not is_sure:  # the write may have happened; brokers that watch the store see it
                    await catalog.refresh()
                await catalog.ensure_bootstrap({name: ClusterRecord("http", "", name) for name in world.names})
                await self.service.loading.make_topics()
                await self._join(catalog)
                break
            except MetadataError:
                is_sure = False
                await self.sleep(1)
        self.ready = True
        self.exchange.start()
        self.spawn(self._follow(), "follow the policies")
        self.spawn(self.quotas.run(), "check backlog quotas")
        await self._load()

    async def _rank(self, catalog: Catalog) -> int:
        """The epoch of this run, once the metadata is known. :raises MetadataError: the store is unavailable."""
        volume = self.home.volume
        await catalog.never_below(max(volume.disk.ledgers, default=-1))
        await catalog.refresh()
        return await catalog.next_broker_epoch("broker-0", above=volume.newest_fence())

    def _ownership(self, _catalog: Catalog, fence: int) -> Ownership:
        return EveryTopic(fence)

    def _built(self) -> None:
        """Whether all its parts exist."""

    async def _join(self, _catalog: Catalog) -> None:
        """Serve topics from now on. :raises MetadataError: not now."""

    async def _look(self) -> None:
        """Work done once a second."""

    async def _load(self) -> None:
        try:
            await self.service.loading.load_all()
        except MetadataError:
            return  # the next round retries
        except SomeFailed as some:
            raise_bugs(some)

    async def _follow(self) -> None:
        cooling = ColdEncoding()
        while True:
            await self.sleep(1)
            await self._look()
            await self._load()
            await self.service.policies.follow()
            self.service.backfill_rounds.look()
            cooling.look(self.service.topics)

    async def sleep(self, seconds: float) -> None:
        await self.world.loop.sleep(round(seconds * 1_000_000))

    def topic(self, name: str) -> Topic | None:
        """The open topic, for inspection."""
        if not self.ready:
            return None
        found = self.service.topics.get(full_name(name))
        return None if found is None or found.failure is not None else found

    async def open_topic(self, name: str) -> Topic:
        """Open a topic for a client.

        :raises NoPartition: the topic does not have this partition.
        """
        named = topic_name.parse(full_name(name))
        try:
            return await self.service.opener.topic(named, create=True)
        except (NotAllowed, TopicNotFound) as error:
            if named.partition < 0:
                raise
            raise NoPartition(str(error)) from error

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Start a task that ends with this run."""
        self.world.loop.spawn(self, work, name)


class SimRegion:
    """What outlives a broker."""

    is_apart = True
    """Ledgers and metadata can be restored separately."""

    def __init__(self, world: Stage, name: str) -> None:
        self.world = world
        self.name = name
        self.volume, self.metadata, _ = self.empty()
        self.faults = DiskFaults(world.trouble)
        self.skew_ms = 0
        self.version = PROTOCOL_VERSION
        """Version of the peer protocol that its brokers speak from their next start on."""
        self.disk_us = 0
        """Additional time of a sync."""
        self.metadata_slow_us = 0
        """Additional time of each operation of the metadata store."""
        self.broker: SimBroker | None = None
        self.earlier: list[SimBroker] = []
        """Brokers that still run although a later one has started."""
        self.saved: tuple[AnyVolume, MetadataVolume, int] | None = None
        self.lives = 0
        self.trimming = 0
        self.trimming_for: set[Subscription] = set()
        self.trimming_among: dict[str, frozenset[str]] = {}
        """Topic -> its regions when the region began to trim what none of them needs."""
        self._ledgers: dict[str, set[int]] = {}
        self.restores: int = 0
        self.restored_us = self._alone_since_us = -HEARD_US

    def wall_ms(self) -> int:
        return WORLD_BEGAN_MS + self.world.loop.now_us // 1000 + self.skew_ms

    def sync_us(self) -> int:
        random = self.world.weather.random
        return self.disk_us + (1_000 if random is None else int(200 + 5_000 * random.random() ** 2))

    def metadata_us(self) -> int:
        random = self.world.weather.random
        return self.metadata_slow_us + (0 if random is None else int(2_000 * random.random() ** 2))

    def written(self, path: str, value: bytes) -> None:
        """The metadata must list a topic's ledgers before the first entry is stored in them."""
        is_base = path.startswith(keys.partitioned_topics_of("public/default", "persistent"))
        if is_base and "deleting" in decode(path, value)[0]:
            self.world.base_goes(self, path.rpartition("/")[2])
        if path.startswith(keys.topics_of("public/default", "persistent")):
            topic = path.rpartition("/")[2]
            record = TopicRecord.decode(path, value)
            if record.deleting is not None:
                self.world.model.topic_goes(self.name, topic, record)
            now = [ledger.ledger_id for ledger in record.ledgers]
            before, self._ledgers[topic] = self._ledgers.get(topic, set()), set(now)
            if self.trimming:  # the store may fail to delete ledgers that the topic has released
                for ledger_id in before.difference(now):
                    self.world.model.ledger_deleted(self, ledger_id)
            for ledger_id in now:
                self.world.topic_of_ledger[self.name, ledger_id] = topic
                self.world.number(self.name, ledger_id)

    def known_ledgers(self, topic: str) -> set[int]:
        """Ledgers that hold a topic's entries: according to the metadata, plus any recorded after it was copied."""
        name = topic_name.parse(full_name(topic))
        found = self.metadata.records.get(keys.topic(name))
        record = None if found is None else TopicRecord.decode("", found.value)
        named = set() if record is None else {ledger.ledger_id for ledger in record.ledgers}
        if record is None and keys.deletion(name) in self.metadata.records:
            return named
        newest = max(named, default=-1) if record is None else max([record.newest_ledger, *named])
        made = self.world.topic_of_ledger.items()
        since = {one for (region, one), of in made if (region, of) == (self.name, topic) and one > newest}
        return named | since

    def moved(self, before: str, value: bytes, path: str) -> None:
        """A topic's copy is renamed: it is quarantined (R8)."""
        topics = keys.topics_of("public/default", "persistent")
        if before.startswith(topics) and path.startswith(topics):
            old, new = before.rpartition("/")[2], path.rpartition("/")[2]
            incarnation = TopicRecord.decode(before, value).incarnation
            self.world.model.is_quarantined(self.name, full_name(new), old, incarnation)

    def taken_back(self, path: str) -> None:
        """A topic without messages should not have been created."""
        if path.startswith(keys.topics_of("public/default", "persistent")):
            self.world.model.taken_back(self, path.rpartition("/")[2])

    def named_ledgers(self, topic: str, *, every_kind: bool = False) -> set[int]:
        """Ledgers of a topic's entries, according to the metadata. ``every_kind``: also of progress and views."""
        found = self.metadata.records.get(keys.topic(topic_name.parse(full_name(topic))))
        if found is None:
            return set()
        record = TopicRecord.decode("", found.value)
        named = {ledger.ledger_id for ledger in record.ledgers}
        if every_kind:
            view = () if record.compacted is None else (record.compacted.ledger_id,)
            named.update(record.progress_ledgers, record.obsolete_ledgers, view)
        return named

    def records(self, topic: str, kind: Kind) -> list[Position]:
        """Positions on the volume of a topic's entries in ledgers of one kind."""
        return [
            Position(ledger_id, number)
            for ledger_id, stored in sorted(self.volume.disk.ledgers.items())
            if stored.label
            and (label := Label.decode(stored.label)).kind is kind
            and label.belonging.topic == full_name(topic)
            for number in range(len(stored.entries))
        ]

    def forget_ledger(self, ledger: int) -> None:
        self.world.model.ledger_deleted(self, ledger)

    def broker_of(self, topic: str) -> SimBroker | None:
        """The broker that serves a topic; None while none does."""
        broker = self.broker
        return broker if broker is not None and broker.alive and broker.ready else None

    def look_up(self, _client: Owner, topic: str, then: Callable[[SimBroker | None], None]) -> None:
        """Find the broker that serves a topic, like a client."""
        then(self.broker_of(topic))

    def taker(self, _topic: TopicContext) -> SimBroker | None:
        """The broker that has the topic open, if only one can."""
        return self.broker if self.is_one else None

    def trimmers(self) -> list[SimBroker]:
        """Brokers whose topics count when the region trims what is not needed."""
        found = self.broker_of("")
        return [] if found is None else [found]

    def everyone(self) -> list[SimBroker]:
        """Brokers that run."""
        return [one for one in (self.broker, *self.earlier) if one is not None and one.alive]

    def repair(self) -> None:
        """Brokers work again; one whose drain did not end is restarted."""
        self.retire()
        broker = self.broker
        if broker is not None and broker.alive:
            broker.store.repair()
            if broker.ready and broker.service.registry.closing:
                self.world.crash(self.name)
        if self.name not in self.world.gone:
            self.start()

    def start(self) -> None:
        if self.broker is not None and self.broker.alive:
            return
        self.lives += 1
        try:
            self.broker = broker = SimBroker(self.world, self)
        except (OSError, LedgerError):  # the process ends, and its supervisor restarts it
            self.world.loop.after(RESTART_US, None, self.start)
            return
        self.world.loop.spawn(broker, broker.start(), f"start {self.name}")

    def second(self) -> bool:
        """Start another broker on the same volume, found by lookups from now on; the previous one keeps running."""
        broker = self.broker_of("")
        if broker is None or isinstance(self.volume, EngineVolume):
            return False
        self.earlier.append(broker)
        self.broker = None
        self.start()
        return True

    def retire(self) -> None:
        """End the earlier brokers."""
        for broker in self.earlier:
            self._alone_since_us = self.world.loop.now_us
            broker.alive = False
            broker.store.power_cut(self.world.weather.random)
            self.world.network.lost(broker)
        self.earlier.clear()

    @property
    def is_one(self) -> bool:
        """Whether every peer that has, or recently had, information from the region gets it from its one broker."""
        return not self.earlier and self.world.loop.now_us - self._alone_since_us >= HEARD_US

    @property
    def is_steady(self) -> bool:
        return self.is_one

    def serves(self, _broker: Broker, _topic: str) -> bool:
        """Whether no other broker answers for the topic."""
        return self.is_one

    def reached(self, broker: str) -> SimBroker | None:
        """What accepts connections at the address of the region, or of one of several brokers that it had."""
        return None if broker else self.broker_of("")

    def crash(self, *, silently: bool = False) -> None:
        """Power cut. Unsynced writes are lost, except those that had reached the disk anyway.

        :param silently: the broker's connections are not closed.
        """
        self.retire()
        broker = self.broker
        if broker is None or not broker.alive:
            return
        broker.alive = False
        random = self.world.weather.random
        broker.store.power_cut(random)
        if wrong := self.volume.power_cut(random):
            self.world.model.violate("the engine lost what was durable", f"{self.name}: {wrong}")
        self.world.network.lost(broker, silently=silently)
        self.broker = None

    def save(self) -> None:
        self.saved = (self.volume.copy(), self.metadata.copy(), self.world.loop.now_us)

    def empty(self) -> tuple[AnyVolume, MetadataVolume, int]:
        """A copy of a region's initial state."""
        return EngineVolume() if self.world.engine is not None else Volume(), MetadataVolume(), -1

    def restore(self, what: str = "") -> None:
        """Return to the saved copy, or a part of it; the broker must be down."""
        assert self.saved is not None
        self.restores += 1
        self._ledgers.clear()
        self.restored_us = self.world.loop.now_us
        volume, metadata, _ = self.saved
        if what != "metadata":
            self.volume = volume.copy()
        if what != "volume":
            self.metadata = metadata.copy()
