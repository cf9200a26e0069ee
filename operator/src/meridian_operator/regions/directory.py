# SPDX-License-Identifier: Apache-2.0
"""Which regions there are: every Service labelled ``meridian.dev/region`` is one.

The label's value is the region's name. Its admin API is the port named ``https``, else that named ``http``. Tokens come
from files, one per region and one named ``default``, because a mounted Secret needs no right to read Secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

REGION_LABEL: Final = "meridian.dev/region"
SCHEMES: Final = ("https", "http")
"""Also the names of the admin API's ports."""
DEFAULT_TOKEN: Final = "default"


@dataclass(frozen=True, slots=True)
class Region:
    """Where a region's admin API is."""

    name: str
    url: str


def region_of(name: str, namespace: str, labels: Mapping[str, str], spec: Mapping[str, Any]) -> Region | None:
    """The region that a Service stands for; None when it has no admin port."""
    ports = {port.get("name"): port["port"] for port in spec.get("ports", ())}
    for scheme in SCHEMES:
        if scheme in ports:
            return Region(labels[REGION_LABEL], f"{scheme}://{name}.{namespace}.svc:{ports[scheme]}")
    return None


class Tokens:
    """Bearer tokens from a directory. Read at each use: Kubernetes renews mounted Secrets in place."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def of(self, region: str) -> str | None:
        """The region's token, else the default one, else None.

        :raises OSError: there is a file and it cannot be read.
        """
        if self._directory is None:
            return None
        for name in (region, DEFAULT_TOKEN):
            file = self._directory / name
            if file.is_file():
                return file.read_text(encoding="utf-8").strip()
        return None
