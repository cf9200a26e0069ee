# SPDX-License-Identifier: Apache-2.0
"""The port every storage engine implements: append-only ledgers, written by one owner, readable by anyone.

A *ledger* is a segment of a log with an id that is never reused (rule R1). One broker writes it; when that broker
is gone, ``recover`` fences the old writer, finds the last durable entry and seals the ledger.
Nothing in this port assumes a local file, so a distributed engine can implement it.

Ordering obligations of an implementation:

1. ``append`` assigns entry ids in call order and calls ``done`` in the same order, on the event loop's thread.
2. ``done(entry_id)`` is called only after the entry would survive a power cut.
3. After a writer's first ``done(error)`` every later append to it fails too: no gap can appear.
4. Nothing past ``last_confirmed`` is ever returned to a reader.
5. Whatever the storage raises, the caller gets a ``LedgerError``: an ``OSError`` never leaves the store. A failed read
   or write may be retried; it does not affect other ledgers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

LABEL_BYTES_MAX: Final = 0xFFFF
"""Longest label of a ledger, in bytes."""


class LedgerError(Exception):
    """A ledger operation failed. The message names the ledger, the situation and what to do."""


Done = Callable[[LedgerError | None], None]
"""Called once: with None when something is durable, or with the reason why it never will be."""
WhenDurable = Callable[[Done], None]
"""Calls back once everything written before is on disk, or with the reason why it never will be."""


class LedgerFenced(LedgerError):
    """Another owner took over the ledger: this writer must stop and close its topic."""


class LedgerNotFound(LedgerError):
    """There is no such ledger: it was deleted, or never created."""


class LedgerDeleted(LedgerNotFound):
    """It was deleted. A store need not remember that forever; afterwards it reports ``LedgerNotFound``."""


class LedgerWriteFailed(LedgerError):
    """The storage refused a write (read-only or broken disk). Nothing after it was stored."""


class LedgerStorageFull(LedgerWriteFailed):
    """The storage refused a write because there is no space left."""


class LedgerUnreadable(LedgerError):
    """The storage failed to read its data (an I/O error, a missing volume). Trying again later may work."""


class LedgerCorrupt(LedgerError):
    """A stored entry fails its checksum. The message names the ledger, the entry and the file."""

    def __init__(self, message: str, remains: bytes = b"") -> None:
        """:param remains: the bytes in the entry's place, some of them wrong; may be empty."""
        super().__init__(message)
        self.remains = remains


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """Facts about a ledger."""

    ledger_id: int
    entries: int
    """Number of durable entries; ids run from 0 to ``entries - 1``."""
    size: int
    """Sum of the entries' sizes in bytes."""
    sealed: bool
    label: bytes = b""
    """The label from its creation; empty if it was created by a version without labels."""


AppendDone = Callable[[int | LedgerError], None]


class Writer(Protocol):
    """The only appender to a ledger."""

    @property
    def ledger_id(self) -> int: ...

    @property
    def next_entry(self) -> int:
        """The id the next ``append`` will get."""
        ...

    @property
    def size(self) -> int:
        """Bytes appended so far, durable or not."""
        ...

    def append(self, buffer: bytes, done: AppendDone) -> int:
        """Queue one entry and return its id at once; ``done`` gets the id again once it is durable, or an error.

        Synchronous and cheap: many appends of one turn of the loop share one fdatasync (group commit).
        """
        ...

    def append_many(self, buffers: Sequence[bytes], done: AppendDone) -> int:
        """Queue entries, at least one, and return the id of the first at once. ``done`` gets the id of the last one
        that is durable, in one or more calls in order, and an error for those that will not be.

        Like an ``append`` of each, but the cost per call is shared by all of them. The caller may change ``buffers``
        afterwards.
        """
        ...

    async def seal(self) -> LedgerInfo:
        """Wait for queued appends, then close the ledger for good.

        :raises LedgerFenced: another owner sealed it first.
        """
        ...


class Reader(Protocol):
    """Reads a ledger that may still be written by anybody."""

    @property
    def ledger_id(self) -> int: ...

    def last_confirmed(self) -> int:
        """Id of the last durable entry, -1 for none."""
        ...

    async def read(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        """Entries ``first`` to ``last`` inclusive, fewer when ``max_bytes`` is reached (at least one) or at the end.

        :raises LedgerNotFound: the ledger was deleted.
        :raises LedgerCorrupt: entry ``first`` fails its checksum. Whole entries before a damaged one are returned.
        :raises LedgerUnreadable: the storage cannot read it now.
        """
        ...


@runtime_checkable
class HeadReader(Reader, Protocol):
    """A reader for which entries without their bodies may be much cheaper."""

    async def read_heads(self, first: int, last: int, max_bytes: int) -> list[bytes]:
        """Like ``read``, but of each entry perhaps only what ``entry.unpack`` reads."""
        ...


@runtime_checkable
class FollowingReader(Reader, Protocol):
    """A reader that learns what another broker appends to its ledger."""

    def follow(self, grown: Callable[[], None]) -> Callable[[], None]:
        """Keep ``last_confirmed`` current while another broker writes the ledger, and once somebody has sealed it.

        :param grown: called on the loop when it may be greater than before. Calls may be few and late.
        :returns: a function that ends this.
        """
        ...

    def learn(self, confirmed: int) -> bool:
        """The ledger's writer says that this entry is confirmed. Returns whether that was news."""
        ...


@runtime_checkable
class FollowedWriter(Writer, Protocol):
    """A writer whose ledger other brokers can read before it is sealed."""

    def announce(self) -> None:
        """Tell readers elsewhere soon what is durable now. Otherwise they learn of an entry only with the next one."""
        ...


class LedgerStore(Protocol):
    """All ledgers that a broker can reach."""

    async def create(self, ledger_id: int, fence: int, label: bytes = b"") -> Writer:
        """Create a ledger and become its writer.

        :param fence: the owner's epoch; a smaller one is refused from now on.
        :param label: kept with the ledger for as long as it lives (``labels.py``), up to ``LABEL_BYTES_MAX``.
        :raises LedgerError: the id was used before (R1).
        """
        ...

    async def open(self, ledger_id: int) -> Reader:
        """:raises LedgerNotFound: no such ledger."""
        ...

    async def recover(self, ledger_id: int, fence: int) -> LedgerInfo:
        """Fence the old writer, find the last durable entry, seal. If sealed already, only return its facts.

        :raises LedgerFenced: ``fence`` is older than one seen.
        :raises LedgerNotFound: no such ledger.
        """
        ...

    async def delete(self, ledger_id: int) -> None:
        """Delete the ledger; its space is freed in time. Does nothing if there is none."""
        ...

    async def list(self) -> list[LedgerInfo]:
        """Every ledger of this store."""
        ...
