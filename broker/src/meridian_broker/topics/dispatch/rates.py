# SPDX-License-Identifier: Apache-2.0
"""How fast a topic takes messages and gives them away, by the rates that rule it.

Publishing: a producer's connection is not read from while its topic, or the broker as a whole, is ahead of its rate.
Entries of other regions are not counted: they were let in where they were published.

Dispatch: a subscription sends nothing while it, or its topic, is ahead of its rate. Messages stay in the log meanwhile,
not in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.throttling import Rate, Throttle
from meridian_broker.metadata.policy_values import DispatchRate, PublishRate

if TYPE_CHECKING:
    from meridian_broker.ledgers.scheduling import Scheduler
    from meridian_broker.metadata.rules import Rules
    from meridian_broker.topics.publishing.producer import Producer
    from meridian_broker.topics.subscriptions.subscription import Subscription
    from meridian_broker.topics.topic import Topic

WAIT_SECONDS_MAX: Final = 1.0
"""A rate may be changed while its wait is on, so it is asked this often."""


class Pacing:
    """The rates of one topic."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._own: Throttle | None = None
        self._broker: Throttle | None = None
        self.publish: tuple[Throttle, ...] = ()
        """What publishing is counted by; empty when nothing limits it."""
        self._dispatch: Throttle | None = None
        self._each = Rate()
        self.replication = Rate()
        """To each other region; its replicator keeps it."""

    def of_broker(self, throttle: Throttle | None) -> None:
        """What all topics of the broker share."""
        self._broker = throttle
        self._set_publish()

    def follow(self, rules: Rules) -> None:
        """These rates hold from now on."""
        now_ms = self._topic.scheduler.now_ms()
        self.replication = _dispatch_rate(rules.replicator_dispatch_rate)
        self._own = _throttle(self._own, _publish_rate(rules.publish_rate), now_ms)
        self._set_publish()
        dispatch, each = _dispatch_rate(rules.dispatch_rate), _dispatch_rate(rules.subscription_dispatch_rate)
        before = self._dispatch
        self._dispatch = _throttle(before, dispatch, now_ms)
        if self._dispatch is not before or each != self._each:
            self._each = each
            for subscription in self._topic.subscriptions.values():
                subscription.pace = self.pace(subscription)
                subscription.dispatch_soon()

    def _set_publish(self) -> None:
        self.publish = tuple(throttle for throttle in (self._own, self._broker) if throttle is not None)

    def published(self, producer: Producer, messages: int, size: int) -> None:
        """Count what a client published, and hold its connection if that was ahead of a rate."""
        now_ms = self._topic.scheduler.now_ms()
        if max([throttle.take(messages, size, now_ms) for throttle in self.publish]) > 0:
            producer.port.hold(self.publish_wait_ms)

    def publish_wait_ms(self) -> int:
        """How long clients that published should wait."""
        now_ms = self._topic.scheduler.now_ms()
        return max([throttle.wait_ms(now_ms) for throttle in self.publish], default=0)

    def pace(self, subscription: Subscription) -> Pace | None:
        """The pace of a subscription; None: as fast as it can."""
        scheduler = self._topic.scheduler
        own = Throttle(self._each, scheduler.now_ms()) if self._each.is_limited else None
        throttles = tuple(throttle for throttle in (self._dispatch, own) if throttle is not None)
        return Pace(scheduler, throttles, subscription.dispatch_soon) if throttles else None


class Pace:
    """Holds one subscription to its rates."""

    __slots__ = ("_scheduler", "_throttles", "_wake", "held")

    def __init__(self, scheduler: Scheduler, throttles: tuple[Throttle, ...], wake: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._throttles = throttles
        self._wake = wake
        self.held = False
        """Nothing may be sent now; ``wake`` is called when that is over."""

    def sent(self, messages: int, size: int) -> None:
        """Count an entry that was sent."""
        now_ms = self._scheduler.now_ms()
        wait_ms = max([throttle.take(messages, size, now_ms) for throttle in self._throttles])
        if wait_ms > 0 and not self.held:
            self.held = True
            self._look_again(wait_ms)

    def allowance(self, entries: int) -> int:
        """How many entries to read, at most ``entries``: more could not be sent now."""
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


def _throttle(before: Throttle | None, rate: Rate, now_ms: int) -> Throttle | None:
    """The throttle for a rate; the same one as before when the rate is, with what it counted."""
    if not rate.is_limited:
        return None
    return before if before is not None and before.rate == rate else Throttle(rate, now_ms)


def _publish_rate(rate: PublishRate) -> Rate:
    return Rate(max(rate.messages, 0), max(rate.bytes, 0))


def _dispatch_rate(rate: DispatchRate) -> Rate:
    return Rate(max(rate.messages, 0), max(rate.bytes, 0), 1000 * rate.period_seconds)
