# SPDX-License-Identifier: Apache-2.0
"""Generates a random story from a seed, in the same language as hand-written ones.

Lines name their objects loosely (``ack c2 x3 newest``), so that a story stays valid when lines are removed. Each seed
first draws a mood (the number of regions, the kinds of trouble and their frequency), because rare combinations are
found in worlds with little else, not in worlds with everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from simulation.changes import with_changes
from simulation.commands import with_commands
from simulation.faults import with_faults
from simulation.going_back import with_going_back
from simulation.partitions import with_partitions
from simulation.rotting import with_rot
from simulation.scopes import with_scopes
from simulation.shadow_stories import with_shadows
from simulation.voters import with_voters

NAMES: Final = ("us", "eu", "ap", "sa", "af")


@dataclass
class Mood:
    """What a seed's world is like."""

    regions: list[str]
    topics: list[str]
    subscriptions: list[str]
    weights: dict[str, float]
    consumers: list[str] = field(default_factory=list)


class Generator:
    """Draws one story."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.lines: list[str] = []
        self.mood = self._mood()
        self._made = 0
        self._down: set[str] = set()
        self._saved: set[str] = set()

    def _mood(self) -> Mood:
        random = self.random
        regions = list(NAMES[: random.choices((2, 3, 4, 5), (4, 5, 1, 1))[0]])
        topics = ["t"] if random.random() < 0.7 else ["t", "u"]
        subscriptions = ["sub"] if random.random() < 0.6 else ["sub", "other"]
        weights = {
            "produce": 12.0,
            "ack": 12.0,
            "consumer": 2.0,
            "cumulative": random.choice((0.0, 3.0)),
            "part": random.choice((0.0, 2.0, 6.0)),
            "nack": random.choice((0.0, 2.0)),
            "late": random.choice((0.0, 1.0)),
            "seek": random.choice((0.0, 0.0, 0.7, 2.0)),
            "move": random.choice((0.0, 2.0, 5.0)),
            "close": random.choice((0.0, 1.0)),
            "kill": random.choice((0.0, 1.0)),
            "cut": random.choice((0.0, 1.0, 4.0)),
            "stall": random.choice((0.0, 0.0, 1.0)),
            "reset": random.choice((0.0, 1.0, 3.0)),
            "crash": random.choice((0.0, 1.0, 3.0)),
            "stop": random.choice((0.0, 0.5)),
            "second": random.choice((0.0, 0.0, 0.0, 2.0)),
            "start": 2.0,
            "heal": 2.0,
            "disk": random.choice((0.0, 0.5)),
            "full": random.choice((0.0, 0.0, 0.7)),
            "metadata": random.choice((0.0, 0.0, 0.5)),
            "clock": random.choice((0.0, 0.7)),
            "rot": random.choice((0.0, 0.0, 0.5)),
            "trim": random.choice((0.0, 0.0, 1.0)),
            "expire": random.choice((0.0, 0.0, 1.0)),
            "evict": random.choice((0.0, 0.0, 1.0)),
            "marker": random.choice((0.0, 0.5)),
            "save": random.choice((0.0, 0.0, 0.0, 2.0)),
            "subscribe": 0.3,
            "twins": random.choice((0.0, 0.3)),
            "unsubscribe": random.choice((0.0, 0.0, 0.0, 0.7)),
            "rivals": random.choice((0.0, 0.0, 0.7)),
            "brink": random.choice((0.0, 0.0, 1.5)),
            "quiet": random.choice((0.0, 0.2)),
        }
        if weights["save"]:
            weights["clock"] = 0.0  # a clock set back over a restore repeats ledger ids: R1 depends on the clock
        return Mood(regions, topics, subscriptions, weights)

    def story(self) -> list[str]:
        random = self.random
        self.say(f"chance {random.randrange(1_000_000)}")
        if random.random() < 0.7:
            self.say(f"ledgers of {random.choice((2, 3, 5, 8, 20))}")
        if random.random() < 0.2:
            self.say("disks engine")
        if random.random() < 0.5:
            self.say(f"doubles {random.choice((1, 5, 20))}")
        self.say("regions " + " ".join(self.mood.regions))
        if random.random() < 0.5:
            for region in self.mood.regions:
                self.say(f"clock {region} {random.randint(-3000, 3000):+d}")
        names, weights = list(self.mood.weights), list(self.mood.weights.values())
        steps = random.choice((10, 25, 25, 50, 80))
        pause = random.choice((5, 50, 400))
        for _ in range(steps):
            action = random.choices(names, weights)[0]
            method: Callable[[], None] = getattr(self, "_" + action)
            method()
            if random.random() < 0.6:
                self.say(f"tick {int(random.expovariate(1 / pause)) + 1}")
            elif random.random() < 0.03:
                self.say(f"tick {random.choice((2000, 6000, 12_000, 25_000))}")
        self.say("quiet")
        return self.lines

    def say(self, line: str) -> None:
        self.lines.append(line)

    # -- objects

    def _region(self) -> str:
        return self.random.choice(self.mood.regions)

    def _topic(self) -> str:
        return self.random.choice(self.mood.topics)

    def _name(self) -> str:
        return self.random.choice(self.mood.subscriptions)

    def _any(self) -> str:
        if not self.mood.consumers:
            self._consumer()
        return self.random.choice(self.mood.consumers)

    def _few(self, most: int) -> int:
        return min(most, 1 + int(self.random.expovariate(0.5)))

    # -- actions

    def _produce(self) -> None:
        batch = f" batch {self.random.randint(2, 5)}" if self.random.random() < 0.3 else ""
        key = f" key {self.random.choice('abcdef')}" if self.random.random() < 0.4 else ""
        self.say(f"produce {self._region()} {self._topic()} x{self._few(12)}{batch}{key}")

    def _subscribe(self) -> None:
        place = " latest" if self.random.random() < 0.4 else ""
        self.say(f"subscribe {self._region()} {self._topic()} {self._name()}{place}")

    def _consumer(self) -> None:
        if len(self.mood.consumers) >= 6:
            return
        random = self.random
        self._made += 1
        name = f"c{self._made}"
        kind = random.choices(("shared", "exclusive", "failover", "key_shared"), (6, 2, 2, 3))[0]
        options = " latest" * (random.random() < 0.15) + " auto" * (random.random() < 0.3)
        self.say(f"consumer {name} {self._region()} {self._topic()} {self._name()} {kind}{options}")
        self.mood.consumers.append(name)

    def _ack(self) -> None:
        which = self.random.choice(("", "", " newest", " every2"))
        self.say(f"ack {self._any()} x{self._few(10)}{which}")

    def _cumulative(self) -> None:
        self.say(f"cumulative {self._any()} x{self._few(8)}")

    def _part(self) -> None:
        bits = sorted({self.random.randrange(5) for _ in range(self.random.randint(1, 3))})
        self.say(f"part {self._any()} x{self._few(3)} " + " ".join(map(str, bits)))

    def _nack(self) -> None:
        self.say(f"nack {self._any()} x{self._few(5)}")

    def _late(self) -> None:
        """Consumers hold some messages across a rewind, and ack them once redelivery has begun."""
        self._ack()
        self.say("tick 100")
        for name in self.mood.consumers:
            self.say(f"narrow {name}")
        if self.random.random() < 0.8:
            self.say(f"seek {self._region()} {self._topic()} {self._name()} {self.random.choice((0, 50))}%")
        self.say(f"tick {self.random.choice((300, 510, 600, 1000))}")
        for name in self.mood.consumers:
            self.say(f"late {name} x{self._few(5)}")

    def _seek(self) -> None:
        place = f"{self.random.choice((0, 20, 50, 70, 90, 100))}%"
        if self.random.random() < 0.4:
            place = f"time {self.random.choice((0, 50, 500, 2000, 10_000))}"
        self.say(f"seek {self._region()} {self._topic()} {self._name()} {place}")

    def _move(self) -> None:
        self.say(f"move {self._any()} {self._region()}")

    def _close(self) -> None:
        self.say(f"close {self._any()}")

    def _kill(self) -> None:
        self.say(f"kill {self._any()}")

    def _pair(self) -> str:
        one, two = self.random.sample(self.mood.regions, 2)
        return f"{one}{self.random.choice('->')}{two}"

    def _cut(self) -> None:
        self.say(f"cut {self._pair()}")

    def _stall(self) -> None:
        pair = self._pair().replace("-", ">")
        self.say(f"stall {pair}")
        if self.random.random() < 0.7:
            self.say(f"tick {self.random.choice((100, 1000, 5000, 40_000))}")
            self.say(f"flow {pair}")

    def _reset(self) -> None:
        one, two = self.random.sample(self.mood.regions, 2)
        self.say(f"reset {one}-{two}")

    def _heal(self) -> None:
        self.say("heal")

    def _crash(self) -> None:
        region = self._region()
        self.say(f"crash {region}")
        self._down.add(region)
        if self.random.random() < 0.6:
            self.say(f"tick {self.random.choice((1, 100, 1000))}")
            self._start()

    def _stop(self) -> None:
        region = self._region()
        self.say(f"stop {region}")
        self._down.add(region)

    def _second(self) -> None:
        """Another broker takes over a region, and the previous one keeps running for a while."""
        region, topic = self._region(), self._topic()
        if self.random.random() < 0.5:  # no topic is open for writing
            self._crash_now(region)
            self.say("tick 2500")
        if self.random.random() < 0.5:
            self.say(f"disk {region} {self.random.choice((5, 50))}")
        if self.random.random() < 0.7:
            self.say(f"produce {region} {topic} x{self._few(6)}")
            self._ack()
        self.say(f"second {region}")
        self.say(f"tick {self.random.choice((1, 3, 10, 30, 200, 2000))}")
        if self.random.random() < 0.7:
            self.say(f"produce {region} {topic} x{self._few(6)}")
            self._ack()
            self.say(f"tick {self.random.choice((1, 100, 3000))}")
        if self.random.random() < 0.5:
            self.say(f"retire {region}")
        self.say(f"disk {region} 0")

    def _start(self) -> None:
        if self._down:
            region = self.random.choice(sorted(self._down))
            self._down.discard(region)
            self.say(f"start {region}")

    def _disk(self) -> None:
        self.say(f"disk {self._region()} {self.random.choice((0, 20, 200, 1000))}")

    def _full(self) -> None:
        region = self._region()
        self.say(f"full {region}")
        self.say(f"tick {self.random.choice((1, 20, 500))}")
        self.say(f"room {region}")

    def _metadata(self) -> None:
        region = self._region()
        self.say(f"metadata {region} away")
        self.say(f"tick {self.random.choice((1, 50, 3000))}")
        self.say(f"metadata {region} back")

    def _clock(self) -> None:
        self.say(f"clock {self._region()} {self.random.choice((-5000, -500, 500, 5000, 60_000)):+d}")

    def _rot(self) -> None:
        region = self._region()
        self.say(f"rot {region} {self._topic()} {self.random.randrange(50)}")
        if self.random.random() < 0.5:
            self.say(f"tick {self.random.choice((100, 3000))}")
            self.say(f"mend {region}")

    def _trim(self) -> None:
        self.say(f"trim {self._region()}")

    def _expire(self) -> None:
        self.say(f"expire {self._region()} {self._topic()} {self.random.choice((0, 50, 500, 5000))}")
        if self.random.random() < 0.3:
            self.say(f"trim {self._region()}")

    def _evict(self) -> None:
        self.say(f"evict {self._region()} {self._topic()} x{self._few(8)}")

    def _marker(self) -> None:
        self.say(f"marker {self._region()} {self._topic()}")

    def _save(self) -> None:
        region = self._region()
        if region in self._saved and self.random.random() < 0.7:
            self.say(f"restore {region}")
            self._saved.discard(region)
        elif self.random.random() < 0.7:
            self.say(f"save {region}")
            self._saved.add(region)
        else:
            self.say(f"save {region}")
            for line in ("crash", "start"):
                self.say(f"{line} {region}")
                self.say("tick 100")
            self._produce()
            self.say(f"produce {region} {self._topic()} x1")
            self.say("tick 200")
            self.say(f"restore {region}")

    def _brink(self) -> None:
        """A region with a slow disk loses power just after an ack there, or after receiving one from another region."""
        region = self._region()
        self._crash_now(region)
        if self.random.random() < 0.5:
            self.say("tick 2000")
        self.say(f"disk {region} 200")
        self.say(f"tick {self.random.choice((1, 300, 1000))}")
        for _ in range(2):
            self._ack()
        if self.random.random() < 0.6:
            self._move()
        self.say(f"tick {self.random.choice((5, 50, 150, 250, 350, 500))}")
        self._crash_now(region)
        self.say(f"disk {region} 0")

    def _crash_now(self, region: str) -> None:
        self.say(f"crash {region}")
        self.say(f"start {region}")
        self._down.discard(region)

    def _twins(self) -> None:
        """The same in two regions at the same moment."""
        one, two = self.random.sample(self.mood.regions, 2)
        topic, name = self._topic(), self._name()
        if self.random.random() < 0.5:
            what = f"{topic} {name} {self.random.choice((0, 50))}%"
            self.say(f"seek {one} {what}")
            self.say(f"seek {two} {what}")
        else:
            self.say(f"subscribe {one} {topic} {name}")
            self.say(f"subscribe {two} {topic} {name}")

    def _unsubscribe(self) -> None:
        region, other = self.random.sample(self.mood.regions, 2)
        topic, name = self._topic(), self._name()
        if self.random.random() < 0.4:  # the other region does not learn of it
            self.say(f"cut {region}-{other}")
        self.say(f"unsubscribe {region} {topic} {name}" + " force" * (self.random.random() < 0.7))
        if self.random.random() < 0.5:
            self.say(f"produce {other} {topic} x{self._few(4)}")
            self._ack()
        if self.random.random() < 0.5:
            self.say(f"tick {self.random.choice((10, 1000, 31_000))}")
            self.say(f"subscribe {self._region()} {topic} {name}")

    def _rivals(self) -> None:
        """A subscription is created at different positions in two regions that are cut off from each other."""
        one, two = self.random.sample(self.mood.regions, 2)
        topic, name = self._topic(), f"new{self.random.randrange(3)}"
        self.say(f"cut {one}-{two}")
        for region in (one, two):
            self.say(f"produce {region} {topic} x{self._few(4)}")
            self.say(f"tick {self.random.choice((1, 100, 1000))}")
            place = " latest" if self.random.random() < 0.7 else ""
            self.say(f"subscribe {region} {topic} {name}{place}")
        if self.random.random() < 0.5:
            self.say(f"ack {self._any()} x{self._few(4)}")
        if self.random.random() < 0.5:
            self.say(f"tick {self.random.choice((100, 3000))}")
            self.say(f"heal {one}-{two}")

    def _quiet(self) -> None:
        self.say("quiet")


def story_of(seed: int) -> list[str]:
    """The lines of a seed."""
    lines = with_changes(seed, with_scopes(seed, Generator(seed).story()))
    lines = with_commands(seed, with_faults(seed, with_voters(seed, lines)))
    return with_shadows(seed, with_going_back(seed, with_rot(seed, with_partitions(seed, lines))))
