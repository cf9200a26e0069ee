# SPDX-License-Identifier: Apache-2.0
"""What a replicator asks of the topic whose entries it carries, and tells it."""

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
    """What a region says of its last deletion of a topic (R8)."""

    incarnation: str
    """The deletion's stamp; empty: there was none."""
    ends: Mapping[str, Position]
    """Per origin the last entry that was stored there; others than these nobody meant to delete."""
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
        """Of how many partitions the partitioned topic has that this one belongs to; None: not a partition."""
        ...

    @property
    def base_incarnation(self) -> str:
        """Stamp of the last deletion of the partitioned topic it belongs to."""
        ...

    @property
    def created(self) -> Stamp | None:
        """Of the topic's creation, or of the partitioned topic's it belongs to; None: not known."""
        ...

    @property
    def replication_rate(self) -> Rate:
        """What may be sent to one other region."""
        ...

    def last_confirmed(self) -> Position:
        """The last durable entry; ``EARLIEST`` when there is none."""
        ...

    def first_position(self) -> Position:
        """The first entry still stored."""
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
        """Whether what ``remote`` has of ours between two neighbours of our log was fetched back; else begin (R5)."""
        ...

    def deleted_elsewhere(self, told: DeletionNotice, /) -> None:
        """A remote knows of another deletion of the topic than we do (R8)."""
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

    def skipped_for(self, remote: str) -> Skipped | None:
        """What an operator skipped of the backlog of ``remote``; None: nothing."""
        ...

    async def schema_for(self, version: bytes) -> Schema | None:
        """The schema registered here under ``version``, or None when there is no such schema."""
        ...


def last_own_durable(source: ReplicationSource) -> Position:
    """The last own entry of ``source``, trimmed or not, or ``EARLIEST`` while it is not yet durable.

    For ``Replicator.read``: an entry that is still on its way to the disk is not a gap.
    """
    end = source.last_confirmed()
    own = source.last_own()
    return own if own <= end else EARLIEST
