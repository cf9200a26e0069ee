# SPDX-License-Identifier: Apache-2.0
"""The files of a simulated engine: a disk that may be full, lose power, and rot."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from random import Random

from meridian_broker.engines.local.checkpoint import checkpoint_name, checkpoint_number, unpack_checkpoint
from support.contracts.ledger_disks import Loss, RecordingDisk


class SimFiles(RecordingDisk):
    """Files on a disk that may be full or lose power."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        super().__init__(files)
        self.refusal: str | None = None
        self.power = True

    def _check(self) -> None:
        if not self.power:
            raise OSError(errno.EIO, "the power is gone")

    def write(self, number: int, data: bytes) -> None:
        if self.refusal is not None:
            raise OSError(errno.ENOSPC, self.refusal)
        super().write(number, data)

    def sync(self, number: int) -> None:
        self._check()
        super().sync(number)

    def truncate(self, name: str, size: int) -> None:
        self._check()
        super().truncate(name, size)

    def unlink(self, name: str) -> None:
        self._check()
        super().unlink(name)

    def rename(self, old: str, new: str) -> None:
        self._check()
        super().rename(old, new)

    def sync_directory(self) -> None:
        self._check()
        super().sync_directory()

    def after_power_cut(self, loss: Loss, random: Random, rotten_checkpoints: Iterable[int] = ()) -> SimFiles:
        """What the disk holds after a power cut.

        :param rotten_checkpoints: checkpoints that are damaged: how many newer whole ones there are of each.
        """
        content = self.crashed(len(self.journal), loss, random)
        for age in rotten_checkpoints:
            _damage_checkpoint(content, age)
        return SimFiles(content)

    def flip(self, name: str, offset: int) -> Callable[[], None]:
        """A byte changes by itself; return a function that repairs it."""
        content = self._files[self._names[name]].content
        content[offset] ^= 0x40

        def flip_back() -> None:
            content[offset] ^= 0x40

        return flip_back


def _damage_checkpoint(content: dict[str, bytes], age: int) -> None:
    """A byte in its middle changes. The engine promises to survive that for one of its two checkpoints, and for the
    first one it ever wrote: others stay intact."""
    names = sorted((name for name in content if checkpoint_number(name) is not None), reverse=True)
    whole = [name for name in names if unpack_checkpoint(content[name], name) is not None]
    if len(whole) > 1 or whole == [checkpoint_name(1)] == names:
        name = whole[age % len(whole)]
        damaged = bytearray(content[name])
        damaged[len(damaged) // 2] ^= 0x40
        content[name] = bytes(damaged)
