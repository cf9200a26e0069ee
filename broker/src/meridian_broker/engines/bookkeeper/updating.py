# SPDX-License-Identifier: Apache-2.0
"""One change of a ledger's metadata: compare and set, until it is known what became of it.

A change is a function, so that it can be applied again to what somebody else wrote meanwhile; it refuses by raising.
When the metadata store does not answer, the write may have been done or not, or be done later: the metadata are read
again. If they are what was to be written, it was done. If not, the next write compares with what was read, and so a
late one of ours either fails or is seen as a conflict.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from meridian_broker.engines.bookkeeper.ledger_metadata import LedgerMetadata
from meridian_broker.engines.bookkeeper.ports import MetadataPort, Unread, Unwritten, Versioned
from meridian_broker.ledgers.store import LedgerError, LedgerNotFound

ATTEMPTS: Final = 5
"""Writes, and reads after them, until a change is given up."""

Change = Callable[[LedgerMetadata], LedgerMetadata]
"""The metadata as they shall be; the same when nothing is to be changed. Raises LedgerError to refuse."""


class MetadataAway(LedgerError):
    """It is not known whether the change was made."""


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
        :param told: hears the metadata as they are now, or why they were not changed. Never called before ``start``
            returned, unless there is nothing to change or the change refuses.
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
