# SPDX-License-Identifier: Apache-2.0
"""The interface between the engine and the disk: one flat directory of files that only grow.

The engine needs very little of a file system: files are created once, appended to, synced, read at any place,
truncated, renamed and unlinked. Because this list is short and behind a Protocol, the same engine can run on a
simulated disk that loses everything unsynced, tears writes at any byte, or is full.

Every method blocks. The event loop's thread calls only those that the page cache answers at once.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from meridian_broker.ledgers.store import LedgerError, LedgerStorageFull, LedgerUnreadable, LedgerWriteFailed

LOCK_NAME: Final = "LOCK"
IOV_MAX: Final = min(1024, os.sysconf("SC_IOV_MAX"))
"""Buffers one writev takes; Linux fixes it at 1024."""
COPY_BYTES: Final = 1 << 20
"""Bytes of a file in memory at a time while it is rewritten."""


class VolumeInUse(LedgerError):
    """Another process uses the directory. It may be about to end."""


def unreadable(place: str, error: OSError) -> LedgerUnreadable:
    """The error that the caller of a failed read gets."""
    return LedgerUnreadable(
        f"the disk of {place} cannot be read ({error}): nothing is lost; repair or reconnect it, and reading resumes"
    )


def unwritable(place: str, error: Exception) -> LedgerWriteFailed:
    """The error that the caller of a failed write gets."""
    is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    kind, remedy = (LedgerStorageFull, "free space") if is_full else (LedgerWriteFailed, "repair the disk")
    return kind(
        f"the disk of {place} refused a write ({error}): nothing queued behind it was stored; {remedy}, then open new "
        "ledgers"
    )


class AppendFile(Protocol):
    """A new file that is only appended to."""

    def write(self, buffers: Sequence[bytes]) -> None:
        """Append all buffers. :raises OSError: any part of them may have been written."""
        ...

    def sync(self) -> None:
        """Return once everything written survives a power cut. :raises OSError: nothing unsynced can be relied on."""
        ...

    def close(self) -> None: ...


class ReadFile(Protocol):
    """A file that can be read at any offset, even while it grows."""

    def pread(self, length: int, offset: int) -> bytes:
        """``length`` bytes from ``offset``, fewer only at the end of the file."""
        ...

    def read_cached(self, buffer: memoryview, offset: int) -> bool:
        """Fill the buffer from ``offset`` if that needs no wait for a disk. False: it was not filled."""
        ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class FilePort(Protocol):
    """The directory."""

    @property
    def place(self) -> str:
        """The name of this directory in error messages."""
        ...

    def create(self, name: str) -> AppendFile:
        """:raises FileExistsError: the file exists."""
        ...

    def open(self, name: str) -> ReadFile:
        """:raises FileNotFoundError: the file does not exist."""
        ...

    def names(self) -> list[str]: ...

    def truncate(self, name: str, size: int) -> None:
        """Cut a file and sync it."""
        ...

    def write_again(self, name: str, start: int) -> None:
        """Rewrite a file from ``start`` on with the content of the page cache, even if the kernel considers it written,
        and make it durable. After a failed sync, the kernel may keep data that never reached the disk and still report
        success for the next sync, so `AppendFile.sync` is not enough then."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def unlink(self, name: str) -> None: ...

    def sync_directory(self) -> None:
        """Make creations, renames and unlinks durable."""
        ...

    def space(self) -> tuple[int, int]:
        """Bytes that can still be written to the volume, and its size."""
        ...

    def lock(self) -> None:
        """Become the directory's only writer. :raises VolumeInUse: another process writes to it."""
        ...

    def unlock(self) -> None: ...


class OsAppendFile:
    """`AppendFile` on a file descriptor: writev without joining buffers, fdatasync."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, buffers: Sequence[bytes]) -> None:
        for start in range(0, len(buffers), IOV_MAX):
            part = buffers[start : start + IOV_MAX]
            written = os.writev(self._fd, part)
            if written == sum(map(len, part)):
                continue
            # A short write is rare (a full disk, a signal): finish it piece by piece, so that the error shows.
            for buffer in part:
                if written >= len(buffer):
                    written -= len(buffer)
                    continue
                rest = memoryview(buffer)[written:]
                written = 0
                while rest:
                    rest = rest[os.write(self._fd, rest) :]

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class OsReadFile:
    """`ReadFile` on a file descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def pread(self, length: int, offset: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        while len(data) < length:
            more = os.pread(self._fd, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def read_cached(self, buffer: memoryview, offset: int) -> bool:
        try:
            return os.preadv(self._fd, [buffer], offset, os.RWF_NOWAIT) == len(buffer)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                return False
            raise

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        os.close(self._fd)


class OsFiles:
    """`FilePort` on a real directory.

    :param make: create the directory if it is absent.
    """

    def __init__(self, directory: Path, *, make: bool) -> None:
        self._directory = directory
        self._lock_fd: int | None = None
        if make:
            make_directory(directory)

    @property
    def place(self) -> str:
        return str(self._directory)

    def create(self, name: str) -> OsAppendFile:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return OsAppendFile(os.open(self._directory / name, flags, 0o600))

    def open(self, name: str) -> OsReadFile:
        return OsReadFile(os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC))

    def names(self) -> list[str]:
        return os.listdir(self._directory)

    def truncate(self, name: str, size: int) -> None:
        fd = os.open(self._directory / name, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def write_again(self, name: str, start: int) -> None:
        fd = os.open(self._directory / name, os.O_RDWR | os.O_CLOEXEC)
        try:
            while data := memoryview(os.pread(fd, COPY_BYTES, start)):
                while data:
                    written = os.pwrite(fd, data, start)
                    start += written
                    data = data[written:]
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, old: str, new: str) -> None:
        os.rename(self._directory / old, self._directory / new)

    def unlink(self, name: str) -> None:
        os.unlink(self._directory / name)

    def sync_directory(self) -> None:
        _sync_path(self._directory)

    def space(self) -> tuple[int, int]:
        volume = os.statvfs(self._directory)
        return volume.f_bavail * volume.f_frsize, volume.f_blocks * volume.f_frsize

    def lock(self) -> None:
        fd = os.open(self._directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise VolumeInUse(
                f"{self.place} is in use by another broker process: stop that one, or give this one its own directory"
            ) from error
        self._lock_fd = fd

    def unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


def make_directory(directory: Path) -> None:
    """Create it and its parents so that their names survive a power cut."""
    missing = []
    parent = directory
    while not parent.exists():
        missing.append(parent)
        parent = parent.parent
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
        _sync_path(path.parent)


def _sync_path(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
