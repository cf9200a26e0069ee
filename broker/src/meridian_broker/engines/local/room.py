# SPDX-License-Identifier: Apache-2.0
"""Reserves the last part of a volume for operations that free space.

On a completely full volume, nothing can be freed any more: deleting a ledger writes a record, a deletion takes effect
once a checkpoint is written, and consumers cannot even acknowledge what fills the volume. So new messages are refused
while less than the *reserve* is free. Acknowledgements, deletions, checkpoints and the region's metadata, if they are
on the same volume, may use the reserve.
"""

from __future__ import annotations

from typing import Final

from meridian_broker.engines.local.files import FilePort
from meridian_broker.ledgers.store import LedgerStorageFull

RESERVE_BYTES: Final = 64 << 20
"""Enough for a segment and a checkpoint of a million runs."""
RESERVE_FRACTION: Final = 16
"""On a small volume, the reserve is one part in this many."""


class Room:
    """The space left on one store's volume."""

    def __init__(self, files: FilePort) -> None:
        """:raises OSError: the volume does not say how large it is."""
        self._files = files
        self.reserve = min(RESERVE_BYTES, files.space()[1] // RESERVE_FRACTION)

    def refusal(self) -> LedgerStorageFull | None:
        """Why messages cannot be stored now; None: there is room. A system call of a microsecond, in any thread."""
        try:
            free, _ = self._files.space()
        except OSError:
            return None  # the write itself will report the error
        if free >= self.reserve:
            return None
        return LedgerStorageFull(
            f"the volume of {self._files.place} has {free >> 20} MiB left, so no messages are stored: "
            f"the last {self.reserve >> 20} MiB are reserved for acknowledgements and for freeing space. "
            "Free space, or enlarge the volume"
        )
