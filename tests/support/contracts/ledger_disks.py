# SPDX-License-Identifier: Apache-2.0
"""File ports for the ledger engine: a disk that records every operation, a full disk, a disk that fails on demand.

`RecordingDisk` keeps files in memory and a journal of all operations. `crashed` builds, from the first N operations,
what a disk may hold after a power failure at that moment: data of finished fdatasyncs is there, everything else may be
lost, torn at any byte, or (`Loss.SCATTERED`) there in part after holes of zeros, as pages are written in any order.
Names are durable after a sync of the directory; of later changes, any number of the first may have survived.

`FaultyDisk` wraps any other port, in memory or real, and fails operations that its `fault` selects: reads, writes or
both, of some files or of all, for as long as a test wants.
"""

from __future__ import annotations

import enum
import errno
import os
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from meridian_broker.engines.local.files import AppendFile, FilePort, ReadFile


class Loss(enum.Enum):
    """What happens to bytes that no finished fdatasync covers."""

    ALL = "they are all lost"
    TORN = "they end at any byte"
    SCATTERED = "each write is there, torn or missing, independently of the others"
    NONE = "they all survive, as after a kill of the process"


@dataclass(slots=True)
class _File:
    content: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True, slots=True)
class Operation:
    """One entry of the journal."""

    kind: str
    file: int = -1
    name: str = ""
    other: str = ""
    data: bytes = b""
    size: int = 0


class RecordingDisk:
    """`FilePort` in memory, with a journal."""

    place = "memory"

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self._mutex = threading.Lock()
        self._files: list[_File] = []
        self._names: dict[str, int] = {}
        self._start: list[bytes] = []
        self.journal: list[Operation] = []
        self.locked = False
        for name, content in (files or {}).items():
            self._names[name] = len(self._files)
            self._files.append(_File(bytearray(content)))
            self._start.append(content)
        self._start_names = dict(self._names)

    # -- the port ------------------------------------------------------------------------------------------------

    def create(self, name: str) -> _Append:
        with self._mutex:
            if name in self._names:
                raise FileExistsError(name)
            self._names[name] = len(self._files)
            self._files.append(_File())
            self.journal.append(Operation("create", self._names[name], name))
            return _Append(self, self._names[name])

    def open(self, name: str) -> _Read:
        with self._mutex:
            if name not in self._names:
                raise FileNotFoundError(name)
            return _Read(self._files[self._names[name]])

    def names(self) -> list[str]:
        with self._mutex:
            return list(self._names)

    def truncate(self, name: str, size: int) -> None:
        with self._mutex:
            number = self._names[name]
            del self._files[number].content[size:]
            self.journal.append(Operation("truncate", number, size=size))

    def write_again(self, name: str, start: int) -> None:
        with self._mutex:
            number = self._names[name]
            data = bytes(self._files[number].content[start:])
            self.journal.append(Operation("write again", number, data=data, size=start))

    def rename(self, old: str, new: str) -> None:
        with self._mutex:
            self._names[new] = self._names.pop(old)
            self.journal.append(Operation("rename", name=old, other=new))

    def unlink(self, name: str) -> None:
        with self._mutex:
            if name not in self._names:
                raise FileNotFoundError(name)
            del self._names[name]
            self.journal.append(Operation("unlink", name=name))

    def sync_directory(self) -> None:
        with self._mutex:
            self.journal.append(Operation("sync directory"))

    def space(self) -> tuple[int, int]:
        return 1 << 50, 1 << 50

    def lock(self) -> None:
        assert not self.locked
        self.locked = True

    def unlock(self) -> None:
        self.locked = False

    def write(self, number: int, data: bytes) -> None:
        with self._mutex:
            self._files[number].content += data
            self.journal.append(Operation("write", number, data=data))

    def sync(self, number: int) -> None:
        with self._mutex:
            self.journal.append(Operation("sync", number))

    def forget(self, number: int) -> None:
        """A sync failed: unsynced data never reaches the disk, though the page cache still shows it."""
        with self._mutex:
            self.journal.append(Operation("forget", number))

    # -- the crash -----------------------------------------------------------------------------------------------

    def crashed(self, operations: int, loss: Loss, rng: random.Random) -> dict[str, bytes]:
        """What the disk holds when the power fails after the first ``operations``."""
        durable = [bytearray(content) for content in self._start]
        waiting: dict[int, list[bytes]] = {}
        names = dict(self._start_names)
        changes: list[Operation] = []
        for step in self.journal[:operations]:
            if step.kind == "create":
                durable.append(bytearray())
                changes.append(step)
            elif step.kind == "write":
                waiting.setdefault(step.file, []).append(step.data)
            elif step.kind == "sync":
                durable[step.file] += b"".join(waiting.pop(step.file, []))
            elif step.kind == "write again":
                durable[step.file] += b"".join(waiting.pop(step.file, []))
                durable[step.file][step.size :] = step.data
            elif step.kind == "forget":
                waiting[step.file] = [bytes(len(data)) for data in waiting.get(step.file, [])]
            elif step.kind == "truncate":
                durable[step.file] += b"".join(waiting.pop(step.file, []))
                del durable[step.file][step.size :]
            elif step.kind == "sync directory":
                for change in changes:
                    _apply(change, names)
                changes.clear()
            else:
                changes.append(step)
        kept = len(changes) if loss is Loss.NONE else 0 if loss is Loss.ALL else rng.randint(0, len(changes))
        for change in changes[:kept]:
            _apply(change, names)
        for number, writes in waiting.items():
            durable[number] += _survivors(writes, loss, rng)
        return {name: bytes(durable[number]) for name, number in names.items()}

    def killed(self, operations: int) -> RecordingDisk:
        """The disk after the process was killed at that moment: the page cache survives; unsynced data stays so."""
        disk = RecordingDisk()
        disk._start, disk._start_names = list(self._start), dict(self._start_names)
        disk.journal = self.journal[:operations]
        disk._files = [_File(bytearray(content)) for content in self._start]
        disk._names = dict(self._start_names)
        for step in disk.journal:
            if step.kind == "create":
                disk._files.append(_File())
            if step.kind in ("create", "rename", "unlink"):
                _apply(step, disk._names)
            elif step.kind == "write":
                disk._files[step.file].content += step.data
            elif step.kind == "truncate":
                del disk._files[step.file].content[step.size :]
        return disk

    def content(self) -> dict[str, bytes]:
        """What the page cache holds now."""
        with self._mutex:
            return {name: bytes(self._files[number].content) for name, number in self._names.items()}


def _apply(change: Operation, names: dict[str, int]) -> None:
    if change.kind == "create":
        names[change.name] = change.file
    elif change.kind == "rename":
        names[change.other] = names.pop(change.name)
    else:
        del names[change.name]


def _survivors(writes: list[bytes], loss: Loss, rng: random.Random) -> bytes:
    if loss is Loss.ALL:
        return b""
    if loss is Loss.NONE:
        return b"".join(writes)
    if loss is Loss.TORN:
        data = b"".join(writes)
        return data[: rng.randint(0, len(data))]
    scattered = bytearray()
    for data in writes:
        whole = bytearray(data)
        fate = rng.random()
        if fate < 0.3:
            whole = bytearray(len(data))
        elif fate < 0.6 and data:
            lower = rng.randint(0, len(data))
            upper = rng.randint(lower, len(data))
            whole[lower:upper] = bytes(upper - lower)
        scattered += whole
    return bytes(scattered[: rng.randint(0, len(scattered))])


class SmallDisk(RecordingDisk):
    """A volume of ``size`` bytes, with blocks of one byte."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def space(self) -> tuple[int, int]:
        with self._mutex:
            used = sum(len(self._files[number].content) for number in self._names.values())
        return max(self.size - used, 0), self.size

    def write(self, number: int, data: bytes) -> None:
        free = self.space()[0]
        super().write(number, data[:free])
        if free < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _Append:
    def __init__(self, disk: RecordingDisk, number: int) -> None:
        self._disk = disk
        self._number = number

    def write(self, buffers: Sequence[bytes]) -> None:
        self._disk.write(self._number, b"".join(buffers))

    def sync(self) -> None:
        self._disk.sync(self._number)

    def close(self) -> None:
        pass


class _Read:
    def __init__(self, file: _File) -> None:
        self._file = file
        self.cold = False

    def pread(self, length: int, offset: int) -> bytes:
        return bytes(self._file.content[offset : offset + length])

    def read_cached(self, buffer: memoryview, offset: int) -> bool:
        data = self._file.content[offset : offset + len(buffer)]
        if self.cold or len(data) < len(buffer):
            return False
        buffer[:] = data
        return True

    def size(self) -> int:
        return len(self._file.content)

    def close(self) -> None:
        pass


class ColdDisk(RecordingDisk):
    """The page cache is empty: every read waits for the disk."""

    def open(self, name: str) -> _Read:
        file = super().open(name)
        file.cold = True
        return file


class BadSector(RecordingDisk):
    """A range of bytes that cannot be read in any file."""

    bad: tuple[int, int] | None = None

    def open(self, name: str) -> _Read:
        file = super().open(name)
        return _BadRead(self, file)


class _BadRead(_Read):
    def __init__(self, disk: BadSector, file: _Read) -> None:
        super().__init__(file._file)
        self._disk = disk

    def pread(self, length: int, offset: int) -> bytes:
        self._check(length, offset)
        return super().pread(length, offset)

    def read_cached(self, buffer: memoryview, offset: int) -> bool:
        self._check(len(buffer), offset)
        return super().read_cached(buffer, offset)

    def _check(self, length: int, offset: int) -> None:
        bad = self._disk.bad
        if bad is not None and offset < bad[1] and bad[0] < offset + length:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class RefusingDisk(RecordingDisk):
    """A full disk: a write beyond ``room`` bytes stores a part and fails; syncs and truncations can be made to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.room: int | None = None
        self.sync_fails = False
        self.cut_fails = False

    def write(self, number: int, data: bytes) -> None:
        if self.room is not None:
            part = data[: self.room]
            self.room -= len(part)
            super().write(number, part)
            if len(part) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return
        super().write(number, data)

    def sync(self, number: int) -> None:
        if self.sync_fails:
            self.forget(number)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(number)

    def truncate(self, name: str, size: int) -> None:
        if self.cut_fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().truncate(name, size)

    def unlink(self, name: str) -> None:
        if self.cut_fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().unlink(name)


READS: Final = frozenset(("open", "read", "list"))
WRITES: Final = frozenset(("create", "write", "sync", "truncate", "rename", "unlink", "sync directory"))

Fault = Callable[[str, str], OSError | None]
"""``fault(operation, file)``: the error of this operation, or None. Called in the engine's threads, too."""


def broken(operations: frozenset[str], code: int = errno.EIO, names: str = "") -> Fault:
    """These operations fail on files whose names end with ``names``."""

    def fault(operation: str, name: str) -> OSError | None:
        return OSError(code, os.strerror(code), name) if operation in operations and name.endswith(names) else None

    return fault


class FaultyDisk:
    """A `FilePort` around another one. Locking and closing never fail."""

    def __init__(self, files: FilePort) -> None:
        self._files = files
        self._mutex = threading.Lock()
        self.fault: Fault | None = None
        self.operations = 0
        """Counted, so that a test can draw the operation at which faults begin."""
        self.faults = 0

    def check(self, operation: str, name: str) -> None:
        with self._mutex:
            self.operations += 1
            error = None if self.fault is None else self.fault(operation, name)
            self.faults += error is not None
        if error is not None:
            raise error

    @property
    def place(self) -> str:
        return self._files.place

    def create(self, name: str) -> AppendFile:
        self.check("create", name)
        return _FaultyAppend(self, name, self._files.create(name))

    def open(self, name: str) -> ReadFile:
        self.check("open", name)
        return _FaultyRead(self, name, self._files.open(name))

    def names(self) -> list[str]:
        self.check("list", "")
        return self._files.names()

    def truncate(self, name: str, size: int) -> None:
        self.check("truncate", name)
        self._files.truncate(name, size)

    def write_again(self, name: str, start: int) -> None:
        self.check("write", name)
        self._files.write_again(name, start)

    def rename(self, old: str, new: str) -> None:
        self.check("rename", new)
        self._files.rename(old, new)

    def unlink(self, name: str) -> None:
        self.check("unlink", name)
        self._files.unlink(name)

    def space(self) -> tuple[int, int]:
        return self._files.space()

    def sync_directory(self) -> None:
        self.check("sync directory", "")
        self._files.sync_directory()

    def lock(self) -> None:
        self._files.lock()

    def unlock(self) -> None:
        self._files.unlock()


class _FaultyAppend:
    def __init__(self, disk: FaultyDisk, name: str, file: AppendFile) -> None:
        self._disk = disk
        self._name = name
        self._file = file

    def write(self, buffers: Sequence[bytes]) -> None:
        self._disk.check("write", self._name)
        self._file.write(buffers)

    def sync(self) -> None:
        self._disk.check("sync", self._name)
        self._file.sync()

    def close(self) -> None:
        self._file.close()


class _FaultyRead:
    def __init__(self, disk: FaultyDisk, name: str, file: ReadFile) -> None:
        self._disk = disk
        self._name = name
        self._file = file

    def pread(self, length: int, offset: int) -> bytes:
        self._disk.check("read", self._name)
        return self._file.pread(length, offset)

    def read_cached(self, buffer: memoryview, offset: int) -> bool:
        self._disk.check("read", self._name)
        return self._file.read_cached(buffer, offset)

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()
