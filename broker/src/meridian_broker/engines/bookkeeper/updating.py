# SPDX-License-Identifier: Apache-2.0
"""One change of a ledger's metadata: compare-and-set, until its outcome is known.

A change is a function, so that it can be applied again to what another client wrote in the meantime; it refuses by
raising. If the metadata store does not answer, the write may have happened, or may still happen, so the metadata is
read again. If it is what was to be written, the write succeeded. If not, the next write compares with what was read, so
a delayed write of ours either fails or shows up as a conflict.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from meridian_broker.engines.bookkeeper.ledger_metadata import LedgerMetadata
from meridian_broker.engines.bookkeeper.ports import MetadataPort, Unread, Unwritten, Versioned
from meridian_broker.ledgers.store import LedgerError, LedgerNotFound

ATTEMPTS: Final = 5
"""Attempts of a change before it is given up."""

Change = Callable[[LedgerMetadata], LedgerMetadata]
"""Returns the metadata to write, or the same if nothing needs to change. Raises LedgerError to refuse."""


class MetadataAway(LedgerError):
    """It is unknown whether the change was made."""


class Updating:
    """See the module's text."""

    def __init__(
        self,
        ledger: int,
        port: MetadataPort,
        known: Versioned | None,
        change: Change,
        told: Callable[[Versioned | LedgerError], None],
    ) -> None:
        """
        :param known: what was read or written last; None: read first.
        :param told: called with the current metadata, or why it was not changed. Never before ``start`` returns, unless
            there is nothing to change or the change refuses.
        """
        self._ledger = ledger
        self._port = port
        self._known = known
        self._change = change
        self._told = told
        self._wanted: LedgerMetadata | None = None
        self._left = ATTEMPTS

    def start(self) -> None:
        if self._known is None:
            self._port.read(self._read)
        else:
            self._apply(self._known)

    def _apply(self, known: Versioned) -> None:
        self._known = known
        try:
            self._wanted = self._change(known.metadata)
        except LedgerError as error:
            self._told(error)
            return
        if self._wanted == known.metadata:
            self._told(known)
        else:
            self._port.write(self._wanted, known.version, self._written)

    def _written(self, outcome: int | Unwritten) -> None:
        if isinstance(outcome, Unwritten):
            self._again(outcome.value)
        else:
            assert self._wanted is not None
            self._told(Versioned(self._wanted, outcome))

    def _read(self, found: Versioned | Unread) -> None:
        if found is Unread.ABSENT:
            self._told(LedgerNotFound(f"there is no ledger {self._ledger}: it was deleted or never created"))
        elif isinstance(found, Unread):
            self._again(found.value)
        elif found.metadata == self._wanted:
            self._told(found)
        else:
            self._apply(found)

    def _again(self, why: str) -> None:
        self._left -= 1
        if self._left:
            self._port.read(self._read)
        else:
            self._told(MetadataAway(f"the metadata of ledger {self._ledger} could not be written: {why}"))
