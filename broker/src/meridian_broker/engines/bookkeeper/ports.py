# SPDX-License-Identifier: Apache-2.0
"""What the core asks of its shell, and the values that pass between them.

The core never waits. It asks through these ports and gets the answer later, through a callback or a method whose
docstring says who calls it. A shell may call back before the asking method returns only where the docstring allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from meridian_broker.engines.bookkeeper.ledger_metadata import LedgerMetadata
from meridian_broker.engines.bookkeeper.packets import Answer, Flags


class Packet(NamedTuple):
    """An add's frame in two parts, so that an entry's data is never copied."""

    head: bytes
    data: bytes


class Versioned(NamedTuple):
    """A ledger's metadata as stored."""

    metadata: LedgerMetadata
    version: int
    """The version of its key, which every write changes."""


class Unwritten(Enum):
    """Why metadata was not, or may not have been, written."""

    CONFLICT = "another client wrote it first"
    UNKNOWN = "the metadata store did not answer, so it may have been written or not"


class Unread(Enum):
    """Why there is no metadata."""

    ABSENT = "there is none"
    UNKNOWN = "the metadata store did not answer"


@dataclass(frozen=True, slots=True)
class AddLimits:
    """How long to wait for bookies, and how far ahead of the slowest one a ledger may be."""

    entries: int = 5_000
    """Sent entries of one ledger that a bookie has not acknowledged. A bookie refuses more than 10,000 in total."""
    bytes: int = 8 << 20
    """The same in bytes."""
    silent_ms: int = 5_000
    """A bookie that has not acknowledged its oldest entry for this long is lost."""
    blocking_ms: int = 1_000
    """The same, if the bookie keeps further entries from being sent."""
    retry_ms: int = 1_000
    """Pause between attempts to replace a lost bookie while there is no replacement."""
    patience_ms: int = 10_000
    """How long a ledger may have fewer bookies than its ack quorum before its entries fail."""
    waiting_ms: int = 30_000
    """How long entries may wait without any of them being confirmed, however many bookies there seem to be."""


class LinkPort(Protocol):
    """Access to the bookies, for ``adding``."""

    def send(self, bookie: str, first: int, packets: Sequence[Packet]) -> int:
        """Send consecutive entries, as many from the front as the connection takes. Returns how many; if not all,
        ``Adding.room`` is called once it takes more.

        The outcome, even a missing answer, comes through ``Adding.acked`` or ``answered``.
        """
        ...

    def send_all(self, bookies: tuple[str, ...], entry: int, packet: Packet) -> bool:
        """Send an entry to several bookies at once. False: not all of them may have more, and none was sent it."""
        ...

    def wake(self) -> None:
        """The ledger is no longer idle: call ``Adding.tick`` from now on."""
        ...

    def choose(self, wanted: str, exclude: Collection[str]) -> str | None:
        """A bookie to replace ``wanted``, not in ``exclude``; ``wanted`` itself if it works again and there is no
        other; None: there is none at all."""
        ...

    def avoid(self, bookie: str) -> None:
        """A bookie failed: do not choose it for a while."""
        ...

    def defer(self, callback: Callable[[], None]) -> None:
        """Call it in the next turn of the loop."""
        ...


class MetadataPort(Protocol):
    """One ledger's metadata. Callbacks are never called before the method returns."""

    def read(self, told: Callable[[Versioned | Unread], None]) -> None: ...

    def write(self, metadata: LedgerMetadata, version: int, told: Callable[[int | Unwritten], None]) -> None:
        """Write it if the stored version is still ``version``; ``told`` gets the new version."""
        ...


class AskPort(Protocol):
    """Requests with one answer each, for ``recovering`` and ``reading``."""

    def read(self, bookie: str, entry: int, flags: Flags, told: Callable[[Answer], None]) -> None:
        """Ask for one entry. There is always an answer, never before the method returns."""
        ...

    def read_batch(self, bookie: str, first: int, count: int, max_bytes: int, told: Callable[[Answer], None]) -> None:
        """Ask for up to ``count`` entries and ``max_bytes``, overhead included, but at least one. See ``read``."""
        ...

    def later(self, milliseconds: int, callback: Callable[[], None]) -> None:
        """Call it after this time."""
        ...
