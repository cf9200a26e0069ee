# SPDX-License-Identifier: Apache-2.0
"""Rare operations on regions, topics and subscriptions, added to some of the seeds.

Each kind has its own seeds; other seeds stay unchanged. The lines are inserted between those of an ordinary story, so
that they meet the faults which that seed has anyway.

=========  =============================================================================================
parts      a region is restored to a copy of its volume, of its metadata, or of both, or is rebuilt from nothing
homes      regions are removed from a topic, notified or not, alive or dead; they return, or others join
deletions  topics are deleted while a region is away, and recreated by publishing
flags      a subscription's replicated flag is switched off and on, also in two regions that are cut off from each other
lost       a region dies for good
absences   a region is away for minutes or hours, while the others trim what they have; or it trims alone
rewinds    seeks, mostly by time, in a region that is cut off, or in two that are cut off from each other
again      a subscription is deleted and recreated while a region is away
gaps       a region is restored, or outside a topic, while the others trim what they have; operators accept gaps
late       batches are acked in part, and late, after the consumer moved or everything was redelivered
=========  =============================================================================================
"""

from __future__ import annotations

from random import Random
from typing import Final

from simulation.drawing import Drawing

PERIOD: Final = 32
"""A seed's remainder selects its kinds."""
SOME: Final = ("parts", "homes", "deletions", "flags", "lost")
KINDS: Final[dict[int, int]] = {8: 1, 10: 1, 12: 1, 14: 1, 24: 1, 26: 1, 28: 1, 30: 1, 0: 2, 16: 3, 21: 1}
"""Remainder -> number of these kinds in the seed. 21 has dispatch scopes as well."""
OTHERS: Final = ("absences", "rewinds", "again", "gaps", "late")
OTHER_KINDS: Final[dict[int, int]] = {2: 1, 4: 1, 6: 1, 11: 1, 18: 1, 19: 1, 20: 2, 22: 1, 27: 2, 29: 1, 16: 1}
"""The same for the other kinds. 29 has dispatch scopes, 16 some of both."""


def with_changes(seed: int, lines: list[str]) -> list[str]:
    """The story with the additions for its seed; most stories stay unchanged."""
    place = seed % PERIOD
    for kinds, count in ((SOME, KINDS.get(place, 0)), (OTHERS, OTHER_KINDS.get(place, 0))):
        if count:
            lines = _Changes(Random(f"{'changes' if kinds is SOME else 'others'} {seed}"), lines).drawn(kinds, count)
    return lines


class _Changes(Drawing):
    """See the module's text."""

    def _parts(self) -> None:
        random = self._random
        # A clock set back over a restore, with no region to ask, repeats ledger ids: R1 depends on the clock.
        self._rest = [line for line in self._rest if not line.startswith("clock")]
        drawn: list[tuple[int, list[str]]] = []
        for _ in range(random.choice((1, 1, 2, 3))):
            region = self._region()
            first, second = self._places(2)
            gone, back = self._away(self._region()) if random.random() < 0.3 else ([], [])
            if random.random() < 0.3:
                drawn.append((second, [*gone, f"wipe {region}", *self._life(), *back]))
                continue
            what = random.choice(("", " volume", " metadata", " metadata", " volume"))
            drawn.append((first, [f"save {region}"]))
            drawn.append((second, [*gone, f"restore {region}{what}", *self._life(), *back]))
        self._insert(sorted(drawn, key=lambda one: one[0]))

    def _homes(self) -> None:
        random = self._random
        topic = self._topic()
        drawn: list[tuple[int, list[str]]] = []
        if len(self._regions) > 2 and random.random() < 0.3:  # some join later
            some = random.sample(self._regions, len(self._regions) - 1)
            drawn.append((0, [f"live {topic} {' '.join(some)}", "tick 100"]))
        for at in self._places(random.choice((1, 2, 2, 3))):
            region = self._region()
            kept = [one for one in self._regions if one != region]
            gone, back = self._away(region)
            how = random.random()
            if how < 0.6:
                command = f"live {topic} {' '.join(kept)}"
            elif how < 0.8:  # only one is told, perhaps the removed one
                command = f"tell {random.choice(self._regions)} {topic} {' '.join(kept)}"
            else:
                command = f"live {topic} {' '.join(random.sample(self._regions, random.randint(1, len(kept))))}"
            trim = [f"trim {self._region()}"] * (random.random() < 0.3)
            drawn.append((at, [*gone, command, *self._life(), *trim, *back]))
            if random.random() < 0.7:
                again = random.randint(at, max(len(self._rest) - 1, at))
                drawn.append((again, [f"live {topic} {' '.join(self._regions)}", *self._life()]))
        self._insert(sorted(drawn, key=lambda one: one[0]))

    def _deletions(self) -> None:
        random = self._random
        drawn: list[tuple[int, list[str]]] = []
        for at in self._places(random.choice((1, 1, 2))):
            topic, region = self._topic(), self._region()
            other = random.choice([one for one in self._regions if one != region])
            gone, back = self._away(other)
            before = self._life() if random.random() < 0.5 else []
            delete = [f"delete {region} {topic}"]
            if random.random() < 0.2:  # another region deletes it, too
                delete += [f"tick {random.choice((1, 50))}", f"delete {self._region()} {topic}"]
            if random.random() < 0.2:
                delete += [f"tick {random.choice((1, 2, 5, 20))}", f"crash {region}", "tick 50", f"start {region}"]
            drawn.append((at, [*gone, *before, *delete, f"tick {random.choice((1, 20, 300))}", *self._life(), *back]))
        self._insert(drawn)

    def _flags(self) -> None:
        random = self._random
        drawn: list[tuple[int, list[str]]] = []
        for at in self._places(random.choice((1, 2, 3))):
            topic, name = random.choice(self._subscriptions)
            one, other = self._region(), self._region()
            gone, back = self._away(self._region())
            drawn.append((at, [*gone, f"switch {one} {topic} {name} off", *self._life()]))
            if random.random() < 0.2:
                place = random.choice(("0%", "50%", "time 500"))
                drawn.append((at, [f"seek {self._region()} {topic} {name} {place}", *self._life()]))
            later = random.randint(at, max(len(self._rest) - 1, at))
            if random.random() < 0.85:
                drawn.append((later, [f"switch {other} {topic} {name} on", *self._life()]))
            drawn.append((later, back))
        self._insert(sorted(drawn, key=lambda one: one[0]))

    def _lost(self) -> None:
        random = self._random
        if len(self._regions) < 3:
            return
        region = self._region()
        kept = [one for one in self._regions if one != region]
        (at,) = self._places(1)
        gone, _ = self._away(region)
        topics = sorted({topic for topic, _ in self._subscriptions} | {"t"})
        lines = [*gone, *self._life(), f"lose {region}", *self._life()]
        lines += [f"live {topic} {' '.join(kept)}" for topic in topics]
        if random.random() < 0.3:
            lines += [f"tick {random.choice((1000, 9000))}", f"trim {random.choice(kept)}"]
        self._insert([(at, lines)])

    def _letting_go(self, region: str, topic: str) -> list[str]:
        """The region drops old entries and trims what nothing needs."""
        lines = []
        if self._random.random() < 0.6:
            lines.append(f"expire {region} {topic} {self._random.choice((0, 500, 5000))}")
        elif self._random.random() < 0.5:
            lines.append(f"evict {region} {topic} x{self._random.randint(1, 6)}")
        return [*lines, "tick 100", f"trim {region}"]

    def _absences(self) -> None:
        random = self._random
        region, topic = self._region(), self._topic()
        others = [one for one in self._regions if one != region]
        gone, back = self._away(region)
        long = random.choice(("tick 60000", "tick 300000", "tick 1200000", "tick 1200000", "hours 1"))
        busy = [region] if random.random() < 0.2 else random.sample(others, random.randint(1, len(others)))
        lines = [*gone, *self._life(), *(["tick 40000"] if random.random() < 0.5 else [])]
        for one in busy:
            lines += self._letting_go(one, topic)
        lines += [*self._life(), long, *self._life()]
        for one in random.sample(busy, random.randint(0, len(busy))):
            lines += self._letting_go(one, topic)
        (at,) = self._places(1)
        self._insert([(at, [*lines, *back, *self._life()])])

    def _rewinds(self) -> None:
        random = self._random
        drawn: list[tuple[int, list[str]]] = []
        for at in self._places(random.choice((1, 2, 3))):
            topic, name = random.choice(self._subscriptions)
            gone, back = self._away(self._region())
            lines = [*gone, *self._life()]
            for _ in range(random.choice((1, 1, 2, 3))):
                place = random.choice(("time 0", "time 50", "time 500", "time 3000", "time 60000", "0%", "50%", "100%"))
                lines += [f"seek {self._region()} {topic} {name} {place}", *self._life()]
            drawn.append((at, [*lines, *back, *self._life()]))
        self._insert(drawn)

    def _again(self) -> None:
        random = self._random
        drawn: list[tuple[int, list[str]]] = []
        for at in self._places(random.choice((1, 1, 2))):
            topic, name = random.choice(self._subscriptions)
            gone, back = self._away(self._region())
            lines = [*gone, *self._life()]
            for _ in range(random.choice((1, 1, 2))):
                lines += [f"unsubscribe {self._region()} {topic} {name}" + " force" * (random.random() < 0.8)]
                lines += [
                    *self._life(),
                    f"tick {random.choice((1, 100, 31_000))}",
                ]  # after a forced deletion the name is closed for a while
                if random.random() < 0.8:
                    latest = " latest" * (random.random() < 0.4)
                    lines += [f"subscribe {self._region()} {topic} {name}{latest}", *self._life()]
            if random.random() < 0.2:
                lines.append(f"seek {self._region()} {topic} {name} time {random.choice((50, 3000))}")
            drawn.append((at, [*lines, *back, *self._life()]))
        self._insert(drawn)

    def _gaps(self) -> None:
        """Acked or dropped everywhere and trimmed: a region that is restored, or was outside, finds a gap."""
        random = self._random
        self._rest = [line for line in self._rest if not line.startswith("clock")]
        region, (topic, name) = self._region(), random.choice(self._subscriptions)
        others = [one for one in self._regions if one != region]
        lines = [f"save {region}"]
        is_out = random.random() < 0.4
        if is_out:
            lines.append(f"live {topic} {' '.join(others)}")
        lines += [f"produce {one} {topic} x{random.randint(1, 9)}" for one in self._regions]
        lines += [*self._life(), "tick 1000"]
        if random.random() < 0.5:
            lines += [f"skip {random.choice(others)} {topic} {name}", "tick 6000"]
        for one in others:
            if random.random() < 0.9:
                lines += [f"expire {one} {topic} 0", "tick 100", f"trim {one}"]
        lines += self._life()
        if is_out:
            lines.append(f"live {topic} {' '.join(self._regions)}")
        else:
            lines.append(random.choice((f"restore {region}", f"restore {region}", f"wipe {region}")))
        (at,) = self._places(1)
        self._insert([(at, [*lines, *self._life()])])
        self._head = [line for line in self._head if not line.startswith("ledgers of")]
        self._head = [f"ledgers of {random.choice((2, 3))}", *self._head, "acceptance"]

    def _late(self) -> None:
        random = self._random
        drawn: list[tuple[int, list[str]]] = []
        for at in self._places(random.choice((2, 3, 5))):
            if not self._consumers:
                break
            one, topic, name = random.choice(self._consumers), *random.choice(self._subscriptions)
            numbers = " ".join(map(str, sorted(random.sample(range(4), random.randint(1, 3)))))
            lines = [
                f"produce {self._region()} {topic} x{random.randint(1, 3)} batch {random.randint(2, 4)}",
                "tick 50",
            ]
            if random.random() < 0.6:
                lines.append(f"part {one} x{random.randint(1, 3)} {numbers}")
            how = random.random()
            if how < 0.4:
                lines.append(f"seek {self._region()} {topic} {name} {random.choice(('0%', '50%', 'time 3000'))}")
            elif how < 0.7:
                lines += [f"move {one} {self._region()}"]
            else:
                lines += [f"crash {(region := self._region())}", f"start {region}"]
            lines.append(f"tick {random.choice((10, 600, 3000))}")
            lines.append(f"late {one} x{random.randint(1, 3)}" + f" {numbers}" * (random.random() < 0.7))
            drawn.append((at, [*lines, *self._life()]))
        self._insert(drawn)
