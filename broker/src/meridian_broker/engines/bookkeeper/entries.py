# SPDX-License-Identifier: Apache-2.0
"""An entry as bookies store it: a header, its checksum, the data.

    ledger i64 | entry i64 | last confirmed i64 | length i64 | CRC32C u32 | data

*Last confirmed* is the newest entry that the writer knew to be on an ack quorum when it sent this one. *Length* is the
sum of the sizes of all data up to and including this entry's. The checksum covers header and data; readers check it,
bookies do not.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

_HEADER = Struct(">qqqq")
_CHECKSUM = Struct(">I")
_LAC = Struct(">qq")
OVERHEAD: Final = _HEADER.size + _CHECKSUM.size
"""Bytes of a stored entry besides its data."""


class EntryDamaged(Exception):
    """What a bookie returned is not the entry that was asked for."""


class StoredEntry(NamedTuple):
    entry: int
    last_confirmed: int
    """-1: none."""
    length: int
    """Bytes of data up to and including this entry."""
    data: bytes


def entry_header(ledger: int, entry: int, last_confirmed: int, length: int, data: bytes) -> bytes:
    """A stored entry without its data: header and checksum."""
    header = _HEADER.pack(ledger, entry, last_confirmed, length)
    return header + _CHECKSUM.pack(crc32c(data, crc32c(header)))


def parse_entry(ledger: int, body: bytes, entry: int | None = None) -> StoredEntry:
    """
    :param entry: the one that was asked for; None: any entry of the ledger.
    :raises EntryDamaged: its checksum is wrong, or it is another entry.
    """
    if len(body) < OVERHEAD:
        raise EntryDamaged(f"{len(body)} bytes are too few for an entry")
    header = body[: _HEADER.size]
    of_ledger, number, last_confirmed, length = _HEADER.unpack(header)
    data = body[OVERHEAD:]
    if _CHECKSUM.unpack_from(body, _HEADER.size)[0] != crc32c(data, crc32c(header)):
        raise EntryDamaged("its checksum is wrong")
    if of_ledger != ledger or (number != entry and entry is not None):
        raise EntryDamaged(f"it is entry {number} of ledger {of_ledger}")
    if number < 0 or not -1 <= last_confirmed < number:
        raise EntryDamaged("its header contradicts itself")
    return StoredEntry(number, last_confirmed, length, data)


def explicit_lac(ledger: int, last_confirmed: int) -> bytes:
    """An explicit LAC, which a writer stores on bookies to show how far it got when no later entry does."""
    body = _LAC.pack(ledger, last_confirmed)
    return body + _CHECKSUM.pack(crc32c(body))


def parse_explicit_lac(ledger: int, body: bytes) -> int:
    """:raises EntryDamaged: it is damaged, or another ledger's."""
    if len(body) != _LAC.size + _CHECKSUM.size:
        raise EntryDamaged(f"{len(body)} bytes are not an explicit LAC")
    of_ledger, last_confirmed = _LAC.unpack_from(body)
    if of_ledger != ledger or _CHECKSUM.unpack_from(body, _LAC.size)[0] != crc32c(body[: _LAC.size]):
        raise EntryDamaged("the explicit LAC is damaged")
    return int(last_confirmed)
