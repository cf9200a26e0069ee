# SPDX-License-Identifier: Apache-2.0
"""What files hold, read again when they change, so that keys can be replaced while the broker runs.

A changed file is read once two looks in a row found it the same: at the first one somebody may still have been writing
it. Files that cannot be used change nothing: what was read before stays in force.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

Identity = tuple[str, int, int, int]
"""Name, inode, time of the last change in nanoseconds, size."""


def identity(path: Path) -> Identity | None:
    """What differs once a file was written or replaced; None when it is gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return path.name, found.st_ino, found.st_mtime_ns, found.st_size


class FollowedFiles(Generic[T]):
    """The files that ``paths`` names at the time, and what ``read`` makes of them.

    Both are called by ``look``, which blocks: call it in a thread. Only one look may be under way at a time.
    """

    def __init__(self, paths: Callable[[], list[Path]], read: Callable[[], T]) -> None:
        """Reads them. :raises Exception: whatever ``read`` raises."""
        self._paths = paths
        self._read = read
        self._in_force = self._identities()
        self._changing = self._in_force
        self.first = read()

    def look(self) -> T | None:
        """What the files hold, when they hold something new; None when there is no change, or no settled one.

        :raises Exception: whatever ``read`` raises, at each look until the files can be used again.
        """
        found = self._identities()
        settled, self._changing = found == self._changing, found
        if found == self._in_force or not settled:
            return None
        value = self._read()
        if self._identities() != found:
            return None
        self._in_force = found
        return value

    def _identities(self) -> list[Identity | None]:
        return [identity(path) for path in self._paths()]
