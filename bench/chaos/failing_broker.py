# SPDX-License-Identifier: Apache-2.0
"""A broker like ``meridian broker`` with ledgers on a disk that fails as long as a file next to its data exists.

The file `DISK_FAULT` holds two words: which operations fail (`OPERATIONS`), and with which errno ("reads EIO"). Without
the file the disk works. Every operation checks it, so a fault begins and ends at once, and outlives a restart.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from meridian_broker.cli.main import build
from meridian_broker.cli.programs import Sources
from meridian_broker.engines.local.files import OsFiles
from meridian_broker.server.main import ServerPrograms, start_logging
from meridian_broker.server.running import run_broker
from meridian_broker.server.settings import load
from support.contracts.ledger_disks import READS, WRITES, FaultyDisk

DISK_FAULT: Final = "disk-fault"
OPERATIONS: Final = {"reads": READS, "writes": WRITES, "everything": READS | WRITES}


class FailingPrograms(ServerPrograms):
    """The broker's file port is a `FaultyDisk`."""

    def broker(self, sources: Sources, supervisor: int | None) -> int:
        del supervisor  # the bench ends its brokers itself
        settings = load(sources.config, sources.assignments, os.environ)
        start_logging(settings.process.log_level)
        told = settings.region.data_directory.with_name(DISK_FAULT)
        return run_broker(settings, lambda volume: failing(volume, told))


def failing(volume: Path, told: Path) -> FaultyDisk:
    """The file port of a directory that fails as described in the file ``told``."""

    def fault(operation: str, name: str) -> OSError | None:
        try:
            operations, code = told.read_text().split()
        except FileNotFoundError:
            return None
        if operation not in OPERATIONS[operations]:
            return None
        number = getattr(errno, code)
        return OSError(number, os.strerror(number), name)

    disk = FaultyDisk(OsFiles(volume, make=True))
    disk.fault = fault
    return disk


if __name__ == "__main__":
    build(FailingPrograms())()
