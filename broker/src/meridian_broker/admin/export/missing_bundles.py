# SPDX-License-Identifier: Apache-2.0
"""Which bundles of the region an export still lacks, and how the partitions of its parts are numbered.

Bundles move and are split while brokers are asked for them. So each is requested until one broker that owned it
throughout has exported all of it. Requests are disjoint, and nothing exported is requested again: each topic is
exported once, or the export is not whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

from meridian_broker.ownership.bundles import Bundle, Bundles

_BUNDLE: Final = re.compile(r"([^/]+/[^/]+)/0x([0-9a-f]{8})_0x([0-9a-f]{8})")


class BordersChanged(Exception):
    """The borders of a namespace's bundles changed. The message completes "its bundle "."""


class MissingBundles:
    """See the module's text."""

    def __init__(self, wanted: Iterable[Bundle]) -> None:
        """:param wanted: bundles that do not overlap."""
        self.missing: set[Bundle] = set(wanted)

    @property
    def is_whole(self) -> bool:
        return not self.missing

    def follow(self, bundles: Mapping[str, Bundles]) -> None:
        """Ask for the present bundles instead of those that were split.

        :param bundles: by namespace.
        :raises BordersChanged: they were not only split.
        """
        for bundle in sorted(self.missing):
            now = bundles.get(bundle.namespace)
            if now is None:
                continue
            within = [now.at(bundle.lower)]
            while within[-1].upper < bundle.upper:
                within.append(now.at(within[-1].upper))
            if (within[0].lower, within[-1].upper) != (bundle.lower, bundle.upper):
                raise BordersChanged(f"{bundle} no longer exists")
            self.missing.remove(bundle)
            self.missing.update(within)

    def by_owner(self, owner: Callable[[Bundle], str]) -> dict[str, list[Bundle]]:
        """What to ask each broker for. :param owner: the broker's id; empty: nobody owns it."""
        owned = sorted((owner(bundle), bundle) for bundle in self.missing)
        return {broker: [bundle for _, bundle in some] for broker, some in groupby(owned, key=lambda one: one[0])}

    def had(self, asked: Collection[Bundle], got: Sequence[Bundle]) -> None:
        """A broker has exported these of the bundles that it was asked for.

        :raises ValueError: these include others; nothing of the answer counts.
        """
        if len(set(got)) < len(got) or not set(got) <= set(asked) & self.missing:
            raise ValueError("it exported other bundles than it was asked for")
        self.missing.difference_update(got)


def parse_bundle(text: str) -> Bundle:
    """A bundle as ``str`` writes it. :raises ValueError: the text is something else."""
    match = _BUNDLE.fullmatch(text)
    if match is None or (lower := int(match[2], 16)) >= (upper := int(match[3], 16)):
        raise ValueError(f"{text[:200]!r} is not a bundle: expected tenant/namespace/0x00000000_0x40000000")
    return Bundle(match[1], lower, upper)


def numbered(counts: Sequence[int], partition: int) -> tuple[int, int]:
    """Which part has a partition, and which number it has there.

    :param counts: how many partitions each part has.
    :raises IndexError: there are fewer partitions.
    """
    for part, count in enumerate(counts):
        if partition < count:
            return part, partition
        partition -= count
    raise IndexError("there are fewer partitions")
