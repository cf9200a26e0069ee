# SPDX-License-Identifier: Apache-2.0
"""The bookies of a region: what each has synced, what a crash loses, and the connections that brokers have to them.

Bookies speak BookKeeper's wire protocol, so brokers run the real engine down to its frames. A bookie returns an entry
to readers at once, and answers its add once the journal has synced it; it also fences a ledger at once, and answers
that after the next sync. A crash keeps some prefix of what was written since the last sync.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from random import Random
from struct import Struct
from typing import TYPE_CHECKING, Final

from meridian_broker.engines.bookkeeper.packets import LAST_ENTRY, Code, Flags, Operation
from simulation.disk_faults import DiskFaults
from simulation.loop import Loop, Owner
from simulation.metadata import MetadataVolume

if TYPE_CHECKING:
    from meridian_broker.engines.bookkeeper.connection import BookieConnection

_FRAME = Struct(">II")
_ADD = Struct(">II20sqq")
_ADDED_AT: Final = 28
"""Offset of the entry in an add's frame."""
_READ = Struct(">IIqq")
_BATCH_READ = Struct(">IIqqqiq")
_ADD_ANSWER = Struct(">IIIqq")
_BATCH_ANSWER = Struct(">IIqqq")
_U32 = Struct(">I")


@dataclass(frozen=True, slots=True)
class Site:
    """What the bookies of a region share."""

    region: str
    loop: Loop
    metadata: MetadataVolume
    delay_us: Callable[[], int]
    """Latency between a broker and a bookie."""
    sync_us: Callable[[], int]
    faults: Callable[[], DiskFaults]
    violate: Callable[[str, str], None]


class Run:
    """One process of a bookie."""

    alive = True


class Link:
    """A broker's connection to a bookie: the transport that the engine's `BookieConnection` gets."""

    def __init__(self, site: Site, bookie: SimBookie, owner: Owner, connection: BookieConnection) -> None:
        self._site = site
        self._bookie = bookie
        self._run = bookie.run
        self._owner = owner
        self._connection = connection
        self._is_open = True
        self._last_us = [0, 0]
        """When the last message to the bookie, and to the broker, arrives: nothing overtakes it."""

    def set_write_buffer_limits(self, high: int) -> None:
        """It accepts everything."""

    def writelines(self, parts: Iterable[bytes]) -> None:
        data = b"".join(parts)
        self._later(0, self._run, lambda: self._bookie.hear(self, data))

    def abort(self) -> None:
        """The broker closes it. What it sent before still arrives."""
        self._is_open = False

    def answer(self, data: bytes) -> None:
        self._later(1, self._owner, lambda: self._tell(data))

    def broken(self) -> None:
        """The bookie is gone, or cannot be reached."""
        self._later(1, self._owner, self._lose)

    def _lose(self) -> None:
        if self._is_open:
            self._connection.connection_lost(None)

    @property
    def owner(self) -> Owner:
        """The broker."""
        return self._owner

    def _later(self, way: int, owner: Owner, callback: Callable[[], None]) -> None:
        now_us = self._site.loop.now_us
        at_us = self._last_us[way] = max(now_us + self._site.delay_us(), self._last_us[way])
        self._site.loop.after(at_us - now_us, owner, callback)

    def _tell(self, data: bytes) -> None:
        at = 0
        while at < len(data) and self._is_open:
            room = self._connection.get_buffer(-1)
            some = data[at : at + len(room)]
            room[: len(some)] = some
            at += len(some)
            self._connection.buffer_updated(len(some))


class SimBookie:
    """See the module's text."""

    def __init__(self, name: str, site: Site) -> None:
        self.name = name
        self.run = Run()
        self.busy = 0
        """How many adds are still refused because the bookie is overloaded."""
        self.is_broken = False
        """Its disk refuses entries."""
        self.slow_us = 0
        """Additional time of a sync."""
        self.durable: dict[int, dict[int, bytes]] = {}
        """Ledger -> its entries that were synced."""
        self.links: list[Link] = []
        self._site = site
        self._entries: dict[int, dict[int, bytes]] = {}
        self._fenced: set[int] = set()
        self._was_fenced: set[int] = set()
        """Durably."""
        self._journal: list[tuple[Callable[[], None], Callable[[], None]]] = []
        """What the next syncs make durable, and whom to notify."""
        self._is_syncing = False

    @property
    def is_up(self) -> bool:
        return self.run.alive

    @property
    def is_well(self) -> bool:
        is_hanging = self._site.loop.is_suspended(self.run)
        return self.is_up and not (is_hanging or self.busy or self.is_broken or self.slow_us)

    def newest(self, ledger: int) -> bytes | None:
        """The last entry of a ledger that it has."""
        entries = self._entries.get(ledger)
        return entries[max(entries)] if entries else None

    # -- requests

    def hear(self, link: Link, data: bytes) -> None:
        at = 0
        while at < len(data):
            length, header = _FRAME.unpack_from(data, at)
            after = at + _U32.size + length
            operation, flags = header >> 16 & 0xFF, header & 0xFFFF
            if operation == Operation.ADD:
                *_, ledger, entry = _ADD.unpack_from(data, at)
                self._add(link, ledger, entry, data[at + _ADDED_AT : after], flags)
            elif operation == Operation.READ:
                *_, ledger, entry = _READ.unpack_from(data, at)
                self._read(link, ledger, entry, flags)
            else:
                *_, ledger, first, request, count, _ = _BATCH_READ.unpack_from(data, at)
                self._read_batch(link, ledger, first, request, count)
            at = after

    def _add(self, link: Link, ledger: int, entry: int, body: bytes, flags: int) -> None:
        told = partial(self._added, link, ledger, entry)
        if ledger in self._fenced and not flags & Flags.RECOVERY:
            told(Code.FENCED)
        elif self.busy:
            self.busy -= 1
            told(Code.TOO_MANY_REQUESTS)
        elif self.is_broken or self._site.faults().fails("write"):
            told(Code.IO_ERROR)
        else:
            self._entries.setdefault(ledger, {})[entry] = body
            self._write(partial(self._store, ledger, entry, body), partial(told, Code.OK))

    def _added(self, link: Link, ledger: int, entry: int, code: Code) -> None:
        link.answer(_ADD_ANSWER.pack(24, 2 << 24 | Operation.ADD << 16, code, ledger, entry))

    def _store(self, ledger: int, entry: int, body: bytes) -> None:
        self.durable.setdefault(ledger, {})[entry] = body

    def _read(self, link: Link, ledger: int, entry: int, flags: int) -> None:
        def answer() -> None:
            entries = self._entries.get(ledger, {})
            body = entries.get(max(entries, default=0) if entry == LAST_ENTRY else entry, b"")
            code = self._code(ledger, body)
            parts = body if code == Code.OK else b""
            header = _READ.pack(2 << 24 | Operation.READ << 16, code, ledger, entry)
            link.answer(_U32.pack(len(header) + len(parts)) + header + parts)

        if flags & Flags.FENCE:
            self._fenced.add(ledger)
            self._write(partial(self._was_fenced.add, ledger), answer)
        else:
            answer()

    def _read_batch(self, link: Link, ledger: int, first: int, request: int, count: int) -> None:
        entries, found = self._entries.get(ledger, {}), list[bytes]()
        while len(found) < count and first + len(found) in entries:
            body = entries[first + len(found)]
            found += [_U32.pack(len(body)) + body]
        code = self._code(ledger, b"".join(found))
        parts = b"".join(found) if code == Code.OK else b""
        header = _BATCH_ANSWER.pack(2 << 24 | Operation.BATCH_READ << 16, code, ledger, first, request)
        link.answer(_U32.pack(len(header) + len(parts)) + header + parts)

    def _code(self, ledger: int, found: bytes) -> Code:
        if self._site.faults().fails("read"):
            return Code.IO_ERROR
        if found:
            return Code.OK
        return Code.NO_ENTRY if self._entries.get(ledger) else Code.NO_LEDGER

    # -- the journal

    def _write(self, apply: Callable[[], None], told: Callable[[], None]) -> None:
        self._journal.append((apply, told))
        if not self._is_syncing:
            self._is_syncing = True
            self._site.loop.soon(self.run, self._sync)

    def _sync(self) -> None:
        covered = len(self._journal)
        self._site.loop.after(self._site.sync_us() + self.slow_us, self.run, lambda: self._synced(covered))

    def _synced(self, covered: int) -> None:
        done, self._journal = self._journal[:covered], self._journal[covered:]
        for apply, _ in done:
            apply()
        for _, told in done:
            told()
        if self._journal:
            self._sync()
        else:
            self._is_syncing = False

    # -- what happens to it

    def crash(self, random: Random | None) -> None:
        """Its machine loses power: unsynced writes are lost, except those that reached the disk anyway."""
        kept = random.randint(0, len(self._journal)) if random is not None else 0
        for apply, _ in self._journal[:kept]:
            apply()
        self._journal.clear()
        self._is_syncing = False
        self._site.loop.resume(self.run)
        self.run.alive = False
        self._entries = {ledger: dict(entries) for ledger, entries in self.durable.items()}
        self._fenced = set(self._was_fenced)
        self.cut()

    def cut(self, owner: Owner | None = None) -> None:
        """Connections break. :param owner: only this broker's."""
        for link in [one for one in self.links if owner is None or one.owner is owner]:
            self.links.remove(link)
            link.broken()

    def start(self) -> None:
        if not self.is_up:
            self.run = Run()
