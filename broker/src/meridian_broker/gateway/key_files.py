# SPDX-License-Identifier: Apache-2.0
"""Files that hold secrets: read whole, checked, and never quoted in an error."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

SHORTEST: Final = 32
"""Bytes of a key or secret. HMAC-SHA256 gains nothing from more, and a shorter one can be guessed."""
SECRETS_MAX: Final = 4
"""Limit on peer secrets in one file: two during a change, plus room for an unfinished change."""
LARGEST: Final = 64 * 1024
"""Bytes of a file: no key is as large."""


class BadKey(Exception):
    """A key file cannot be used. The message names the setting, the file and the reason."""


def read_peer_secrets(path: Path) -> tuple[bytes, ...]:
    """The secrets that brokers of all regions share, one per line. There are several only while they are changed.

    :raises BadKey: the file cannot be read, holds none or too many, or one of them is too short.
    """
    secrets = tuple(filter(None, map(bytes.strip, read_file("peerTokenFile", path).splitlines())))
    advice = "`meridian tokens create-peer-secret FILE` creates one"
    if not secrets:
        raise BadKey(f"peerTokenFile: {path} is empty: write a secret of {SHORTEST} bytes or more to it; {advice}")
    if len(secrets) > SECRETS_MAX:
        raise BadKey(
            f"peerTokenFile: {path} holds {len(secrets)} secrets, at most {SECRETS_MAX} are allowed: remove old ones"
        )
    for number, secret in enumerate(secrets, 1):
        if len(secret) < SHORTEST:
            raise BadKey(
                f"peerTokenFile: line {number} of {path} has {len(secret)} bytes, a secret needs at least {SHORTEST}; "
                f"{advice}"
            )
    return secrets


def read_file(setting: str, path: Path) -> bytes:
    """The content of a file.

    :param setting: names the file in errors.
    :raises BadKey: it cannot be read, or is too large to be a key.
    """
    try:
        with path.open("rb") as opened:
            data = opened.read(LARGEST + 1)
    except OSError as error:
        raise BadKey(f"{setting}: cannot read {path}: {error.strerror}") from error
    if len(data) > LARGEST:
        raise BadKey(f"{setting}: {path} is larger than {LARGEST >> 10} KiB: this is not a key")
    return data


def exposure(path: Path) -> str | None:
    """A warning that other users can read or change a file that holds a secret, and the remedy; None: they cannot.

    A file that belongs to another user may be readable by its group: that is how Kubernetes mounts Secrets
    (``fsGroup``), and how we are allowed to read it ourselves.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    allowed = 0o700 if found.st_uid == os.geteuid() else 0o740
    mode = stat.S_IMODE(found.st_mode)
    if not mode & ~allowed & 0o777:
        return None
    return f"{path} holds a secret, and mode {mode:04o} gives other users access to it: run chmod {mode & allowed:o}"
