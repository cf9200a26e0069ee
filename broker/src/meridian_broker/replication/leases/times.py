# SPDX-License-Identifier: Apache-2.0
"""How long a lease and the steps to it take, and how much of a promise its holder may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CLOCK_RATE: Final = 0.01
"""Clocks may run faster or slower than true time by this fraction. Oscillators are a hundred times better."""
TICK_MS: Final = 2
"""Both ends count whole milliseconds."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """How long things take, in milliseconds."""

    duration: int = 6000
    """Duration of a promise."""
    step: int = 400
    """How long the first candidate that is not the preferred holder waits for it; the second waits twice as long, and
    so on."""
    linger: int = 1000
    """How long an unwanted stream is kept: its consumers may only be reconnecting."""

    @property
    def beat(self) -> int:
        """Between renewals: one may be lost."""
        return max(self.duration // 3, 1)

    @property
    def usable(self) -> int:
        """The part of the duration that the holder may use."""
        return int(self.duration * (1 - CLOCK_RATE) / (1 + CLOCK_RATE)) - TICK_MS

    @property
    def attempt(self) -> int:
        """How long the answers to one attempt are waited for."""
        return max(self.duration // 4, 1)
