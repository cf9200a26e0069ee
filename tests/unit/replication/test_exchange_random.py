# SPDX-License-Identifier: Apache-2.0
"""The exchange under random delay, loss, duplication, reordering, cuts and crashes: regions agree in the end, nothing
acked is forgotten, nothing else is claimed, and what a barrier or flush reports is true (R10, R19, R20)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from meridian_broker.positions.progress import Progress
from meridian_broker.replication.progress.barrier_refusals import AGAIN_MS, PATIENCE_MS
from meridian_broker.replication.progress.messages import ExchangeLimits
from meridian_broker.replication.progress.waits import WaitResult
from support.worlds.exchange_world import Entry, ExchangeWorld, WorldRegion

NAMES = ["us", "eu", "ap", "sa", "af"]
TOPIC, SUBSCRIPTIONS = "t", ["s0", "s1"]
TIGHT = ExchangeLimits(
    in_flight=2,
    pending_subscriptions=1,
    items_per_message=1,
    message_bytes=40,
    subscriptions_per_digest=1,
    keys_inline=1,
    keys_per_question=2,
    fetching=1,
    wanted=1,
    held_digests=1,
    waiters=3,
)

REGION = st.integers(0, 4)
STEP = st.one_of(
    st.tuples(st.just("ack"), REGION, st.integers(0, 1), st.lists(st.integers(0, 39), min_size=1, max_size=4)),
    st.tuples(st.just("take"), REGION, st.integers(0, 1)),
    st.tuples(st.just("rewind"), REGION, st.integers(0, 1), st.integers(0, 39)),
    st.tuples(st.just("run"), st.sampled_from([0, 1, 3, 12, 60, 300, 2500, 6000])),
    st.tuples(st.just("cut"), REGION, REGION),
    st.tuples(st.just("one-way"), REGION, REGION),
    st.tuples(st.just("connect"), REGION, REGION),
    st.tuples(st.just("deaf"), REGION, REGION),
    st.tuples(st.just("hear"), REGION, REGION),
    st.tuples(st.just("crash"), REGION),
    st.tuples(st.just("barrier"), REGION, st.integers(0, 1)),
    st.tuples(st.just("flush"), REGION, st.integers(0, 1)),
)


@dataclass
class Wait:
    """A barrier or flush in progress."""

    region: str
    life: int
    name: str
    known: dict[str, Progress]
    """What has to be known here when it ends: all that the regions knew when it began, except what a crash lost."""
    result: WaitResult | None = None


class Model:
    """A world, and what must hold in it."""

    def __init__(self, regions: int, seed: int, limits: ExchangeLimits | None) -> None:
        self.names = NAMES[:regions]
        self.world = ExchangeWorld(self.names, seed=seed, limits=limits)
        self.acked: dict[str, set[Entry]] = {name: set() for name in SUBSCRIPTIONS}
        self.rewound: set[str] = set()
        self.waits: list[Wait] = []
        self.world.connect_all()
        for name in self.names:
            self.world.produce(name, TOPIC, 5)
            self.world.produce(name, TOPIC, 3, ledger=2)
        self.world.replicate_all(TOPIC)
        if seed % 2:
            # Begin in sync: known everywhere, and known to be known.
            self.world.regions["us"].subscribe(TOPIC, SUBSCRIPTIONS[0])
            self.world.run(12_000)
        self.entries = sorted(self.world.regions["us"].topics[TOPIC].entries, key=lambda entry: entry.origin)

    def name(self, index: int) -> str:
        return self.names[index % len(self.names)]

    def two(self, one: int, two: int) -> tuple[str, str]:
        first = one % len(self.names)
        second = (first + 1 + two % (len(self.names) - 1)) % len(self.names)
        return self.names[first], self.names[second]

    def step(self, what: str, *arguments: object) -> None:
        getattr(self, "do_" + what.replace("-", "_"))(*arguments)
        self.world.settle()

    def _subscription(self, region: int, subscription: int) -> tuple[WorldRegion, str]:
        """Create it where it is not known."""
        here, name = self.world.regions[self.name(region)], SUBSCRIPTIONS[subscription]
        if here.subscription(TOPIC, name) is None:
            here.subscribe(TOPIC, name)
        return here, name

    def do_ack(self, region: int, subscription: int, picks: list[int]) -> None:
        here, name = self._subscription(region, subscription)
        entries = [self.entries[pick % len(self.entries)] for pick in picks]
        here.ack(TOPIC, name, entries, lambda: self.acked[name].update(entries))

    def do_take(self, region: int, subscription: int) -> None:
        here, name = self._subscription(region, subscription)
        here.take(TOPIC, name, 5)

    def do_rewind(self, region: int, subscription: int, pick: int) -> None:
        here, name = self._subscription(region, subscription)
        here.rewind(TOPIC, name, self.entries[pick % len(self.entries)])
        self.rewound.add(name)

    def do_run(self, ms: int) -> None:
        self.world.run(ms)

    def do_cut(self, one: int, two: int) -> None:
        self.world.cut(*self.two(one, two))

    def do_one_way(self, one: int, two: int) -> None:
        self.world.disconnect(*self.two(one, two))

    def do_connect(self, one: int, two: int) -> None:
        self.world.connect(*self.two(one, two))

    def do_deaf(self, one: int, two: int) -> None:
        self.world.network.deaf.add(self.two(one, two))

    def do_hear(self, one: int, two: int) -> None:
        self.world.network.deaf.discard(self.two(one, two))

    def do_crash(self, region: int) -> None:
        gone = self.name(region)
        self.world.crash(gone)
        for wait in self.waits:
            wait.known[gone] = self._progress(gone, wait.name)

    def do_barrier(self, region: int, subscription: int) -> None:
        asker, name = self.name(region), SUBSCRIPTIONS[subscription]

        def check(wait: Wait, done: WaitResult) -> None:
            for region in done.confirmed:
                assert wait.known[region].within(self._progress(asker, name)), f"{asker} lacks what {region} knew"

        patience_ms = PATIENCE_MS + 2 * (250 + AGAIN_MS)
        self._wait(self.world.regions[asker].exchange.barrier, asker, name, check, patience_ms)

    def do_flush(self, region: int, subscription: int) -> None:
        closer, name = self.name(region), SUBSCRIPTIONS[subscription]
        own = self.world.facts.get((closer, TOPIC, name), Progress()).copy()

        def check(_: Wait, done: WaitResult) -> None:
            for region in done.confirmed:
                on_disk = self.world.regions[region].disk.progress.get((TOPIC, name), Progress())
                assert own.within(on_disk), f"{region} does not have on disk what clients in {closer} acked"

        self._wait(self.world.regions[closer].exchange.flush, closer, name, check)

    def _progress(self, region: str, name: str) -> Progress:
        return (self.world.regions[region].progress(TOPIC, name) or Progress()).copy()

    def _wait(
        self,
        start: Callable[..., None],
        region: str,
        name: str,
        check: Callable[[Wait, WaitResult], None],
        within_ms: int = 250,
    ) -> None:
        life = self.world.regions[region].life
        started_ms = self.world.now_ms
        wait = Wait(region, life, name, {one: self._progress(one, name) for one in self.names})
        self.waits.append(wait)

        def done(result: WaitResult) -> None:
            assert wait.result is None, "told twice"
            assert self.world.now_ms <= started_ms + within_ms, "told late"
            assert result.confirmed | set(result.missing) == set(self.names) - {region}
            wait.result = result
            if life == self.world.regions[region].life:
                check(wait, result)

        start(TOPIC, name, self.world.now_ms, done)

    def check_waits(self) -> None:
        for wait in self.waits:
            assert wait.result is not None or wait.life != self.world.regions[wait.region].life, "never answered"

    def heal(self) -> None:
        network = self.world.network
        network.loss = network.duplication = 0.0
        network.deaf.clear()
        for region in self.world.regions.values():
            region.disk_ms = 0
        self.world.connect_all()
        self.world.run(30_000)

    def check_agreement(self) -> None:
        for name in SUBSCRIPTIONS:
            made = [region for region in self.names if self.world.regions[region].subscription(TOPIC, name)]
            assert made in ([], self.names), f"{name} is missing in some regions"
            if not made:
                continue
            encodings = {self._progress(region, name).encode() for region in self.names}
            assert len(encodings) == 1, f"{name}: regions do not agree"
            records = {self.world.regions[region].record(TOPIC, name) for region in self.names}
            assert len(records) == 1, f"{name}: regions do not agree on its record"
            progress, facts = self._progress("us", name), Progress()
            for region in self.names:
                facts.join(self.world.facts.get((region, TOPIC, name), Progress()))
            assert progress == facts, f"{name}: something is forgotten or claimed"
            if name not in self.rewound:
                said = {e for e in self.entries if progress.is_acked(e.origin.region, e.origin.position)}
                assert said == self.acked[name]
        for region in self.names:
            for name in SUBSCRIPTIONS:
                for peer in self.world.regions[region].exchange.status(TOPIC, name, self.world.now_ms):
                    assert peer.connected and not peer.pending and not peer.reason, peer


def explore(
    regions: int, seed: int, limits: ExchangeLimits | None, faults: bool, steps: list[tuple[object, ...]]
) -> Model:
    model = Model(regions, seed, limits)
    if faults:
        network = model.world.network
        network.jitter_ms, network.loss, network.duplication = seed % 40, (seed % 3) * 0.1, (seed % 2) * 0.2
        for index, region in enumerate(model.world.regions.values()):
            region.disk_ms = (seed >> index) % 8
    for step in steps:
        model.step(*step)  # type: ignore[arg-type]
    model.heal()
    model.check_agreement()
    model.check_waits()
    return model


@given(st.integers(3, 5), st.integers(0, 1 << 16), st.booleans(), st.lists(STEP, max_size=40))
def test_regions_agree_after_any_schedule(
    regions: int, seed: int, faults: bool, steps: list[tuple[object, ...]]
) -> None:
    explore(regions, seed, None, faults, steps)


@given(st.integers(0, 1 << 16), st.lists(STEP, max_size=40))
def test_regions_agree_when_every_limit_is_reached(seed: int, steps: list[tuple[object, ...]]) -> None:
    explore(3, seed, TIGHT, True, steps)
