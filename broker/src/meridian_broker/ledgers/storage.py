# SPDX-License-Identifier: Apache-2.0
"""The port of a broker's ledger storage: a `LedgerStore` plus what the process around it needs.

Startup, the health page, the metrics and the export use it without knowing the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from meridian_broker.ledgers.periodic import PeriodicWork
from meridian_broker.ledgers.store import LedgerStore


@dataclass(frozen=True, slots=True)
class StorageFigures:
    """Figures of one moment, by the names in `admin/metrics/table.py`. An engine leaves out those it does not have."""

    gauges: Mapping[str, float]
    counters: Mapping[str, float]
    sync_buckets: Mapping[str, int] = field(default_factory=dict)
    """Number of fdatasync calls by upper bound in seconds; ``+Inf`` counts those above all others."""
    sync_seconds: float = 0.0
    """Seconds spent in them."""


class OldLedger(NamedTuple):
    """A ledger that has existed for a while."""

    ledger_id: int
    fence: int
    """The highest owner epoch it has seen."""
    label: bytes


class LedgerStorage(LedgerStore, Protocol):
    """See the module's text."""

    @property
    def is_apart(self) -> bool:
        """Ledgers are not kept with the metadata, so either can be restored alone from an older copy (R1, R5)."""
        ...

    def newest_fence(self) -> int:
        """The highest owner epoch that any ledger has seen; 0 if there is none, or if the storage is not apart."""
        ...

    async def older_than(self, age_ms: int, /) -> list[OldLedger]:
        """Labelled ledgers created longer ago than this; none if the storage is apart.

        :raises LedgerError: the storage does not answer.
        """
        ...

    @property
    def damages(self) -> Sequence[str]:
        """What was found damaged when the storage was opened, in sentences."""
        ...

    @property
    def full(self) -> str | None:
        """Why no messages can be stored now. None: they can."""
        ...

    @property
    def works(self) -> Sequence[PeriodicWork]:
        """The background work that the storage runs itself."""
        ...

    def figures(self) -> StorageFigures: ...

    @property
    def outside(self) -> str:
        """What `engines.outside.open_outside` needs to read these ledgers in another process. Contains no secret."""
        ...

    async def close(self) -> None:
        """Write everything queued, then release the storage. Later calls fail."""
        ...


class OutsideLedgers(Protocol):
    """Ledgers that another process writes. Only that process knows which entries are durable."""

    async def read(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[bytes]:
        """As `Reader.read`.

        :param last: an entry that is known to be durable.
        :raises LedgerNotFound: no such ledger.
        """
        ...

    async def close(self) -> None: ...
