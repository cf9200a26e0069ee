# SPDX-License-Identifier: Apache-2.0
"""A topic that keeps failing is reopened after a pause, which doubles with each failure.

A topic that fails is reopened at once, because most causes are gone by then. If the cause persists, it would fail in
the same way and disconnect its clients many times a second. So from the second failure on it stays closed for a
while. A topic that stays open long enough has recovered: its next failure counts as the first.

A topic that cannot be opened because its messages or acknowledgements cannot be read pauses in the same way. It is
retried without a client's request. It is not opened without its acknowledgements, because all its messages would be
delivered again.

A subscription that cannot be read waits by the same rule, and its topic continues (``dispatch/dispatcher.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from meridian_broker.topics.errors import TopicFenced

FIRST_MS: Final = 100
LAST_MS: Final = 10_000
WELL_MS: Final = 60_000
"""A topic has recovered once its last pause has been over for this long."""
DOUBLINGS_MAX: Final = 7
"""After this many doublings ``FIRST_MS`` exceeds ``LAST_MS``."""


@dataclass(slots=True)
class Run:
    """Consecutive failures of one thing."""

    name: str
    reason: str
    """Reason of the last failure."""
    failures: int
    opens_ms: int
    """End of the pause after it; monotonic."""

    def is_over(self, now_ms: int) -> bool:
        return now_ms >= self.opens_ms + WELL_MS


class Failing:
    """Topics that failed recently, or subscriptions of one topic that could not be read. Times are monotonic, in ms."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        """Ordered by their last failures."""

    def __len__(self) -> int:
        return len(self._runs)

    def failed(self, name: str, reason: str, now_ms: int) -> int:
        """Record a failure. Returns the pause before the next attempt in milliseconds."""
        run = self._runs.pop(name, None)
        if run is None or run.is_over(now_ms):
            run = Run(name, reason, 0, now_ms)
        run.failures, run.reason = run.failures + 1, reason
        doublings = min(run.failures - 2, DOUBLINGS_MAX)
        pause_ms = 0 if run.failures == 1 else min(FIRST_MS << doublings, LAST_MS)
        run.opens_ms = now_ms + pause_ms
        self._forget(now_ms)
        self._runs[name] = run
        return pause_ms

    def _forget(self, now_ms: int) -> None:
        while self._runs and (oldest := next(iter(self._runs.values()))).is_over(now_ms):
            del self._runs[oldest.name]

    def check(self, topic: str, now_ms: int) -> None:
        """:raises TopicFenced: the topic has to stay closed for now."""
        run = self._runs.get(topic)
        if run is not None and now_ms < run.opens_ms:
            raise TopicFenced(
                f"{topic} failed {run.failures} times in a row ({run.reason}); it will be opened again in "
                f"{(run.opens_ms - now_ms) / 1000:.1f} s: look it up again then"
            )

    def end_pause(self, topic: str, now_ms: int) -> None:
        """The topic may be opened from now on."""
        run = self._runs.get(topic)
        if run is not None:
            run.opens_ms = min(run.opens_ms, now_ms)

    def all(self, now_ms: int) -> list[Run]:
        """What failed more than once and has not recovered, the latest failure last."""
        return [run for run in self._runs.values() if run.failures > 1 and not run.is_over(now_ms)]
