# SPDX-License-Identifier: Apache-2.0
"""What the broker of a topic tells another broker of the region that serves shadows of it (PIP-180).

Pulsar sends each entry to each shadow, with its id. Here shadows read entries from the ledger store, and all shadows of
a source at one broker read it together. So there is one replicator for each such broker, it sends ids alone, and an id
stands for everything before it: under load, one SEND covers many entries. Nothing depends on it. A shadow that is told
nothing learns the same from the store, some milliseconds later.

The receipt of an id means that everything up to it was read there. So the difference to the source's end is what that
broker has not read yet, the replicator's backlog.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from meridian_broker.positions.position import EARLIEST, Position

WINDOW: Final = 32
"""Most ids without a receipt; until one comes, entries wait to be told with the next id."""
PRODUCER_PREFIX: Final = "pulsar.repl-"
"""Prefix of the names of shadow replicators' producers, as in Pulsar."""


def producer_name(source: str, shadow: str) -> str:
    """Name of the producer that tells ``shadow``, in Pulsar's form."""
    return f"{PRODUCER_PREFIX}{source}-->{shadow}"


class Notice(NamedTuple):
    """An id to send."""

    sequence_id: int
    confirmed: Position


@dataclass(frozen=True, slots=True)
class ShadowReplicatorStatus:
    """For statistics, of all shadows of the source at one broker."""

    broker: str
    shadow: str
    """The shadow to which the ids are sent."""
    is_connected: bool
    connected_since_ms: int | None
    confirmed: Position | None
    """Up to where the other broker has read; None: it has not said."""
    backlog: int | None
    """Entries after that; None as before."""
    delay_ms: int
    """Age of the oldest id without a receipt; 0: there is none."""
    entries_out: int
    """Entries that were told, except those that were there when the replicator connected."""
    resets: int
    """How often the backlog was above its limit and was given up."""
    last_error: str | None


class ShadowReplicator:
    """See the module's text. Times are in milliseconds."""

    def __init__(self, source: str, broker: str) -> None:
        """:param broker: id of the other broker."""
        self.source = source
        self.broker = broker
        self.shadow = ""
        self.confirmed: Position | None = None
        self.told = EARLIEST
        self.counted = EARLIEST
        """Entries up to here are in ``entries_out``, or were there when the replicator connected."""
        self.entries_out = 0
        self.resets = 0
        self.last_error: str | None = None
        self._connected_since_ms: int | None = None
        self._sequence_id = 0
        self._unanswered: deque[tuple[Notice, int]] = deque()
        """With the time when each was sent."""

    @property
    def is_connected(self) -> bool:
        return self._connected_since_ms is not None

    def connected(self, shadow: str, end: Position, now_ms: int) -> None:
        """There is a producer for this shadow. It is told the source's end, whatever was told before."""
        self.shadow = shadow
        self.last_error = None
        self._connected_since_ms = now_ms
        self.told, self.counted = EARLIEST, max(end, self.counted)

    def disconnected(self, reason: str | None) -> None:
        """The producer is gone. Its ids get no receipts."""
        self._connected_since_ms = None
        self._unanswered.clear()
        if reason is not None:
            self.last_error = reason

    def next(self, end: Position, now_ms: int) -> Notice | None:
        """The id to send now; None: there is nothing new, or too many have no receipt.

        :param end: the last confirmed entry of the source.
        """
        if end <= self.told or len(self._unanswered) >= WINDOW or not self.is_connected:
            return None
        self._sequence_id += 1
        self.told = end
        notice = Notice(self._sequence_id, end)
        self._unanswered.append((notice, now_ms))
        return notice

    def receipt(self, sequence_id: int) -> bool:
        """The other broker has read that far. False: no receipt of this id was expected, so the session is over."""
        if not self._unanswered or self._unanswered[0][0].sequence_id != sequence_id:
            self.last_error = f"a receipt for {sequence_id}, which is not the oldest id without one"
            return False
        notice, _ = self._unanswered.popleft()
        self.confirmed = notice.confirmed if self.confirmed is None else max(self.confirmed, notice.confirmed)
        return True

    def keep_within(self, limit: int, backlog: int, end: Position) -> bool:
        """Give up a backlog of more entries than ``limit`` (``shadowReplicatorAutoResetBacklogEntries``; 0: none): the
        replicator goes on from the end. Subscriptions lose nothing, because entries are read from ledgers.

        :returns: whether it was given up. Then a new producer is needed: the ids without a receipt are of no interest.
        """
        if not 0 < limit < backlog:
            return False
        self.confirmed = end
        self.resets += 1
        return True

    def status(self, backlog: int | None, now_ms: int) -> ShadowReplicatorStatus:
        """:param backlog: entries after ``confirmed``; None: not known."""
        return ShadowReplicatorStatus(
            broker=self.broker,
            shadow=self.shadow,
            is_connected=self.is_connected,
            connected_since_ms=self._connected_since_ms,
            confirmed=self.confirmed,
            backlog=backlog,
            delay_ms=max(0, now_ms - self._unanswered[0][1]) if self._unanswered else 0,
            entries_out=self.entries_out,
            resets=self.resets,
            last_error=self.last_error,
        )
