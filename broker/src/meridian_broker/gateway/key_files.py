# SPDX-License-Identifier: Apache-2.0
"""Files that hold secrets: read whole, checked, and never quoted in an error."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SHORTEST: Final = 32
"""Bytes of a key or secret. HMAC-SHA256 gains nothing from more, and less can be guessed."""
SECRETS_MAX: Final = 4
"""Peer secrets in one file: two during a change, and room for a change that was not finished."""


class BadKey(Exception):
    """A file of keys cannot be used. The message names the setting, the file and what is wrong."""


def read_secret_key(place: str) -> bytes:
    """The key in a file; ``file:///path`` or a path. Its bytes are the key, without any encoding, as in Pulsar.

    :raises BadKey: it cannot be read, or is too short to keep anybody out.
    """
    path = Path(place.removeprefix("file://"))
    key = _read("tokenSecretKey", path)
    if len(key) < SHORTEST:
        raise BadKey(f"tokenSecretKey: {path} holds {len(key)} bytes: a key has {SHORTEST} or more")
    return key


def read_peer_secrets(path: Path) -> tuple[bytes, ...]:
    """The secrets that brokers of all regions share, one per line. There are several only while they are changed.

    :raises BadKey: the file cannot be read, holds none or too many, or one of them is too short.
    """
    secrets = tuple(filter(None, map(bytes.strip, _read("peerTokenFile", path).splitlines())))
    advice = "`meridian tokens create-peer-secret FILE` makes one"
    if not secrets:
        raise BadKey(f"peerTokenFile: {path} is empty: write a secret of {SHORTEST} bytes or more to it; {advice}")
    if len(secrets) > SECRETS_MAX:
        raise BadKey(f"peerTokenFile: {path} holds {len(secrets)} secrets: remove old ones, {SECRETS_MAX} may be there")
    for number, secret in enumerate(secrets, 1):
        if len(secret) < SHORTEST:
            raise BadKey(
                f"peerTokenFile: line {number} of {path} has {len(secret)} bytes: a secret has {SHORTEST} or more; "
                f"{advice}"
            )
    return secrets


def _read(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadKey(f"{setting}: cannot read {path}: {error.strerror}") from error
