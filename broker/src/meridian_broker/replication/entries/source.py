# SPDX-License-Identifier: Apache-2.0
"""A replicator's interface to the topic whose entries it carries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from meridian_broker.ledgers.throttling import Rate
from meridian_broker.positions import Stamp
from meridian_broker.positions.position import EARLIEST, Position

if TYPE_CHECKING:
    from meridian_broker.positions.skipped import Skipped
    from meridian_broker.wire.proto.pulsar_pb2 import Schema


class DeletionNotice(NamedTuple):
    """A region's report of its last deletion of a topic (R8)."""

    incarnation: str
    """The deletion's stamp; empty: there was none."""
    ends: Mapping[str, Position]
    """Per origin the last entry that was stored there; later ones were not part of the deletion."""
    is_of_base: bool
    """The partitioned topic was deleted, and this partition with it."""


class ReplicationSource(Protocol):
    """A topic, as a replicator sees it. All positions are local, which for own entries is also their origin."""

    @property
    def name(self) -> str:
        """Full name, ``persistent://tenant/namespace/topic[-partition-N]``."""
        ...

    @property
    def region(self) -> str: ...

    @property
    def incarnation(self) -> str:
        """Stamp of the topic's last deletion, empty when it was never deleted (R8)."""
        ...

    @property
    def partitions(self) -> int | None:
        """Number of partitions of the partitioned topic that this one belongs to; None: not a partition."""
        ...

    @property
    def base_incarnation(self) -> str:
        """Stamp of the last deletion of the partitioned topic it belongs to."""
        ...

    @property
    def created(self) -> Stamp | None:
        """Stamp of the creation of the topic, or of its partitioned topic; None: not known."""
        ...

    @property
    def replication_rate(self) -> Rate:
        """Rate limit towards each other region."""
        ...

    def last_confirmed(self) -> Position:
        """The last durable entry, or ``EARLIEST``."""
        ...

    async def read_after(self, position: Position, max_entries: int, max_bytes: int) -> list[tuple[Position, bytes]]:
        """Durable stored entries strictly after ``position``, in order; empty at the end."""
        ...

    def last_own(self) -> Position:
        """The last own entry (R3), trimmed or not yet durable ones included; ``EARLIEST`` when there was none."""
        ...

    def own_before(self, ledger: int) -> Position:
        """The last own entry that was known when one of our ledgers was made."""
        ...

    def rolled_back(self, remote: str) -> None:
        """``remote`` has entries of ours that are not here: fetch them back (R5)."""
        ...

    def came_back(self, remote: str, after: Position, before: Position) -> bool:
        """Whether the entries of ours that ``remote`` has between two neighbours of our log were fetched; if not, start
        (R5)."""
        ...

    def deleted_elsewhere(self, told: DeletionNotice, /) -> None:
        """A remote knows of another deletion of the topic than we do (R8)."""
        ...

    def last_marker(self) -> Position:
        """The last marker that was written here since the topic was opened; ``EARLIEST``: none was."""
        ...

    def entries_after(self, position: Position) -> int:
        """How many stored entries lie after ``position``."""
        ...

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` whenever new entries became durable; the result ends that."""
        ...

    def replicated_to(self, remote: str, position: Position) -> None:
        """``remote`` has stored everything up to ``position`` durably: retention may trim that far."""
        ...

    def reached(self, remote: str) -> tuple[Position, Position]:
        """How far a region of Apache Pulsar was served, as far as is on record: everything up to the first position,
        of which the second is our last own entry."""
        ...

    def served(self, remote: str, scanned: Position, chain: Position) -> None:
        """The same, to be recorded."""
        ...

    def skipped_for(self, remote: str) -> Skipped | None:
        """The range of the backlog of ``remote`` that an operator skipped, or None."""
        ...

    async def schema_for(self, version: bytes) -> Schema | None:
        """The schema registered here under ``version``, or None."""
        ...


def last_own_durable(source: ReplicationSource) -> Position:
    """The last own entry of ``source``, trimmed or not, or ``EARLIEST`` while it is not yet durable.

    For ``Replicator.read``: an entry that is still being written is not a gap.
    """
    end = source.last_confirmed()
    own = source.last_own()
    return own if own <= end else EARLIEST
