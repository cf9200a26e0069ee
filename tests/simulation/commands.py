# SPDX-License-Identifier: Apache-2.0
"""Operators' commands on topics, added to some of the seeds.

============  ============================================================================================
quotas        backlog quotas in some regions, by size or age: producers are blocked, or old entries are evicted
terminations  topics are terminated in one region, while the others continue
compactions   topics are compacted, and read compacted with cumulative acks, also by ids of another region
============  ============================================================================================
"""

from __future__ import annotations

from random import Random
from typing import Final

from simulation.drawing import Drawing

PERIOD: Final = 7
"""Coprime to the periods of ``changes.py`` and ``faults.py``, so that these kinds meet all of those."""
COUNTS: Final[dict[int, int]] = {2: 1, 5: 2}
"""Remainder -> number of kinds in the seed."""
COMMANDS: Final = ("quotas", "terminations", "compactions")


def with_commands(seed: int, lines: list[str]) -> list[str]:
    """The story with the additions for its seed; most stories stay unchanged."""
    count = COUNTS.get(seed % PERIOD, 0)
    return _Commands(Random(f"commands {seed}"), lines).drawn(COMMANDS, count) if count else lines


class _Commands(Drawing):
    """See the module's text."""

    def _quotas(self) -> None:
        random = self._random
        drawn: list[tuple[int, list[str]]] = []
        for at in self._places(random.choice((1, 2, 3))):
            region, topic = self._region(), self._topic()
            how = random.choice(("hold", "hold", "evict"))
            limit = random.choice(("300", "1000", "3000")) if random.random() < 0.7 else random.choice(("1s", "5s"))
            burst = [f"produce {self._region()} {topic} x{random.randint(3, 12)}" for _ in range(random.randint(1, 3))]
            lines = [f"quota {region} {topic} {limit} {how}", *burst, f"tick {random.choice((100, 3000, 9000))}"]
            if random.random() < 0.5:
                lines += [*self._life(), f"quota {region} {topic} off"]
            drawn.append((at, [*lines, *self._life()]))
        self._insert(drawn)

    def _terminations(self) -> None:
        random = self._random
        drawn: list[tuple[int, list[str]]] = []
        for at in self._places(random.choice((1, 1, 2))):
            region, topic = self._region(), self._topic()
            gone, back = self._away(self._region()) if random.random() < 0.4 else ([], [])
            burst = [f"produce {self._region()} {topic} x{random.randint(1, 8)}" for _ in range(random.randint(0, 3))]
            lines = [*gone, *burst, f"tick {random.choice((1, 3, 100))}", f"terminate {region} {topic}"]
            if random.random() < 0.3:
                lines += [f"tick {random.choice((1, 2, 5))}", f"crash {region}", f"start {region}"]
            lines += [*self._life(), f"produce {self._region()} {topic} x{random.randint(1, 5)}"]
            drawn.append((at, [*lines, f"tick {random.choice((10, 1000, 6000))}", *back, *self._life()]))
        self._insert(drawn)

    def _compactions(self) -> None:
        random = self._random
        drawn: list[tuple[int, list[str]]] = []
        topic, name = random.choice(self._subscriptions)
        readers = [f"r{number}" for number in range(random.choice((1, 2)))]
        opening = [f"produce {self._region()} {topic} x{random.randint(2, 9)} key a", "tick 50"]
        for reader in readers:
            kind = random.choice(("exclusive", "failover"))
            opening.append(f"consumer {reader} {self._region()} {topic} {name} {kind} compacted")
        drawn.append((0, opening))
        for at in self._places(random.choice((2, 4, 8))):
            region, other, reader = self._region(), self._region(), random.choice(readers)
            key = random.choice("abc")
            lines = [f"produce {self._region()} {topic} x{random.randint(1, 6)} key {key}", *self._life()]
            lines += [f"compact {region} {topic}", f"tick {random.choice((1, 5, 100, 1000))}"]
            chance = random.random()
            if chance < 0.3:
                lines.append(f"cumulative {reader} x{random.randint(1, 6)}")
            elif chance < 0.6:
                lines += [f"move {reader} {other}", "tick 1000", f"stray {reader} {region} {random.randrange(30)}"]
            elif chance < 0.7:
                lines += [f"metadata {region} away"] * (random.random() < 0.5) + [f"forget {region} {topic}", "tick 20"]
                lines.append(f"metadata {region} back")
            if random.random() < 0.3:
                lines += [f"trim {region}", "tick 50"]
            if random.random() < 0.2:
                lines += [f"crash {region}", f"start {region}"]
            drawn.append((at, lines))
        self._insert(sorted(drawn, key=lambda one: one[0]))
