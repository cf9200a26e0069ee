# SPDX-License-Identifier: Apache-2.0
"""Acknowledgements that do not change take little memory: which sets are encoded, and when (``positions/cold.py``).

A set is cold once two visits in a row found it unchanged. Encoding takes processor time, so a visit encodes a bounded
number of ledgers of a set, and a second has a bounded number of visits: a round over all topics takes half a minute, or
longer where there are very many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from meridian_broker.topics.topic import Topic

ROUND_SECONDS: Final = 30
VISITS: Final = 2000
"""Subscriptions visited in one second, besides the rest of the last topic's: a few milliseconds."""


class ColdEncoding:
    """Visits all open topics of a broker in rounds."""

    def __init__(self) -> None:
        self._waiting: deque[str] = deque()
        self._topics_at_once = 0
        self._seconds = 0

    def look(self, topics: Mapping[str, Topic]) -> None:
        """Called every second."""
        self._seconds += 1
        if not self._waiting and self._seconds >= ROUND_SECONDS:
            self._waiting.extend(topics)
            self._topics_at_once = -(-len(self._waiting) // ROUND_SECONDS)
            self._seconds = 0
        visits = 0
        for _ in range(min(self._topics_at_once, len(self._waiting))):
            topic = topics.get(self._waiting.popleft())
            if topic is not None:
                cool(topic)
                visits += len(topic.subscriptions)
            if visits >= VISITS:
                return


def cool(topic: Topic) -> None:
    """Encode the acknowledgements above the floors, and what was dropped, to save memory."""
    for one in topic.subscriptions.values():
        one.cursor.progress.cool()
        if one.cursor.first_hand is not None:
            one.cursor.first_hand.cool(one.cursor.progress)
        if one.cursor.dropped is not None:
            one.cursor.dropped.cool()
