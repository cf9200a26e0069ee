# SPDX-License-Identifier: Apache-2.0
"""Entries of the outbox: which paths other regions do not know in their newest state yet.

An entry is written in the transaction that changes the paths. It names them, not their values: whoever sends it reads
those, so of several writes only the newest is sent, however long nothing could be sent (R46). Transactions that begin
with the same path share an entry, which then names the paths of all of them; once it is full, those that write the
same paths share one. So writes of the same paths take no more space however many there are, and events of one
transaction leave in one message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from meridian_broker.metadata.records import decode, encode
from meridian_broker.metadata.store import MetadataError
from meridian_broker.metadata.sync.events import MAX_EVENTS, Event, Written
from meridian_broker.positions.clock import Stamp

MAX_BYTES: Final = 512 << 10
"""Values of one message, unless a single one is larger: this many fit into one transaction of any store."""

SENT: Final = b""
"""Stands for an entry that was sent and is still stored: a write replaces it instead of being added to it."""


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """See the module's text."""

    since: Stamp
    """The first write that was not sent. Entries are sent in this order."""
    replaced: Mapping[str, Written | None] = field(default_factory=dict)
    """By path, what the first of these writes replaced, that is, what other regions may know; None: nothing."""

    def and_then(self, replaced: Mapping[str, Written | None]) -> OutboxEntry | None:
        """The entry with a later transaction's paths; None: it would be too large, and that transaction needs its
        own."""
        united = {**replaced, **self.replaced}
        return OutboxEntry(self.since, united) if len(united) <= MAX_EVENTS else None


def to_store(entry: OutboxEntry) -> bytes:
    shown = {path: None if one is None else [one[0], *one[1]] for path, one in sorted(entry.replaced.items())}
    return encode(shown, entry.since)


def from_store(path: str, data: bytes) -> OutboxEntry:
    """:raises MetadataError: the entry is damaged."""
    value, since = decode(path, data)
    try:
        return OutboxEntry(since or Stamp(0, 0, ""), {name: _written(one) for name, one in value.items()})
    except (AttributeError, TypeError, ValueError, IndexError) as error:
        raise MetadataError(f"{path} holds {data[:60]!r}, which no version of Meridian wrote: restore it") from error


def _written(shown: Any) -> Written | None:
    return None if shown is None else (int(shown[0]), Stamp(int(shown[1]), int(shown[2]), str(shown[3])))


def in_messages(events: Iterable[Event]) -> list[tuple[Event, ...]]:
    """Events of one entry, in the order of their paths, as few messages as the limits allow."""
    messages: list[tuple[Event, ...]] = []
    some: list[Event] = []
    size = 0
    for event in sorted(events, key=lambda event: event.path):
        added = len(event.path) + len(event.state.value or b"")
        if some and (size + added > MAX_BYTES or len(some) == MAX_EVENTS):
            messages.append(tuple(some))
            some, size = [], 0
        some.append(event)
        size += added
    return [*messages, tuple(some)] if some else messages
