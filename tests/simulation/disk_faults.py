# SPDX-License-Identifier: Apache-2.0
"""Faults in a region's disk and metadata store: one or several consecutive operations fail at a random moment.

============  =============================================================================================
``read``      the disk fails a read; the bytes are intact
``write``     it refuses a write of anything: an entry, a new ledger, a seal, a deletion, an engine's own file
``metadata``  the metadata store refuses an operation before it is done
``answer``    it performs the operation but returns an error: the write has happened, unknown to its caller
============  =============================================================================================
"""

from __future__ import annotations

from collections.abc import Callable


class DiskFaults:
    """Faults of one region. They outlive a broker, like a bad disk."""

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self._on_failure = on_failure
        self._armed: dict[str, tuple[int, int]] = {}
        """Kind -> how many operations still succeed, and how many then fail."""

    def arm(self, kind: str, after: int, count: int) -> None:
        """After a number of operations of this kind, fail the next ones."""
        self._armed[kind] = (after, count)

    def clear(self) -> None:
        """Everything works again."""
        self._armed.clear()

    @property
    def is_armed(self) -> bool:
        """Whether faults are left."""
        return bool(self._armed)

    def fails(self, kind: str) -> bool:
        """Note that an operation begins; return whether it fails."""
        if kind not in self._armed:
            return False
        after, count = self._armed.pop(kind)
        if after > 0:
            self._armed[kind] = (after - 1, count)
            return False
        if count > 1:
            self._armed[kind] = (0, count - 1)
        self._on_failure()
        return True
