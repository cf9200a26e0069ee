# SPDX-License-Identifier: Apache-2.0
"""Regions, the tokens for their admin APIs and the authorities that sign their certificates.

Tokens and authorities come from directories with one file per region and one named ``default``: a mounted Secret needs
no permission to read Secrets. Kubernetes updates the files in place, so they are read again after each change.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from meridian_operator.api.settings import DEFAULT_FILE

SOON_SECONDS: Final = 7 * 86_400
"""A token that expires within this time is reported."""


@dataclass(frozen=True, slots=True)
class Region:
    """A region and its admin API's URL."""

    name: str
    url: str


class Tokens:
    """Bearer tokens from a directory, read at each use."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def of(self, region: str) -> str | None:
        """The region's token, or else the default token, or None.

        :raises OSError: the file exists but cannot be read.
        """
        file = _file(self._directory, region)
        return None if file is None else file.read_text(encoding="utf-8").strip()

    def expires(self, region: str) -> int | None:
        """When the region's token expires, in seconds since 1970; None: never, or unknown."""
        try:
            return expiry_of(self.of(region) or "")
        except (OSError, ValueError):
            return None

    def expiries(self, regions: Iterable[str]) -> dict[str, int]:
        """Region -> when its token expires, in seconds since 1970. Without those that do not expire."""
        found = {name: self.expires(name) for name in regions}
        return {name: until for name, until in found.items() if until is not None}

    def warning(self, region: str, now: float) -> str:
        """What to do about the region's token soon; empty: nothing.

        :param now: in seconds since 1970.
        """
        until = self.expires(region)
        if until is None or until > now + SOON_SECONDS:
            return ""
        verb = "expired" if until <= now else "expires"
        time = datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"the token for region {region} {verb} at {time}: create another one and replace it in its Secret"


class BadAuthority(OSError):
    """The authorities of a region cannot be used. The message has the file and the reason."""


class Authorities:
    """Certificate authorities from a directory, in PEM: a region's own ones, or else the default ones.

    A region whose certificate comes from an authority of another region is not trusted.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._loaded: dict[Path, tuple[tuple[int, int], ssl.SSLContext]] = {}

    def of(self, region: str) -> ssl.SSLContext | None:
        """What to verify the region's certificate with; None: the system's authorities.

        :raises BadAuthority: the file cannot be read, or holds no certificate.
        """
        file = _file(self._directory, region)
        if file is None:
            return None
        try:
            about = file.stat()
            version = about.st_mtime_ns, about.st_size
            known = self._loaded.get(file)
            if known is None or known[0] != version:
                known = self._loaded[file] = version, ssl.create_default_context(cafile=file)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise BadAuthority(f"the certificate authorities in {file} cannot be used: {error}") from error
        return known[1]


def expiry_of(token: str) -> int | None:
    """When a JWT expires, in seconds since 1970; None: never, or it is no JWT. The broker checks its signature.

    :raises ValueError: it has a part that cannot be decoded.
    """
    parts = token.split(".")
    if len(parts) != 3:
        return None
    claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    until = claims.get("exp") if isinstance(claims, dict) else None
    return int(until) if isinstance(until, int | float) and 0 <= until < 1 << 37 else None


def _file(directory: Path | None, region: str) -> Path | None:
    """The region's file, or else the default one."""
    names = () if directory is None else (region, DEFAULT_FILE)
    return next((directory / name for name in names if directory and (directory / name).is_file()), None)
