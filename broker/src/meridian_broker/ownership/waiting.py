# SPDX-License-Identifier: Apache-2.0
"""Requests that wait for a change of a bundle's state, for a bounded time."""

from __future__ import annotations

from collections.abc import Callable

from meridian_broker.ledgers.notifying import notify_all
from meridian_broker.ledgers.scheduling import Scheduler
from meridian_broker.ownership.bundles import Bundle


class Waiting:
    """See the module's text."""

    def __init__(self, scheduler: Scheduler, seconds: float) -> None:
        """:param seconds: the longest wait."""
        self._scheduler = scheduler
        self._seconds = seconds
        self._callbacks: dict[Bundle, list[Callable[[], None]]] = {}

    @property
    def bundles(self) -> list[Bundle]:
        """The bundles that somebody waits for."""
        return list(self._callbacks)

    async def wait(self, bundle: Bundle) -> None:
        """Wait for ``wake``, or until the time is up."""
        await self._scheduler.answer(lambda ready: self.call(bundle, lambda: ready(None)))

    def call(self, bundle: Bundle, callback: Callable[[], None]) -> None:
        """Call ``callback`` on ``wake``, or when the time is up."""
        timer = self._scheduler.later(self._seconds, lambda: self.wake(bundle))

        def woken() -> None:
            timer.cancel()
            callback()

        self._callbacks.setdefault(bundle, []).append(woken)

    def wake(self, bundle: Bundle) -> None:
        """End every wait for this bundle."""
        notify_all(self._callbacks.pop(bundle, []))
