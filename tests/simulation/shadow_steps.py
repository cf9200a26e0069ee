# SPDX-License-Identifier: Apache-2.0
"""Lines of a story about shadow topics (PIP-180); ``shadow_watch.py`` checks what their subscriptions were promised:

shadow us v of t [loose]    make v a shadow of t; loose: its subscriptions do not keep t from trimming
view us v sub [xN]          a consumer reads the next N messages of a shadow, or all, and acknowledges them
unshadow us v               delete the shadow
expect view us v sub        what was read, by the names of the same entries in the source; and what was skipped
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meridian_broker.ledgers.view import LogView
from meridian_broker.metadata.shadow_topics import HOLDS, SOURCE
from meridian_broker.positions.position import Origin, Position
from meridian_broker.topics.service import removal, shadow_topics
from meridian_broker.wire.pulsar import topic_name
from simulation.names import full_name
from simulation.shadow_watch import REFUSALS
from simulation.teller import Teller

if TYPE_CHECKING:
    from simulation.broker import SimBroker


class ShadowSteps(Teller):
    """See the module's text. A part of ``story.Story``."""

    def do_shadow(self, region: str, shadow: str, _of: str, source: str, how: str = "") -> None:
        broker = self._broker(region, shadow)
        if broker is None:
            return
        self.world.shadows.made(region, shadow, source, holds=how != "loose")
        having = {SOURCE: full_name(source), HOLDS: str(how != "loose").lower()}
        opener, name = broker.service.opener, topic_name.parse(full_name(shadow))

        async def work() -> None:
            try:
                await shadow_topics.create(opener, name, None, having, listed=True)
            except REFUSALS as error:
                self.say(f"refused: {error}")

        self.world.loop.spawn(broker, work(), "make a shadow")

    def do_unshadow(self, region: str, shadow: str) -> None:
        broker = self._broker(region, shadow)
        if broker is None:
            return
        self.world.shadows.goes(region, shadow)
        opener, name = broker.service.opener, topic_name.parse(full_name(shadow))

        async def work() -> None:
            try:
                await removal.delete(opener, name, force=True)
            except REFUSALS as error:
                self.say(f"refused: {error}")

        self.world.loop.spawn(broker, work(), "delete a shadow")

    def do_view(self, region: str, shadow: str, name: str, count: str = "x1000000") -> None:
        broker = self._broker(region, shadow)
        if broker is not None:
            permits = int(count.removeprefix("x"))
            self.world.loop.spawn(broker, self._view(broker, shadow, name, permits), "read a shadow")

    async def _view(self, broker: SimBroker, shadow: str, name: str, permits: int) -> None:
        try:
            await self.world.shadows.view(broker, shadow, name, permits)
        except REFUSALS as error:
            self.say(f"refused: {error}")

    def expect_view(self, region: str, shadow: str, name: str) -> None:
        opened = self._open(region, shadow)
        read = self.world.shadows.read(region, shadow, name)
        assert len(set(read)) == len(read), "nothing comes twice: each message was acknowledged"
        shown = self._named(region, read)
        skipped = opened.log.skipped_entries if opened is not None and isinstance(opened.log, LogView) else 0
        self.say(shown + (f"; skipped {skipped}" if skipped else ""))

    def _named(self, region: str, read: list[Position]) -> str:
        names = [self.world.shown(Origin(region, *position)) for position in sorted(read)]
        return " ".join(names) or "nothing"
