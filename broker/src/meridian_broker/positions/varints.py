# SPDX-License-Identifier: Apache-2.0
"""Reading and writing the small numbers and names in this package's encodings.

Unsigned LEB128, as in Protobuf, but only in its shortest form: each number has one encoding, so equal sets have equal
bytes. ``Reader`` trusts nothing: whatever the bytes, it raises only ``ValueError``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

MAX_NUMBER: Final = (1 << 64) - 1
MAX_NAME_BYTES: Final = 255
"""Region names are DNS labels in practice (63 bytes); this bounds what a bad peer can make us store."""


UNFOLD_BUDGET: Final = 1 << 18
"""How far a few bytes may expand, in bitmap containers (65,536 entries, about 50 bytes of memory): 17 G entries."""


def put_number(out: bytearray, number: int) -> None:
    """Append ``number`` (0 to 2^64 - 1)."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


@lru_cache(maxsize=1024)
def number_bytes(number: int) -> bytes:
    """What ``put_number`` appends, for large numbers that return tens of thousands of times: the ids of ledgers."""
    out = bytearray()
    put_number(out, number)
    return bytes(out)


def put_bytes(out: bytearray, data: bytes | bytearray) -> None:
    put_number(out, len(data))
    out += data


def put_name(out: bytearray, name: str) -> None:
    """:raises ValueError: the name is longer than ``MAX_NAME_BYTES``."""
    out += _name_bytes(name)


@lru_cache(maxsize=256)
def _name_bytes(name: str) -> bytes:
    data = name.encode()
    if len(data) > MAX_NAME_BYTES:
        raise ValueError(f"region name {name[:40]!r}... has {len(data)} bytes; at most {MAX_NAME_BYTES} are allowed")
    return number_bytes(len(data)) + data


class Reader:
    """Takes an encoding apart from front to back."""

    __slots__ = ("_at", "_budget", "_data")

    def __init__(self, data: bytes, budget: int = UNFOLD_BUDGET) -> None:
        self._data = data
        self._at = 0
        self._budget = budget

    def byte(self) -> int:
        try:
            value = self._data[self._at]
        except IndexError:
            raise self.broken("it is cut off") from None
        self._at += 1
        return value

    def number(self) -> int:
        value = self.byte()
        if value < 0x80:
            return value
        value &= 0x7F
        shift = 7
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise self.broken("a number has more than 64 bits")
        if value > MAX_NUMBER or not byte:
            raise self.broken("a number is out of range or not in its shortest form")
        return value

    def count(self, bytes_each: int = 1) -> int:
        """How many items follow. Each takes at least ``bytes_each`` bytes, so a false count cannot make us loop for
        long."""
        value = self.number()
        if value * bytes_each > len(self._data) - self._at:
            raise self.broken(f"it announces {value} items, more than the remaining bytes can hold")
        return value

    def take(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._data):
            raise self.broken("it is cut off")
        data = self._data[self._at : end]
        self._at = end
        return bytes(data)

    def rest(self) -> bytes:
        """All that has not been read yet."""
        return self.take(len(self._data) - self._at)

    def bytes(self) -> bytes:
        return self.take(self.number())

    def name(self) -> str:
        length = self.number()
        if length > MAX_NAME_BYTES:
            raise self.broken("a region name is too long")
        try:
            return str(self.take(length), "utf-8")
        except UnicodeDecodeError:
            raise self.broken("a region name is not UTF-8") from None

    def spend(self, containers: int) -> None:
        """Count expanded containers.

        :raises ValueError: the budget is exceeded.
        """
        self._budget -= containers
        if self._budget < 0:
            raise self.broken("it expands to more than any broker can have written")

    def end(self) -> None:
        """:raises ValueError: bytes are left over."""
        if self._at != len(self._data):
            raise self.broken(f"{len(self._data) - self._at} bytes are left over")

    def broken(self, why: str) -> ValueError:
        """The error to raise for invalid bytes."""
        return ValueError(f"broken encoding at byte {self._at} of {len(self._data)}: {why}")
