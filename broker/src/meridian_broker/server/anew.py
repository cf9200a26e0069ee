# SPDX-License-Identifier: Apache-2.0
"""Restarts a broker whose in-memory state is no longer valid, as after a crash.

When the metadata was restored from an older copy while the broker ran, its memory and the metadata no longer match,
and each write could destroy what only the volume still knows. A broker that starts with older metadata adopts the
ledgers on its volume (``topics/lifecycle/orphans.py``). So the process re-executes itself at once. It does not drain,
because draining writes; everything it promised is on the disk, as with any crash. Replacing the program closes sockets
and files and keeps the process id, so a supervisor notices nothing.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

log = logging.getLogger(__name__)


def begin_anew(reason: str) -> NoReturn:
    """Replace this process with a new start of its program, with the same arguments."""
    log.error("%s; restarting, as after a crash", reason)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
