# SPDX-License-Identifier: Apache-2.0
"""The clock for leases. Like the store's, it keeps counting while the machine is suspended."""

from __future__ import annotations

import time
from typing import Final

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def monotonic() -> float:
    """Seconds; only differences mean anything."""
    return time.clock_gettime(_CLOCK)


def monotonic_ms() -> int:
    """``monotonic`` in whole milliseconds."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000
