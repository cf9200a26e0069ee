# SPDX-License-Identifier: Apache-2.0
"""Which topics of a broker have snapshots to look after (PIP-33), and looking at them. Topics at rest cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.periodic import SomeFailed
from meridian_broker.ledgers.scheduling import in_slices
from meridian_broker.topics.snapshots.host import TopicSnapshots

if TYPE_CHECKING:
    from meridian_broker.topics.lifecycle.parts import BrokerParts
    from meridian_broker.topics.topic import Topic

AGAIN_MS: Final = 1000
"""Pause after a look that failed."""


class SnapshotRounds:
    """See the module's text. One per broker."""

    def __init__(self, parts: BrokerParts, is_sending: Callable[[str, str], bool]) -> None:
        """:param is_sending: as in ``GeoReplication``."""
        self._parts = parts
        self._is_sending = is_sending
        self._awake: dict[TopicSnapshots, int] = {}
        """When to look at each, by the monotonic clock."""

    def follow(self, topic: Topic) -> None:
        """The topic was opened, or its rules or regions changed."""
        if topic.shadow_of is not None or not self._parts.is_in_other_regions(topic.name):
            if isinstance(topic.snapshots, TopicSnapshots):
                topic.snapshots.stop()
            topic.move_by(None)
            return
        snapshots = topic.snapshots
        if not isinstance(snapshots, TopicSnapshots):
            pulsar_regions = partial(self._parts.pulsar_regions_of, topic.name)
            snapshots = TopicSnapshots(topic, self._parts.snapshots, self._is_sending, pulsar_regions, self._wake)
            topic.move_by(snapshots)
        snapshots.follow()

    def settings_changed(self, topics: Iterable[Topic]) -> None:
        """Look at all of these: snapshots may have been switched on, and nothing else may wake a topic."""
        for topic in topics:
            if isinstance(topic.snapshots, TopicSnapshots):
                self._wake(topic.snapshots)

    def _wake(self, one: TopicSnapshots) -> None:
        self._awake[one] = 0

    async def look(self) -> None:
        """Do what is due. :raises SomeFailed: it failed for some topics; the others had their turn."""
        failures: dict[str, Exception] = {}
        scheduler = self._parts.scheduler
        now_ms = scheduler.monotonic_ms()
        due = [one for one, at_ms in self._awake.items() if at_ms <= now_ms]
        async for one in in_slices(scheduler, due):
            self._awake.pop(one, None)
            try:
                again_ms = one.look()
            except Exception as error:
                failures[one.topic.name] = error
                again_ms = now_ms + AGAIN_MS
            if again_ms is not None:
                self._awake[one] = min(again_ms, self._awake.get(one, again_ms))
        if failures:
            raise SomeFailed(failures, len(due))
