# SPDX-License-Identifier: Apache-2.0
"""Generates a random story of a region that one to three brokers share: topics move, brokers die, leases run out.

It uses those actions of ordinary stories that exist with one region, and adds what happens to brokers.
"""

from __future__ import annotations

from typing import Final

from simulation.bookie_stories import with_bookies
from simulation.generate import Generator, Mood
from simulation.shadow_stories import with_shadows

REGION: Final = "us"
PAST_THE_LEASE_MS: Final = (9_000, 11_000, 16_000, 35_000)


class BrokersGenerator(Generator):
    """Draws one story."""

    unknown: tuple[str, ...] = ("disks", "doubles")
    """What does not exist in these worlds."""

    def _mood(self) -> Mood:
        random = self.random
        self._brokers = {REGION: random.choices((1, 2, 3), (1, 4, 5))[0]}
        self._stopped: list[tuple[str, str]] = []
        weights = {
            "produce": 12.0,
            "ack": 12.0,
            "consumer": 2.0,
            "cumulative": random.choice((0.0, 3.0)),
            "part": random.choice((0.0, 2.0)),
            "nack": random.choice((0.0, 2.0)),
            "late": random.choice((0.0, 0.0, 1.0)),
            "seek": random.choice((0.0, 0.0, 0.7)),
            "move": random.choice((0.0, 2.0)),
            "close": random.choice((0.0, 1.0)),
            "kill": random.choice((0.0, 1.0)),
            "crash": random.choice((0.0, 0.0, 1.0)),
            "start": 1.0,
            "disk": random.choice((0.0, 0.5)),
            "metadata": random.choice((0.0, 0.0, 0.5)),
            "clock": random.choice((0.0, 0.5)),
            "trim": random.choice((0.0, 0.0, 1.0)),
            "expire": random.choice((0.0, 0.0, 1.0)),
            "subscribe": 0.3,
            **self._of_brokers(),
        }
        topics = ["t", "u", "v"][: random.choice((1, 2, 3))]
        subscriptions = ["sub"] if random.random() < 0.6 else ["sub", "other"]
        return Mood([REGION], topics, subscriptions, weights)

    def _of_brokers(self) -> dict[str, float]:
        """What happens to brokers that share a region."""
        random = self.random
        return {
            "suspend": random.choice((0.0, 2.0, 4.0)),
            "die": random.choice((0.0, 2.0)),
            "leave": random.choice((0.0, 2.0)),
            "begin": 2.0,
            "hand": random.choice((0.0, 3.0, 6.0)),
            "divide": random.choice((0.0, 1.0)),
            "isolate": random.choice((0.0, 0.0, 2.0)),
            "fails": random.choice((0.0, 0.0, 1.0)),
            "outage": random.choice((0.0, 0.0, 0.5)),
        }

    def story(self) -> list[str]:
        lines = [line for line in super().story() if not line.startswith(self.unknown)]
        counts = [self._brokers.get(region, 0) for region in self.mood.regions]
        return [f"brokers {' '.join(map(str, counts))}", *lines]

    def _divided(self) -> str:
        """A region of several brokers."""
        return REGION

    def _broker(self, region: str) -> str:
        return self.random.choice([f"b{number}" for number in range(1, self._brokers[region] + 1)])

    def _under_way(self, region: str) -> None:
        """Keep clients busy at that very moment."""
        if self.random.random() < 0.7:
            if self.random.random() < 0.5:
                self.say(f"disk {region} {self.random.choice((5, 50))}")
            self._produce()
            self._ack()
            self.say(f"tick {self.random.choice((1, 2, 5, 20))}")

    def _suspend(self) -> None:
        region = self._divided()
        broker = self._broker(region)
        self._under_way(region)
        self.say(f"suspend {region} {broker}")
        self.say(f"disk {region} 0")
        if self.random.random() < 0.3:
            self._stopped.append((region, broker))
            return
        self._meanwhile()
        self.say(f"resume {region} {broker}")

    def _meanwhile(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.say(f"tick {self.random.choice(PAST_THE_LEASE_MS)}")
            if self.random.random() < 0.5:
                self._kill()
                self.say("tick 1500")
            self._produce()
            self._ack()

    def _die(self) -> None:
        region = self._divided()
        broker = self._broker(region)
        self._under_way(region)
        self.say(f"die {region} {broker}")
        self._stopped.append((region, broker))

    def _leave(self) -> None:
        region = self._divided()
        broker = self._broker(region)
        self._under_way(region)
        self.say(f"leave {region} {broker}")
        self._stopped.append((region, broker))

    def _begin(self) -> None:
        if self._stopped:
            region, broker = self._stopped.pop(self.random.randrange(len(self._stopped)))
            self.say(f"resume {region} {broker}")
            self.say(f"begin {region} {broker}")

    def _hand(self) -> None:
        region = self._divided()
        self._under_way(region)
        to = f" {self._broker(region)}" if self.random.random() < 0.7 else ""
        self.say(f"hand {region} {self._topic()}{to}")
        self.say(f"disk {region} 0")

    def _divide(self) -> None:
        region, topic = self._divided(), self._topic()
        if self.random.random() < 0.3:
            self.say(f"hand {region} {topic}")
            self.say(f"tick {self.random.choice((1, 5, 600))}")
        self.say(f"divide {region} {topic}")

    def _isolate(self) -> None:
        region = self._divided()
        broker = self._broker(region)
        self.say(f"isolate {region} {broker}")
        if self.random.random() < 0.7:
            self._meanwhile()
            self.say(f"reach {region} {broker}")

    def _fails(self) -> None:
        kind = self.random.choice(("answer", "answer", "metadata", "write", "read"))
        self.say(f"fails {self._divided()} {kind} {self.random.randrange(6)} x{self.random.randint(1, 3)}")
        if self.random.random() < 0.7:
            self.random.choice((self._hand, self._divide, self._begin, self._leave))()

    def _outage(self) -> None:
        """No broker reaches the metadata store, perhaps for longer than a lease."""
        region = self._divided()
        self.say(f"metadata {region} away")
        self._produce()
        self.say(f"tick {self.random.choice((1000, *PAST_THE_LEASE_MS))}")
        self.say(f"metadata {region} back")


def story_of(seed: int) -> list[str]:
    """The lines of a seed."""
    return with_shadows(seed, with_bookies(seed, BrokersGenerator(seed).story()))
