# SPDX-License-Identifier: Apache-2.0
"""The one writer of a ledger: adds entries, replaces lost bookies, seals.

Changes of the metadata are made one at a time. If one finds the ledger in recovery, or closed by another client, this
writer has been fenced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from meridian_broker.engines.bookkeeper.adding import Adding
from meridian_broker.engines.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from meridian_broker.engines.bookkeeper.packets import master_key, new_add
from meridian_broker.engines.bookkeeper.ports import AddLimits, LinkPort, MetadataPort, Packet, Versioned
from meridian_broker.engines.bookkeeper.updating import Change, MetadataAway, Updating
from meridian_broker.ledgers.store import AppendDone, LedgerError, LedgerFenced, LedgerNotFound, LedgerWriteFailed

_new: Final = tuple.__new__
"""Costs half as much as calling a ``NamedTuple`` class."""
Sealed = Callable[[LedgerMetadata | LedgerError], None]


class Writing:
    """See the module's text. The shell passes bookies' answers to ``adding``."""

    def __init__(
        self,
        ledger: int,
        stored: Versioned,
        link: LinkPort,
        metadata: MetadataPort,
        limits: AddLimits,
        *,
        data_bytes_max: int,
        now_ms: int,
    ) -> None:
        """:param stored: the metadata of a ledger that was just created."""
        self.ledger = ledger
        self._stored = stored
        self._metadata_port = metadata
        self._data_bytes_max = data_bytes_max
        self._key = master_key(stored.metadata.password)
        self.size = 0
        self._refusal: LedgerError | None = None
        self._changes: deque[tuple[Change, Callable[[Versioned | LedgerError], None]]] = deque()
        self._is_changing = False
        self._is_closing = False
        self.adding = Adding(
            *(ledger, link, self._store_ensemble, stored.metadata.segments[-1].ensemble, stored.metadata.ack_quorum),
            limits=limits,
            now_ms=now_ms,
        )

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as this writer last read or wrote it."""
        return self._stored.metadata

    @property
    def next_entry(self) -> int:
        return self.adding.next

    @property
    def is_closed(self) -> bool:
        return self._stored.metadata.state is LedgerState.CLOSED

    def append(self, data: bytes, done: AppendDone) -> int:
        """As ``Writer.append``."""
        adding = self.adding
        refusal = self._refusal or adding.failure
        if refusal is None and len(data) > self._data_bytes_max:
            refusal = LedgerWriteFailed(
                f"an entry of {len(data)} bytes is too large for ledger {self.ledger}: bookies take at most "
                f"{self._data_bytes_max}"
            )
            self.refuse(refusal)  # later entries would leave a gap
        if refusal is not None:
            adding.refuse(done, refusal)
            return adding.next
        self.size += len(data)
        head = new_add(self._key, self.ledger, adding.next, adding.confirmed, self.size, data)
        return adding.add(_new(Packet, (head, data)), done)

    def refuse(self, error: LedgerError) -> None:
        """Accept no more entries. Those in flight continue."""
        if self._refusal is None or isinstance(error, LedgerFenced | LedgerNotFound):
            self._refusal = error

    def seal(self, told: Sealed) -> None:
        """Close the ledger after the last confirmed entry, once no entry is in flight.

        :param told: called with the metadata; with LedgerFenced if another client took the ledger over; or with another
            LedgerError if the outcome is unknown, and then ``seal`` may be called again.
        """
        self.refuse(LedgerError(f"ledger {self.ledger} is sealed: open a new one"))
        self.adding.when_idle(lambda: self._close(told))

    # -- inside --------------------------------------------------------------------------------------------------

    def _close(self, told: Sealed) -> None:
        for error in (self.adding.failure, self._refusal):
            if isinstance(error, LedgerFenced | LedgerNotFound):
                told(error)
                return
        self._is_closing = True
        last = self.adding.confirmed
        length = self.size - self.adding.unconfirmed_bytes

        def close(metadata: LedgerMetadata) -> LedgerMetadata:
            if metadata.state is LedgerState.OPEN:
                return metadata.closed(last, length)
            if metadata.state is LedgerState.CLOSED and metadata.last_entry == last:
                return metadata
            raise self._fenced(metadata)

        def closed(outcome: Versioned | LedgerError) -> None:
            told(outcome if isinstance(outcome, LedgerError) else outcome.metadata)

        self._update(close, closed)

    def _store_ensemble(self, first: int, ensemble: tuple[str, ...]) -> None:
        if self._is_closing:
            self.adding.ensemble_not_stored(None)
            return

        def change(metadata: LedgerMetadata) -> LedgerMetadata:
            if metadata.state is not LedgerState.OPEN or metadata.segments[-1].first > first:
                raise self._fenced(metadata)
            return metadata.with_ensemble(first, ensemble)

        self._update(change, self._ensemble_outcome)

    def _ensemble_outcome(self, outcome: Versioned | LedgerError) -> None:
        if isinstance(outcome, Versioned):
            self.adding.ensemble_stored()
        else:
            self.adding.ensemble_not_stored(None if isinstance(outcome, MetadataAway) else outcome)

    def _fenced(self, metadata: LedgerMetadata) -> LedgerFenced:
        return LedgerFenced(
            f"ledger {self.ledger} was taken over by owner epoch {metadata.fence} and is {metadata.state.name}: "
            "close its topic"
        )

    def _update(self, change: Change, told: Callable[[Versioned | LedgerError], None]) -> None:
        self._changes.append((change, told))
        if not self._is_changing:
            self._next_change()

    def _next_change(self) -> None:
        self._is_changing = True
        change, told = self._changes.popleft()
        Updating(self.ledger, self._metadata_port, self._stored, change, partial(self._changed, told)).start()

    def _changed(self, told: Callable[[Versioned | LedgerError], None], outcome: Versioned | LedgerError) -> None:
        if isinstance(outcome, Versioned):
            self._stored = outcome
        self._is_changing = False
        told(outcome)
        if self._changes and not self._is_changing:
            self._next_change()
