# SPDX-License-Identifier: Apache-2.0
"""Stories about the voters of dispatch scope ``origin`` (R26), with little else in them.

A topic's regions, its witness, the preferred holders of its streams and the scope itself are set in one region or in
all, while regions are cut off, crash and restart within the time of a lease, or keep running beside their successor.
Consumers are in all regions at once. The usual promises are checked: one region at a time delivers a stream, nothing is
lost, nothing acknowledged is redelivered, and once all is quiet each stream is delivered.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

PERIOD: Final = 32
REMAINDER: Final = 17
"""One seed in this many is such a story."""


def with_voters(seed: int, lines: list[str]) -> list[str]:
    """The story of its seed, or, of some seeds, one about voters instead."""
    return _Voters(seed).story() if seed % PERIOD == REMAINDER else lines


class _Voters:
    """Draws one story."""

    def __init__(self, seed: int) -> None:
        self._random = random = Random(f"voters {seed}")
        self._regions = ["us", "eu", "ap", "sa"][: random.choice((3, 3, 3, 4))]
        self._homes = self._some()
        """The topic's regions, as most regions were told."""
        self._lines = [f"chance {seed}", f"regions {' '.join(self._regions)}"]
        self._consumed: set[str] = set()
        self._down: set[str] = set()

    def story(self) -> list[str]:
        random = self._random
        first = self._homes[0]
        self._say(f"live t {' '.join(self._homes)}", "tick 1500", f"produce {first} t x2", f"subscribe {first} t sub")
        self._say("tick 300", f"scope {first} t sub origin")
        for region in self._homes:
            self._consume(region)
        self._say(f"tick {random.choice((20, 1000, 4000))}")
        kinds = self._kinds()
        for _ in range(random.randint(8, 26)):
            random.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]()
        self._say("heal", *(f"start {region}" for region in sorted(self._down)))
        self._say(f"live t {' '.join(self._homes)}", "tick 7000", "quiet")
        return self._lines

    def _kinds(self) -> list[tuple[Callable[[], None], float]]:
        """What happens in this world, and how often."""
        random = self._random
        succession, changes = random.choice((0, 0, 1)), random.choice((0, 0, 2, 4))
        return [
            (self._life, 8),
            (self._time, 6),
            (self._cut, 3),
            (self._heal, 2),
            (self._crash, random.choice((0, 2))),
            (self._restart, random.choice((0, 2, 4))),
            (self._succeed, succession),
            (self._regions_change, changes),
            (self._witness, random.choice((0, 2, 3))),
            (self._take_over, random.choice((0, 0, 1, 2))),
            (self._switch, random.choice((0, 1, 2))),
            (self._leave, random.choice((0, 1))),
        ]

    def _say(self, *lines: str) -> None:
        self._lines += lines

    def _some(self) -> list[str]:
        count = self._random.choice((2, 2, 3, len(self._regions)))
        return sorted(self._random.sample(self._regions, count), key=self._regions.index)

    def _one(self) -> str:
        return self._random.choice(self._homes)

    def _consume(self, region: str) -> None:
        random = self._random
        if region not in self._consumed:
            self._consumed.add(region)
            kind = random.choice(("shared", "shared", "key_shared", "failover", "exclusive"))
            self._say(f"consumer c{region} {region} t sub {kind}{' auto' * (random.random() < 0.6)}")

    # -- what happens

    def _life(self) -> None:
        random = self._random
        self._say(f"produce {self._one()} t x{random.randint(1, 3)}")
        if random.random() < 0.5 and self._consumed:
            how = random.choice(("ack", "ack", "cumulative"))
            self._say(f"{how} c{random.choice(sorted(self._consumed))} x{random.randint(1, 4)}")

    def _time(self) -> None:
        self._say(f"tick {self._random.choice((30, 500, 2100, 4000, 7000, 9000))}")

    def _cut(self) -> None:
        one, other = self._random.sample(self._regions, 2)
        alone = self._random.random() < 0.4
        for region in self._regions if alone else [other]:
            if region != one:
                self._say(f"cut {one}-{region}", f"reset {one}-{region}")

    def _heal(self) -> None:
        self._say("heal")

    def _crash(self) -> None:
        region = self._random.choice(self._regions)
        if region in self._down:
            self._down.discard(region)
            self._say(f"start {region}")
        else:
            self._down.add(region)
            self._say(f"crash {region}")

    def _restart(self) -> None:
        """Return within the time of a lease, or not."""
        region = self._random.choice(self._regions)
        if region not in self._down:
            self._say(f"crash {region}", f"tick {self._random.choice((1, 50, 700, 3000, 7000))}", f"start {region}")

    def _succeed(self) -> None:
        region = self._random.choice(self._regions)
        if region not in self._down:
            self._say(f"second {region}")

    def _regions_change(self) -> None:
        random = self._random
        wanted = self._some()
        if random.random() < 0.5:
            self._homes = wanted
            self._say(f"live t {' '.join(wanted)}")
        else:  # only one region is told
            self._say(f"tell {random.choice(wanted)} t {' '.join(wanted)}")
        for region in wanted:
            if random.random() < 0.7:
                self._consume(region)

    def _witness(self) -> None:
        self._say(f"witness {self._one()} t sub {self._random.choice([*self._regions, 'none'])}")

    def _take_over(self) -> None:
        random = self._random
        self._say(f"takeover {self._one()} t sub {random.choice(self._regions)} {self._one()}")

    def _switch(self) -> None:
        self._say(f"scope {self._one()} t sub {self._random.choice(('origin', 'origin', 'local'))}")

    def _leave(self) -> None:
        if self._consumed:
            region = self._random.choice(sorted(self._consumed))
            self._consumed.discard(region)
            self._say(f"close c{region}")
