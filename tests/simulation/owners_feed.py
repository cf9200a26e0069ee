# SPDX-License-Identifier: Apache-2.0
"""The owners' directory on simulated links: the real ``gateway/owners_feed.py``, on the world's clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from meridian_broker.gateway.owners_feed import PAUSE_SECONDS, OwnersFeed
from simulation.loop import Timer

if TYPE_CHECKING:
    from meridian_broker.gateway.owners_feed import OwnersSource
    from meridian_broker.replication.progress.messages import PeerMessage
    from simulation.stage import Broker


class Asking(Protocol):
    """The answering end of a connection that asks who owns what."""

    is_open: bool
    reply: Callable[[PeerMessage], None]


class SimFeed(OwnersFeed):
    """The feed of one broker. Its connections are ``Asking``."""

    _links: dict[Any, Any]
    _timer: Timer | None  # type: ignore[assignment]

    def __init__(self, source: OwnersSource, broker: Broker) -> None:
        super().__init__(source)
        self._broker = broker

    def _soon(self, seconds: float) -> None:
        if self._timer is None and any(link.is_due for link in self._links.values()):
            self._timer = self._broker.world.loop.after(round(seconds * 1_000_000), self._broker, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        if not self._source.is_current:
            self._cut_off()
            return
        asking: Asking
        for asking, link in self._links.items():
            if asking.is_open and link.is_due:
                asking.reply(self._next(asking, link))  # type: ignore[arg-type]
        self._soon(PAUSE_SECONDS)
