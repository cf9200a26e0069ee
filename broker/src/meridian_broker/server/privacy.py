# SPDX-License-Identifier: Apache-2.0
"""Stored data is readable by the broker's own user only: messages, names, properties, schemas."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

OTHERS: Final = 0o077
"""The bits of a mode that give access to the group and to others."""


def create_for_ourselves() -> None:
    """From now on this process and its children create files that other users cannot read."""
    os.umask(OTHERS)


def close_to_others(directory: Path) -> None:
    """Deny others access to a directory. One that another user owns, such as the root of a volume, stays as it is."""
    mode = stat.S_IMODE(directory.stat().st_mode)
    if not mode & OTHERS:
        return
    try:
        directory.chmod(mode & ~OTHERS)
    except OSError as error:
        log.info("%s keeps mode %04o, because changing it failed: %s", directory, mode, error.strerror)
    else:
        log.warning(
            "%s had mode %04o, which let other users of this machine read it; changed to %04o",
            directory,
            mode,
            mode & ~OTHERS,
        )
