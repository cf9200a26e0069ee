# SPDX-License-Identifier: Apache-2.0
"""The clock that leases are measured by. It includes time in which the machine is suspended, as the store's does."""

from __future__ import annotations

import time
from typing import Final

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def monotonic() -> float:
    """Seconds; only differences mean anything."""
    return time.clock_gettime(_CLOCK)


def monotonic_ms() -> int:
    """The same in whole milliseconds."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000
