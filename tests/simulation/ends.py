# SPDX-License-Identifier: Apache-2.0
"""Terminated topics: they stay terminated, and nothing is stored after their end.

Part of ``model.Model``. The end is the one that the region has recorded. Earlier messages, lost in a restore and
fetched back from other regions, are in later ledgers: that is no violation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from meridian_broker.positions.position import EARLIEST, Origin, Position
from simulation.names import incarnation_of

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.topic import Topic
    from simulation.logs import Logs
    from simulation.stage import Region


class Ends:
    """Termination in all regions."""

    def __init__(self, logs: Logs, shown: Callable[[Origin], str], violate: Callable[[str, str], None]) -> None:
        self._logs = logs
        self._shown = shown
        self._violate = violate
        self._told: dict[tuple[str, str], int] = {}
        """(region, incarnation of a topic) -> when its termination was confirmed, which must hold."""

    def told(self, topic: Topic, now_us: int) -> None:
        """A client was told that the topic accepts no more messages in its region."""
        self._told[topic.region, incarnation_of(topic.name, topic.incarnation)] = now_us

    def forgotten(self, region: str, since_us: int) -> None:
        """The region's metadata is a copy from that time."""
        for key in [key for key, told_us in self._told.items() if key[0] == region and told_us > since_us]:
            del self._told[key]

    def taken_back(self, region: str, topic: str) -> None:
        """The topic had no messages and was removed as if it had never existed."""
        for key in [key for key in self._told if key[0] == region and key[1].partition(" since ")[0] == topic]:
            del self._told[key]

    def delivering(self, topic: TopicContext, position: Position, origin: Origin) -> None:
        """An entry is sent to a client."""
        if _is_behind(topic, position, origin):
            text = f"{topic.region} sends {position} of {topic.name}, which ended at {topic.terminated}"
            self._violate("delivered behind the end", text)

    def check(self, home: Region, topic: str, opened: Topic) -> None:
        """Check a topic, once all is quiet."""
        if opened.terminated is None:
            if (home.name, incarnation_of(opened.name, opened.incarnation)) in self._told:
                self._violate("a termination was forgotten", f"{topic} is open again in {home.name}")
            return
        behind = [origin for place, origin, _ in self._logs.of_topic(home, opened) if _is_behind(opened, place, origin)]
        if behind:
            text = f"{home.name} stores {len(behind)} entries behind the end of {topic}"
            self._violate("stored behind the end", f"{text}, the first {self._shown(behind[0])}")


def _is_behind(topic: TopicContext, place: Position, origin: Origin) -> bool:
    end = topic.terminated
    if end is None or place <= end:
        return False
    before = end if origin.region == topic.region else topic.ends.get(origin.region, EARLIEST)
    return origin.position > before
