# SPDX-License-Identifier: Apache-2.0
"""The bookies of a region instead of its disk. They outlive the brokers.

Beside the bookies is a *mirror*: what the engine has reported durable. A confirmed entry must have been synced by a
quorum of its bookies; and a closed ledger must end after everything confirmed, with each of its entries synced by a
quorum, byte by byte.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from meridian_broker.engines.bookkeeper.connection import BookieConnection
from meridian_broker.engines.bookkeeper.entries import OVERHEAD, parse_entry
from meridian_broker.engines.bookkeeper.ledger_metadata import (
    AVAILABLE,
    LedgerMetadata,
    LedgerState,
    decode,
    ledger_of,
)
from meridian_broker.engines.memory.ledgers import MemoryDisk, StoredLedger
from meridian_broker.metadata.store import Change, Record
from simulation.bookie_store import BookieStore
from simulation.loop import Owner
from simulation.simulated_bookies import Link, SimBookie, Site

if TYPE_CHECKING:
    from simulation.disks import Around

SESSION_US: Final = 10_000_000
"""How long a bookie stays registered after its crash."""


class BookieVolume:
    """See the module's text."""

    def __init__(self, site: Site, count: int) -> None:
        self._site = site
        self.bookies = {f"k{number}": SimBookie(f"k{number}", site) for number in range(1, count + 1)}
        self.region = site.region
        self.disk = MemoryDisk()
        """The mirror."""
        self._metadata: dict[int, LedgerMetadata] = {}
        self._cut: set[tuple[str, str]] = set()
        """Brokers that cannot reach a bookie."""
        for name in self.bookies:
            self._register(name)

    def start(self, around: Around) -> BookieStore:
        return BookieStore(self, around)

    def copy(self) -> BookieVolume:
        raise AssertionError("bookies are not restored from a copy")

    def newest_fence(self) -> int:
        return 0

    def holds(self, ledger: int, entry: int) -> bool:
        stored = self.disk.ledgers.get(ledger)
        return stored is not None and entry < len(stored.entries)

    def rot(self, ledger: int, entry: int, byte: int = -1, *, lasting: bool = False) -> None:
        """No effect: bookies check what they read, and other bookies have the entry."""

    def rot_checkpoint(self, age: int) -> None:
        """Bookies have no checkpoints."""

    def power_cut(self, random: Random | None) -> str:
        """Each bookie loses power by itself."""
        del random
        return ""

    @property
    def is_rotten(self) -> bool:
        """Whether a bookie has a fault."""
        return bool(self._cut) or not all(bookie.is_well for bookie in self.bookies.values())

    def mend(self) -> None:
        """All bookies work, and can be reached."""
        self._cut.clear()
        for name, bookie in self.bookies.items():
            self._site.loop.resume(bookie.run)
            bookie.busy = bookie.slow_us = 0
            bookie.is_broken = False
            self.start_one(name)

    # -- what happens to bookies

    def crash(self, name: str, random: Random | None) -> None:
        bookie = self.bookies[name]
        if not bookie.is_up:
            return
        bookie.crash(random)
        ended = bookie.run

        def expire() -> None:
            if bookie.run is ended and self._site.metadata.records.pop(AVAILABLE + name, None) is not None:
                self._site.metadata.tell([Change(AVAILABLE + name, None)])

        self._site.loop.after(SESSION_US, None, expire)

    def start_one(self, name: str) -> None:
        if not self.bookies[name].is_up:
            self.bookies[name].start()
            self._register(name)

    def _register(self, name: str) -> None:
        metadata = self._site.metadata
        if AVAILABLE + name not in metadata.records:
            metadata.version += 1
            metadata.records[AVAILABLE + name] = Record(name.encode(), metadata.version)
            metadata.tell([Change(AVAILABLE + name, metadata.records[AVAILABLE + name])])

    def part(self, broker: str, name: str, owner: Owner | None) -> None:
        """A broker can no longer reach a bookie."""
        self._cut.add((broker, name))
        if owner is not None:
            self.bookies[name].cut(owner)

    def join(self, broker: str, name: str) -> None:
        self._cut.discard((broker, name))

    def connect(self, name: str, broker: str, owner: Owner, connection: BookieConnection) -> None:
        """A broker connects."""

        def answer() -> None:
            bookie = self.bookies[name]
            if not bookie.is_up or (broker, name) in self._cut:
                connection.close("it refuses connections")
                return
            link = Link(self._site, bookie, owner, connection)
            bookie.links.append(link)
            connection.connection_made(link)  # type: ignore[arg-type]

        self._site.loop.after(self._site.delay_us(), owner, answer)

    # -- the mirror

    def written(self, path: str, value: bytes) -> None:
        """The metadata of a ledger was written."""
        ledger = ledger_of(path.encode())
        if ledger is None:
            return
        metadata = self._metadata[ledger] = decode(value)
        if ledger not in self.disk.used:
            self.disk.used.add(ledger)
            self.disk.ledgers[ledger] = StoredLedger(metadata.fence or 0, label=metadata.label)
        if metadata.state is LedgerState.CLOSED and not self.disk.ledgers[ledger].sealed:
            self._closed(ledger, metadata)

    def look_for(self, ledger: int, path: str) -> None:
        """A broker tried to delete a ledger, and perhaps did."""
        if path not in self._site.metadata.records:
            self.disk.ledgers.pop(ledger, None)

    def last_confirmed(self, ledger: int, metadata: LedgerMetadata) -> int:
        """What the headers of the newest entries say on the bookies of an open ledger."""
        last = metadata.segments[-1]
        bodies = (self.bookies[name].newest(ledger) for name in last.ensemble)
        heard = [parse_entry(ledger, body).last_confirmed for body in bodies if body is not None]
        return max([last.first - 1, *heard])

    def confirmed(self, ledger: int, entry: int, data: bytes) -> None:
        """The writer of a ledger was told that an entry is durable."""
        stored = self.disk.ledgers.get(ledger)
        if stored is None:
            return
        if entry < len(stored.entries):
            if stored.entries[entry] != data:
                self._violate("a ledger has another entry", f"{ledger}:{entry}")
            return
        if stored.sealed:
            self._violate("confirmed in a closed ledger", f"{ledger}:{entry} behind {len(stored.entries)} entries")
        self._check_entry(ledger, entry, data, self._metadata[ledger])
        stored.entries.append(data)

    def has_read(self, ledger: int, first: int, found: list[bytes]) -> None:
        """A broker read entries."""
        stored = self.disk.ledgers.get(ledger)
        if stored is not None and stored.entries[first : first + len(found)] != found:
            self._violate("a ledger has another entry", f"{ledger}, {len(found)} entries from {first} on")

    def _closed(self, ledger: int, metadata: LedgerMetadata) -> None:
        stored = self.disk.ledgers[ledger]
        count = metadata.last_entry + 1
        if count < len(stored.entries):
            self._violate(
                "a ledger lost entries", f"{ledger} has {count} entries, but {len(stored.entries)} were confirmed"
            )
        for entry in range(count):
            is_known = entry < len(stored.entries)
            bodies = self._check_entry(ledger, entry, stored.entries[entry] if is_known else None, metadata)
            if not is_known and bodies:
                stored.entries.append(bodies[0][OVERHEAD:])
        stored.sealed = True
        stored.fence = metadata.fence or 0

    def _check_entry(self, ledger: int, entry: int, data: bytes | None, metadata: LedgerMetadata) -> list[bytes]:
        bodies = self._bodies(ledger, entry, metadata)
        if len(bodies) < metadata.ack_quorum:
            self._violate("on too few bookies", f"{ledger}:{entry} is on {len(bodies)} of {metadata.bookies_of(entry)}")
        if len({body[OVERHEAD:] for body in bodies} | (set() if data is None else {data})) > 1:
            self._violate("a ledger has another entry", f"{ledger}:{entry}")
        return bodies

    def _bodies(self, ledger: int, entry: int, metadata: LedgerMetadata) -> list[bytes]:
        """The bodies that the ledger's bookies have synced."""
        having = (self.bookies[name].durable.get(ledger, {}).get(entry) for name in metadata.bookies_of(entry))
        return [body for body in having if body is not None]

    def _violate(self, kind: str, what: str) -> None:
        self._site.violate(kind, f"{self._site.region}: {what}")
