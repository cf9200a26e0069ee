# SPDX-License-Identifier: Apache-2.0
"""Publish rate limits.

A producer's connection is not read while its topic, or the broker as a whole, exceeds its rate. Entries of other
regions are not counted: they were accepted where they were published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meridian_broker.ledgers.throttling import Rate, Throttle, throttle_for
from meridian_broker.metadata.policy_values import PublishRate

if TYPE_CHECKING:
    from collections.abc import Callable

    from meridian_broker.ledgers.scheduling import Scheduler
    from meridian_broker.topics.publishing.producer import Producer


class PublishRates:
    """The publish rates of one topic."""

    def __init__(self, scheduler: Scheduler, broker: Callable[[], Throttle | None]) -> None:
        """:param broker: returns the throttle shared by all topics of the broker; None: it has no limit."""
        self._scheduler = scheduler
        self._broker = broker
        self._own: Throttle | None = None
        self.throttles: tuple[Throttle, ...] = ()
        """The throttles that publishing counts against; empty if nothing limits it."""
        self._collect()

    def follow(self, rate: PublishRate) -> None:
        """Set the topic's own rate, and take over the broker's."""
        self._own = throttle_for(_rate(rate), self._own, self._scheduler.now_ms())
        self._collect()

    def _collect(self) -> None:
        self.throttles = tuple(throttle for throttle in (self._own, self._broker()) if throttle is not None)

    def published(self, producer: Producer, messages: int, size: int) -> None:
        """Count what a client published, and pause its connection if that exceeded a rate."""
        now_ms = self._scheduler.now_ms()
        if max([throttle.take(messages, size, now_ms) for throttle in self.throttles]) > 0:
            producer.port.hold(self.wait_ms)

    def wait_ms(self) -> int:
        """How long clients that published should wait, in milliseconds."""
        now_ms = self._scheduler.now_ms()
        return max([throttle.wait_ms(now_ms) for throttle in self.throttles], default=0)


def _rate(rate: PublishRate) -> Rate:
    return Rate(max(rate.messages, 0), max(rate.bytes, 0))
