# SPDX-License-Identifier: Apache-2.0
"""Lines of a story about a topic's settings in one region:

quota us t 2000 [evict]     a backlog quota in bytes: producers wait, or the oldest entries are evicted;
                            or ``quota us t 3s``: by the age of the oldest. ``quota us t off``
terminate us t              the topic accepts no more messages in us
compact us t                rebuild the topic's compacted view
forget us t                 delete the view, as deleting its subscription ``__compaction`` does
expect end us t             where it was terminated, and what its log contains
"""

from __future__ import annotations

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions.position import Origin
from meridian_broker.topics.errors import TopicError
from meridian_broker.topics.lifecycle import termination
from simulation.teller import Teller


class TopicSteps(Teller):
    """See the module's text. A part of ``story.Story``."""

    def do_quota(self, region: str, topic: str, limit: str, policy: str = "hold") -> None:
        broker = self._broker(region)
        if broker is not None:
            self.world.trouble()
            broker.spawn(broker.quotas.set(topic, limit, policy), "set a backlog quota")

    def do_terminate(self, region: str, topic: str) -> None:
        opened, broker = self._open(region, topic), self._broker(region)
        if opened is None or broker is None:
            self.say(f"{region} does not serve {topic}")
            return
        ending = opened
        self.world.trouble()

        async def work() -> None:
            try:
                await termination.terminate(ending)
                self.world.model.ends.told(ending, self.world.loop.now_us)
            except (LedgerError, MetadataError, TopicError) as error:
                self.say(f"refused: {error}")

        broker.spawn(work(), "terminate")

    def do_compact(self, region: str, topic: str) -> None:
        opened = self._open(region, topic)
        if opened is None:
            self.say(f"{region} does not serve {topic}")
            return
        try:
            opened.compaction.start()
        except TopicError as error:
            self.say(f"refused: {error}")

    def do_forget(self, region: str, topic: str) -> None:
        opened, broker = self._open(region, topic), self._broker(region)
        if opened is None or broker is None:
            self.say(f"{region} does not serve {topic}")
            return
        compaction = opened.compaction

        async def work() -> None:
            try:
                await compaction.forget()
            except (LedgerError, MetadataError, TopicError) as error:
                self.say(f"refused: {error}")

        broker.spawn(work(), "forget a compacted view")

    def expect_end(self, region: str, topic: str) -> None:
        opened = self._open(region, topic)
        if opened is None:
            return
        ended = "goes on" if opened.terminated is None else self.world.shown(Origin(region, *opened.terminated))
        self.say(f"{ended}, and holds {len(self.world.model.logs.of_topic(self.world.regions[region], opened))}")
