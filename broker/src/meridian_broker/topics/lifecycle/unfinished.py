# SPDX-License-Identifier: Apache-2.0
"""What a broker still has to open, create or delete without being asked (``service/preloading.py``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meridian_broker.wire.pulsar.topic_name import TopicName


class Unfinished:
    """See the module's text. Each by the topic's name."""

    def __init__(self) -> None:
        self.closed: dict[str, TopicName] = {}
        """Topics that are to be open."""
        self.going: dict[str, TopicName] = {}
        """Partitioned topics whose deletion was begun."""
        self.coming: dict[str, TopicName] = {}
        """Partitioned topics that are on record, or may be, while some of their partitions may not be."""
        self.unopened: set[str] = set()
        """Topics on record that are not open."""
        self.is_surveyed = False
        """The topics on record are known: before that, one that is not open may be one that was not opened yet."""

    def later(self, name: TopicName) -> None:
        """It could not be opened now, or was not asked for yet: the next attempt to open all opens it."""
        self.closed[str(name)] = name

    def forget(self, name: str) -> None:
        """The topic is open, or no longer on record."""
        self.unopened.discard(name)

    def finish_later(self, name: TopicName) -> None:
        """The deletion of a partitioned topic begins; if it is interrupted, the next attempt finishes it."""
        self.going[str(name)] = name

    @contextmanager
    def or_later(self, name: TopicName) -> Iterator[None]:
        """A partitioned topic is made: if that is interrupted, the next attempt continues it, if it is on record."""
        self.coming[str(name)] = name
        yield
        self.coming.pop(str(name), None)
