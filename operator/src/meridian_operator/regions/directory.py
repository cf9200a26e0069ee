# SPDX-License-Identifier: Apache-2.0
"""Regions, the tokens for their admin APIs and the authorities that sign their certificates.

Tokens and authorities come from directories with one file per region and one named ``default``: a mounted Secret needs
no permission to read Secrets. Kubernetes updates the files in place, so they are read again after each change. The
caller of ``Tokens.issue`` reads the tokens that regions issue from their Secrets: a mounted one would be a minute late.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from meridian_operator.api.settings import DEFAULT_FILE

SOON_SECONDS: Final = 7 * 86_400
"""A token that expires within this time is reported, or in the last quarter of its lifetime if that is shorter."""
_LIFETIME_CLAIM: Final = "meridian_lifetime"


@dataclass(frozen=True, slots=True)
class Region:
    """A region and its admin API's URL."""

    name: str
    url: str


class NoToken(OSError):
    """A region that issues tokens has not issued one yet. The message says where to look."""


class Tokens:
    """Bearer tokens: those that regions issue, and others from a directory, read at each use.

    :param issuers: region that issues the operator's token -> NAMESPACE/NAME of the service account that does so.
    """

    def __init__(self, directory: Path | None, issuers: Mapping[str, str] = MappingProxyType({})) -> None:
        self._directory = directory
        self._issuers = issuers
        self._issued: dict[str, str] = {}

    def issue(self, region: str, token: str) -> None:
        """The region has issued this token."""
        self._issued[region] = token

    def of(self, region: str) -> str | None:
        """The region's token, or else the default token, or None.

        :raises NoToken: the region has not issued one yet. The default token is not sent to such a region.
        :raises OSError: the file exists but cannot be read.
        """
        if region in self._issuers:
            if region not in self._issued:
                raise NoToken(f"the region has not issued a token yet; {self._where(region)} says why")
            return self._issued[region]
        file = _file(self._directory, region)
        return None if file is None else file.read_text(encoding="utf-8").strip()

    def _where(self, region: str) -> str:
        namespace, _, name = self._issuers[region].partition("/")
        return f"`kubectl -n {namespace} logs deployment/{name}`"

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
        if until is None or until > now + min(SOON_SECONDS, self._lifetime(region) / 4):
            return ""
        verb = "expired" if until <= now else "expires"
        time = datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        told = f"the token for region {region} {verb} at {time}"
        if region in self._issuers:
            return f"{told}; the region should have renewed it long ago: {self._where(region)} says why not"
        return f"{told}: create a new one and put it into its Secret"

    def _lifetime(self, region: str) -> float:
        """Seconds from the creation of the region's token to its expiry; infinite: it does not say."""
        try:
            said = _claims(self.of(region) or "").get(_LIFETIME_CLAIM)
        except (OSError, ValueError):
            said = None
        return said if isinstance(said, int) and said > 0 else float("inf")


class BadAuthority(OSError):
    """A region's certificate authorities cannot be used. The message has the file and the reason."""


class Authorities:
    """Certificate authorities from a directory, in PEM: a region's own, or else the default ones.

    A certificate signed by another region's authority is not trusted.
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
    """When a JWT expires, in seconds since 1970; None: never, or it is not a JWT. The broker checks its signature.

    :raises ValueError: it has a part that cannot be decoded.
    """
    until = _claims(token).get("exp")
    return int(until) if isinstance(until, int | float) and 0 <= until < 1 << 37 else None


def _claims(token: str) -> dict[str, Any]:
    """A JWT's claims; empty if ``token`` is not one. :raises ValueError: it has a part that cannot be decoded."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    return claims if isinstance(claims, dict) else {}


def _file(directory: Path | None, region: str) -> Path | None:
    """The region's file, or else the default one."""
    names = () if directory is None else (region, DEFAULT_FILE)
    return next((directory / name for name in names if directory and (directory / name).is_file()), None)
