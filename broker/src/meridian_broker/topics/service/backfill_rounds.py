# SPDX-License-Identifier: Apache-2.0
"""Which topics ask other regions for entries, and when (R5, R6).

A topic that lacks something that others are known to have, or has not asked them yet, asks at once. While a region is
away, others may have more of its entries. Brokers compare that for all topics together
(``replication/progress/high_watermarks.py``), and topics of which another region has more ask. Each topic also asks by
itself from time to time: that is a *poll*. Their number per second is bounded, and topics take turns, so that it costs
the same with ten topics and with ten thousand. With regions that cannot compare there are only polls, and more of them.
Looking at topics is bounded, too, and slower while it finds nothing, as it does most of the time: then the first sign
that a region is away, or that something is missing, may be seen five seconds late, in a broker of more than a few
hundred topics. A topic that is opened, whose regions change or whose producer waits, asks by itself.

A region may be away for days. A topic that asked, and finds the same as before, pauses: for a second, then for twice as
long each time, up to half a minute. It asks at once when a link comes back, when it got something, or when another
region is found to have more. With regions that cannot compare it does not pause.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Iterator, Set
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from meridian_broker.ledgers.backoff import Backoff
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.backfill.backfill import Due, Look

if TYPE_CHECKING:
    from meridian_broker.topics.service.registry import TopicRegistry

LOOKS: Final = 1000
"""Topics looked at each time, at most."""
QUIET_LOOKS: Final = 200
"""The same after a look that found nothing to ask for, ..."""
QUIET_ROUND: Final = 5
"""... or a part of all topics, such that each is looked at within this many times."""
POLLS: Final = 100
"""Topics polled each time where polls are the only way, ..."""
POLLS_BESIDE: Final = 10
"""... and where ends are compared."""
STARTS: Final = 200
"""Topics that begin to ask each time because another region was found to have more."""
FIRST_PAUSE: Final = 1.0
"""Seconds before a topic that asked in vain asks again, at most, ..."""
LAST_PAUSE: Final = 30.0
"""... and in the long run."""


class Comparing(Protocol):
    """The exchange with other regions."""

    def compare_ends(self, origins: Collection[str]) -> None: ...

    def compares_ends_with(self, region: str) -> bool: ...


class StoredEnds:
    """What the exchange compares: ``EndsSource`` (``replication/progress/high_watermarks.py``)."""

    def __init__(self, registry: TopicRegistry) -> None:
        self._topics = registry.topics
        self._found: dict[str, None] = {}
        """Topics of which another region has more, oldest first."""

    def open_topics(self) -> Set[str]:
        return self._topics.keys()

    def end(self, topic: str, origin: str) -> Position:
        found = self._topics.get(topic)
        if found is None or found.failure is not None:
            return EARLIEST
        return found.log.last_own if origin == found.region else found.log.last_origin.get(origin, EARLIEST)

    def more_elsewhere(self, topic: str) -> None:
        self._found[topic] = None

    def take(self, most: int) -> list[str]:
        """Up to ``most`` topics of which another region has more, oldest first; each is returned once."""
        taken = list(islice(self._found, most))
        for name in taken:
            del self._found[name]
        return taken


class _Pause:
    """When a topic that asked asks again if it finds the same."""

    __slots__ = ("backoff", "found", "until_ms")

    def __init__(self, found: Look, backoff: Backoff) -> None:
        self.found = found
        self.backoff = backoff
        self.until_ms = 0


class BackfillRounds:
    """Visits all open topics of a broker in rounds."""

    def __init__(
        self,
        registry: TopicRegistry,
        ends: StoredEnds,
        comparing: Comparing,
        monotonic_ms: Callable[[], int],
        jitter: Callable[[], float],
    ) -> None:
        """:param jitter: returns numbers from 0 to 1."""
        self._topics = registry.topics
        self._ends = ends
        self._comparing = comparing
        self._monotonic_ms = monotonic_ms
        self._jitter = jitter
        self._pauses: dict[str, _Pause] = {}
        self._round: Iterator[str] = iter(())
        """Topics that have not been looked at in this round."""
        self._postponed: deque[str] = deque()
        """Topics that were looked at when no poll was left: they come first."""
        self._absent: set[str] = set()
        """Origins that do not bring their entries to every topic, as seen in this round, and in the one before."""
        self._absent_before: set[str] = set()
        self._sources: set[str] = set()
        """Regions that polls ask."""
        self._is_quiet = False
        """The last look found nothing to ask for."""

    def look(self) -> None:
        """Called every second."""
        for name in self._ends.take(STARTS):
            topic = self._topics.get(name)
            if topic is not None and topic.failure is None and topic.backfill is not None:
                topic.backfill.start()
        self._go_round()
        self._comparing.compare_ends(self._absent | self._absent_before)

    def _go_round(self) -> None:
        polls, most = 0, self._polls()
        later: dict[str, None] = {}
        looks = max(QUIET_LOOKS, -(-len(self._topics) // QUIET_ROUND)) if self._is_quiet else LOOKS
        self._is_quiet = True
        for _ in range(min(looks, LOOKS, len(self._topics))):
            name = self._next(later)
            topic = None if name is None else self._topics.get(name)
            if name is None or topic is None or topic.failure is not None or topic.backfill is None:
                continue
            found = topic.backfill.look()
            if found.due is Due.NEVER:
                self._pauses.pop(name, None)  # what it waited for is over
                continue
            self._is_quiet = False
            self._absent |= found.absent
            self._sources |= found.sources
            if self._pauses_at(name, found):
                continue
            if found.due is Due.POLL:
                if polls >= most:
                    later[name] = None
                    continue
                polls += 1
            self._pause(name, found)
            topic.backfill.start()
        self._postponed.extendleft(reversed(later))

    def _pauses_at(self, name: str, found: Look) -> bool:
        pause = self._pauses.get(name)
        return pause is not None and pause.found == found and self._monotonic_ms() < pause.until_ms

    def _pause(self, name: str, found: Look) -> None:
        """The topic asks now: from when on it asks again if it finds the same then."""
        if found.seen is None or not self._compares(found.sources):
            self._pauses.pop(name, None)
            return
        pause = self._pauses.get(name)
        if pause is None or pause.found != found:
            pause = self._pauses[name] = _Pause(found, Backoff(self._jitter, FIRST_PAUSE, LAST_PAUSE))
        pause.until_ms = self._monotonic_ms() + round(pause.backoff.next() * 1000)

    def _next(self, later: Container[str]) -> str | None:
        """The next topic of the round. After the last one another round begins, with the topics that are open then.

        :param later: topics that come first next time, so they are not part of a round that begins now.
        """
        if self._postponed:
            return self._postponed.popleft()
        name = next(self._round, None)
        if name is None:
            self._round = iter([name for name in self._topics if name not in later])
            self._absent, self._absent_before = set(), self._absent
            self._pauses = {name: pause for name, pause in self._pauses.items() if name in self._topics}
            name = next(self._round, None)
        return name

    def _polls(self) -> int:
        """How many polls may begin; their regions are collected anew."""
        sources, self._sources = self._sources, set()
        return POLLS_BESIDE if sources and self._compares(sources) else POLLS

    def _compares(self, sources: Collection[str]) -> bool:
        return all(map(self._comparing.compares_ends_with, sources))
