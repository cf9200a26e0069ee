# SPDX-License-Identifier: Apache-2.0
"""A connection to one bookie, in version 2 of the protocol.

Answers to adds go to their ledger, found by its id; answers to reads go to their callers. An answer does not name its
request, so concurrent reads of one entry share a request if they are the same, and queue behind each other otherwise.

Everything sent in one turn of the loop is one write. Adds are bounded in number and bytes: beyond that `add` refuses,
and the ledger is notified when there is room. A bookie that has too many adds refuses some; one whose write cache is
full refuses all.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from struct import Struct
from typing import Final, Protocol, cast

from meridian_broker.engines.bookkeeper.fanning import JOINED_BYTES, UNSENT_BYTES_MAX, Fan
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
"""Unanswered adds on one connection. A bookie refuses more than 10,000, from all its clients, per thread."""
READS_MAX: Final = 10_000
"""Unanswered reads, abandoned ones included, beyond which the connection counts as broken."""
FRAME_BYTES_MAX: Final = 64 << 20
"""A larger answer breaks the protocol. Bookies limit a batch to 5 MiB by default."""
BUFFER_BYTES: Final = 256 << 10
"""Size of the receive buffer, which grows for a larger answer."""
BUFFER_KEPT_BYTES: Final = 2 << 20
"""A buffer larger than this is released once it is empty."""

log = logging.getLogger(__name__)

_LENGTH = Struct(">I")
_OUTCOME = Struct(">IIIq")
"""The beginning of an add's answer, which is the same for every entry that a ledger stored: length, header, code and
ledger."""
_ADD_ANSWER = Struct(f">{_OUTCOME.size}sq")
"""An add's answer: its outcome, and the entry."""
ANSWERS: Final = 32
"""Consecutive answers with the same outcome that are parsed in one step."""
_ADD_ANSWERS = Struct(">" + ANSWERS * _ADD_ANSWER.format.removeprefix(">"))
_ADD_ANSWER_START: Final = _OUTCOME.pack(_ADD_ANSWER.size - _LENGTH.size, 2 << 24 | Operation.ADD << 16, 0, 0)[:8]
"""Length and header, by which an add's answer is recognized."""
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

    def acked(self, bookie: str, entries: list[int]) -> None: ...

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
        :param ledgers: where answers to adds go; shared by all connections.
        :param lost: called once, with the reason, when the connection is closed.
        """
        self.bookie = bookie
        self._ledgers = ledgers
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._why = ""
        self._is_closed = False
        self._fans: dict[Fan, None] = {}
        """Fans with queued adds for this bookie and others."""
        self._out: list[bytes] = []
        self._is_flushing = False
        self._out_bytes = 0
        self._is_paused = False
        """The socket accepts no more data for now."""
        self._adds = 0
        """How many adds are unanswered."""
        self._waiting: dict[int, None] = {}
        """Ledgers whose last add was refused, in order."""
        self._reads: dict[tuple[int, int], deque[_Read]] = {}
        """By ledger and entry; the first of each is in flight."""
        self._batches: dict[int, _Read] = {}
        self._next_request = 0
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._end = 0
        """Bytes in the buffer."""

    # -- requests ------------------------------------------------------------------------------------------------

    def add(self, ledger: int, packets: Sequence[Packet]) -> int:
        """Send adds, as many from the front as may be in flight. Returns how many; if not all, the ledger's ``room`` is
        called when there is room."""
        if self._fans:
            self._take_fans()
        sent, room, out, size = 0, self.room, self._out, self._out_bytes
        for packet in packets:
            if sent >= room or size >= UNSENT_BYTES_MAX:
                self._waiting[ledger] = None
                break
            out += packet
            size += len(packet[1])
            sent += 1
        self._adds += sent
        self._out_bytes = size
        if sent and not self._is_flushing:
            self._flush_soon()
        return sent

    @property
    def room(self) -> int:
        """See ``FanConnection``, also for ``expect`` and ``take``."""
        is_full = self._out_bytes >= UNSENT_BYTES_MAX or self._is_paused or self._is_closed
        return 0 if is_full else ADDS_MAX - self._adds

    def expect(self, fan: Fan) -> None:
        self._fans[fan] = None
        if not self._is_flushing:
            self._flush_soon()

    def take(self, fan: Fan, parts: list[bytes], adds: int, size: int) -> None:
        self._fans.pop(fan, None)
        if not self._is_closed:
            self._adds += adds
            self._out_bytes += size
            self._out += parts

    def _take_fans(self) -> None:
        for fan in list(self._fans):
            fan.flush()

    def read(self, ledger: int, entry: int, flags: Flags, key: bytes, told: Told, until: float) -> None:
        """Call ``told`` with the answer, or ``Code.NO_ANSWER`` if there is none by ``until`` on the loop's clock."""
        line = self._reads.setdefault((ledger, entry), deque())
        for read in line:
            if read.flags == flags:
                if not read.told:  # abandoned, but its answer may still come
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
        """Time out reads. The bookie may still answer them: a read without a request id stays in its queue, so that a
        late answer is not mistaken for the answer to a later read of the same entry, which may fence."""
        numbers = [number for number, read in self._batches.items() if read.until <= now]
        late = [self._batches.pop(number) for number in numbers]
        late += [read for line in self._reads.values() for read in line if read.until <= now and read.told]
        for read in late:
            _answer(read, Answer(read.operation, Code.NO_ANSWER, read.ledger, read.entry, -1, []))
            read.told.clear()
        if len(self._reads) + len(self._batches) > READS_MAX:
            self.close(f"no answer to more than {READS_MAX} reads")

    def close(self, why: str) -> None:
        """Close it, and fail every read in flight."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()
        reads = [*self._batches.values(), *(read for line in self._reads.values() for read in line)]
        self._batches.clear()
        self._reads.clear()
        self._out.clear()
        self._lost(self, why)  # first: a caller answered below may ask this bookie again, on another connection
        for read in reads:
            _answer(read, Answer(read.operation, Code.DISCONNECTED, read.ledger, read.entry, -1, []))

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    # -- asyncio -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop has its own transport classes
        self._transport.set_write_buffer_limits(UNSENT_BYTES_MAX)
        if self._is_closed:
            self._transport.abort()
        elif self._out or self._fans:
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
        self._keep(done)
        self._look_for_room()

    # -- inside --------------------------------------------------------------------------------------------------

    def _take_frames(self) -> int:
        """Handle every complete frame. Returns where the rest begins."""
        at = 0
        while self._end - at >= _LENGTH.size and not self._is_closed:
            at = self._take_adds(at)
            if self._end - at < _LENGTH.size:
                break
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            if length > FRAME_BYTES_MAX:
                raise BadFrame(f"a frame of {length} bytes")
            after = at + _LENGTH.size + length
            if after > self._end:
                break
            self._take(parse_answer(self._buffer[at + _LENGTH.size : after]))
            at = after
        return at

    def _take_adds(self, at: int) -> int:
        """Handle a run of consecutive answers to adds together. Returns where it ends."""
        answered: dict[bytes, list[int]] = {}
        while self._end - at >= _ADD_ANSWERS.size:
            fields = _ADD_ANSWERS.unpack_from(self._buffer, at)
            outcome = fields[0]
            if not outcome.startswith(_ADD_ANSWER_START) or fields[0::2].count(outcome) < ANSWERS:
                break
            answered.setdefault(outcome, []).extend(fields[1::2])
            at += _ADD_ANSWERS.size
        whole = (self._end - at) // _ADD_ANSWER.size * _ADD_ANSWER.size
        for outcome, entry in _ADD_ANSWER.iter_unpack(self._buffer[at : at + whole]):
            if outcome in answered:
                answered[outcome].append(entry)
            elif outcome.startswith(_ADD_ANSWER_START):
                answered[outcome] = [entry]
            else:
                break
            at += _ADD_ANSWER.size
        self._adds -= sum(map(len, answered.values()))
        refused: list[tuple[int, int, list[int]]] = []
        for outcome, entries in answered.items():
            _, _, code, ledger = _OUTCOME.unpack(outcome)
            if code != Code.OK:
                refused.append((ledger, code, entries))
            elif (target := self._ledgers.get(ledger)) is not None:
                with _surviving(ledger):
                    target.acked(self.bookie, entries)
        for ledger, code, entries in refused:  # last: a refusal may fail what is not confirmed yet
            for entry in entries:
                if (target := self._ledgers.get(ledger)) is not None:
                    with _surviving(ledger):
                        target.answered(self.bookie, entry, _CODES.get(code, Code.UNKNOWN))
        return at

    def _take(self, answer: Answer) -> None:
        if answer.operation == Operation.BATCH_READ:
            read = self._batches.pop(answer.request, None)
            if read is not None:
                _answer(read, answer)
        elif answer.operation == Operation.READ:
            line = self._reads.get((answer.ledger, answer.entry))
            if not line:
                return
            read = line.popleft()
            while line and not line[0].told:  # never sent, and abandoned
                line.popleft()
            if line:
                self._write(line[0].frame)
            else:
                del self._reads[answer.ledger, answer.entry]
            _answer(read, answer)
        else:
            raise BadFrame(f"an answer to operation {answer.operation}")

    def _keep(self, done: int) -> None:
        """Move the rest to the front of the buffer, and make the buffer large enough for its frame."""
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

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._look_for_room()

    def _look_for_room(self) -> None:
        if not self._waiting or self._adds > ADDS_MAX // 2 or self._is_paused or self._out_bytes:
            return
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
        if self._fans:
            self._take_fans()
        if self._transport is not None and self._out:
            out, size = self._out, self._out_bytes
            self._out, self._out_bytes = [], 0
            self._transport.writelines([b"".join(out)] if size <= len(out) * JOINED_BYTES else out)
            self._look_for_room()


@contextmanager
def _surviving(ledger: int) -> Iterator[None]:
    """Log an error of one ledger's callbacks, so that other ledgers still get their answers."""
    try:
        yield
    except Exception:
        log.exception("answers to adds of ledger %d could not be handled, which is a bug; other ledgers go on", ledger)


def _answer(read: _Read, answer: Answer) -> None:
    try:
        notify_all(read.told, answer)
    except Exception:
        log.exception(
            "an answer about entry %d of ledger %d could not be handled, which is a bug; other reads go on",
            answer.entry,
            answer.ledger,
        )
