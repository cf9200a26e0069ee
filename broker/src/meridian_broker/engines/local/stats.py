# SPDX-License-Identifier: Apache-2.0
"""Counters of the engine, for metrics."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import asdict, dataclass, field
from typing import Final

from meridian_broker.ledgers.storage import StorageFigures

GAUGES: Final = ("pending_bytes", "ledgers", "segments", "log_bytes", "live_bytes", "index_entries", "recovery_seconds")

SYNC_SECONDS_BUCKETS: Final = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Upper bounds of the histogram of fdatasync times, in seconds: half decades from a fast NVMe to a disk in trouble."""


@dataclass(slots=True)
class EngineStats:
    """Counters since the start, and gauges of this moment."""

    appends: int = 0
    """Entries that became durable."""
    append_bytes: int = 0
    """Their bytes, without headers."""
    written_bytes: int = 0
    """Bytes written to the log, including headers, copies and marks."""
    write_failures: int = 0
    """Times that the disk refused a write."""
    syncs: int = 0
    """fdatasync calls of the log."""
    sync_seconds: float = 0.0
    """Time spent in them."""
    sync_buckets: list[int] = field(default_factory=lambda: [0] * (len(SYNC_SECONDS_BUCKETS) + 1))
    """Number of calls per bucket of ``SYNC_SECONDS_BUCKETS``; the last counts everything above."""
    reads: int = 0
    """Calls of ``read``."""
    read_entries: int = 0
    read_bytes: int = 0
    index_loads: int = 0
    """Times that a run's places had to be read back from an index file."""
    damaged_entries: int = 0
    """Entries that failed their checksum, or turned out to be lost to damage, when read."""
    moved_bytes: int = 0
    """Bytes copied to empty old segments."""
    segments_removed: int = 0
    checkpoints: int = 0
    recovered_bytes: int = 0
    """Bytes of log read at the start."""
    recovery_seconds: float = 0.0
    pending_bytes: int = 0
    """Bytes of entries queued and not yet durable."""
    ledgers: int = 0
    segments: int = 0
    log_bytes: int = 0
    """Bytes of all segments."""
    live_bytes: int = 0
    """Bytes of closed segments that some ledger still needs."""
    index_entries: int = 0
    """Places of entries held in memory, 8 bytes each."""

    def synced(self, seconds: float) -> None:
        """Count one fdatasync."""
        self.syncs += 1
        self.sync_seconds += seconds
        self.sync_buckets[bisect_left(SYNC_SECONDS_BUCKETS, seconds)] += 1

    def figures(self) -> StorageFigures:
        """For metrics."""
        numbers = asdict(self)
        sync_seconds, counts = numbers.pop("sync_seconds"), numbers.pop("sync_buckets")
        bounds = [*map(str, SYNC_SECONDS_BUCKETS), "+Inf"]
        return StorageFigures(
            {name: numbers.pop(name) for name in GAUGES}, numbers, dict(zip(bounds, counts, strict=True)), sync_seconds
        )
