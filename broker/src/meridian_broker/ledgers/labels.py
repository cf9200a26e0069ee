# SPDX-License-Identifier: Apache-2.0
"""Labels of ledgers on the volume: the topic of a ledger, and the state before it.

The metadata list a topic's ledgers. Metadata restored from an older copy do not name ledgers that were created since,
and entries do not name their topic. So each ledger is created with a *label*, by which opening the topic finds ledgers
that the metadata lacks (``topics/lifecycle/orphans.py``). The label holds everything that the metadata records about a
ledger at its creation; later facts (number of entries, time of sealing) the ledger knows itself.

Layout, big-endian: ``u8 version | u8 kind | u16 length | topic | u16 length | incarnation``, then for messages, and
then for a compacted view::

    i64 ledger | i64 entry of the last own entry before | u8 is it joined | u16 origins, each:
        i64 ledger | i64 entry | u8 length | region
    i64 ledger | i64 entry of the horizon
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from meridian_broker.positions.formats import unreadable
from meridian_broker.positions.position import EARLIEST, Position

FORMAT_VERSION: Final = 1
_HEAD: Final = struct.Struct(">BB")
_LENGTH: Final = struct.Struct(">H")
_BEFORE: Final = struct.Struct(">qqBH")
_ORIGIN: Final = struct.Struct(">qqB")
_PLACE: Final = struct.Struct(">qq")


class Kind(IntEnum):
    """The content of a ledger."""

    MESSAGES = 1
    PROGRESS = 2
    """Records of the topic's progress log."""
    COMPACTED = 3
    """A compacted view."""


def holds_messages(label: bytes) -> bool:
    """Is this the label of a ledger of messages?"""
    return len(label) > 1 and label[1] == Kind.MESSAGES


class Belonging(NamedTuple):
    """The owner of a ledger."""

    topic: str
    incarnation: str
    """The stamp of the deletion before the topic was made; empty: there was none (R8)."""


@dataclass(frozen=True, slots=True)
class Label:
    """See the module's text: what a ledger's label says."""

    kind: Kind
    belonging: Belonging
    own_before: Position = EARLIEST
    """For messages, like the next two: as in ``chapters.Span``."""
    origins_before: Mapping[str, Position] = field(default_factory=dict)
    is_joined: bool = True
    horizon: Position = EARLIEST
    """For a compacted view: the last entry of the log that it covers."""

    def encode(self) -> bytes:
        parts = [_HEAD.pack(FORMAT_VERSION, self.kind)]
        for text in self.belonging:
            data = text.encode()
            parts += (_LENGTH.pack(len(data)), data)
        if self.kind is Kind.MESSAGES:
            parts.append(_BEFORE.pack(*self.own_before, self.is_joined, len(self.origins_before)))
            for region, position in self.origins_before.items():
                data = region.encode()
                parts += (_ORIGIN.pack(*position, len(data)), data)
        if self.kind is Kind.COMPACTED:
            parts.append(_PLACE.pack(*self.horizon))
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> Label:
        """:raises ValueError: a newer format, or bytes that are not a valid label."""
        try:
            version, number = _HEAD.unpack_from(data)
            if version != FORMAT_VERSION:
                raise ValueError(unreadable("the ledger label", version, FORMAT_VERSION))
            kind, at, texts = Kind(number), _HEAD.size, []
            for _ in Belonging._fields:
                text, at = _text(data, at + _LENGTH.size, *_LENGTH.unpack_from(data, at))
                texts.append(text)
            belonging = Belonging(*texts)
            if kind is Kind.PROGRESS:
                return cls(kind, belonging)
            if kind is Kind.COMPACTED:
                return cls(kind, belonging, horizon=Position(*_PLACE.unpack_from(data, at)))
            ledger, entry, is_joined, count = _BEFORE.unpack_from(data, at)
            at += _BEFORE.size
            origins: dict[str, Position] = {}
            for _ in range(count):
                origin_ledger, origin_entry, length = _ORIGIN.unpack_from(data, at)
                region, at = _text(data, at + _ORIGIN.size, length)
                origins[region] = Position(origin_ledger, origin_entry)
            return cls(kind, belonging, Position(ledger, entry), origins, bool(is_joined))
        except struct.error as error:
            raise ValueError(f"{len(data)} bytes are not a ledger label: {error}") from error


def _text(data: bytes, at: int, length: int) -> tuple[str, int]:
    """:raises ValueError: the data is too short or not UTF-8."""
    if at + length > len(data):
        raise ValueError(f"the ledger label ends after {len(data)} bytes")
    return str(data[at : at + length], "utf-8"), at + length
