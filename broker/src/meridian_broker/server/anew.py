# SPDX-License-Identifier: Apache-2.0
"""A broker that cannot go on with what it knows begins anew, as after a crash.

When its metadata were restored from an older copy while it ran, what it has in memory and what they say do not go
together any more, and each write could bury what only the volume knows. A broker that starts on older metadata adopts
that (``topics/lifecycle/orphans.py``). So the process becomes a broker that starts, at once: nothing is drained, for
draining writes; whatever was promised is on the disk, as with any crash. Sockets and files are closed by becoming
another program, and the process keeps its number, so whoever watches it need not know.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

log = logging.getLogger(__name__)


def begin_anew(reason: str) -> NoReturn:
    """Become the program that was started, as it was started."""
    log.error("%s; it starts again, as after a crash", reason)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
