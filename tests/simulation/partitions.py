# SPDX-License-Identifier: Apache-2.0
"""Partitioned topics in some of the seeds: created, expanded and deleted in one region or two at once, while clients
use their partitions, regions are cut off from each other, and brokers are killed."""

from __future__ import annotations

from random import Random
from typing import Final

from simulation.drawing import Drawing

PERIOD: Final = 11
"""Coprime to the periods of the other kinds, so that these seeds meet all of them."""
PLACE: Final = 4
TOPIC: Final = "p"
SUBSCRIPTIONS: Final = ("sub", "other")


def with_partitions(seed: int, lines: list[str]) -> list[str]:
    """The story with a partitioned topic, in one seed of eleven; the others stay unchanged."""
    if seed % PERIOD != PLACE:
        return lines
    return _Partitions(Random(f"partitions {seed}"), lines).drawn(("partitions",), 1)


class _Partitions(Drawing):
    """See the module's text."""

    def _partitions(self) -> None:
        random = self._random
        self._most = random.choice((1, 2, 2, 3))
        opening = self._opening()
        self._insert([(0, opening), *((at, self._event()) for at in self._places(random.choice((2, 3, 5))))])

    def _partition(self) -> str:
        return f"{TOPIC}-partition-{self._random.randrange(self._most)}"

    def _opening(self) -> list[str]:
        random = self._random
        lines = [f"partitions {self._region()} {TOPIC} {self._most}"]
        if random.random() < 0.2:  # in two regions at once, perhaps with different numbers
            lines.append(f"partitions {self._region()} {TOPIC} {random.randint(1, 3)}")
        lines.append(f"tick {random.choice((1, 20, 500))}")
        for number in range(random.choice((1, 2, 3))):
            kind = random.choice(("shared", "exclusive", "failover"))
            options = " latest" * (random.random() < 0.2) + " auto" * (random.random() < 0.4)
            name = f"p{number}"
            lines.append(
                f"consumer {name} {self._region()} {self._partition()} {random.choice(SUBSCRIPTIONS)} {kind}{options}"
            )
            self._consumers.append(name)
        return [*lines, *self._use()]

    def _use(self) -> list[str]:
        random, lines = self._random, []
        for _ in range(random.randint(1, 4)):
            if random.random() < 0.6:
                lines.append(f"produce {self._region()} {self._partition()} x{random.randint(1, 4)}")
            elif random.random() < 0.8 and self._consumers:
                how = random.choice(("ack", "ack", "cumulative"))
                lines.append(f"{how} {random.choice(self._consumers)} x{random.randint(1, 5)}")
            else:
                lines.append(f"subscribe {self._region()} {self._partition()} {random.choice(SUBSCRIPTIONS)}")
            lines.append(f"tick {random.choice((1, 10, 100, 1000))}")
        return lines

    def _grow(self, region: str) -> str:
        self._most = min(self._most + self._random.choice((0, 1, 1, 2)), 5)
        return f"grow {region} {TOPIC} {self._most}"

    def _event(self) -> list[str]:
        """One client, or two at once, change the topic; a broker may be killed at that moment."""
        random = self._random
        gone, back = self._away(self._region()) if random.random() < 0.6 else ([], [])
        one, other = self._region(), self._region()
        lines = [*gone, *(self._use() if random.random() < 0.5 else [])]
        if random.random() < 0.15:
            lines.append(f"fails {one} {random.choice(('write', 'metadata', 'answer'))} {random.randrange(8)} x1")
        for region in [one, other] if random.random() < 0.4 else [one]:
            how = random.random()
            if how < 0.55:
                lines.append(self._grow(region))
            elif how < 0.9:
                lines.append(f"delete {region} {TOPIC}")
            else:
                lines.append(f"partitions {region} {TOPIC} {random.randint(1, 3)}")
            if random.random() < 0.3:
                lines.append(f"tick {random.choice((1, 2, 5, 20))}")
        if random.random() < 0.25:
            lines += [f"tick {random.choice((1, 2, 3, 5, 8, 20))}", f"crash {one}", "tick 50", f"start {one}"]
        lines.append(f"tick {random.choice((1, 30, 500))}")
        if random.random() < 0.5:  # created again, perhaps with fewer: refused where it was not deleted
            lines.append(f"partitions {self._region()} {TOPIC} {random.randint(1, self._most)}")
            lines.append(f"tick {random.choice((1, 30, 500))}")
        return [*lines, *self._use(), *back, *(self._use() if back else [])]
