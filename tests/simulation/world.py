# SPDX-License-Identifier: Apache-2.0
"""The world: regions, their network, their clients and the model that watches them, on one clock."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from random import Random
from typing import Final

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata import keys
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions.position import Origin, Position
from meridian_broker.replication.progress.messages import PeerMessage
from meridian_broker.topics.dispatch.types import SubscriptionType
from meridian_broker.topics.errors import TopicError
from meridian_broker.topics.journal import progress_log
from meridian_broker.wire.pulsar import topic_name
from simulation.broker import SimBroker, SimRegion
from simulation.brokers_region import BrokersRegion
from simulation.consumers import SimConsumer
from simulation.engine_loop import EngineLoop
from simulation.living import live_in
from simulation.loop import Loop, Spinning
from simulation.model import Model
from simulation.names import full_name
from simulation.network import Network, Weather
from simulation.partition_counts import PartitionCounts
from simulation.producers import SimProducer
from simulation.shadow_watch import ShadowWatch
from simulation.stage import Region

SLOW_FOR_US: Final = 500_000
"""For this long after a slow message was sent, a barrier may take longer than its timeout."""
CALM_US: Final = 20_000_000
"""This long after the last trouble, nothing excuses an incomplete barrier or flush."""
PROGRESS_LEDGER_BYTES: Final = 4096
"""Progress ledgers roll over at this size here, so that it happens in worlds of a minute."""


class World:
    """Everything in a simulation."""

    def __init__(
        self,
        names: Iterable[str],
        *,
        chance: int | None = None,
        ledger_entries: int = 50_000,
        engine: bool = False,
        brokers: Sequence[int] = (),
        bookies: int = 0,
    ) -> None:
        """:param chance: seed of delays and of what a crash leaves; None: everything takes its usual time.
        :param engine: disks hold the local engine's files, and brokers run that engine.
        :param brokers: how many brokers share each region; 0, or none: its only broker owns it without asking.
        :param bookies: how many store the ledgers of each region with several brokers; 0: one disk does."""
        progress_log.ROLL_BYTES = PROGRESS_LEDGER_BYTES  # type: ignore[misc]
        self.names = list(names)
        self.loop = Loop()
        self.loop.on_error = self._failed
        self.engine = EngineLoop(self.loop) if engine else None
        self.bookies = bookies
        self.ledger_entries = ledger_entries
        self.weather = Weather(None if chance is None else Random(chance))
        self.draw = Random(chance or 0).randrange
        """Random numbers of brokers, separate from those of faults and delays."""
        self.network = Network(self.loop, self.weather)
        self.model = Model(self)
        self.partitions = PartitionCounts(self)
        self.shadows = ShadowWatch(self)
        self.sent: Counter[str] = Counter()
        self.on_message: Callable[[str, str, PeerMessage], None] | None = None
        self.payloads = 0
        self.trouble_us = 0
        """When something was last broken on purpose."""
        self.producers: dict[tuple[str, str], SimProducer] = {}
        self.consumers: dict[str, SimConsumer] = {}
        self.homes: dict[str, frozenset[str]] = {}
        """Topic -> its regions, if a story set them; otherwise all."""
        self.told: set[str] = set()
        """Topics whose regions were set somewhere."""
        self.outside: dict[str, set[str]] = defaultdict(set)
        """Topic -> regions that at some time did not belong to it, as some region was told."""
        self.quotas: set[tuple[str, str]] = set()
        """(region, topic) where a backlog quota was set at some time."""
        self.accepts_gaps = False
        """Whether at the end an operator accepts what is lost everywhere."""
        self.gone: set[str] = set()
        """Regions that never come back."""
        self.topic_of_ledger: dict[tuple[str, int], str] = {}
        """(region, ledger) -> topic, of every ledger that ever held entries."""
        self._numbers: dict[str, dict[int, int]] = defaultdict(dict)
        self.regions: dict[str, SimRegion] = {
            name: BrokersRegion(self, name, count) if count else SimRegion(self, name)
            for name, count in zip_longest(self.names, brokers[: len(self.names)])
        }
        for region in self.regions.values():
            region.start()

    def _failed(self, error: BaseException, where: str) -> None:
        if isinstance(error, Spinning):
            self.model.violate("spinning", str(error))
        elif not isinstance(error, (TopicError, LedgerError, MetadataError)):
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            at = f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}" if trace else "?"
            self.model.violate(f"exception {type(error).__name__} in {at}", f"{where}: {error}")

    # -- time

    def run(self, ms: int) -> None:
        until_us = self.loop.now_us + ms * 1000
        try:
            if self.engine is None:
                self.loop.run(until_us)
            else:
                with self.engine.running():
                    self.loop.run(until_us)
        except Spinning as error:
            self._failed(error, "")

    def trouble(self) -> None:
        self.trouble_us = self.loop.now_us

    def calm(self) -> bool:
        """Whether nothing is wrong, nor was for a while."""
        troubled = self.network.cuts or self.network.stalls or self.network.is_silent
        troubled = troubled or self.loop.now_us - self.trouble_us < CALM_US
        is_slow = self.loop.now_us - self.network.slow_us < SLOW_FOR_US
        return not (troubled or is_slow) and all(
            region.broker_of("") is not None
            and region.is_steady
            and not region.disk_us
            and not region.metadata_slow_us
            and not region.volume.is_rotten
            and not region.faults.is_armed
            and not region.metadata.away
            for region in self.regions.values()
        )

    # -- names

    def shown(self, origin: Origin) -> str:
        """``us/1:0``: ledgers are counted from 1, because their ids are long."""
        return f"{origin.region}/{self.number(origin.region, origin.ledger)}:{origin.entry}"

    def number(self, region: str, ledger: int) -> int:
        """The ledger's number: 1 for the first that the region created, over all topics."""
        numbers = self._numbers[region]
        return numbers.setdefault(ledger, len(numbers) + 1)

    def named(self, text: str) -> Origin:
        """The reverse. :raises KeyError: no such ledger was ever created."""
        region, _, place = text.partition("/")
        ledger, _, entry = place.partition(":")
        for real, number in self._numbers[region].items():
            if number == int(ledger):
                return Origin(region, real, int(entry))
        raise KeyError(text)

    # -- clients

    def producer(self, region: str, topic: str) -> SimProducer:
        key = (region, topic)
        if key not in self.producers:
            self.producers[key] = SimProducer(self, region, topic)
        return self.producers[key]

    def consume(self, name: str, region: str, topic: str, subscription: str, kind: SubscriptionType) -> SimConsumer:
        consumer = self.consumers[name] = SimConsumer(self, name, region, topic, subscription, kind)
        return consumer

    # -- faults

    def crash(self, region: str, *, silently: bool = False) -> None:
        home = self.regions[region]
        self.trouble()
        home.crash(silently=silently)
        self.model.crashed(home)

    def restore(self, region: str, what: str = "") -> bool:
        """Return to the saved copy, or only its ``volume`` or ``metadata``, with the broker down meanwhile."""
        home = self.regions[region]
        if home.saved is None:
            return False
        self._go_back(home, what)
        return True

    def wipe(self, region: str) -> None:
        """Rebuild a region from nothing."""
        home = self.regions[region]
        saved, home.saved = home.saved, home.empty()
        self._go_back(home, "")
        home.saved = saved

    def _go_back(self, home: SimRegion, what: str) -> None:
        assert home.saved is not None
        region = home.name
        self.crash(region)
        topics = self.topics()
        before = {topic: self._origins(home, topic) for topic in topics}
        home.restore(what)
        after = {topic: self._origins(home, topic) for topic in topics}
        lost = {topic: before[topic] - after[topic] for topic in topics}
        # All that is known is on the volume. An older volume alone may lack what the metadata names.
        known_us = {"": home.saved[2], "volume": -1, "metadata": self.loop.now_us}[what]
        self.model.restored(home, known_us, lost)
        if what != "volume":  # metadata older than the volume may be from before the region was rebuilt
            self.model.ends.forgotten(region, -1 if what else home.saved[2])
        home.start()

    def _origins(self, home: SimRegion, topic: str) -> set[Origin]:
        """What is on the volume and will be found: by its name in the metadata, or by what its ledger says."""
        ledgers = home.volume.disk.ledgers.keys() & home.known_ledgers(topic)
        return {
            origin for ledger in ledgers for origin, _, _ in self.model.logs.ledger(home, ledger) if origin is not None
        }

    def repair(self) -> None:
        """End all faults."""
        self.trouble()
        self.weather.doubles = 0.0
        for dialler in self.names:
            for target in self.names:
                self.network.heal(dialler, target)
                self.network.release(dialler, target)
        for region in self.regions.values():
            region.disk_us = region.metadata_slow_us = 0
            region.metadata.away = False
            region.faults.clear()
            region.volume.mend()
            region.repair()

    def tell_the_rest(self, told: set[SimBroker]) -> None:
        """Tell each other region the topics' regions: one that was down, or was told something else, does not know
        them. Lift backlog quotas.

        :param told: brokers that were told; all others that are up now are told and added.
        """
        for region in self.regions.values():
            broker = region.broker_of("")
            if broker is None or broker in told:
                continue
            told.add(broker)
            for topic in sorted(self.told):
                broker.spawn(live_in(broker, topic, sorted(self.homes_of(topic))), "set the regions of a topic")
            limited = sorted(topic for name, topic in self.quotas if name == region.name)
            broker.spawn(broker.quotas.lift(limited), "lift backlog quotas")

    # -- topics

    def topics(self) -> list[str]:
        """Topics that clients asked for and that exist in some region."""
        found: dict[str, None] = {}
        for _, topic in self.producers:
            found[topic] = None
        for consumer in self.consumers.values():
            found[consumer.topic] = None
        made = [home.metadata.records for home in self.regions.values()]
        on_record = [
            topic for topic in found if any(keys.topic(topic_name.parse(full_name(topic))) in one for one in made)
        ]
        return [topic for topic in on_record if self.partitions.exists(topic)]

    def homes_of(self, topic: str) -> dict[str, SimRegion]:
        """A topic's regions."""
        homes = self.homes.get(topic, frozenset(self.names)) - self.gone
        return {name: region for name, region in self.regions.items() if name in homes}

    def shadow_ledger_goes(self, home: Region, topic: str, ledger: int) -> None:
        self.shadows.trimmed(home, topic, ledger)

    def base_goes(self, home: Region, base: str) -> None:
        """The region has recorded that it deletes a partitioned topic."""
        self.partitions.go(home, base)

    def position(self, region: str, origin: Origin, topic: str) -> Position | None:
        """The position where a region stores an entry."""
        home = self.regions[region]
        return next((place for place, one, _ in self.model.logs.of(home, topic) if one == origin), None)

    def broker(self, region: str) -> SimBroker | None:
        return self.regions[region].broker_of("")
