# SPDX-License-Identifier: Apache-2.0
"""Random trouble for a few seconds, and its end."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from itertools import permutations

from world import OLD, REGIONS, World

KINDS = (
    *("kill", "kill", "kill twice", "drain", "unload", "freeze", "cut", "cut", "cut one way", "old disk"),
    *("failing disk", "failing disk", "failing disk"),
)
FAULTS = (("reads", "EIO"), ("writes", "EIO"), ("writes", "ENOSPC"), ("everything", "EIO"))
ENDS = ("mend", "mend", "kill", "drain", "start")
"""How a disk failure ends; with "start" the broker is also started while the disk still fails."""


class Trouble:
    """Faults from a random number generator, at most two at a time."""

    def __init__(self, world: World, chance: random.Random, counts: Counter[str]) -> None:
        self._world, self._random, self._counts = world, chance, counts
        self._ends: list[tuple[float, Callable[[], None], set[str]]] = []

    def happen(self, seconds: float) -> None:
        """Cause trouble for this long; all faults are over at the end."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            for due in [one for one in self._ends if one[0] <= now]:
                self._ends.remove(due)
                due[1]()
            if len(self._ends) < 2 and self._random.random() < 0.3:
                self._begin()
            time.sleep(0.1)
        for _, end, _ in self._ends:
            end()
        self._ends.clear()

    def _begin(self) -> None:
        touched = set().union(*(names for _, _, names in self._ends))
        free = [region for region in REGIONS if region not in touched]
        kind = self._random.choice(KINDS)
        if kind == "old disk":
            free = [region for region in free if region in self._world.copied_at]
        if not free:
            return
        region = self._random.choice(free)
        if kind == "kill twice":
            self._world.die(region)
            self._world.start_and_kill(region, self._random.uniform(0.3, 2.5))
            self._world.live(region)
        elif kind == "kill":
            self._world.die(region)
            self._later(0.1, 2.5, lambda: self._world.live(region), {region})
        elif kind == "drain":
            self._world.drain(region)
            self._later(0.1, 2.5, lambda: self._world.live(region), {region})
        elif kind == "unload":
            self._world.unload(region)
        elif kind == "freeze":
            self._world.freeze(region)
            self._later(0.3, 4, lambda: self._world.thaw(region), {region})
        elif kind == "failing disk":
            operations, code = self._random.choice(FAULTS)
            end = self._random.choice(ENDS)
            self._world.fail_disk(region, operations, code)
            self._later(0.3, 5, lambda: self._end_fault(region, end), {region})
            self._counts[f"failing disk then {end}"] += 1
            kind = f"disk fails {operations} {code}"
        elif kind == "old disk":
            what = self._random.choice(OLD)
            self._world.give_old_disk(region, what)
            kind = f"old {what}"
        else:
            pairs = self._random.sample(list(permutations(REGIONS, 2)), self._random.choice((1, 1, 2)))
            if kind == "cut":
                pairs = list(dict.fromkeys([*pairs, *((to, one) for one, to in pairs)]))
            if "link" in touched:
                return
            self._world.cut_ways(pairs)
            self._later(0.3, 5, lambda: self._world.heal_ways(pairs), {"link"})
        self._counts[kind] += 1

    def _end_fault(self, region: str, end: str) -> None:
        if end == "drain":
            self._world.drain(region)
        elif end != "mend":
            self._world.die(region)
        if end == "start":
            self._world.start_and_kill(region, self._random.uniform(0.3, 2.5))
        self._world.mend_disk(region)
        if end != "mend":
            self._world.live(region)

    def _later(self, least: float, most: float, end: Callable[[], None], names: set[str]) -> None:
        self._ends.append((time.monotonic() + self._random.uniform(least, most), end, names))
