# SPDX-License-Identifier: Apache-2.0
"""What every line of a story can use: the world, its objects by name, and output."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from meridian_broker.positions.position import Origin
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.topics.topic import Topic

if TYPE_CHECKING:
    from simulation.broker import SimBroker
    from simulation.consumers import SimConsumer
    from simulation.world import World


class StoryError(Exception):
    """A line that is not a command."""


def run_command(script: object, line: str) -> None:
    """Call the method of a script that a line names.

    :raises StoryError: there is none, or the rest of the line does not suit it.
    """
    words = line.split()
    method: Callable[..., None] | None = getattr(script, "do_" + words[0], None)
    if method is None:
        raise StoryError(f"no such command: {line}")
    try:
        method(*words[1:])
    except (TypeError, KeyError, ValueError, IndexError) as error:
        raise StoryError(f"{line}: {error!r}") from error


class Teller:
    """Looks objects up; reports a missing one, and returns None."""

    def __init__(self) -> None:
        self._world: World | None = None
        self._said: list[str] = []

    @property
    def world(self) -> World:
        if self._world is None:
            raise StoryError("begin with: regions NAME NAME ...")
        return self._world

    def say(self, text: str) -> None:
        self._said.append(text)

    def _broker(self, region: str, topic: str = "") -> SimBroker | None:
        found = self.world.regions[region].broker_of(topic)
        if found is None:
            self.say(f"{region} is down")
        return found

    def _open(self, region: str, topic: str) -> Topic | None:
        broker = self.world.regions[region].broker_of(topic)
        return None if broker is None else broker.topic(topic)

    def _subscription(self, region: str, topic: str, name: str) -> Subscription | None:
        opened = self._open(region, topic)
        found = None if opened is None else opened.subscriptions.get(name)
        if found is None:
            self.say(f"{region} has no subscription {name} on {topic}")
        return found

    def _consumer(self, name: str) -> SimConsumer | None:
        found = self.world.consumers.get(name)
        if found is None:
            self.say(f"no consumer {name}")
        return found

    def _origins(self, texts: Iterable[str]) -> list[Origin]:
        """``us/1:2`` or ``us/1:0-2``."""
        found = []
        for text in texts:
            first, _, last = text.partition("-")
            origin = self.world.named(first)
            found += [origin._replace(entry=number) for number in range(origin.entry, int(last or origin.entry) + 1)]
        return found
