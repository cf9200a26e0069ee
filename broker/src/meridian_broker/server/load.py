# SPDX-License-Identifier: Apache-2.0
"""How loaded this broker is, and which of its bundles cause it.

The processor decides: a broker's event loop uses one core at most, and is late for everybody once that is used up. What
a bundle costs is estimated from its messages and bytes, only while the broker is busy: that takes a walk over all open
topics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterable, Callable, Mapping
from typing import Final

from meridian_broker.ownership.bundles import Bundle
from meridian_broker.topics.service.traffic import traffic
from meridian_broker.topics.topic import Topic

MEASURE_SECONDS: Final = 10.0
"""Between two measurements: long compared with a garbage collection or a burst."""
WEIGHT: Final = 0.5
"""Weight of a new measurement against all earlier ones."""
MESSAGE_BYTES: Final = 16 << 10
"""Bytes that cost as much as one message does by itself."""


class Processor:
    """The processor time that this process uses."""

    def __init__(self, seconds_used: Callable[[], float], now: Callable[[], float]) -> None:
        """:param now: a monotonic clock in seconds."""
        self._seconds_used = seconds_used
        self._now = now
        self._before = (now(), seconds_used())
        self._usage: float | None = None

    def usage(self) -> float:
        """Fraction of one core, smoothed over the last calls; other threads count as well."""
        before, used_before = self._before
        self._before = now, used = self._now(), self._seconds_used()
        if now > before:
            usage = (used - used_before) / (now - before)
            self._usage = usage if self._usage is None else self._usage + WEIGHT * (usage - self._usage)
        return self._usage or 0.0


class BundleTraffic:
    """The traffic of each bundle."""

    def __init__(self) -> None:
        self._before: dict[Bundle, int] = {}

    def forget(self) -> None:
        """Let the next measurement begin afresh."""
        self._before = {}

    async def measure(
        self, topics: AsyncIterable[Topic], bundle_of: Callable[[str], Bundle | None]
    ) -> Mapping[Bundle, float]:
        """Traffic of each bundle since the previous call; empty at the first call."""
        totals: Counter[Bundle] = Counter()
        async for topic in topics:
            if (bundle := bundle_of(topic.name)) is not None:
                came_in, bytes_in, went_out, bytes_out = traffic(topic)
                totals[bundle] += came_in + went_out + (bytes_in + bytes_out) // MESSAGE_BYTES
        before, self._before = self._before, dict(totals)
        return {bundle: max(total - before[bundle], 0) for bundle, total in totals.items() if bundle in before}
