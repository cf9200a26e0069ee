# SPDX-License-Identifier: Apache-2.0
"""What the core asks of its shell, and the values that pass between them.

The core never waits. It asks through these ports and is told later, by a callback or by a method whose docstring says
who calls it. A shell may call back before the asking method returns only where that is said.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from meridian_broker.engines.bookkeeper.ledger_metadata import LedgerMetadata
from meridian_broker.engines.bookkeeper.packets import Answer, Flags


class Packet(NamedTuple):
    """One add's frame in two parts, so that an entry's data are never copied."""

    head: bytes
    data: bytes


class Versioned(NamedTuple):
    """A ledger's metadata as the metadata store has them."""

    metadata: LedgerMetadata
    version: int
    """Of the key; every write gives it another one."""


class Unwritten(Enum):
    """Why metadata may not have been written."""

    CONFLICT = "somebody else wrote them first"
    UNKNOWN = "the metadata store did not answer: it may have written them or not"


class Unread(Enum):
    """Why there are no metadata."""

    ABSENT = "there are none"
    UNKNOWN = "the metadata store did not answer"


@dataclass(frozen=True, slots=True)
class AddLimits:
    """How long bookies are waited for, and how far ahead of the slowest one a ledger may be."""

    entries: int = 5_000
    """Sent entries of one ledger that some bookie has not acknowledged. A bookie refuses more than 10,000 of all."""
    bytes: int = 8 << 20
    """The same in bytes."""
    silent_ms: int = 5_000
    """A bookie that has not acknowledged its oldest entry for so long is lost."""
    blocking_ms: int = 1_000
    """The same while nothing more may be sent because of it."""
    retry_ms: int = 1_000
    """Between attempts to replace a lost bookie when there was none to take."""
    patience_ms: int = 10_000
    """How long a ledger may have fewer bookies than its ack quorum before its entries fail."""


class LinkPort(Protocol):
    """For ``adding``: the way to the bookies."""

    def send(self, bookie: str, entry: int, packet: Packet) -> bool:
        """Send an entry, if the bookie may have more. False: not now; ``Adding.room`` is called once it may.

        The answer, or that there is none, comes to ``Adding.acked`` or ``answered``.
        """
        ...

    def wake(self) -> None:
        """Something is under way that was not: time has to pass for the ledger (``Adding.tick``)."""
        ...

    def choose(self, wanted: str, exclude: Collection[str]) -> str | None:
        """A bookie to take the place of ``wanted``, one that is not in ``exclude``. ``wanted`` itself if it is well
        again and there is no other; None: there is none at all."""
        ...

    def avoid(self, bookie: str) -> None:
        """It failed this ledger: do not choose it for a while."""
        ...

    def defer(self, callback: Callable[[], None]) -> None:
        """Call it in the next turn of the loop."""
        ...


class MetadataPort(Protocol):
    """One ledger's metadata. Callbacks are never called before the method returned."""

    def read(self, told: Callable[[Versioned | Unread], None]) -> None: ...

    def write(self, metadata: LedgerMetadata, version: int, told: Callable[[int | Unwritten], None]) -> None:
        """Write if the stored version still is ``version``; tells the new one."""
        ...


class AskPort(Protocol):
    """For ``recovering`` and ``reading``: requests that have one answer each."""

    def read(self, bookie: str, entry: int, flags: Flags, told: Callable[[Answer], None]) -> None:
        """Ask for one entry. There is always an answer, never before the method returned."""
        ...

    def read_batch(self, bookie: str, first: int, count: int, max_bytes: int, told: Callable[[Answer], None]) -> None:
        """Ask for ``count`` entries of ``max_bytes`` with their overhead, at least one. Answers as ``read``."""
        ...

    def later(self, milliseconds: int, callback: Callable[[], None]) -> None:
        """Call it after that time."""
        ...
