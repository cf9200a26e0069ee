# SPDX-License-Identifier: Apache-2.0
"""Rate limits: a number of messages and bytes per period.

A token bucket that may go into debt. It counts what has already happened (a message was read from its connection, an
entry was sent), so counting never refuses; it returns how long to wait before the next. A large message therefore
passes, and the wait after it pays for it. In the long run the rate holds exactly; at most one period's worth is saved
up while idle. A debt is bounded, too: one client may have caused it, but all clients of the topic or broker pay it
(``RATE_DEBT_MS``).

Pure: the time is passed in, as milliseconds of a clock that may be adjusted. When it goes back, nothing is gained or
lost.
"""

from __future__ import annotations

from typing import NamedTuple

from meridian_broker.bounds.clients import RATE_DEBT_MS


class Rate(NamedTuple):
    """0 or less: no limit."""

    messages: int = 0
    bytes: int = 0
    period_ms: int = 1000

    @property
    def is_limited(self) -> bool:
        return self.messages > 0 or self.bytes > 0


class TokenBucket:
    """``amount`` per period."""

    __slots__ = ("_amount", "_at_ms", "_least", "_level", "_period_ms")

    def __init__(self, amount: int, period_ms: int, now_ms: int) -> None:
        self._amount = amount
        self._period_ms = period_ms
        self._level = amount * period_ms
        """Tokens times the period: whole numbers, so rounding loses nothing. Below zero: a debt."""
        self._least = -amount * max(period_ms, RATE_DEBT_MS)
        self._at_ms = now_ms

    def take(self, count: int, now_ms: int) -> None:
        """``count`` were used."""
        self._fill(now_ms)
        self._level = max(self._level - count * self._period_ms, self._least)

    def wait_ms(self, now_ms: int) -> int:
        """How long to wait before the next; 0: it may come now."""
        self._fill(now_ms)
        return 0 if self._level > 0 else -self._level // self._amount + 1

    def available(self, now_ms: int) -> int:
        """The amount that may be used now without going into debt; at least 1 when no wait is due."""
        self._fill(now_ms)
        return -(-self._level // self._period_ms) if self._level > 0 else 0

    def _fill(self, now_ms: int) -> None:
        passed = now_ms - self._at_ms
        self._at_ms = now_ms
        if passed > 0:
            self._level = min(self._level + passed * self._amount, self._amount * self._period_ms)


class Throttle:
    """A ``Rate`` and how much of it is used."""

    __slots__ = ("_buckets", "_bytes", "_messages", "rate")

    def __init__(self, rate: Rate, now_ms: int) -> None:
        self.rate = rate
        self._messages = TokenBucket(rate.messages, rate.period_ms, now_ms) if rate.messages > 0 else None
        self._bytes = TokenBucket(rate.bytes, rate.period_ms, now_ms) if rate.bytes > 0 else None
        self._buckets = [bucket for bucket in (self._messages, self._bytes) if bucket is not None]

    def take(self, messages: int, size: int, now_ms: int) -> int:
        """Count this use; returns how long to wait now, in milliseconds."""
        if self._messages is not None:
            self._messages.take(messages, now_ms)
        if self._bytes is not None:
            self._bytes.take(size, now_ms)
        return self.wait_ms(now_ms)

    def wait_ms(self, now_ms: int) -> int:
        """How long to wait before the next; 0: it may come now."""
        return max([bucket.wait_ms(now_ms) for bucket in self._buckets], default=0)

    def messages_available(self, now_ms: int, most: int) -> int:
        """How many messages may come now, at most ``most``."""
        return most if self._messages is None else min(most, self._messages.available(now_ms))


def throttle_for(rate: Rate, before: Throttle | None, now_ms: int) -> Throttle | None:
    """A throttle for a rate, None if it sets no limit. If ``before`` has this rate, it is kept with its counts."""
    if not rate.is_limited:
        return None
    return before if before is not None and before.rate == rate else Throttle(rate, now_ms)
