# SPDX-License-Identifier: Apache-2.0
"""Bit rot in records of subscriptions and in checkpoints of the engine, added to some of the seeds.

Ordinary stories include bit rot of messages.

===========  ============================================================================================
progress     records of a topic's progress log rot before the region opens it again: acknowledgements, rewinds,
             creations, deletions, including their headers or not, while another region is away or not
checkpoints  the engine's newest checkpoint, or the one before, rots before the engine starts again
===========  ============================================================================================
"""

from __future__ import annotations

from random import Random
from typing import Final

from simulation.drawing import Drawing

PERIOD: Final = 13
"""Coprime to the periods of the other kinds, so that these seeds meet all of them."""
KINDS: Final[dict[int, tuple[str, ...]]] = {4: ("progress",), 9: ("checkpoints", "progress")}
"""Remainder -> what rots in the seed."""


def with_rot(seed: int, lines: list[str]) -> list[str]:
    """The story with the additions for its seed; most stories stay unchanged."""
    kinds = KINDS.get(seed % PERIOD, ())
    return _Rotting(Random(f"rot {seed}"), lines).drawn(kinds, len(kinds)) if kinds else lines


class _Rotting(Drawing):
    """See the module's text."""

    def _progress(self) -> None:
        random = self._random
        drawn: list[tuple[int, list[str]]] = []
        for at in self._places(random.choice((1, 2, 4))):
            region, topic = self._region(), self._topic()
            gone, back = self._away(self._region()) if random.random() < 0.4 else ([], [])
            lines = [*gone, *self._life(), f"tick {random.choice((20, 500))}"]
            for _ in range(random.choice((1, 1, 2, 5))):
                where = " head" * (random.random() < 0.2)
                lines.append(f"rot {region} {topic} progress {random.randrange(60)}{where}")
            lines += [*self._life(), *self._again(region)]
            if random.random() < 0.5:
                lines += [*self._life(), f"mend {region}"]
            drawn.append((at, [*lines, *back, *self._life()]))
        self._insert(drawn)

    def _checkpoints(self) -> None:
        random = self._random
        if "disks engine" not in self._head:
            self._head.insert(-1, "disks engine")
        drawn: list[tuple[int, list[str]]] = []
        for at in self._places(random.choice((2, 3, 5))):
            region = self._region()
            lines = [f"produce {region} {self._topic()} x{random.randint(4, 12)}", *self._life()]
            lines += [f"trim {region}", "tick 1500"] if random.random() < 0.5 else []
            lines += [f"rot {region} checkpoint {random.choice((0, 0, 1))}", *self._again(region)]
            drawn.append((at, [*lines, *self._life()]))
        self._insert(drawn)

    def _again(self, region: str) -> list[str]:
        """The region's broker ends, and another one starts."""
        end = "stop" if self._random.random() < 0.2 else "crash"
        pause = self._random.choice((1, 100, 3000))
        return [f"{end} {region}", f"tick {pause}", f"start {region}", f"tick {self._random.choice((1, 50, 1000))}"]
