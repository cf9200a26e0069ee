# SPDX-License-Identifier: Apache-2.0
"""Regions and the tokens for their admin APIs.

Tokens come from files, one per region and one named ``default``: a mounted Secret needs no permission to read Secrets.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

DEFAULT_TOKEN: Final = "default"


@dataclass(frozen=True, slots=True)
class Region:
    """A region and its admin API's URL."""

    name: str
    url: str


class Tokens:
    """Bearer tokens from a directory, read at each use because Kubernetes updates mounted Secrets in place."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def of(self, region: str) -> str | None:
        """The region's token, or else the default token, or None.

        :raises OSError: the file exists but cannot be read.
        """
        if self._directory is None:
            return None
        for name in (region, DEFAULT_TOKEN):
            file = self._directory / name
            if file.is_file():
                return file.read_text(encoding="utf-8").strip()
        return None
