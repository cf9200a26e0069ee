# SPDX-License-Identifier: Apache-2.0
"""Faults of machines, disks, networks and clocks beyond those of ordinary stories, added to some of the seeds.

=========  =============================================================================================
silences   connections end silently: their machine lost power, or a firewall dropped them
restarts   a region is killed again while it starts and recovers, several times in a row
versions   some regions run a broker of an older peer protocol, for a while or for good
failures   single reads and writes of a disk fail, or operations of the metadata store, which may still take effect
clocks     a wall clock jumps by minutes or an hour, forwards and backwards
=========  =============================================================================================
"""

from __future__ import annotations

from random import Random
from typing import Final

from simulation.drawing import Drawing

PERIOD: Final = 5
"""Coprime to the periods of ``changes.py``, so that these kinds meet all of those."""
KINDS: Final[dict[int, int]] = {1: 1, 3: 2}
"""Remainder -> number of kinds in the seed."""
FAULTS: Final = ("silences", "restarts", "versions", "failures", "clocks")
RESTORING: Final = ("save", "restore", "wipe")
AHEAD_MS: Final = 3_500_000
"""How far a region's clock may get ahead of the others: a deletion stamped over an hour ahead is refused."""


def with_faults(seed: int, lines: list[str]) -> list[str]:
    """The story with the additions for its seed; most stories stay unchanged."""
    count = KINDS.get(seed % PERIOD, 0)
    return _Faults(Random(f"faults {seed}"), lines).drawn(FAULTS, count) if count else lines


class _Faults(Drawing):
    """See the module's text."""

    def _silences(self) -> None:
        random = self._random
        drawn: list[tuple[int, list[str]]] = []
        for at in self._places(random.choice((1, 2, 3))):
            if random.random() < 0.5:
                one, other = random.sample(self._regions, 2)
                lines = [*self._life(), f"hush {one}-{other}"]
            else:
                region = self._region()
                lines = [f"crash {region} silent", f"tick {random.choice((1, 100, 3000))}", f"start {region}"]
            wait = [f"tick {random.choice((500, 5000, 29_000, 31_000))}"] * (random.random() < 0.7)
            drawn.append((at, [*lines, *self._life(), *wait, *self._life()]))
        self._insert(drawn)

    def _restarts(self) -> None:
        random = self._random
        drawn: list[tuple[int, list[str]]] = []
        for at in self._places(random.choice((1, 2))):
            region = self._region()
            lines = self._life()
            if random.random() < 0.3:
                lines.append(f"disk {region} {random.choice((5, 50))}")
            if random.random() < 0.3:
                lines.append(f"metadata {region} {random.choice((5, 50))}")
            for _ in range(random.choice((2, 3, 5))):
                how = "stop" if random.random() < 0.2 else "crash"
                lines += [f"{how} {region}", f"start {region}", f"tick {random.choice((1, 2, 3, 5, 8, 15, 40, 200))}"]
            drawn.append((at, [*lines, *self._life(), f"disk {region} 0", f"metadata {region} 0"]))
        self._insert(drawn)

    def _versions(self) -> None:
        random = self._random
        drawn: list[tuple[int, list[str]]] = []
        for region in random.sample(self._regions, random.randint(1, len(self._regions) - 1)):
            version = random.choice((1, 2, 3, 3))
            first, second = self._places(2)
            drawn.append((0 if random.random() < 0.5 else first, [f"version {region} {version}", "tick 1000"]))
            if random.random() < 0.5:
                drawn.append((second, [f"version {region} {random.choice((version, 4))}", *self._life()]))
        self._insert(sorted(drawn, key=lambda one: one[0]))

    def _failures(self) -> None:
        random = self._random
        drawn: list[tuple[int, list[str]]] = []
        for at in self._places(random.choice((1, 3, 6))):
            region, kind = self._region(), random.choice(("read", "read", "write", "write", "metadata", "answer"))
            after, count = random.choice((0, 0, 1, 2, 5, 20)), random.choice((1, 1, 2, 10))
            lines = [f"fails {region} {kind} {after} x{count}", *self._life()]
            if random.random() < 0.4:  # what was in memory has to be read again
                lines += [f"crash {region}", f"start {region}", f"tick {random.choice((10, 500))}"]
            if random.random() < 0.3:
                lines += [f"trim {region}", "tick 50"]
            if random.random() < 0.5:
                lines += [*self._life(), f"works {region}"]
            drawn.append((at, lines))
        self._insert(drawn)

    def _clocks(self) -> None:
        random = self._random
        if any(line.startswith(RESTORING) for line in self._rest):
            return  # a clock set back over a restore repeats ledger ids: R1 depends on the clock
        drawn: list[tuple[int, list[str]]] = []
        region, ahead_ms = self._region(), 0
        for at in self._places(random.choice((1, 2, 4))):
            jumps = (-3_400_000, -600_000, -60_000, 60_000, 600_000, 3_400_000)
            jump = random.choice([one for one in jumps if abs(ahead_ms + one) <= AHEAD_MS])
            ahead_ms += jump
            drawn.append((at, [*self._life(), f"clock {region} {jump:+d}", *self._life()]))
        self._insert(drawn)
