# SPDX-License-Identifier: Apache-2.0
"""Files that are read again when they change, so that keys can be replaced while the broker runs.

A changed file is read once two checks in a row have found it the same: at the first check it may still be incomplete.
Files that cannot be used change nothing: the last good content stays in force.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

Identity = tuple[str, int, int, int]
"""Name, inode, time of the last change in nanoseconds, size."""


def identity(path: Path) -> Identity | None:
    """A value that changes when a file is written or replaced; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return path.name, found.st_ino, found.st_mtime_ns, found.st_size


class FollowedFiles(Generic[T]):
    """The content of the files that ``paths`` names at the time, as ``read`` returns it.

    ``look`` calls both and blocks: run it in a thread, one call at a time.
    """

    def __init__(self, paths: Callable[[], list[Path]], read: Callable[[], T]) -> None:
        """Reads the files. :raises Exception: everything that ``read`` raises."""
        self._paths = paths
        self._read = read
        self._in_force = self._identities()
        self._changing = self._in_force
        self.first = read()

    def look(self) -> T | None:
        """The new content; None while nothing has changed, or while a change is still in progress.

        :raises Exception: everything that ``read`` raises, on each call until the files can be used again.
        """
        found = self._identities()
        is_stable, self._changing = found == self._changing, found
        if found == self._in_force or not is_stable:
            return None
        value = self._read()
        if self._identities() != found:
            return None
        self._in_force = found
        return value

    def _identities(self) -> list[Identity | None]:
        return [identity(path) for path in self._paths()]
