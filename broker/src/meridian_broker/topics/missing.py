# SPDX-License-Identifier: Apache-2.0
"""Which topics ask other regions for entries, and when (R5, R6).

What lacks something that others are known to have, or were not asked for yet, asks at once. While a region is away each
topic also asks the others whether they have more of it: that is a *poll*, of which there are a bounded number a second,
round and round, so that it costs the same with ten topics and with ten thousand. So is looking at topics at all.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from meridian_broker.topics.recall import Due

if TYPE_CHECKING:
    from meridian_broker.topics.service import TopicService

LOOKS: Final = 1000
"""Topics looked at each time."""
POLLS: Final = 100
"""Topics that begin to ask without knowing that something is missing, each time."""


class Missing:
    """Goes round all open topics of a broker."""

    def __init__(self) -> None:
        self._waiting: deque[str] = deque()

    def look(self, service: TopicService) -> None:
        """Called every second."""
        polls = 0
        later: list[str] = []
        for _ in range(min(LOOKS, len(service.topics))):
            if not self._waiting:
                self._waiting.extend(name for name in service.topics if name not in later)
            if not self._waiting:
                break
            topic = service.topics.get(name := self._waiting.popleft())
            if topic is None or topic.failure is not None or topic.recall is None:
                continue
            due = topic.recall.due()
            if due is Due.NOT:
                continue
            if due is Due.POLL:
                if polls == POLLS:
                    later.append(name)
                    continue
                polls += 1
            topic.recall.start()
        self._waiting.extendleft(reversed(later))
