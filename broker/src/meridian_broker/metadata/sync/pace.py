# SPDX-License-Identifier: Apache-2.0
"""When a region sends its next message of events.

Each message costs every region, whatever it contains. So what is written between two messages is sent together, and a
region that is busy, so that sending takes long, sends less often.
"""

from __future__ import annotations

from typing import Final

GATHER_SECONDS: Final = 0.004
"""From a write until it is sent, at least: its writer has the answer by then, and what is written at the same time is
sent together."""
PAUSE_SECONDS: Final = 0.02
"""Between two messages, at least, ..."""
PAUSE_SHARE: Final = 2
"""... and this many times as long as sending takes, ..."""
PAUSE_SECONDS_MAX: Final = 0.1
"""... up to this."""
AVERAGED: Final = 8
"""Messages over which the time that sending takes is averaged: a single one may be slow for other reasons."""


class Pace:
    """See the module's text."""

    def __init__(self) -> None:
        self._took = 0.0
        """Seconds that sending takes, on average."""
        self._sent = float("-inf")

    def sent(self, begun: float, ended: float) -> None:
        """A message was sent between these times of one clock, in seconds."""
        self._took += (ended - begun - self._took) / AVERAGED
        self._sent = ended

    def wait(self, now: float) -> float:
        """Seconds until what was written just now may be sent."""
        pause = min(max(PAUSE_SECONDS, PAUSE_SHARE * self._took), PAUSE_SECONDS_MAX)
        return max(GATHER_SECONDS, self._sent + pause - now)
