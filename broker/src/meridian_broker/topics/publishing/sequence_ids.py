# SPDX-License-Identifier: Apache-2.0
"""The last sequence id of each producer name: which shows whether a message is a repeat.

A producer numbers its messages upwards. Of each name two numbers are known: the highest id given to the log, and the
highest one that is durable. Between the two it is not known yet whether a repeat is one.

Names are remembered after their producers are gone, so their number is bounded: those unused for longest go first, and
a name that is connected stays.

Record layout, big-endian: ``u8 version | u8 flags | i64 ledger | i64 entry``, then of each name ``u64 last id |
u64 last use in ms | u32 length | name``. The position says how far the log is accounted for in this record and those
before it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Final, NamedTuple

from meridian_broker.positions.formats import unreadable
from meridian_broker.positions.position import EARLIEST, Position

FORMAT_VERSION: Final = 1
FRESH: Final = 0x01
"""Earlier records are void: deduplication was switched on at this position."""
OFF: Final = 0x02
"""Deduplication was switched off: earlier records are void."""
RECORD_NAMES: Final = 1000
"""Names per record at most."""
_HEAD: Final = struct.Struct(">BBqq")
_NAME: Final = struct.Struct(">QQI")
NONE: Final = -1
"""No sequence id."""


LARGEST: Final = (1 << 63) - 1
"""The largest sequence id, because clients read it as a signed number."""


def last_id(sequence_id: int, highest: int, messages: int) -> int:
    """The sequence id of an entry's last message.

    :param highest: as sent by the client; 0 from clients that do not send it, whose batches are numbered without
        gaps.
    """
    return min(max(highest, sequence_id + max(messages, 1) - 1), LARGEST)


class SequencesError(ValueError):
    """A record of sequence ids cannot be read."""


class Outcome(Enum):
    """What a sequence id says about a message."""

    NEW = "it is new"
    REPEAT = "it is already stored"
    UNKNOWN = "it arrived before but is not durable yet"


class SequenceState:
    """The ids of one producer name."""

    __slots__ = ("pushed", "stored", "used_ms")

    def __init__(self, stored: int = NONE, used_ms: int = 0) -> None:
        self.pushed = self.stored = stored
        self.used_ms = used_ms

    def judge(self, sequence_id: int) -> Outcome:
        """Decide about a message whose last sequence id is this."""
        if sequence_id > self.pushed:
            return Outcome.NEW
        return Outcome.REPEAT if sequence_id <= self.stored else Outcome.UNKNOWN

    def raise_to(self, sequence_id: int) -> None:
        """Everything up to this id is durable."""
        self.stored = max(self.stored, sequence_id)
        self.pushed = max(self.pushed, self.stored)


class Record(NamedTuple):
    """One record."""

    flags: int
    upto: Position
    """It includes entries up to here; ``EARLIEST``: a later record says up to where."""
    names: list[tuple[str, int, int]]
    """Name, last sequence id, last use in milliseconds since 1970."""


def encode(record: Record) -> bytes:
    """Encode a record."""
    parts = [_HEAD.pack(FORMAT_VERSION, record.flags, *record.upto)]
    for name, last, used_ms in record.names:
        encoded = name.encode()
        parts += (_NAME.pack(last, used_ms, len(encoded)), encoded)
    return b"".join(parts)


def decode(data: bytes) -> Record:
    """:raises SequencesError: a newer format, or not a valid record."""
    try:
        version, flags, ledger, entry = _HEAD.unpack_from(data)
        if version != FORMAT_VERSION:
            raise SequencesError(unreadable("the record of sequence ids", version, FORMAT_VERSION))
        at, names = _HEAD.size, []
        while at < len(data):
            last, used_ms, length = _NAME.unpack_from(data, at)
            at += _NAME.size
            if at + length > len(data):
                raise SequencesError(f"a name of {length} bytes reaches past the end of {len(data)}")
            names.append((str(data[at : at + length], "utf-8"), last, used_ms))
            at += length
    except (struct.error, UnicodeDecodeError) as error:
        raise SequencesError(f"{len(data)} bytes are not a record of sequence ids: {error}") from error
    return Record(flags, Position(ledger, entry), names)


class SequenceIds:
    """The last sequence ids of one topic's producers.

    :param limit: names remembered.
    :param is_connected: whether a producer of that name is connected.
    """

    def __init__(self, limit: int, is_connected: Callable[[str], bool]) -> None:
        self._limit = limit
        self._is_connected = is_connected
        self._names: dict[str, SequenceState] = {}

    def __len__(self) -> int:
        return len(self._names)

    def clear(self) -> None:
        self._names.clear()

    def last(self, name: str) -> int:
        """The last durable id; ``NONE`` if unknown."""
        known = self._names.get(name)
        return NONE if known is None else known.stored

    def known(self, name: str, now_ms: int) -> SequenceState:
        """The ids of that name, which is created if it is unknown."""
        found = self._names.get(name)
        if found is None:
            if len(self._names) >= self._limit:
                self._make_room()
            found = self._names[name] = SequenceState()
        found.used_ms = max(found.used_ms, now_ms)
        return found

    def _make_room(self) -> None:
        """Forget a tenth of the names, those unused for longest: finding them takes a scan of all."""
        idle = sorted((known.used_ms, name) for name, known in self._names.items() if not self._is_connected(name))
        for _, name in idle[: max(1, self._limit // 10)]:
            del self._names[name]

    def forget_unused_since(self, time_ms: int) -> None:
        """Forget the names not used since then."""
        old = [name for name, known in self._names.items() if known.used_ms < time_ms and not self._is_connected(name)]
        for name in old:
            del self._names[name]

    def join(self, names: Iterable[tuple[str, int, int]]) -> None:
        """Join a record. Joining it again, or an older one, changes nothing."""
        for name, last, used_ms in names:
            self.known(name, used_ms).raise_to(last)

    def records(self, wanted: Iterable[str] | None, upto: Position, flags: int = 0) -> Iterator[Record]:
        """Records of what is durable for the wanted names, or for all. Only the last one says up to where."""
        rows = [
            (name, known.stored, known.used_ms)
            for name in (self._names if wanted is None else wanted)
            if (known := self._names.get(name)) is not None and known.stored > NONE
        ]
        while len(rows) > RECORD_NAMES:
            yield Record(0, EARLIEST, rows[:RECORD_NAMES])
            del rows[:RECORD_NAMES]
        yield Record(flags, upto, rows)
