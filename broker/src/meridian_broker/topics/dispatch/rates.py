# SPDX-License-Identifier: Apache-2.0
"""Dispatch rate limits.

A subscription sends nothing while it or its topic exceeds its rate. Until then messages stay in the log, not in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from meridian_broker.ledgers.throttling import Rate, Throttle, throttle_for
from meridian_broker.metadata.policy_values import DispatchRate

if TYPE_CHECKING:
    from meridian_broker.ledgers.scheduling import Scheduler

WAIT_SECONDS_MAX: Final = 1.0
"""The rate may change during a wait, so the wait is checked at least this often."""


class Paced(Protocol):
    """What rate limits need from a subscription."""

    pace: Pace | None

    def dispatch_soon(self) -> None: ...


class DispatchRates:
    """The dispatch rates of one topic."""

    def __init__(self, scheduler: Scheduler, subscriptions: Mapping[str, Paced]) -> None:
        """:param subscriptions: those of the topic, by name; a live view."""
        self._scheduler = scheduler
        self._subscriptions = subscriptions
        self._whole: Throttle | None = None
        self._each = Rate()

    def follow(self, whole: DispatchRate, each: DispatchRate) -> None:
        """Apply these rates from now on: ``whole`` to all subscriptions together, ``each`` to every one of them."""
        now_whole, now_each, before = dispatch_rate(whole), dispatch_rate(each), self._whole
        self._whole = throttle_for(now_whole, before, self._scheduler.now_ms())
        if self._whole is not before or now_each != self._each:
            self._each = now_each
            for subscription in self._subscriptions.values():
                subscription.pace = self.pace(subscription)
                subscription.dispatch_soon()

    def pace(self, subscription: Paced) -> Pace | None:
        """The subscription's rate limits; None: it is not limited."""
        scheduler = self._scheduler
        own = Throttle(self._each, scheduler.now_ms()) if self._each.is_limited else None
        throttles = tuple(throttle for throttle in (self._whole, own) if throttle is not None)
        return Pace(scheduler, throttles, subscription.dispatch_soon) if throttles else None


class Pace:
    """Keeps one subscription within its rates."""

    __slots__ = ("_scheduler", "_throttles", "_wake", "held")

    def __init__(self, scheduler: Scheduler, throttles: tuple[Throttle, ...], wake: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._throttles = throttles
        self._wake = wake
        self.held = False
        """Nothing may be sent now; ``wake`` is called when that ends."""

    def sent(self, messages: int, size: int) -> None:
        """Count an entry that was sent. ``size`` in bytes."""
        now_ms = self._scheduler.now_ms()
        wait_ms = max([throttle.take(messages, size, now_ms) for throttle in self._throttles])
        if wait_ms > 0 and not self.held:
            self.held = True
            self._look_again(wait_ms)

    def allowance(self, entries: int) -> int:
        """How many entries to read now, at most ``entries``: more could not be sent."""
        now_ms = self._scheduler.now_ms()
        for throttle in self._throttles:
            entries = throttle.messages_available(now_ms, entries)
        return max(entries, 1)

    def _look_again(self, wait_ms: int) -> None:
        self._scheduler.later(min(wait_ms / 1000, WAIT_SECONDS_MAX), self._look)

    def _look(self) -> None:
        now_ms = self._scheduler.now_ms()
        wait_ms = max([throttle.wait_ms(now_ms) for throttle in self._throttles])
        if wait_ms > 0:
            self._look_again(wait_ms)
        else:
            self.held = False
            self._wake()


def dispatch_rate(rate: DispatchRate) -> Rate:
    """Messages and bytes per second as a throttle takes them; the policy's -1 means no limit."""
    return Rate(max(rate.messages, 0), max(rate.bytes, 0), 1000 * rate.period_seconds)
