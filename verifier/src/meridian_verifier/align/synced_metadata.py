# SPDX-License-Identifier: Apache-2.0
"""R63 for metadata: at S2 each region is, at each path, at least as far as every other one was at S1.

Regions that sync metadata report the last write of each path: its stamp, and a digest of the value or a deletion. The
later of two writes wins everywhere, so an older one at S2 is a change that was lost or is late.

Deletions are forgotten once all regions know them. A path unknown to a region is therefore missing only if the other
region still has the same value at S2.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from meridian_verifier.align.findings import METADATA, Finding, Reason

FINDINGS_KEPT: Final = 1000
"""Maximum number of paths that a run lists for one pair of regions and one reason."""


@dataclass(frozen=True, slots=True)
class Written:
    """The last write of a path known to a region."""

    generation: int
    time_ms: int
    counter: int
    region: str
    """The region that wrote it."""
    digest: str
    """Digest of the value; empty: it was deleted."""

    def loses_to(self, other: Written) -> bool:
        """Whether the other write is later, whatever was written."""
        mine, theirs = (self.generation, self.time_ms, self.counter), (other.generation, other.time_ms, other.counter)
        return mine < theirs or (mine == theirs and other.region < self.region)

    def is_same_write(self, other: Written) -> bool:
        return not self.loses_to(other) and not other.loses_to(self)

    def __str__(self) -> str:
        generation = f" in generation {self.generation}" if self.generation else ""
        return f"{self.time_ms}.{self.counter}@{self.region}{generation}{'' if self.digest else ' (deleted)'}"


Known = Mapping[str, Written]
"""By path."""


@dataclass(frozen=True, slots=True)
class Synced:
    """Which metadata a region syncs with which regions."""

    topic: str
    """The topic that carries changes between them."""
    folders: frozenset[str]
    regions: frozenset[str]


def differences(source: str, target: str, first: Known, still: Known, second: Known) -> Iterator[Finding]:
    """Where the target is behind the source.

    :param first: what the source had at S1 on the paths that both sync.
    :param still: what it has at S2.
    :param second: what the target has at S2.
    """
    for path, before in first.items():
        now = second.get(path)
        if now is None:
            if before.digest and still.get(path) == before:
                yield _finding(Reason.METADATA_MISSING, source, target, path, before, None)
        elif now.loses_to(before):
            yield _finding(Reason.METADATA_BEHIND, source, target, path, before, now)
        elif source < target and now.is_same_write(before) and now.digest != before.digest:
            yield _finding(Reason.METADATA_DIFFERS, source, target, path, before, now)


def pairs(synced: Mapping[str, Synced]) -> dict[tuple[str, str], frozenset[str]]:
    """Regions that sync metadata, each pair in both directions, and the folders that both of them share."""
    return {
        (source, target): one.folders & other.folders
        for source, one in synced.items()
        for target, other in synced.items()
        if source != target and one.topic == other.topic and target in one.regions and source in other.regions
        if one.folders & other.folders
    }


def within(known: Known, folders: Collection[str]) -> dict[str, Written]:
    """The paths below these folders."""
    below = tuple(folder + "/" for folder in folders)
    return {path: one for path, one in known.items() if path.startswith(below)}


def shown(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that a report lists: the first paths of each pair and reason."""
    counts: dict[tuple[str, str, Reason], int] = {}
    kept = []
    for one in sorted(findings, key=lambda one: (one.source, one.target, one.reason, one.path)):
        key = one.source, one.target, one.reason
        counts[key] = counts.get(key, 0) + 1
        if counts[key] <= FINDINGS_KEPT:
            kept.append(one)
    return kept


def _finding(reason: Reason, source: str, target: str, path: str, before: Written, now: Written | None) -> Finding:
    stamps = str(before), "nothing" if now is None else str(now)
    return Finding(reason, METADATA, "", before.region, source, target, 0, 0, 0, 0, (), path, stamps)
