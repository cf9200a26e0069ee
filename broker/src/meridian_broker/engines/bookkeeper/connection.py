# SPDX-License-Identifier: Apache-2.0
"""A connection to one bookie, in version 2 of the protocol.

Adds are answered to their ledgers, found by the ledger's id; reads to whoever asked. An answer does not name its
request, so two reads of one entry at a time share one request if they ask the same, and wait for each other if not.

What is sent in one turn of the loop is one write. Adds are bounded in number and bytes: beyond that `add` refuses, and
the ledger is told when there is room. A bookie that has too many refuses some, and one with a full write cache all.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Final, Protocol

from meridian_broker.engines.bookkeeper.packets import (
    Answer,
    BadFrame,
    Code,
    Flags,
    Operation,
    batch_read_request,
    parse_answer,
    read_request,
)
from meridian_broker.engines.bookkeeper.ports import Packet
from meridian_broker.ledgers.notifying import notify_all

ADDS_MAX: Final = 5_000
"""Unanswered adds of one connection. A bookie refuses those beyond 10,000 of all its clients' in one thread."""
ADD_BYTES_MAX: Final = 16 << 20
"""Their size together, beyond which no more are sent."""
READS_MAX: Final = 10_000
"""Unanswered reads, given up or not, until the connection is taken for broken."""
FRAME_BYTES_MAX: Final = 64 << 20
"""Larger answers are none. Bookies allow 5 MiB for a batch unless they are set otherwise."""
BUFFER_BYTES: Final = 256 << 10
"""Of received data; it grows for an answer that is larger."""
BUFFER_KEPT_BYTES: Final = 2 << 20
"""A larger buffer is given back when it is empty."""

log = logging.getLogger(__name__)

_LENGTH = Struct(">I")
_ADD_ANSWER = Struct(">IIIqq")
"""Length and header of an answer, its code, ledger and entry."""
_ADD_HEADER: Final = 2 << 24 | Operation.ADD << 16
_CODES: Final = {int(code): code for code in Code if code >= 0}

Told = Callable[[Answer], None]


class AddTarget(Protocol):
    """A ledger that entries are added to: ``Adding``, or a recovery."""

    @property
    def ensemble(self) -> tuple[str, ...]: ...

    @property
    def is_idle(self) -> bool: ...

    def lost(self, bookie: str, why: str) -> None: ...

    def tick(self, now_ms: int) -> None: ...

    def answered(self, bookie: str, entry: int, code: Code) -> None: ...

    def room(self, bookie: str) -> None: ...


@dataclass(slots=True)
class _Read:
    """A request that has one answer."""

    operation: Operation
    ledger: int
    entry: int
    flags: Flags
    frame: bytes
    told: list[Told]
    until: float


class BookieConnection(asyncio.BufferedProtocol):
    """See the module's text."""

    def __init__(
        self, bookie: str, ledgers: dict[int, AddTarget], lost: Callable[[BookieConnection, str], None]
    ) -> None:
        """
        :param ledgers: who adds are answered to; shared with all connections.
        :param lost: hears once that the connection is closed, and why.
        """
        self.bookie = bookie
        self._ledgers = ledgers
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._why = ""
        self._is_closed = False
        self._out: list[bytes] = []
        self._is_flushing = False
        self._adds: dict[tuple[int, int], int] = {}
        """Sizes of unanswered adds."""
        self._add_bytes = 0
        self._waiting: dict[int, None] = {}
        """Ledgers that were refused an add, in order."""
        self._reads: dict[tuple[int, int], deque[_Read]] = {}
        """By ledger and entry; the first of each is under way."""
        self._batches: dict[int, _Read] = {}
        self._next_request = 0
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._end = 0
        """Bytes in the buffer."""

    # -- requests ------------------------------------------------------------------------------------------------

    def add(self, ledger: int, entry: int, packet: Packet) -> bool:
        """Send an add. False: there are too many under way; the ledger hears when there is room."""
        if len(self._adds) >= ADDS_MAX or self._add_bytes >= ADD_BYTES_MAX:
            self._waiting[ledger] = None
            return False
        head, data = packet
        size = len(head) + len(data)
        self._adds[ledger, entry] = size
        self._add_bytes += size
        self._out += packet
        if not self._is_flushing:
            self._flush_soon()
        return True

    def read(self, ledger: int, entry: int, flags: Flags, key: bytes, told: Told, until: float) -> None:
        """``told`` hears the answer; Code.NO_ANSWER when there is none by ``until``, of the loop's clock."""
        line = self._reads.setdefault((ledger, entry), deque())
        for read in line:
            if read.flags == flags:
                if not read.told:  # given up, but its answer may come yet
                    read.until = until
                read.told.append(told)
                return
        frame = read_request(ledger, entry, key, flags)
        line.append(_Read(Operation.READ, ledger, entry, flags, frame, [told], until))
        if len(line) == 1:
            self._write(frame)

    def read_batch(self, ledger: int, first: int, count: int, max_bytes: int, told: Told, until: float) -> None:
        """As ``read``."""
        self._next_request += 1
        frame = batch_read_request(ledger, first, self._next_request, count, max_bytes)
        read = _Read(Operation.BATCH_READ, ledger, first, Flags.NONE, b"", [told], until)
        self._batches[self._next_request] = read
        self._write(frame)

    def check_time(self, now: float) -> None:
        """Answer the reads whose time is over. The bookie may still answer them. One without an id stays in its line so
        that a late answer is not taken for one to a later question about the same entry, which may have fenced."""
        numbers = [number for number, read in self._batches.items() if read.until <= now]
        late = [self._batches.pop(number) for number in numbers]
        late += [read for line in self._reads.values() for read in line if read.until <= now and read.told]
        for read in late:
            _tell(read, Answer(read.operation, Code.NO_ANSWER, read.ledger, read.entry, -1, []))
            read.told.clear()
        if len(self._reads) + len(self._batches) > READS_MAX:
            self.close(f"no answer to more than {READS_MAX} reads")

    def close(self, why: str) -> None:
        """Close it, and answer everything that is under way."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()
        reads = [*self._batches.values(), *(read for line in self._reads.values() for read in line)]
        self._batches.clear()
        self._reads.clear()
        self._adds.clear()
        self._out.clear()
        self._lost(self, why)  # first: who is answered below may ask this bookie again, on another connection
        for read in reads:
            _tell(read, Answer(read.operation, Code.DISCONNECTED, read.ledger, read.entry, -1, []))

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    # -- asyncio -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._is_closed:
            transport.abort()
        elif self._out:
            self._flush_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(str(exc) if exc is not None else "the bookie closed the connection")

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        try:
            done = self._take_frames()
        except BadFrame as error:
            self.close(str(error))
            return
        if self._is_closed:
            return
        if self._waiting and len(self._adds) < ADDS_MAX // 2 and self._add_bytes < ADD_BYTES_MAX // 2:
            self._tell_room()
        self._keep(done)

    # -- inside --------------------------------------------------------------------------------------------------

    def _take_frames(self) -> int:
        """Answer everything that is complete. Returns where the rest begins."""
        buffer, at, end = self._buffer, 0, self._end
        ledgers, adds = self._ledgers, self._adds
        while end - at >= _LENGTH.size and not self._is_closed:
            (length,) = _LENGTH.unpack_from(buffer, at)
            if length > FRAME_BYTES_MAX:
                raise BadFrame(f"a frame of {length} bytes")
            after = at + _LENGTH.size + length
            if after > end:
                break
            if length >= _ADD_ANSWER.size - _LENGTH.size:  # nearly all are answers to adds
                _, header, code, ledger, entry = _ADD_ANSWER.unpack_from(buffer, at)
                if header == _ADD_HEADER:
                    self._add_bytes -= adds.pop((ledger, entry), 0)
                    target = ledgers.get(ledger)
                    if target is not None:
                        try:
                            target.answered(self.bookie, entry, _CODES.get(code, Code.UNKNOWN))
                        except Exception:  # of a callback: the other answers are for others
                            log.exception("what became of entry %d of ledger %d could not be handled", entry, ledger)
                    at = after
                    continue
            self._take(parse_answer(buffer[at + _LENGTH.size : after]))
            at = after
        return at

    def _take(self, answer: Answer) -> None:
        if answer.operation == Operation.BATCH_READ:
            read = self._batches.pop(answer.request, None)
            if read is not None:
                _tell(read, answer)
        elif answer.operation == Operation.READ:
            line = self._reads.get((answer.ledger, answer.entry))
            if not line:
                return
            read = line.popleft()
            while line and not line[0].told:  # was never sent, and nobody waits for it any more
                line.popleft()
            if line:
                self._write(line[0].frame)
            else:
                del self._reads[answer.ledger, answer.entry]
            _tell(read, answer)
        else:
            raise BadFrame(f"an answer to operation {answer.operation}")

    def _keep(self, done: int) -> None:
        """Move what is left to the buffer's front, and make the buffer large enough for it."""
        left = self._end - done
        wanted = BUFFER_BYTES
        if left >= _LENGTH.size:
            wanted = max(wanted, _LENGTH.size + _LENGTH.unpack_from(self._buffer, done)[0])
        if wanted > len(self._buffer) or (len(self._buffer) > BUFFER_KEPT_BYTES and not left):
            larger = memoryview(bytearray(wanted))
            larger[:left] = self._buffer[done : self._end]
            self._buffer = larger
        elif done and left:
            self._buffer[:left] = bytes(self._buffer[done : self._end])
        self._end = left

    def _tell_room(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for ledger in waiting:
            target = self._ledgers.get(ledger)
            if target is not None:
                target.room(self.bookie)

    def _write(self, frame: bytes) -> None:
        self._out.append(frame)
        if not self._is_flushing:
            self._flush_soon()

    def _flush_soon(self) -> None:
        self._is_flushing = True
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self._transport is not None and self._out:
            out, self._out = self._out, []
            self._transport.writelines(out)


def _tell(read: _Read, answer: Answer) -> None:
    try:
        notify_all(read.told, answer)
    except Exception:
        log.exception("an answer about entry %d of ledger %d could not be handled", answer.entry, answer.ledger)
