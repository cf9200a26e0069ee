# SPDX-License-Identifier: Apache-2.0
"""The shadows of a topic that other brokers of the region may serve, through the metadata."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.scheduling import later
from meridian_broker.metadata.shadow_needs import Asked
from meridian_broker.positions.position import Position

if TYPE_CHECKING:
    from meridian_broker.topics.lifecycle.parts import BrokerParts
    from meridian_broker.wire.pulsar.topic_name import TopicName

LOOKS: Final = 10
"""How often answers are looked for, with a pause of ..."""
PAUSE_SECONDS: Final = 0.05
"""... this before each time."""


class ShadowsElsewhere:
    """See ``topics.shadows.Elsewhere``. One per open topic of a broker that is one of several."""

    def __init__(self, parts: BrokerParts, source: TopicName) -> None:
        self._parts = parts
        self._source = source

    async def hear(self) -> None:
        """As in the port."""
        shadows = self._parts.catalog.shadows
        noted = await self._parts.catalog.shadow_needs.noted(self._source)
        if noted - {str(one.shadow) for one in shadows.of(self._source)}:
            await shadows.refresh()

    async def ask(self, upto: Position, truncated: Position, names: Collection[str]) -> Mapping[str, Position]:
        """As in the port."""
        needs, shadows = self._parts.catalog.shadow_needs, self._parts.catalog.shadows
        number, found = await needs.ask(self._source, Asked(upto, truncated)), dict[str, Position]()
        for _ in range(LOOKS):
            await later(self._parts.scheduler, PAUSE_SECONDS)
            told = await needs.told(self._source, number)
            known = {str(one.shadow): str(one.shadow_of(self._source)) for one in shadows.of(self._source)}
            found = {known[shadow]: after for shadow, after in told.items() if shadow in known}
            if found.keys() >= set(names):
                break
        return found
