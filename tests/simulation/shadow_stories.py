# SPDX-License-Identifier: Apache-2.0
"""Shadow topics, added to some of the seeds: created before or among messages, read slowly, moved and deleted.

==========  =============================================================================================
following   a shadow is created and read bit by bit, while its source rolls over and is trimmed; perhaps it does
            not prevent that, so it loses what it did not read; brokers crash or, where several share the region,
            are killed, and source or shadow move to another one
again       the source is deleted elsewhere in spite of its shadow, and created again
==========  =============================================================================================
"""

from __future__ import annotations

from random import Random
from typing import Final

from simulation.drawing import Drawing

PERIOD: Final = 19
"""Coprime to the periods of the other kinds, so that these seeds meet all of them."""
REMAINDERS: Final = (4, 13)
UNSUITED: Final = ("save", "restore", "wipe", "lose", "second", "rot", "bookies", "partitions", "full")
"""What the checks of shadows do not cover: restored regions, rot, two brokers that believe they own a topic."""


def with_shadows(seed: int, lines: list[str]) -> list[str]:
    """The story with the additions for its seed; most stories stay unchanged."""
    is_one = seed % PERIOD in REMAINDERS and not any(line.startswith(UNSUITED) for line in lines)
    return _Shadows(Random(f"shadows {seed}"), lines).drawn(("following",), 1) if is_one else lines


class _Shadows(Drawing):
    """See the module's text."""

    def __init__(self, random: Random, lines: list[str]) -> None:
        super().__init__(random, lines)
        self._has_brokers = any(line.startswith("brokers") for line in self._head)

    def _following(self) -> None:
        random, region, topic = self._random, self._region(), self._topic()
        how = " loose" if random.random() < 0.3 else ""
        names = ["one", "two"][: random.choice((1, 1, 2))]
        shadows = ["w", "z"][: random.choice((1, 1, 2))]
        at = self._places(1)[0]
        lines = [f"produce {region} {topic} x{random.randint(1, 8)}", f"tick {random.choice((1, 50, 500))}"]
        lines += [f"shadow {region} {shadow} of {topic}{how}" for shadow in shadows]
        lines += [f"tick {random.choice((50, 1000))}"]
        drawn = [(at, lines)]
        for later in sorted(random.randint(at, max(len(self._rest) - 1, at)) for _ in range(random.randint(3, 12))):
            lines = [f"produce {self._region()} {topic} x{random.randint(1, 6)}"] * (random.random() < 0.6)
            for shadow in shadows:
                some = random.choice((" x1", " x2", " x5", ""))
                lines += [f"view {region} {shadow} {random.choice(names)}{some}", f"tick {random.choice((1, 20, 300))}"]
            if random.random() < 0.4:
                lines += [f"trim {region}", f"tick {random.choice((1, 20, 300))}"]
            if random.random() < 0.3:
                lines += self._trouble(region, topic, shadows)
            drawn.append((later, lines))
        self._insert(drawn)

    def _trouble(self, region: str, topic: str, shadows: list[str]) -> list[str]:
        random = self._random
        if self._has_brokers:
            what = random.choice((topic, *shadows))
            return [f"hand {region} {what} b{random.randint(1, 3)}", f"tick {random.choice((5, 600, 3000))}"]
        if len(self._regions) > 1 and random.random() < 0.3:
            other = random.choice([one for one in self._regions if one != region])
            lines = [f"delete {other} {topic}", f"tick {random.choice((500, 3000))}"]
            return [*lines, f"produce {region} {topic} x3", f"tick {random.choice((100, 3000))}"]
        return [f"crash {region}", f"tick {random.choice((100, 2000))}", f"start {region}", "tick 1000"]
