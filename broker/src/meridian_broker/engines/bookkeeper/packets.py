# SPDX-License-Identifier: Apache-2.0
"""Version 2 of BookKeeper's wire protocol: requests as bytes, and answers as values.

A frame is a length (u32, big endian) and a body. Every body begins with a header that holds the version, the operation
and flags. An answer names the ledger and the entry but not its request; only batch reads have a request id. So a
connection may have only one read of an entry in flight at a time.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum, IntFlag
from struct import Struct, error
from typing import Final, NamedTuple

from crc32c import crc32c

PROTOCOL: Final = 2
KEY_BYTES: Final = 20
"""Size of a ledger's master key."""
LAST_ENTRY: Final = -1
"""Reads the last entry that a bookie has, whichever it is."""


class Operation(IntEnum):
    ADD = 1
    READ = 2
    BATCH_READ = 7


class Flags(IntFlag):
    NONE = 0
    FENCE = 1
    """The bookie refuses every later add to the ledger, except those of a recovery."""
    RECOVERY = 2
    """An add that a fenced ledger accepts."""
    HIGH_PRIORITY = 4


class Code(IntEnum):
    """The outcome of a request. Codes below zero are our own and never sent by a bookie."""

    OK = 0
    NO_LEDGER = 1
    NO_ENTRY = 2
    BAD_REQUEST = 100
    IO_ERROR = 101
    WRONG_KEY = 102
    BAD_VERSION = 103
    FENCED = 104
    READ_ONLY = 105
    TOO_MANY_REQUESTS = 106
    UNKNOWN_LEDGER_STATE = 107
    DISCONNECTED = -1
    """There is no connection to the bookie, or it broke."""
    NO_ANSWER = -2
    """The bookie did not answer in time."""
    DAMAGED = -3
    """The entry in the answer has a wrong checksum, or is another entry."""
    UNKNOWN = -4
    """The bookie sent a code that this client does not know."""


_CODES: Final = {int(code): code for code in Code if code >= 0}

_ADD = Struct(f">II{KEY_BYTES}s")
_ENTRY = Struct(">qqqq")
_NEW_ADD = Struct(f">II{KEY_BYTES}s{_ENTRY.size}sI")
_READ = Struct(">IIqq")
_FENCING_READ = Struct(f">IIqq{KEY_BYTES}s")
_BATCH_READ = Struct(">IIqqqiq")
_ANSWER = Struct(">IIqq")
_BATCH_ANSWER = Struct(">IIqqq")
_SIZE = Struct(">I")
_LENGTH_BYTES: Final = 4
_ADD_BYTES: Final = _ADD.size - _LENGTH_BYTES
_NEW_ADD_BYTES: Final = _NEW_ADD.size - _LENGTH_BYTES


class BadFrame(Exception):
    """A bookie sent something that is not an answer of this protocol: the connection must be closed."""


class Answer(NamedTuple):
    """A bookie's answer to one request."""

    operation: int
    code: Code
    ledger: int
    entry: int
    """As in the request."""
    request: int
    """A batch read's id; -1 otherwise."""
    bodies: list[bytes]
    """The stored entries, if a read found any."""


def master_key(password: bytes) -> bytes:
    """The key that bookies check. Not a secret: it derives from the password in the ledger's metadata."""
    return hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()


def add_request(key: bytes, body_bytes: int, flags: Flags = Flags.NONE) -> bytes:
    """An add's frame without the entry itself, which has ``body_bytes``."""
    header = _ADD_HEADER if flags is Flags.NONE else _header(Operation.ADD, flags)
    return _ADD.pack(_ADD_BYTES + body_bytes, header, key)


def new_add(key: bytes, ledger: int, entry: int, last_confirmed: int, length: int, data: bytes) -> bytes:
    """All of an add's frame but the data of a new entry: ``add_request`` and ``entries.entry_header`` in one."""
    header = _ENTRY.pack(ledger, entry, last_confirmed, length)
    checksum = crc32c(data, crc32c(header))
    return _NEW_ADD.pack(_NEW_ADD_BYTES + len(data), _ADD_HEADER, key, header, checksum)


def read_request(ledger: int, entry: int, key: bytes, flags: Flags = Flags.NONE) -> bytes:
    """A whole frame. ``key`` is sent only with ``Flags.FENCE``."""
    bits = int(flags)  # the operators of enums are slow
    header = _READ_HEADER | bits
    if bits & _FENCE_BIT:
        return _FENCING_READ.pack(_FENCING_READ.size - _LENGTH_BYTES, header, ledger, entry, key)
    return _READ.pack(_READ.size - _LENGTH_BYTES, header, ledger, entry)


def batch_read_request(ledger: int, first: int, request: int, count: int, max_bytes: int) -> bytes:
    """A whole frame that asks for up to ``count`` entries and ``max_bytes``, but at least one entry."""
    header = _header(Operation.BATCH_READ, Flags.NONE)
    return _BATCH_READ.pack(_BATCH_READ.size - _LENGTH_BYTES, header, ledger, first, request, count, max_bytes)


def parse_answer(body: bytes | memoryview) -> Answer:
    """
    :param body: a frame without its length.
    :raises BadFrame: it is not a valid answer.
    """
    try:
        header, number, ledger, entry = _ANSWER.unpack_from(body)
        operation = header >> 16 & 0xFF
        code = _CODES.get(number, Code.UNKNOWN)
        if header >> 24 != PROTOCOL:
            raise BadFrame(f"an answer of protocol version {header >> 24} instead of {PROTOCOL}")
        if operation == Operation.BATCH_READ:
            *_, request = _BATCH_ANSWER.unpack_from(body)
            return Answer(operation, code, ledger, entry, request, _batch(body) if code == Code.OK else [])
    except error:
        raise BadFrame(f"an answer of {len(body)} bytes is cut short") from None
    found = [bytes(body[_ANSWER.size :])] if operation == Operation.READ and code == Code.OK else []
    return Answer(operation, code, ledger, entry, -1, found)


def _batch(body: bytes | memoryview) -> list[bytes]:
    found: list[bytes] = []
    at = _BATCH_ANSWER.size
    while at < len(body):
        (size,) = _SIZE.unpack_from(body, at)
        at += _SIZE.size
        if at + size > len(body):
            raise BadFrame("a batch of entries is cut short")
        found.append(bytes(body[at : at + size]))
        at += size
    return found


def _header(operation: Operation, flags: Flags) -> int:
    return PROTOCOL << 24 | operation.value << 16 | flags.value


_ADD_HEADER: Final = _header(Operation.ADD, Flags.NONE)
_READ_HEADER: Final = _header(Operation.READ, Flags.NONE)
_FENCE_BIT: Final = Flags.FENCE.value
