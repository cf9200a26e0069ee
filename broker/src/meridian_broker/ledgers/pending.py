# SPDX-License-Identifier: Apache-2.0
"""Entries given to a topic's log that are not durable yet, in groups: one read of a connection is one group.

Work per message is what publishing costs, so whatever can be done once per group is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from meridian_broker.ledgers.entry import EntryHeader
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions.position import Position

AppendedToLog = Callable[[list[Any], Position | LedgerError], None]
"""Called with tokens given to ``append_*`` and the position of the first of their entries, once they are durable - the
others follow without a gap - or with the error."""

OwnEntry = tuple[int, int, int, int, int, bytes, bytes | memoryview]
"""An entry first stored here: flags, messages, key hash, checksum, publish time in milliseconds, extras (from
``entry.pack_extras``), body."""


@dataclass(slots=True)
class Waiting:
    """Entries that wait for a ledger to go to."""

    done: AppendedToLog
    tokens: list[Any]
    entries: Sequence[OwnEntry]
    header: EntryHeader | None = None
    body: bytes | memoryview = b""
    """In place of ``entries``: one entry of another region."""


class Pending:
    """Consecutive entries on their way to the disk."""

    __slots__ = ("done", "entries", "facts", "first", "tokens")

    def __init__(
        self, first: int, entries: list[bytes], facts: list[EntryHeader | int], done: AppendedToLog, tokens: list[Any]
    ) -> None:
        self.first = first
        self.entries = entries
        self.facts = facts
        """For the index: an own entry's number of messages, any other entry's header."""
        self.done = done
        self.tokens = tokens

    def cut(self, count: int) -> Pending | None:
        """Split off the first ``count`` entries; None if that is all of them."""
        if count >= len(self.entries):
            return None
        front = Pending(self.first, self.entries[:count], self.facts[:count], self.done, self.tokens[:count])
        self.first += count
        del self.entries[:count], self.facts[:count]
        self.tokens = self.tokens[count:]
        return front
