# SPDX-License-Identifier: Apache-2.0
"""The port of a broker's ledger storage: a `LedgerStore` with what the process around it asks.

The start, the health page, the metrics and the export use this, and none of them knows which engine it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from meridian_broker.ledgers.periodic import PeriodicWork
from meridian_broker.ledgers.store import LedgerStore


@dataclass(frozen=True, slots=True)
class StorageFigures:
    """Numbers of one moment, by the names in `admin/metrics/table.py`. An engine leaves out what it does not have."""

    gauges: Mapping[str, float]
    counters: Mapping[str, float]
    sync_buckets: Mapping[str, int] = field(default_factory=dict)
    """Number of fdatasync calls by upper bound in seconds; ``+Inf`` counts those above all others."""
    sync_seconds: float = 0.0
    """Time spent in them."""


class OldLedger(NamedTuple):
    """A ledger that has been there for a while."""

    ledger_id: int
    fence: int
    """The highest owner epoch that it has seen."""
    label: bytes


class LedgerStorage(LedgerStore, Protocol):
    """See the module's text."""

    @property
    def is_apart(self) -> bool:
        """Ledgers are not kept with the metadata, so either can be restored alone from an older copy (R1, R5)."""
        ...

    def newest_fence(self) -> int:
        """The highest owner epoch any ledger has seen, if the storage is apart; 0 if there is none."""
        ...

    async def older_than(self, age_ms: int, /) -> list[OldLedger]:
        """Labelled ledgers that were created longer ago; none if the storage is apart.

        :raises LedgerError: the storage does not answer.
        """
        ...

    @property
    def damages(self) -> Sequence[str]:
        """Sentences about what was found damaged when the storage was opened."""
        ...

    @property
    def full(self) -> str | None:
        """Why no messages can be stored now. None: they can."""
        ...

    @property
    def works(self) -> Sequence[PeriodicWork]:
        """The storage's own background work, which it runs itself."""
        ...

    def figures(self) -> StorageFigures: ...

    @property
    def outside(self) -> str:
        """What `engines.outside.open_outside` needs to read these ledgers in another process. No secret."""
        ...

    async def close(self) -> None:
        """Write everything queued, then let go of the storage. Later calls fail."""
        ...


class OutsideLedgers(Protocol):
    """Ledgers that another process writes. Which entries are durable is known to that process alone."""

    async def read(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[bytes]:
        """As `Reader.read`.

        :param last: an entry that is known to be durable.
        :raises LedgerNotFound: no such ledger.
        """
        ...

    async def close(self) -> None: ...
