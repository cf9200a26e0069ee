# SPDX-License-Identifier: Apache-2.0
"""How a snapshot is cut into partitions (``docs/export.md``), and which topics a request means.

The broker counts partitions while it writes the snapshot file; the encoder child cuts along the same lines when it
reads the file. Both use :class:`Planner`, so they cannot disagree.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from meridian_broker.positions.position import Position, parse_position
from meridian_broker.topics.directory.patterns import BadPattern, WholeName

FORMAT: Final = 1
"""Version of the contract in ``docs/export.md``."""

TOPIC_TABLES: Final = ("topics", "cursors", "progress", "acks", "dropped", "passed", "compacted", "ranges")
"""Tables made from the topics' lines of the snapshot file."""
TABLES: Final = (*TOPIC_TABLES, "entries", "metadata")

ENTRIES_PER_PARTITION: Final = 500_000
BYTES_PER_PARTITION: Final = 8 << 20
"""Bytes of the snapshot file per partition of the tables made from it. A topic's line is never split."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive entries of one ledger: ``first`` to ``last``, both included."""

    topic: str
    region: str
    ledger: int
    first: int
    last: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1


class Planner:
    """Gets every line of a snapshot file in order, and cuts it into partitions."""

    def __init__(self) -> None:
        self._lines = 0
        self._bytes = 0
        self.starts: list[int] = [0]
        """Numbers of the lines at which partitions of the tables in ``TOPIC_TABLES`` begin."""
        self.entries: list[list[Stretch]] = [[]]
        """The stretches per partition of ``entries``."""
        self._room = ENTRIES_PER_PARTITION
        self.copies: dict[Position, Position] = {}
        """Where copies of damaged entries stand."""

    def add(self, record: Mapping[str, Any], size: int) -> None:
        """The next line: its object, and its length in bytes. The trailing line with the metadata may be left out."""
        if "topic" not in record:
            return
        if self._bytes and self._bytes + size > BYTES_PER_PARTITION:
            self.starts.append(self._lines)
            self._bytes = 0
        self._lines += 1
        self._bytes += size
        for damaged, copy in record.get("copies", ()):
            self.copies[parse_position(damaged)] = parse_position(copy)
        for ledger in () if record.get("shadow_of") else record["ledgers"]:  # a shadow's entries are its source's
            self._cut(record["topic"], record["region"], int(ledger["id"]), int(ledger["entries"]))

    def _cut(self, topic: str, region: str, ledger: int, entries: int) -> None:
        first = 0
        while first < entries:
            if not self._room:
                self.entries.append([])
                self._room = ENTRIES_PER_PARTITION
            taken = min(self._room, entries - first)
            self.entries[-1].append(Stretch(topic, region, ledger, first, first + taken - 1))
            self._room -= taken
            first += taken

    def partitions(self) -> dict[str, int]:
        """The field ``partitions`` of the answer to POST."""
        return {**dict.fromkeys(TOPIC_TABLES, len(self.starts)), "entries": len(self.entries), "metadata": 1}

    def lines(self, partition: int) -> range:
        """The lines of the snapshot file that make up a partition of the tables in ``TOPIC_TABLES``."""
        end = self.starts[partition + 1] if partition + 1 < len(self.starts) else self._lines
        return range(self.starts[partition], end)


def read_plan(snapshot: Path) -> Planner:
    """The plan of a snapshot file.

    :raises OSError, ValueError: the file cannot be read, or is not a snapshot file.
    """
    planner = Planner()
    with snapshot.open("rb") as lines:
        for line in lines:
            planner.add(json.loads(line), len(line))
    return planner


def topic_filter(pattern: str | None) -> Callable[[str], bool]:
    """A filter for full topic names: a glob, or a regular expression after ``re:``; None selects all.

    :raises ValueError: not a valid expression; the message may be sent to the client.
    """
    if not pattern:
        return lambda _: True
    try:
        made = WholeName(pattern[3:]) if pattern.startswith("re:") else WholeName.glob(pattern)
    except BadPattern as error:
        raise ValueError(f"topics: {error}") from error
    return made.matches
