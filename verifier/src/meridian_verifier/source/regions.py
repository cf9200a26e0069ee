# SPDX-License-Identifier: Apache-2.0
"""The regions to check: ``name=url`` pairs, or the ``regions.json`` of ``meridian up``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

MERIDIAN: Final = "meridian"
PULSAR: Final = "pulsar"


class RegionsError(ValueError):
    """The list of regions is not valid. The message says what was found and what is expected."""


@dataclass(frozen=True, slots=True)
class Region:
    """A region and the URL of its admin port, without a slash at its end."""

    name: str
    admin_url: str
    ca_file: str = ""
    """The authorities that may sign its certificate; empty: the system's."""
    kind: str = MERIDIAN
    """What runs there."""


def parse_regions(text: str) -> list[Region]:
    """Regions from ``us-east=http://127.0.0.1:8080,us-west=...`` or from the path of a regions file.

    :raises RegionsError: neither of the two.
    """
    if "=" in text.split(",")[0]:
        pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
        return _checked([Region(name.strip(), url.strip()) for name, _, url in pairs])
    return read_regions_file(Path(text))


def read_regions_file(path: Path) -> list[Region]:
    """Regions from a file ``{"regions": [{"name": ..., "admin_url": ...}, ...]}``; those of Apache Pulsar have
    ``"kind": "pulsar"``.

    :raises RegionsError: no such file, or another shape.
    """
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))["regions"]
        return _checked(
            [Region(str(one["name"]), str(one["admin_url"]), kind=str(one.get("kind", MERIDIAN))) for one in listed]
        )
    except OSError as error:
        raise RegionsError(
            f"{path} cannot be read ({error.strerror}): give the regions.json of a running `meridian up`, "
            "or name=url pairs"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, RegionsError):
            raise
        form = '{"regions": [{"name", "admin_url"}]}'
        raise RegionsError(f"{path} is not a regions file: expected {form}") from error


def with_authorities(regions: Iterable[Region], directory: Path) -> list[Region]:
    """The regions with the authorities in a directory: each has a file of its name, or else ``default``, or else the
    system's."""
    return [replace(region, ca_file=_authorities(region.name, directory)) for region in regions]


def _authorities(name: str, directory: Path) -> str:
    return next((str(directory / one) for one in (name, "default") if (directory / one).is_file()), "")


def _checked(regions: list[Region]) -> list[Region]:
    for one in regions:
        url = urlsplit(one.admin_url)
        if not one.name or url.scheme not in ("http", "https") or not url.netloc:
            raise RegionsError(f"region {one.name!r} has the URL {one.admin_url!r}: expected name=http://host:port")
        if one.kind not in (MERIDIAN, PULSAR):
            raise RegionsError(f"region {one.name!r} is of kind {one.kind!r}: expected {MERIDIAN} or {PULSAR}")
    names = [one.name for one in regions]
    if len(set(names)) != len(names):
        raise RegionsError(f"a region is named twice: {', '.join(names)}")
    if all(one.kind == PULSAR for one in regions):
        raise RegionsError("no region of Meridian is named: expected name=http://host:port,...")
    return [replace(one, admin_url=one.admin_url.rstrip("/")) for one in regions]
