# SPDX-License-Identifier: Apache-2.0
"""Random lines inserted into an ordinary story: their places, and what all kinds of them share."""

from __future__ import annotations

from collections.abc import Callable
from random import Random


class Drawing:
    """Additions to one story. Each kind is a method ``_NAME`` of a subclass."""

    def __init__(self, random: Random, lines: list[str]) -> None:
        self._random = random
        self._begin = next(at for at, line in enumerate(lines) if line.startswith("regions")) + 1
        self._regions = lines[self._begin - 1].split()[1:]
        words = [line.split() for line in lines]
        self._subscriptions = sorted({(line[3], line[4]) for line in words if line[0] == "consumer"}) or [("t", "sub")]
        self._consumers = [line[1] for line in words if line[0] == "consumer"]
        self._head, self._rest = lines[: self._begin], lines[self._begin :]

    def drawn(self, kinds: tuple[str, ...], count: int) -> list[str]:
        for kind in self._random.sample(sorted(kinds), k=count):
            draw: Callable[[], None] = getattr(self, "_" + kind)
            draw()
        return [*self._head, *self._rest]

    # -- where

    def _places(self, count: int) -> list[int]:
        """A number of places in the story, in order."""
        return sorted(self._random.randint(0, max(len(self._rest) - 1, 0)) for _ in range(count))

    def _insert(self, drawn: list[tuple[int, list[str]]]) -> None:
        for at, lines in reversed(drawn):
            self._rest[at:at] = lines

    def _region(self) -> str:
        return self._random.choice(self._regions)

    def _topic(self) -> str:
        return self._random.choice(self._subscriptions)[0]

    def _life(self) -> list[str]:
        """Lines in which clients continue."""
        lines = []
        for _ in range(self._random.randint(0, 3)):
            if self._random.random() < 0.5 or not self._consumers:
                lines.append(f"produce {self._region()} {self._topic()} x{self._random.randint(1, 5)}")
            else:
                lines.append(f"ack {self._random.choice(self._consumers)} x{self._random.randint(1, 6)}")
            lines.append(f"tick {self._random.choice((1, 10, 100, 1000))}")
        return lines

    def _away(self, region: str) -> tuple[list[str], list[str]]:
        """Lines that cut a region off and bring it back, perhaps only at the story's end."""
        random = self._random
        others = [other for other in self._regions if other != region]
        how = random.choice(("cut", "crash", "here", "half"))
        back = [f"tick {random.choice((100, 2000, 9000))}"] if random.random() < 0.7 else []
        if how == "cut":
            return [f"cut {region}-{other}" for other in others], [*back, "heal"] if back else []
        if how == "half":
            other = random.choice(others)
            return [f"cut {region}-{other}"], [*back, f"heal {region}-{other}"] if back else []
        if how == "crash":
            return [f"crash {region}"], [*back, f"start {region}"] if back else []
        return [], []
