# SPDX-License-Identifier: Apache-2.0
"""Secrets that this program chooses and keeps in a file."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def make_secret(file: Path) -> None:
    """Choose a secret, unless the file exists. From its first byte on, only this user can read the file.

    :raises OSError: it cannot be written.
    """
    if file.exists():
        return
    unfinished = file.with_name(f"{file.name}.new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as opened:
        opened.write(secrets.token_urlsafe(32) + "\n")
        opened.flush()
        os.fsync(opened.fileno())
    unfinished.rename(file)
