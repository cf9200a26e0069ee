# SPDX-License-Identifier: Apache-2.0
"""Operations of a region's disk and metadata store that fail at a drawn moment, some in a row.

============  =============================================================================================
``read``      the disk answers a read with an error; the bytes are as they were
``write``     it refuses a write of anything: an entry, a new ledger, a seal, a deletion, an engine's own file
``metadata``  the metadata store refuses an operation before it is done
``answer``    it does the operation, and whoever asked gets an error: the write is there, and nobody knows
============  =============================================================================================
"""

from __future__ import annotations

from collections.abc import Callable


class DiskFaults:
    """Of one region. They outlive a broker, as a bad disk does."""

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self._on_failure = on_failure
        self._armed: dict[str, tuple[int, int]] = {}
        """Kind -> operations that still work, and how many fail then."""

    def arm(self, kind: str, after: int, count: int) -> None:
        """After so many operations of the kind, so many fail."""
        self._armed[kind] = (after, count)

    def clear(self) -> None:
        """Everything works again."""
        self._armed.clear()

    @property
    def is_armed(self) -> bool:
        """Something is still to fail."""
        return bool(self._armed)

    def fails(self, kind: str) -> bool:
        """An operation begins: does it fail?"""
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
