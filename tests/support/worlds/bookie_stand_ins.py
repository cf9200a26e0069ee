# SPDX-License-Identifier: Apache-2.0
"""The ports of the BookKeeper client's core, played by a test: it sees every request and gives every answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from meridian_broker.engines.bookkeeper.adding import Adding
from meridian_broker.engines.bookkeeper.entries import entry_header
from meridian_broker.engines.bookkeeper.ledger_metadata import LedgerMetadata
from meridian_broker.engines.bookkeeper.packets import Answer, Code, Flags, Operation
from meridian_broker.engines.bookkeeper.ports import AddLimits, Packet, Unread, Unwritten, Versioned

LEDGER = 7


def stored(entry: int, last_confirmed: int = -1, size: int = 1) -> bytes:
    """An entry as bookies store it; each entry has ``size`` bytes."""
    data = b"%d" % (entry % 10) * size
    return entry_header(LEDGER, entry, last_confirmed, (entry + 1) * size, data) + data


class Link:
    """Records what an `Adding` sends."""

    def __init__(self, *spares: str) -> None:
        self.sent: list[tuple[str, int]] = []
        self.spares = list(spares)
        self.full: set[str] = set()
        self.avoided: list[str] = []
        self.well: set[str] = set()
        """Lost bookies that are usable again."""
        self.ensembles: list[tuple[int, tuple[str, ...]]] = []
        self.deferred: list[Callable[[], None]] = []

    def send(self, bookie: str, first: int, packets: Sequence[Packet]) -> int:
        if bookie in self.full:
            return 0
        self.sent += [(bookie, entry) for entry in range(first, first + len(packets))]
        return len(packets)

    def send_all(self, bookies: tuple[str, ...], entry: int, packet: Packet) -> bool:
        return self.full.isdisjoint(bookies) and all(self.send(bookie, entry, [packet]) for bookie in bookies)

    def choose(self, wanted: str, exclude: Collection[str]) -> str | None:
        for spare in self.spares:
            if spare not in exclude:
                return spare
        return wanted if wanted in self.well else None

    def wake(self) -> None:
        """Nothing to do: here, time passes for all ledgers."""

    def avoid(self, bookie: str) -> None:
        self.avoided.append(bookie)

    def defer(self, callback: Callable[[], None]) -> None:
        self.deferred.append(callback)

    def store_ensemble(self, first: int, ensemble: tuple[str, ...]) -> None:
        self.ensembles.append((first, ensemble))

    def taken(self) -> list[tuple[str, int]]:
        """Packets sent since the last call."""
        taken, self.sent = self.sent, []
        return taken

    def adding(self, ensemble: str = "abc", ack_quorum: int = 2, limits: AddLimits | None = None) -> Adding:
        return Adding(
            *(LEDGER, self, self.store_ensemble, tuple(ensemble), ack_quorum),
            limits=limits or AddLimits(),
            now_ms=0,
        )


class Store:
    """One ledger's metadata; requests wait until the test answers them."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self.now = Versioned(metadata, 1)
        self.waiting: list[Callable[[], None]] = []
        self.silent = 0
        """Number of next writes that are executed but not answered."""
        self.unheard = 0
        """Number of next writes that are neither executed nor answered."""

    def read(self, told: Callable[[Versioned | Unread], None]) -> None:
        self.waiting.append(lambda: told(self.now))

    def write(self, metadata: LedgerMetadata, version: int, told: Callable[[int | Unwritten], None]) -> None:
        def write() -> None:
            if self.unheard:
                self.unheard -= 1
                told(Unwritten.UNKNOWN)
            elif version != self.now.version:
                told(Unwritten.CONFLICT)
            else:
                self.put(metadata)
                if self.silent:
                    self.silent -= 1
                    told(Unwritten.UNKNOWN)
                else:
                    told(self.now.version)

        self.waiting.append(write)

    def put(self, metadata: LedgerMetadata) -> None:
        self.now = Versioned(metadata, self.now.version + 1)

    def answer(self, requests: int = 1_000) -> None:
        """Answer waiting requests, and those that follow from the answers."""
        while self.waiting and requests:
            requests -= 1
            self.waiting.pop(0)()


class Asked:
    """Requests to bookies, by bookie and entry."""

    def __init__(self) -> None:
        self.told: dict[tuple[str, int], Callable[[Answer], None]] = {}
        self.flags: dict[tuple[str, int], Flags] = {}
        self.batches: list[tuple[str, int, int, int]] = []
        self.timers: list[Callable[[], None]] = []

    def read(self, bookie: str, entry: int, flags: Flags, told: Callable[[Answer], None]) -> None:
        self.told[bookie, entry] = told
        self.flags[bookie, entry] = flags

    def read_batch(self, bookie: str, first: int, count: int, max_bytes: int, told: Callable[[Answer], None]) -> None:
        self.told[bookie, first] = told
        self.batches.append((bookie, first, count, max_bytes))

    def later(self, milliseconds: int, callback: Callable[[], None]) -> None:
        self.timers.append(callback)

    def say(self, bookie: str, entry: int, *bodies: bytes, code: Code | None = None) -> None:
        """Answer with entries, or with a code that says why there are none."""
        if code is None:
            code = Code.OK if bodies else Code.NO_ENTRY
        self.told.pop((bookie, entry))(Answer(Operation.READ, code, LEDGER, entry, -1, list(bodies)))

    def pass_time(self) -> None:
        timers, self.timers = self.timers, []
        for timer in timers:
            timer()
