# SPDX-License-Identifier: Apache-2.0
"""Terminated topics: what ended stays ended, and nothing comes behind its end.

A part of ``model.Model``. The end is the one that the region has on record. Its own messages from before it, lost in a
restore and given back by other regions, stand in later ledgers: they are no violation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from meridian_broker.positions.position import Origin, Position
from simulation.names import incarnation_of

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.topic import Topic
    from simulation.logs import Logs
    from simulation.stage import Region


class Ends:
    """Of all regions."""

    def __init__(self, logs: Logs, shown: Callable[[Origin], str], violate: Callable[[str, str], None]) -> None:
        self._logs = logs
        self._shown = shown
        self._violate = violate
        self._told: dict[tuple[str, str], int] = {}
        """(region, incarnation of a topic) -> when somebody was told that it was terminated, which must hold."""

    def told(self, topic: Topic, now_us: int) -> None:
        """Somebody was told that the topic takes no more messages in its region."""
        self._told[topic.region, incarnation_of(topic.name, topic.incarnation)] = now_us

    def forgotten(self, region: str, since_us: int) -> None:
        """The region's metadata are a copy of then."""
        for key in [key for key, told_us in self._told.items() if key[0] == region and told_us > since_us]:
            del self._told[key]

    def taken_back(self, region: str, topic: str) -> None:
        """The topic held no message and went as if it had never been made."""
        for key in [key for key in self._told if key[0] == region and key[1].partition(" since ")[0] == topic]:
            del self._told[key]

    def delivering(self, topic: TopicContext, position: Position, origin: Origin) -> None:
        """An entry goes to a client."""
        if _is_behind(topic, position, origin):
            text = f"{topic.region} sends {position} of {topic.name}, which ended at {topic.terminated}"
            self._violate("delivered behind the end", text)

    def check(self, home: Region, topic: str, opened: Topic) -> None:
        """All is quiet."""
        if opened.terminated is None:
            if (home.name, incarnation_of(opened.name, opened.incarnation)) in self._told:
                self._violate("a termination was forgotten", f"{topic} goes on in {home.name}")
            return
        behind = [origin for place, origin, _ in self._logs.of_topic(home, opened) if _is_behind(opened, place, origin)]
        if behind:
            text = f"{home.name} stores {len(behind)} entries behind the end of {topic}"
            self._violate("stored behind the end", f"{text}, the first {self._shown(behind[0])}")


def _is_behind(topic: TopicContext, place: Position, origin: Origin) -> bool:
    end = topic.terminated
    if end is None or place <= end:
        return False
    return origin.region != topic.region or origin.position > end
