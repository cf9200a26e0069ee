# SPDX-License-Identifier: Apache-2.0
"""Regions, their network, their clients and the model that watches them, on one clock."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from random import Random
from typing import Final

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata import keys
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions.position import EARLIEST, Origin, Position
from meridian_broker.replication.exchange_messages import PeerMessage
from meridian_broker.topics import progress_log
from meridian_broker.topics.errors import TopicError
from meridian_broker.topics.subscription import Subscription, SubscriptionType
from meridian_broker.wire.pulsar import topic_name
from simulation.broker import SimBroker, SimRegion
from simulation.consumers import SimConsumer
from simulation.engine_disks import EngineLoop
from simulation.living import live_in
from simulation.loop import Loop, Spinning
from simulation.model import Model
from simulation.names import full_name
from simulation.network import Network, Weather
from simulation.producers import SimProducer
from simulation.scopes import probe_shares

SLOW_FOR_US: Final = 500_000
"""So long after a slow message was sent a barrier may take longer than it waits."""
CALM_US: Final = 20_000_000
"""So long after the last trouble nothing excuses a barrier or a flush that is not complete."""
CONVERGES_US: Final = 90_000_000
"""So long after everything works again regions may take to agree."""
PROGRESS_LEDGER_BYTES: Final = 4096
"""Progress ledgers are rolled over at this size here, so that worlds of a minute see it happen."""

logging.getLogger("meridian_broker").setLevel(logging.CRITICAL)


class World:
    """Everything there is."""

    def __init__(
        self, names: Iterable[str], *, chance: int | None = None, ledger_entries: int = 50_000, engine: bool = False
    ) -> None:
        """:param chance: seed of delays and of what a crash leaves; None: everything takes its usual time.
        :param engine: disks hold the local engine's files, and brokers run that engine."""
        progress_log.ROLL_BYTES = PROGRESS_LEDGER_BYTES  # type: ignore[misc]
        self.names = list(names)
        self.loop = Loop()
        self.loop.on_error = self._failed
        self.engine = EngineLoop(self.loop) if engine else None
        self.ledger_entries = ledger_entries
        self.weather = Weather(None if chance is None else Random(chance))
        self.network = Network(self.loop, self.weather)
        self.model = Model(self)
        self.sent: Counter[str] = Counter()
        self.on_message: Callable[[str, str, PeerMessage], None] | None = None
        self.payloads = 0
        self.trouble_us = 0
        """When something was last broken on purpose."""
        self.producers: dict[tuple[str, str], SimProducer] = {}
        self.consumers: dict[str, SimConsumer] = {}
        self.homes: dict[str, frozenset[str]] = {}
        """Topic -> the regions it lives in, where a story said so; else in all."""
        self.told: set[str] = set()
        """Topics of which somebody said in some region where they live."""
        self.outside: dict[str, set[str]] = defaultdict(set)
        """Topic -> regions that were none of its at some time, as somebody was told."""
        self.gone: set[str] = set()
        """Regions that never come back."""
        self.topic_of_ledger: dict[tuple[str, int], str] = {}
        """(region, ledger) -> topic, of every ledger that ever held entries."""
        self._numbers: dict[str, dict[int, int]] = defaultdict(dict)
        self.regions = {name: SimRegion(self, name) for name in self.names}
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
        """Nothing was wrong for a while, and nothing is."""
        troubled = self.network.cuts or self.network.stalls or self.loop.now_us - self.trouble_us < CALM_US
        is_slow = self.loop.now_us - self.network.slow_us < SLOW_FOR_US
        return not (troubled or is_slow) and all(
            region.broker_of("") is not None
            and region.is_one
            and not region.disk_us
            and not region.volume.is_rotten
            and not region.metadata.away
            for region in self.regions.values()
        )

    # -- names

    def shown(self, origin: Origin) -> str:
        """``us/1:0``: ledgers are counted, for their ids are long."""
        return f"{origin.region}/{self.number(origin.region, origin.ledger)}:{origin.entry}"

    def number(self, region: str, ledger: int) -> int:
        """How many ledgers the region made before this one, of all topics, and one."""
        numbers = self._numbers[region]
        return numbers.setdefault(ledger, len(numbers) + 1)

    def named(self, text: str) -> Origin:
        """The other way round. :raises KeyError: no such ledger was ever made."""
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

    def crash(self, region: str) -> None:
        home = self.regions[region]
        self.trouble()
        home.crash()
        self.model.crashed(home)

    def restore(self, region: str, what: str = "") -> bool:
        """Back to the saved copy, or only its ``volume`` or ``metadata``, with the broker down meanwhile."""
        home = self.regions[region]
        if home.saved is None:
            return False
        self._go_back(home, what)
        return True

    def wipe(self, region: str) -> None:
        """Rebuilt from nothing."""
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
        # All that is known stands on the volume. An older one alone may be without what the metadata name.
        known_us = {"": home.saved[2], "volume": -1, "metadata": self.loop.now_us}[what]
        self.model.restored(home, known_us, lost)
        home.start()

    def _origins(self, home: SimRegion, topic: str) -> set[Origin]:
        """What is on the volume and is found again: by its name in the metadata, or by what its ledger says."""
        ledgers = home.volume.disk.ledgers.keys() & home.known_ledgers(topic)
        return {
            origin for ledger in ledgers for origin, _, _ in self.model.logs.ledger(home, ledger) if origin is not None
        }

    def repair(self) -> None:
        """Everything works from now on."""
        self.trouble()
        self.weather.doubles = 0.0
        for dialler in self.names:
            for target in self.names:
                self.network.heal(dialler, target)
                self.network.release(dialler, target)
        for region in self.regions.values():
            region.disk_us = 0
            region.metadata.away = False
            region.volume.mend()
            region.retire()
            broker = region.broker
            if broker is not None and broker.alive:
                broker.store.repair()
                if broker.ready and broker.service.closing:
                    self.crash(region.name)
            if region.name not in self.gone:
                region.start()

    def settle(self) -> None:
        """Each region is told where topics live: one that was down, or was told something else, does not know."""
        for topic in sorted(self.told):
            for region in self.regions.values():
                broker = region.broker_of(topic)
                if broker is not None:
                    homes = sorted(self.homes_of(topic))
                    broker.spawn(live_in(broker, topic, homes), "say where a topic lives")

    # -- agreement

    def topics(self) -> list[str]:
        """Those that clients asked for and that exist in some region."""
        found: dict[str, None] = {}
        for _, topic in self.producers:
            found[topic] = None
        for consumer in self.consumers.values():
            found[consumer.topic] = None
        made = [home.metadata.records for home in self.regions.values()]
        return [topic for topic in found if any(keys.topic(topic_name.parse(full_name(topic))) in one for one in made)]

    def homes_of(self, topic: str) -> dict[str, SimRegion]:
        """The regions a topic lives in."""
        homes = self.homes.get(topic, frozenset(self.names)) - self.gone
        return {name: region for name, region in self.regions.items() if name in homes}

    def disagreement(self) -> str:
        """What still differs between regions; empty when nothing does."""
        for producer in self.producers.values():
            if producer.pending and producer.region not in self.gone:
                return (
                    f"the producer of {producer.topic} in {producer.region} waits for {len(producer.pending)} receipts"
                )
        for topic in self.topics():
            record = keys.topic(topic_name.parse(full_name(topic)))
            if not any(record in home.metadata.records for home in self.homes_of(topic).values()):
                continue  # some region has a copy of its own
            opened = {}
            for name, home in self.homes_of(topic).items():
                broker = home.broker_of(topic)
                found = broker.topic(topic) if broker is not None else None
                if found is None:
                    return f"{name} does not serve {topic}"
                opened[name] = found
            if difference := self._logs_differ(topic):
                return difference
            names = {s for one in opened.values() for s, sub in one.subscriptions.items() if sub.replicated}
            for subscription in sorted(names):
                progress = {name: one.subscriptions.get(subscription) for name, one in opened.items()}
                for name, one in progress.items():
                    if one is None:
                        return f"{name} has no subscription {subscription}"
                encoded = {name: one.progress.encode() for name, one in progress.items() if one is not None}
                if len(set(encoded.values())) != 1:
                    return f"progress of {topic}/{subscription} differs: " + "; ".join(
                        f"{name} {one.progress!r}" for name, one in progress.items() if one is not None
                    )
                records = {str(one.record) for one in progress.values() if one is not None}
                if len(records) != 1:
                    return f"records of {topic}/{subscription} differ: {records}"
        return ""

    def _logs_differ(self, topic: str) -> str:
        model = self.model
        have = {
            name: {origin for _, origin, _ in model.logs.of(home, topic)} | model.trimmed[name, topic]
            for name, home in self.homes_of(topic).items()
        }
        for source in have:
            for target in have:
                if source == target:
                    continue
                joined = self._joined(source, target, topic)
                lacks = {o for o in have[source] - have[target] if o.region == source and o.position >= joined}
                given_to = model.given_to[source, topic]
                lacks = {one for one in lacks if one not in given_to or target in given_to[one]}
                if self.regions[target].restores:
                    lacks -= model.trimmed[source, topic]  # it had them once, and so they were given back
                if not lacks:
                    continue
                hold = self.hold(source, target, topic)
                if self._is_stopped(source, target, topic):
                    continue  # what it lost, or never got, was given back everywhere; that is said, not skipped (R4)
                first = self.shown(min(lacks))
                return f"{target} lacks {len(lacks)} entries of {source}, the first {first}; hold {hold or 'none'}"
        return self._copies_differ(topic, have)

    def _copies_differ(self, topic: str, have: dict[str, set[Origin]]) -> str:
        """What one region stores of another one's entries, that one and every third one has, too (R5, R6)."""
        for holder, home in self.homes_of(topic).items():
            stored = {origin for _, origin, _ in self.model.logs.of(home, topic)}
            for target in have:
                lacks = stored - have[target]
                lacks = {one for one in lacks if one.position >= self._begins(target, topic, one.region)}
                # Nobody waited for it where it began, or, when that region is gone, in one of the others.
                for region in have:
                    given = self.model.trimmed[region, topic]
                    lacks -= {one for one in given if one.region == region or one.region not in have}
                if topic in self.told:
                    lacks -= self.model.lost_once
                lacks = {one for one in lacks if not self._is_stopped(one.region, target, topic)}
                if lacks:
                    return f"{target} lacks {len(lacks)} entries that {holder} has, the first {self.shown(min(lacks))}"
        return ""

    def _is_stopped(self, source: str, target: str, topic: str) -> bool:
        """Replication waits for a person, says so, and has a reason to.

        Who was restored, or was no region of the topic for a while, can lack what all others gave back. And who was
        restored while the topic's regions were changed has not asked all that have entries of it.
        """
        hold = self.hold(source, target, topic)
        if hold == "GAP":
            return self.regions[target].restores > 0 or target in self.outside[topic]
        return hold == "ROLLED_BACK" and source in self.model.rolled_back and topic in self.told

    def _begins(self, region: str, topic: str, origin: str) -> Position:
        """Where a region that joined begins to have entries of an origin."""
        broker = self.regions[region].broker_of(topic)
        opened = broker.topic(topic) if broker is not None else None
        return EARLIEST if opened is None else opened.log.joined.get(origin, EARLIEST)

    def _joined(self, source: str, target: str, topic: str) -> Position:
        """Where a region that had nothing of the source began: what was trimmed before, it does not get."""
        broker = self.regions[source].broker_of(topic)
        run = broker.replication.runs.get((full_name(topic), target)) if broker is not None else None
        return EARLIEST if run is None else run.core.joined_at or EARLIEST

    def hold(self, source: str, target: str, topic: str) -> str:
        """Why the replicator does not go on; empty when it does."""
        broker = self.regions[source].broker_of(topic) if source in self.regions else None
        run = broker.replication.runs.get((full_name(topic), target)) if broker is not None else None
        return "" if run is None or run.core.hold is None else run.core.hold.name

    def quiet(self) -> None:
        """Repair everything, wait until the regions agree, and look whether every promise was kept."""
        self.model.check_open()
        self.repair()
        deadline = self.loop.now_us + CONVERGES_US
        difference = "never looked"
        self.run(1000)
        self.settle()
        while not self.model.violations:
            difference = self.disagreement()
            if not difference or self.loop.now_us > deadline:
                break
            self.run(2000)
        if difference and not self.model.violations:
            self.model.violate("no agreement", f"{CONVERGES_US // 1_000_000} s after everything works: {difference}")
        if not self.model.violations:
            self._judge()

    def _judge(self) -> None:
        for topic in self.topics():
            self.model.judging.check_logs(topic)
            for home in self.homes_of(topic).values():
                broker = home.broker_of(topic)
                opened = broker.topic(topic) if broker is not None else None
                for subscription in opened.subscriptions.values() if opened is not None else ():
                    self.model.judging.check_record(topic, subscription)
                    if subscription.replicated:
                        facts = self.model.facts_of(subscription)
                        self.model.confirming.all_know(facts, frozenset(self.homes_of(topic)))
        for topic in self.topics():
            for name in sorted(self._names(topic)):
                self._probe(topic, name)
        for (region, full), _ in sorted(self.model.set_aside.items()):
            topic = full.rpartition("/")[2]
            for name in sorted(self._subscriptions(region, topic)):
                self._look_at_all(region, topic, name)

    def _names(self, topic: str) -> set[str]:
        return {name for region in self.names for name in self._subscriptions(region, topic)}

    def _subscriptions(self, region: str, topic: str) -> dict[str, Subscription]:
        """Those that a region has, be it one of the topic's or not any more."""
        broker = self.regions[region].broker_of(topic)
        opened = broker.topic(topic) if broker is not None else None
        return {} if opened is None else {n: one for n, one in opened.subscriptions.items() if one.durable}

    def _probe(self, topic: str, name: str) -> None:
        """In every region a consumer that looks at everything, after all others left."""
        for consumer in list(self.consumers.values()):
            if consumer.topic == topic and consumer.subscription == name and not consumer.is_closed:
                consumer.close(lambda: None)
        self.run(1000)
        probe_shares(self, topic, name)
        for region in self.names:
            if not self.model.violations and name in self._subscriptions(region, topic):
                self._look_at_all(region, topic, name)

    def _look_at_all(self, region: str, topic: str, name: str) -> None:
        probe = SimConsumer(self, f"probe of {name}", region, topic, name, SubscriptionType.EXCLUSIVE)
        probe.probe = {}
        probe.connect()
        got = -1
        for _ in range(200):
            self.run(300)
            if len(probe.probe) == got and probe.server is not None:
                break
            got = len(probe.probe)
        probe.close(lambda: None)
        for _ in range(10):
            if not probe.is_closed:
                self.run(300)
        if self.model.violations:
            return
        if probe.server is not None or not probe.is_closed:
            self.model.violate("no close", f"a consumer of {topic}/{name} in {region} is not let go")
        if (subscription := self._subscriptions(region, topic).get(name)) is not None:
            self.model.judging.check_delivered(self.regions[region], topic, subscription, probe.probe)

    def position(self, region: str, origin: Origin, topic: str) -> Position | None:
        """Where a region stores an entry."""
        home = self.regions[region]
        return next((place for place, one, _ in self.model.logs.of(home, topic) if one == origin), None)

    def broker(self, region: str) -> SimBroker | None:
        return self.regions[region].broker_of("")
