# SPDX-License-Identifier: Apache-2.0
"""Generates a random story of two to five regions, most of which several brokers share.

A seed draws what happens between regions, and what happens to brokers that share one. Regions are not restored here,
and all brokers have the same version.
"""

from __future__ import annotations

from typing import Final

from simulation.bookie_stories import with_bookies
from simulation.brokers_stories import BrokersGenerator
from simulation.generate import Generator, Mood

ALONE: Final = 0
"""A region of one broker, which owns it without asking."""
ELSEWHERE: Final = ("stop", "second", "full", "rot", "save", "brink")
"""What other worlds do to a region of one broker and its volume."""


class DividedGenerator(BrokersGenerator):
    """Draws one story."""

    unknown = ("disks",)

    def _mood(self) -> Mood:
        random, mood = self.random, Generator._mood(self)
        counts = random.choices((ALONE, 1, 2, 3), (2, 1, 5, 3), k=len(mood.regions))
        if max(counts) < 2:
            counts[random.randrange(len(counts))] = 2
        self._brokers = {region: count for region, count in zip(mood.regions, counts, strict=True) if count}
        self._stopped: list[tuple[str, str]] = []
        mood.topics = ["t", "v", "w"][: random.choice((1, 1, 2, 3))]
        mood.weights = {name: weight for name, weight in mood.weights.items() if name not in ELSEWHERE}
        mood.weights |= {**self._of_brokers(), "switch": random.choice((0.0, 2.0, 4.0))}
        return mood

    def _divided(self) -> str:
        return self.random.choice(list(self._brokers))

    def _switch(self) -> None:
        """Consumers go to another region, and their topic to another broker, at the same time."""
        random, region, topic, name = self.random, self._divided(), self._topic(), self._name()
        here, there = random.sample(self.mood.regions, 2)
        self._made += 1
        one, other = f"s{self._made}", f"n{self._made}"
        self.say(f"consumer {one} {here} {topic} {name} shared")
        self.say(f"produce {random.choice((here, there))} {topic} x{self._few(6)}")
        self.say(f"tick {random.choice((400, 2000))}")
        how = random.choice(("none", "none", "stall", "cut"))
        if how != "none":  # acknowledgements made now reach no other region
            self.say(f"{how} {here}>{there}")
        self.say(f"ack {one} x{self._few(8)}")
        self.say(f"tick {random.choice((2, 10, 100))}")
        event = random.choice(("hand", "hand", "die", "isolate", "suspend"))
        if event == "hand":
            self.say(f"hand {region} {topic}")
        else:
            broker = self._broker(region)
            self.say(f"{event} {region} {broker}")
            self.say(f"tick {random.choice((2000, 9000, 13_000))}")
            back = {"die": "begin", "isolate": "reach", "suspend": "resume"}[event]
            if random.random() < 0.5:
                self.say(f"{back} {region} {broker}")
        self.say(f"tick {random.choice((1, 5, 20, 100, 600, 3000))}")
        if how == "stall":
            self.say(f"flow {here}>{there}")
        self.say(f"close {one}")
        self.say(f"consumer {other} {there} {topic} {name} shared")
        self.say(f"tick {random.choice((300, 1500))}")
        self.say(f"ack {other} x{self._few(8)}")
        self.say(f"close {other}")


def story_of(seed: int) -> list[str]:
    """The lines of a seed."""
    return with_bookies(seed, DividedGenerator(seed).story())
