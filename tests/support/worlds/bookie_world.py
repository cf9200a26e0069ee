# SPDX-License-Identifier: Apache-2.0
"""Simulated bookies, a metadata store, and the network between them and any number of clients.

Nothing happens by itself: in each step, the test picks one of the `BookieWorld.events` that are possible now. Requests
and answers of different connections therefore overtake each other in every way; bookies crash and lose what they had
not synced, hang, refuse; metadata is written but the answer is lost; a client stops at any point.

A bookie stores an entry and returns it to readers at once, and answers the add after its next sync. It fences a
ledger at once, and answers that after its next sync, too.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from meridian_broker.engines.bookkeeper.adding import Adding
from meridian_broker.engines.bookkeeper.entries import StoredEntry, parse_entry
from meridian_broker.engines.bookkeeper.ledger_metadata import LedgerMetadata, Segment
from meridian_broker.engines.bookkeeper.packets import LAST_ENTRY, Answer, Code, Flags, Operation
from meridian_broker.engines.bookkeeper.ports import AddLimits, Packet, Unread, Unwritten, Versioned
from meridian_broker.engines.bookkeeper.reading import Reading
from meridian_broker.engines.bookkeeper.recovering import Recovering
from meridian_broker.engines.bookkeeper.writing import Writing
from meridian_broker.ledgers.store import LedgerError

LEDGER = 7
KEY_AND_HEADER = 28
"""Bytes before the entry in the frame of an add."""

Event = tuple[str, Callable[[], object]]


@dataclass
class Request:
    """A request on its way to a bookie, or waiting there for a sync."""

    client: Client
    operation: Operation
    entry: int
    flags: Flags
    body: bytes
    told: Callable[[Answer], None] | None
    """None for an add."""
    count: int = 1


class SimulatedBookie:
    """One bookie's part of the ledger."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_up = True
        self.is_hanging = False
        self.busy = 0
        """Number of next adds that are refused because the bookie is overloaded."""
        self.is_broken = False
        """Whether its disk refuses entries."""
        self.entries: dict[int, bytes] = {}
        self.durable: dict[int, bytes] = {}
        self.is_fenced = False
        self.was_fenced = False
        """Whether the fence is durable."""
        self.waiting: list[Request] = []
        """Requests that the next sync answers."""

    @property
    def is_working(self) -> bool:
        return self.is_up and not self.is_hanging

    def handle(self, request: Request) -> None:
        if request.operation == Operation.ADD:
            self._add(request)
        elif request.flags & Flags.FENCE:
            self.is_fenced = True
            self.waiting.append(request)
        else:
            self._answer_read(request)

    def _add(self, request: Request) -> None:
        if self.is_fenced and not request.flags & Flags.RECOVERY:
            request.client.hears_add(self.name, request.entry, Code.FENCED)
        elif self.busy:
            self.busy -= 1
            request.client.hears_add(self.name, request.entry, Code.TOO_MANY_REQUESTS)
        elif self.is_broken:
            request.client.hears_add(self.name, request.entry, Code.IO_ERROR)
        else:
            self.entries[request.entry] = request.body
            self.waiting.append(request)

    def _answer_read(self, request: Request) -> None:
        entry = max(self.entries, default=0) if request.entry == LAST_ENTRY else request.entry
        found: list[bytes] = []
        while len(found) < request.count and entry in self.entries:
            found.append(self.entries[entry])
            entry += 1
        code = Code.OK if found else Code.NO_ENTRY if self.entries else Code.NO_LEDGER
        request.client.hears(self.name, request, Answer(request.operation, code, LEDGER, request.entry, -1, found))

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.was_fenced = self.is_fenced
        waiting, self.waiting = self.waiting, []
        for request in waiting:
            if request.operation == Operation.ADD:
                request.client.hears_add(self.name, request.entry, Code.OK)
            else:
                self._answer_read(request)

    def crash(self) -> None:
        self.is_up = self.is_hanging = False
        self.entries = dict(self.durable)
        self.is_fenced = self.was_fenced
        self.waiting.clear()


class Client:
    """One process: the core's ports in this world. Answers to it wait in queues until an event delivers them."""

    def __init__(self, world: BookieWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.is_stopped = False
        self.writing: Writing | None = None
        self.recovering: Recovering | None = None
        self.out: dict[str, deque[Request]] = {bookie: deque() for bookie in world.bookies}
        self.heard: dict[str, deque[Callable[[], None]]] = {bookie: deque() for bookie in world.bookies}
        self.unanswered: dict[str, list[Request]] = {bookie: [] for bookie in world.bookies}
        self.soon: deque[Callable[[], None]] = deque()
        self.timers: list[Callable[[], None]] = []
        self.store_calls: list[tuple[Callable[[], None], Callable[[], None]]] = []
        """Requests to the metadata store, as pairs: execute and answer; or lose the answer, and perhaps execute."""
        self.links_max = 1_000

    # -- LinkPort ------------------------------------------------------------------------------------------------

    def send(self, bookie: str, first: int, packets: Sequence[Packet]) -> int:
        taken = packets[: max(0, self.links_max - len(self.unanswered[bookie]))]
        for entry, packet in enumerate(taken, first):
            self._send(bookie, entry, packet)
        return len(taken)

    def _send(self, bookie: str, entry: int, packet: Packet) -> None:
        flags = Flags(int.from_bytes(packet.head[4:8], "big") & 0xFFFF)
        body = packet.head[KEY_AND_HEADER:] + packet.data
        stored = parse_entry(LEDGER, body, entry)
        self.world.check_sent(self, stored, flags)
        self._ask(bookie, Request(self, Operation.ADD, entry, flags, body, None))

    def send_all(self, bookies: tuple[str, ...], entry: int, packet: Packet) -> bool:
        if any(len(self.unanswered[bookie]) >= self.links_max for bookie in bookies):
            return False
        return all(self.send(bookie, entry, [packet]) for bookie in bookies)

    def choose(self, wanted: str, exclude: Collection[str]) -> str | None:
        others = [one.name for one in self.world.bookies.values() if one.is_up and one.name not in exclude]
        if others:
            return self.world.draw.choice(others)
        return wanted if self.world.bookies[wanted].is_up else None

    def wake(self) -> None:
        """Nothing to do: here, time passes for all ledgers."""

    def avoid(self, bookie: str) -> None:
        """Nothing to do: the world chooses bookies at random."""

    def defer(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    # -- AskPort -------------------------------------------------------------------------------------------------

    def read(self, bookie: str, entry: int, flags: Flags, told: Callable[[Answer], None]) -> None:
        self._ask(bookie, Request(self, Operation.READ, entry, flags, b"", told))

    def read_batch(self, bookie: str, first: int, count: int, max_bytes: int, told: Callable[[Answer], None]) -> None:
        self._ask(bookie, Request(self, Operation.BATCH_READ, first, Flags.NONE, b"", told, min(count, 7)))

    def later(self, milliseconds: int, callback: Callable[[], None]) -> None:
        self.timers.append(callback)

    def _ask(self, bookie: str, request: Request) -> None:
        self.unanswered[bookie].append(request)
        if self.world.bookies[bookie].is_up:
            self.out[bookie].append(request)
        else:
            self.soon.append(partial(self._broken, bookie, [request]))

    # -- from bookies --------------------------------------------------------------------------------------------

    def hears_add(self, bookie: str, entry: int, code: Code) -> None:
        for request in self.unanswered[bookie]:
            if request.operation == Operation.ADD and request.entry == entry:
                self.heard[bookie].append(partial(self._add_answer, bookie, request, code))
                return

    def hears(self, bookie: str, request: Request, answer: Answer) -> None:
        if request in self.unanswered[bookie]:
            self.heard[bookie].append(partial(self._answer, bookie, request, answer))

    def _add_answer(self, bookie: str, request: Request, code: Code) -> None:
        if request in self.unanswered[bookie]:
            self.unanswered[bookie].remove(request)
        adding = self.adding
        if adding is not None:
            adding.answered(bookie, request.entry, code)
            adding.room(bookie)

    def _answer(self, bookie: str, request: Request, answer: Answer) -> None:
        if request in self.unanswered[bookie]:
            self.unanswered[bookie].remove(request)
            assert request.told is not None
            request.told(answer)

    def disconnect(self, bookie: str, *, is_bookie_gone: bool) -> None:
        """The connection breaks. Requests already sent may still arrive, unless the bookie is gone."""
        if is_bookie_gone:
            self.out[bookie].clear()
        self.heard[bookie].clear()
        requests = list(self.unanswered[bookie])
        self.soon.append(partial(self._broken, bookie, requests))

    def _broken(self, bookie: str, requests: list[Request]) -> None:
        for request in requests:
            if request not in self.unanswered[bookie]:
                continue
            self.unanswered[bookie].remove(request)
            if request.told is not None:
                request.told(Answer(request.operation, Code.DISCONNECTED, LEDGER, request.entry, -1, []))
            elif self.adding is not None:
                self.adding.answered(bookie, request.entry, Code.DISCONNECTED)
        if self.adding is not None:
            self.adding.lost(bookie, "the connection broke")

    @property
    def adding(self) -> Adding | None:
        part = self.writing if self.writing is not None else self.recovering
        return part.adding if part is not None else None

    def tick(self) -> None:
        if self.writing is not None:
            self.writing.adding.tick(self.world.now_ms)
        if self.recovering is not None:
            self.recovering.tick(self.world.now_ms)


class ClientMetadata:
    """The metadata port of one client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._world = client.world

    def read(self, told: Callable[[Versioned | Unread], None]) -> None:
        def answer() -> None:
            told(self._world.stored if self._world.stored is not None else Unread.ABSENT)

        self._client.store_calls.append((answer, partial(told, Unread.UNKNOWN)))

    def write(self, metadata: LedgerMetadata, version: int, told: Callable[[int | Unwritten], None]) -> None:
        def write() -> int | Unwritten:
            return self._world.compare_and_set(metadata, version)

        def no_answer() -> None:
            if self._world.draw.random() < 0.5:
                write()
            elif self._world.draw.random() < 0.5:
                self._world.late_writes.append(write)
            told(Unwritten.UNKNOWN)

        self._client.store_calls.append((lambda: told(write()), no_answer))


@dataclass
class Promises:
    """What was sent, and the outcomes that clients were told."""

    sent: list[bytes] = field(default_factory=list)
    confirmed: list[int] = field(default_factory=list)
    errors: list[LedgerError] = field(default_factory=list)
    outcomes: dict[str, LedgerMetadata | LedgerError] = field(default_factory=dict)
    """How seals and recoveries ended, by client."""


class BookieWorld:
    """See the module's text."""

    def __init__(
        self, seed: int, *, bookies: int = 4, ensemble: int = 3, ack_quorum: int = 2, limits: AddLimits | None = None
    ) -> None:
        self.draw = random.Random(seed)
        self.bookies = {f"b{number}": SimulatedBookie(f"b{number}") for number in range(bookies)}
        names = list(self.bookies)
        self.draw.shuffle(names)
        self.ack_quorum = ack_quorum
        metadata = LedgerMetadata(ensemble, ack_quorum, (Segment(0, tuple(names[:ensemble])),))
        self.stored: Versioned | None = Versioned(metadata.with_custom("meridian-fence", b"1"), 1)
        self.late_writes: list[Callable[[], object]] = []
        self.now_ms = 0
        self.limits = limits or AddLimits(entries=6, bytes=60)
        self.promises = Promises()
        self.clients: list[Client] = []
        self.writer = self._client("writer")
        self.writer.writing = Writing(
            *(LEDGER, self.stored, self.writer, ClientMetadata(self.writer), self.limits),
            data_bytes_max=1 << 20,
            now_ms=0,
        )

    def _client(self, name: str) -> Client:
        client = Client(self, name)
        self.clients.append(client)
        return client

    @property
    def metadata(self) -> LedgerMetadata:
        assert self.stored is not None
        return self.stored.metadata

    def compare_and_set(self, metadata: LedgerMetadata, version: int) -> int | Unwritten:
        if self.stored is None or self.stored.version != version:
            return Unwritten.CONFLICT
        self.stored = Versioned(metadata, version + 1)
        return version + 1

    # -- what a test does ----------------------------------------------------------------------------------------

    def append(self, size: int = 5) -> None:
        writing = self.writer.writing
        assert writing is not None
        data = (b"%d " % len(self.promises.sent) * size)[:size]
        before = writing.next_entry
        writing.append(data, self._told)
        if writing.next_entry > before:
            self.promises.sent.append(data)

    def seal(self) -> None:
        assert self.writer.writing is not None
        self.writer.writing.seal(partial(self.promises.outcomes.__setitem__, "writer"))

    def recover(self, name: str, fence: int = 2) -> Recovering:
        client = self._client(name)
        client.recovering = Recovering(
            *(LEDGER, fence, client, client, ClientMetadata(client), self.limits),
            partial(self.promises.outcomes.__setitem__, name),
            now_ms=self.now_ms,
        )
        client.recovering.start()
        return client.recovering

    def crash(self, bookie: str) -> None:
        self.bookies[bookie].crash()
        for client in self.clients:
            client.disconnect(bookie, is_bookie_gone=True)

    def _told(self, outcome: int | LedgerError) -> None:
        if isinstance(outcome, LedgerError):
            self.promises.errors.append(outcome)
            return
        assert outcome == len(self.promises.confirmed), "entries are confirmed in order, each once"
        self.promises.confirmed.append(outcome)
        holders = [name for name in self.metadata.bookies_of(outcome) if outcome in self.bookies[name].durable]
        assert len(holders) >= self.ack_quorum, f"entry {outcome} is confirmed, but durable only on {holders}"

    def check_sent(self, client: Client, stored: StoredEntry, flags: Flags) -> None:
        assert stored.data == self.promises.sent[stored.entry] if stored.entry < len(self.promises.sent) else True
        if client is self.writer:
            confirmed = client.writing.adding.confirmed if client.writing is not None else -1
            assert not flags & Flags.RECOVERY
            assert stored.last_confirmed <= confirmed
            holders = [
                name
                for name in self.metadata.bookies_of(stored.last_confirmed)
                if stored.last_confirmed in self.bookies[name].durable
            ]
            assert stored.last_confirmed == -1 or len(holders) >= self.ack_quorum, "a packet's LAC is not confirmed"
        else:
            assert flags & Flags.RECOVERY

    # -- events --------------------------------------------------------------------------------------------------

    def events(self) -> Iterator[Event]:
        """Events that are possible now, without faults."""
        for client in self.clients:
            if client.is_stopped:
                continue
            if client.soon:
                yield f"{client.name}: next turn", lambda client=client: client.soon.popleft()()  # type: ignore[misc]
            for name, heard in client.heard.items():
                if heard:
                    yield f"{client.name} hears {name}", lambda heard=heard: heard.popleft()()  # type: ignore[misc]
            for number in range(len(client.store_calls)):
                yield f"{client.name}: metadata", lambda c=client, n=number: c.store_calls.pop(n)[0]()  # type: ignore[misc]
            if client.timers:
                yield f"{client.name}: timer", lambda client=client: client.timers.pop(0)()  # type: ignore[misc]
        for bookie in self.bookies.values():
            if not bookie.is_working:
                continue
            for client in self.clients:
                if client.out[bookie.name]:
                    yield f"{bookie.name} takes", lambda b=bookie, c=client: b.handle(c.out[b.name].popleft())  # type: ignore[misc]
            if bookie.waiting:
                yield f"{bookie.name} syncs", bookie.sync

    def faults(self) -> Iterator[Event]:
        """Faults that are possible now."""
        for bookie in self.bookies.values():
            if bookie.is_up:
                yield f"{bookie.name} crashes", partial(self.crash, bookie.name)
                yield f"{bookie.name} hangs", partial(setattr, bookie, "is_hanging", not bookie.is_hanging)
                yield f"{bookie.name} is busy", partial(setattr, bookie, "busy", 3)
                yield f"{bookie.name} breaks", partial(setattr, bookie, "is_broken", not bookie.is_broken)
                for client in self.clients:
                    yield (
                        f"{client.name} loses {bookie.name}",
                        partial(client.disconnect, bookie.name, is_bookie_gone=False),
                    )
            else:
                yield f"{bookie.name} starts", partial(setattr, bookie, "is_up", True)
                yield f"{bookie.name} starts", partial(setattr, bookie, "is_up", True)
        for client in self.clients:
            for number in range(len(client.store_calls)):
                yield f"{client.name}: no answer", lambda c=client, n=number: c.store_calls.pop(n)[1]()  # type: ignore[misc]
        if self.late_writes:
            yield "a late write", lambda: self.late_writes.pop()()
        yield "time passes", self.pass_time

    def pass_time(self, milliseconds: int = 0) -> None:
        self.now_ms += milliseconds or self.draw.choice((100, 400, 1_100, 5_100))
        for client in self.clients:
            if not client.is_stopped:
                client.tick()

    def heal(self) -> None:
        """No more faults: every bookie is up and answers."""
        for bookie in self.bookies.values():
            bookie.is_up, bookie.is_hanging, bookie.is_broken, bookie.busy = True, False, False, 0

    def run(self, until: Callable[[], bool], steps: int = 20_000) -> None:
        """Let everything possible happen, the passing of time included, until ``until()``."""
        for _ in range(steps):
            if until():
                return
            possible = [event for event in self.events() if "timer" not in event[0]] or list(self.events())
            if possible:
                self.draw.choice(possible)[1]()
            else:
                self.pass_time(500)
        raise AssertionError("the simulation does not end")

    # -- at the end ----------------------------------------------------------------------------------------------

    def read_all(self) -> list[bytes] | LedgerError:
        """The closed ledger's entries, read by a new client."""
        client = self._client("reader")
        found: list[bytes] = []
        while len(found) <= self.metadata.last_entry:
            heard: list[list[bytes] | LedgerError] = []
            Reading(
                *(LEDGER, self.metadata, client, len(found), self.metadata.last_entry, 1 << 20),
                lambda entries, _, heard=heard: heard.append(entries),  # type: ignore[misc]
            ).start()
            self.run(lambda heard=heard: bool(heard))  # type: ignore[misc]
            if isinstance(heard[0], LedgerError):
                return heard[0]
            found += heard[0]
        return found

    def check_closed(self) -> None:
        """Every promise about the ledger holds now that it is closed."""
        metadata, promises = self.metadata, self.promises
        assert metadata.state.name == "CLOSED"
        last = metadata.last_entry
        assert last >= len(promises.confirmed) - 1, f"closed at {last}, but confirmed up to {promises.confirmed[-1:]}"
        assert last < len(promises.sent)
        assert metadata.length == sum(map(len, promises.sent[: last + 1]))
        for entry in range(last + 1):
            holders = [name for name in metadata.bookies_of(entry) if entry in self.bookies[name].durable]
            assert len(holders) >= self.ack_quorum, f"entry {entry} is only on {holders}, of {metadata.segments}"
        for name, outcome in promises.outcomes.items():
            assert isinstance(outcome, LedgerError) or outcome == metadata, f"{name} was told {outcome}"
        assert self.read_all() == promises.sent[: last + 1]
