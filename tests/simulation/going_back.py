# SPDX-License-Identifier: Apache-2.0
"""Seeks that go back before what a region has trimmed, added to some of the seeds.

==========  =============================================================================================
behind      a region has acknowledged everything and trims it, perhaps as the only one; then it, or another
            region, seeks back by time to before that
==========  =============================================================================================
"""

from __future__ import annotations

from random import Random
from typing import Final

from simulation.drawing import Drawing

PERIOD: Final = 17
"""Coprime to the periods of the other kinds, so that these seeds meet all of them."""
REMAINDERS: Final = (3, 11)


def with_going_back(seed: int, lines: list[str]) -> list[str]:
    """The story with the additions for its seed; most stories stay unchanged."""
    is_one = seed % PERIOD in REMAINDERS
    return _GoingBack(Random(f"going back {seed}"), lines).drawn(("behind",), 1) if is_one else lines


class _GoingBack(Drawing):
    """See the module's text."""

    def _behind(self) -> None:
        random = self._random
        drawn: list[tuple[int, list[str]]] = []
        for at in self._places(random.choice((1, 2, 4))):
            topic, region = self._topic(), self._region()
            names = [name for one, name in self._subscriptions if one == topic]
            lines = [f"produce {self._region()} {topic} x{random.randint(2, 12)}", "tick 200", *self._life()]
            lines += [f"seek {region} {topic} {name} 100%" for name in names]
            lines += ["tick 300", f"produce {region} {topic} x{random.randint(1, 6)}", "tick 200"]
            for one in [region, *random.sample(self._regions, random.choice((0, 0, 1)))]:
                lines += [f"trim {one}", "tick 100"]
            gone, back = self._away(self._region()) if random.random() < 0.3 else ([], [])
            lines += [*gone, *self._life()]
            for _ in range(random.choice((1, 1, 2))):
                seeking = region if random.random() < 0.7 else self._region()
                ago = random.choice((300, 1500, 9000, 600_000))
                lines += [f"seek {seeking} {topic} {random.choice(names)} time {ago}", *self._life()]
            drawn.append((at, [*lines, *back, *self._life()]))
        self._insert(drawn)
