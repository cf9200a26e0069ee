# SPDX-License-Identifier: Apache-2.0
"""The regions to check: ``name=url`` pairs, or the ``regions.json`` of ``meridian up``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
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
    """For several brokers as for Pulsar's tools: ``http://one:8080,two:8080``."""
    ca_file: str = ""
    """The certificate authorities to trust for it; empty: the system's."""
    kind: str = MERIDIAN
    """What runs there."""

    @property
    def admin_urls(self) -> list[str]:
        """The URL of each broker that was named. Any of them answers for the region."""
        scheme, _, places = self.admin_url.partition("://")
        return [f"{scheme}://{place}" for place in places.split(",")]


def parse_regions(text: str) -> list[Region]:
    """Regions from ``us-east=http://127.0.0.1:8080,us-west=...`` or from the path of a regions file. An address without
    a name is another broker of the region before it.

    :raises RegionsError: ``text`` is neither.
    """
    if "=" in text.split(",")[0]:
        named: list[Region] = []
        for part in filter(None, map(str.strip, text.split(","))):
            name, is_named, url = part.partition("=")
            if is_named:
                named.append(Region(name.strip(), url.strip()))
            else:
                named[-1] = replace(named[-1], admin_url=f"{named[-1].admin_url.rstrip('/')},{part}")
        return _checked(named)
    return read_regions_file(Path(text))


def read_regions_file(path: Path) -> list[Region]:
    """Regions from a file ``{"regions": [{"name": ..., "admin_url": ...}, ...]}``; those of Apache Pulsar have
    ``"kind": "pulsar"``, and those of several brokers list them under ``"brokers"``.

    :raises RegionsError: the file does not exist or has another form.
    """
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))["regions"]
        return _checked([Region(str(one["name"]), _of_all(one), kind=str(one.get("kind", MERIDIAN))) for one in listed])
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


def _of_all(listed: Mapping[str, Any]) -> str:
    """One URL with the admin ports of all brokers of a region that have the scheme of the first."""
    first = str(listed["admin_url"]).rstrip("/")
    scheme = first.partition("://")[0] + "://"
    urls = [str(one.get("admin_url", "")).rstrip("/") for one in listed.get("brokers", ())]
    others = dict.fromkeys(url.removeprefix(scheme) for url in urls if url.startswith(scheme) and url != first)
    return ",".join((first, *others))


def with_authorities(regions: Iterable[Region], directory: Path) -> list[Region]:
    """The regions with the authorities in a directory: each region's own file, or else ``default``, or else the
    system's."""
    return [replace(region, ca_file=_authorities(region.name, directory)) for region in regions]


def _authorities(name: str, directory: Path) -> str:
    return next((str(directory / one) for one in (name, "default") if (directory / one).is_file()), "")


def _checked(regions: list[Region]) -> list[Region]:
    for one in regions:
        urls = [urlsplit(url) for url in one.admin_urls]
        if not one.name or any(url.scheme not in ("http", "https") or not url.netloc for url in urls):
            raise RegionsError(f"region {one.name!r} has the URL {one.admin_url!r}: expected name=http://host:port")
        if one.kind not in (MERIDIAN, PULSAR):
            raise RegionsError(f"region {one.name!r} is of kind {one.kind!r}: expected {MERIDIAN} or {PULSAR}")
    names = [one.name for one in regions]
    if len(set(names)) != len(names):
        raise RegionsError(f"a region is named twice: {', '.join(names)}")
    if all(one.kind == PULSAR for one in regions):
        raise RegionsError("no region of Meridian is named: expected name=http://host:port,...")
    return [replace(one, admin_url=one.admin_url.rstrip("/")) for one in regions]
