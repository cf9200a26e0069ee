# SPDX-License-Identifier: Apache-2.0
"""Random stories of regions that follow each other by snapshots (``snapshot_world``).

Nothing may make a region skip a message that nobody acknowledged. Once all faults are over and one region has
acknowledged everything it stores, so have the others, except for messages that were not meant for that region; then no
region writes markers any more.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from meridian_broker.replication.snapshots.controller import PAUSE_MAX_MS
from support.worlds.snapshot_world import Broken, Message, SnapshotRegion, SnapshotWorld

NAMES = ("ap", "eu", "us", "za")
NEWCOMER = "sa"
NAME = "s"
"""Name of the subscription."""


class SnapshotSeed:
    """One story."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.world = SnapshotWorld(NAMES[: self._random.choice([2, 3, 3, 3, 4])])
        self._names = list(self.world.regions)
        self._loses = self._random.random() < 0.3
        """Whether markers are lost for good; the next update makes up for a lost one."""
        self._is_mixed = self._random.random() < 0.5
        """Whether one region applies updates as Pulsar does; then messages go to all regions, and none is given up."""
        self._pulsar = self._region() if self._random.random() < 0.4 else None
        """The region that runs Apache Pulsar, if any. Its two rounds have the same id, so a repeated answer may count
        for both; therefore, nothing is repeated then."""
        if self._pulsar is not None:
            self._is_mixed = True
            self._pulsar.become_pulsar()
            self.world.is_exact = self._random.random() < 0.6
        elif self._is_mixed:
            self._region().is_pulsar = True
        self._region().subscribe(NAME)
        self.world.acked[NAME] = set()
        for link in self.world.links.values():
            link.delay_ms = self._delay_ms()

    def run(self) -> None:
        steps: dict[Callable[[], None], int] = {
            self._publish: 30,
            self._acknowledge: 25,
            self._cut: 6,
            self._heal: 8,
            self._slow: 6,
            self._stop: 3,
            self._start: 6,
            self._fail: 3,
            self._leave: 5,
            self._lose: 4 * self._loses,
            self._join: 2 * self.world.is_exact,
            self._give_up: 2 * (not self._is_mixed),
        }
        for _ in range(self._random.randint(20, 120)):
            self._random.choices(list(steps), list(steps.values()))[0]()
            self.world.run(self._random.choice([0, 5, 40, 300, 1000, 3000]))
        self._calm()
        self._check()

    # -- events

    def _publish(self) -> None:
        """Publish in one region, sometimes only for some of the others."""
        name = self._running()
        if name is None:
            return
        others = [other for other in self._names if other != name]
        chosen = tuple(self._random.sample(others, self._random.randint(0, len(others))))
        for _ in range(self._random.choice([1, 1, 3, 10])):
            self.world.publish(name, chosen if chosen and not self._is_mixed and self._random.random() < 0.2 else None)

    def _acknowledge(self) -> None:
        """A consumer somewhere acknowledges the oldest messages, or any."""
        name = self._running()
        if name is None or NAME not in self.world.regions[name].subscriptions:
            return
        region = self.world.regions[name]
        owed = region.owed(NAME)
        count = self._random.choice([1, 3, len(owed)])
        chosen = owed[:count] if self._random.random() < 0.7 else self._random.sample(owed, min(count, len(owed)))
        region.consume(NAME, sorted(chosen))

    def _cut(self) -> None:
        self.world.cut(*self._link(), repeat=self._repeats([0, 0, 1, 5]))

    def _heal(self) -> None:
        self.world.heal(*self._link())

    def _slow(self) -> None:
        self.world.links[self._link()].delay_ms = self._delay_ms()

    def _stop(self) -> None:
        name = self._running()
        if name is not None:
            self.world.stop(name, repeat=self._repeats([0, 0, 3]))

    def _start(self) -> None:
        for name, region in self.world.regions.items():
            if not region.is_up:
                self.world.start(name)
                return

    def _fail(self) -> None:
        region = self._region()
        region.failing_writes, region.disk_ms = self._random.choice([0, 1, 4]), self._random.choice([0, 1, 200])

    def _leave(self) -> None:
        region = self._region()
        if region.is_up:
            region.controller.consumer_left()

    def _lose(self) -> None:
        self.world.links[self._link()].lose = self._random.choice([1, 2])

    def _join(self) -> None:
        """Add a region, which gets only future messages of Pulsar."""
        if NEWCOMER not in self.world.regions and all(region.is_up for region in self.world.regions.values()):
            self.world.join(NEWCOMER)
            self._names.append(NEWCOMER)

    def _give_up(self) -> None:
        name, lost = self._link()
        region = self.world.regions[name]
        region.lost = set() if region.lost else {lost}
        region.controller.regions_changed()

    # -- the end

    def _calm(self) -> None:
        """End all faults, and wait until the regions are at rest."""
        for name, region in self.world.regions.items():
            region.failing_writes, region.disk_ms = 0, 1
            if region.lost:
                region.lost.clear()
                region.controller.regions_changed()
            if not region.is_up:
                self.world.start(name)
        for pair, link in self.world.links.items():
            self.world.heal(*pair)
            link.lose = 0
        self.world.run(self._random.choice([0, 100, 60_000]))
        if self._loses:
            for name in self._names:
                self.world.publish(name)
        while any(link.confirmed < len(self.world.regions[one].log) for (one, _), link in self.world.links.items()):
            self.world.run(500)
            if self.world.now_ms > 10_000_000:
                raise Broken("the regions never stop writing markers")

    def _check(self) -> None:
        last = self._region()
        while last is self._pulsar:  # it follows up on no snapshot, so its late acks may not reach the others
            last = self._region()
        for one in self.world.regions.values() if self.world.is_exact else [last]:
            if one is not self._pulsar:
                one.subscribe(NAME)
                one.consume(NAME, one.owed(NAME))
        self.world.run(2 * PAUSE_MAX_MS)
        for name, region in self.world.regions.items():
            if last.messages and NAME not in region.subscriptions:
                raise Broken(f"{name} never learned of the subscription")
            owed: list[Message] = []
            for entry in region.owed(NAME) if NAME in region.subscriptions else []:
                message, replicate_to, _ = region.log[entry]
                assert isinstance(message, Message)
                if replicate_to is None:
                    owed.append(message)
            if owed:
                raise Broken(f"{name} still owes {owed[0]} and {len(owed) - 1} others")
        before = self.world.written.copy()
        self.world.run(2 * PAUSE_MAX_MS)
        if self.world.written != before:
            raise Broken(f"the regions keep writing markers at rest: {self.world.written - before}")

    # -- chance

    def _region(self) -> SnapshotRegion:
        return self.world.regions[self._random.choice(self._names)]

    def _running(self) -> str | None:
        running = [name for name, region in self.world.regions.items() if region.is_up]
        return self._random.choice(running) if running else None

    def _repeats(self, choices: list[int]) -> int:
        return 0 if self._pulsar is not None else self._random.choice(choices)

    def _link(self) -> tuple[str, str]:
        one, other = self._random.sample(self._names, 2)
        return one, other

    def _delay_ms(self) -> int:
        return self._random.choice([1, 20, 20, 150, 1500, 4000])
