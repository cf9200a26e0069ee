# SPDX-License-Identifier: Apache-2.0
"""Starts a program as a child that does not outlive its parent, even if the parent is killed.

Linux sends a process a signal of its choice when its parent dies. Asking for it leaves a gap: a parent that died before
the child asked is never noticed. So the child gets the expected parent's id and compares afterwards.

``python -m meridian_broker.server.lifeline PID PROGRAM ARGUMENT...`` asks, compares and becomes the program: the
request survives exec. On systems without the call nothing happens: there, a killed supervisor leaves children running.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent: int) -> None:
    """Have SIGTERM sent to this process when process ``parent`` ends, or exit at once if it is gone already.

    The signal comes when the *thread* that made this process ends: a supervisor starts children from its main thread.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(f"process {parent}, which started this one, is gone")


def command(parent: int, program: list[str]) -> list[str]:
    """The command line that runs ``program`` tied to the life of ``parent``."""
    return [sys.executable, "-P", "-m", "meridian_broker.server.lifeline", str(parent), *program]


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
