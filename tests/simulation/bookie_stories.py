# SPDX-License-Identifier: Apache-2.0
"""Bookies for some of the stories of regions that brokers share, and what happens to them.

The lines are inserted between those of an ordinary story, so ledgers change owners while their bookies fail. Sometimes
both coincide: entries are in flight, bookies fail, and then their ledgers get another owner.
"""

from __future__ import annotations

from random import Random
from typing import Final

from simulation.drawing import Drawing

PERIOD: Final = 3
"""One story in this many has bookies."""
COUNTS: Final = (3, 4, 4, 5)
PAUSES_MS: Final = (1, 20, 300, 1500, 6000, 14_000)


def with_bookies(seed: int, lines: list[str]) -> list[str]:
    """The story with bookies, if its seed has them; most stories stay unchanged."""
    return _Bookies(Random(f"bookies {seed}"), lines).story() if seed % PERIOD == 0 else lines


class _Bookies(Drawing):
    """See the module's text."""

    def __init__(self, random: Random, lines: list[str]) -> None:
        super().__init__(random, lines)
        counts = next(line for line in lines if line.startswith("brokers ")).split()[1:]
        brokers = zip(self._regions, map(int, counts), strict=False)
        self._brokers = {region: [f"b{number + 1}" for number in range(count)] for region, count in brokers if count}
        self._bookies = [f"k{number + 1}" for number in range(random.choice(COUNTS))]

    def story(self) -> list[str]:
        self._head.insert(0, f"bookies {len(self._bookies)}")
        random = self._random
        drawn: list[tuple[int, list[str]]] = []
        for at in self._places(random.choice((1, 2, 4, 8))):
            region = random.choice(list(self._brokers))
            lines, after = self._failing(region)
            if random.random() < 0.4:
                lines = [*self._under_way(region), *lines, *self._moving(region)]
            wait = [f"tick {random.choice(PAUSES_MS)}"]
            drawn.append((at, [*lines, *self._life(), *wait, *self._life(), *after]))
        self._insert(drawn)
        return [*self._head, *self._rest]

    def _failing(self, region: str) -> tuple[list[str], list[str]]:
        """What fails, and what ends that; sometimes only the end of the story does."""
        random = self._random
        count = random.choices((1, 2, len(self._bookies)), (6, 2, 2))[0]
        begin: list[str] = []
        end: list[str] = []
        how = random.choices(("crash", "hang", "cut", "busy", "broken", "slow"), (6, 3, 2, 1, 1, 1))[0]
        for bookie in random.sample(self._bookies, count):
            named = f"bookie {region} {bookie}"
            if how == "cut":
                broker = random.choice(self._brokers[region])
                begin.append(f"{named} cut {broker}")
                end.append(f"{named} join {broker}")
            elif how in ("crash", "hang", "broken"):
                begin.append(f"{named} {how}")
                end.append(f"{named} { {'crash': 'start', 'hang': 'resume', 'broken': 'mended'}[how] }")
            else:
                begin.append(f"{named} {how} {random.choice((1, 5, 50, 1000))}")
                end.append(f"{named} {how} 0")
        return begin, end if random.random() < 0.8 else []

    def _under_way(self, region: str) -> list[str]:
        """Entries that not all bookies have synced."""
        random, lines = self._random, list[str]()
        if random.random() < 0.5:
            slow = random.choice(self._bookies)
            lines.append(f"bookie {region} {slow} slow {random.choice((5, 50))}")
        topic = self._topic()
        return [*lines, f"produce {region} {topic} x{random.randint(1, 9)}", f"tick {random.choice((1, 2, 3, 5, 20))}"]

    def _moving(self, region: str) -> list[str]:
        """Ledgers get another owner."""
        random, broker = self._random, self._random.choice(self._brokers[region])
        pause = [f"tick {random.choice((1, 2, 5, 50))}"] * (random.random() < 0.5)
        how = random.choice(("hand", "hand", "die", "suspend", "leave"))
        if how == "hand":
            return [*pause, f"hand {region} {self._topic()}"]
        back = {"die": ["begin"], "suspend": ["resume"], "leave": ["begin"]}[how]
        wait = f"tick {random.choice((300, 9000, 13_000))}"
        return [*pause, f"{how} {region} {broker}", wait, *(f"{one} {region} {broker}" for one in back)]
