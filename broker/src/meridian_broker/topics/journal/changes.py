# SPDX-License-Identifier: Apache-2.0
"""A record of a topic's progress log: one change of a subscription, as bytes.

Layout, big-endian: ``u8 version | u8 kind | u16 length of the name | u64 time ms | name | payload``.

A record of kind ``ACKED_BY_MANY`` has no name. Its payload is ``u16 length of the delta | delta``, followed by
``u16 length | name`` for each subscription that made the same acknowledgements.

A record of kind ``SEVERAL`` has no name either. Its payload is ``u32 length | record`` for each record that it holds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from meridian_broker.positions.formats import unreadable

FORMAT_VERSION: Final = 1
MANY: Final = 128
"""Subscriptions that one record names at most: a replay takes a few hundred changes at a time."""
SEVERAL_MIN: Final = 8
"""With fewer, records stay apart: the disk then damages them one by one, and the head of each still names what is
lost."""
_HEAD: Final = struct.Struct(">BBHQ")
_LENGTH: Final = struct.Struct(">H")
_SIZE: Final = struct.Struct(">I")


class Kind(IntEnum):
    """The kind of a record."""

    SUBSCRIPTION = 1
    """The subscription's own record (JSON): created, or its flags or properties changed."""
    ACKED = 2
    """A delta of progress from this region's own clients: first-hand."""
    MERGED = 3
    """A delta of progress from another region."""
    PROGRESS = 4
    """Whole progress, at the start of a ledger."""
    FIRST_HAND = 5
    """Whole first-hand progress, at the start of a ledger."""
    DROPPED = 6
    """Ranges dropped without an acknowledgement (R14)."""
    REMOVED = 7
    """The subscription was deleted."""
    SEQUENCES = 8
    """Last sequence ids of producers; belongs to no subscription (``topics/publishing/sequence_ids.py``)."""
    WHOLE = 9
    """A whole subscription (``subscription_snapshot.py``): created, or its flag switched. It is one record, so that no
    crash leaves a subscription whose beginning is unknown.
    """
    GAP = 10
    """Entries of an origin (its name is in the subscription's field) that were given up
    (``topics/backfill/gaps.py``).
    """
    FLOORS = 11
    """Floors reported by all regions (R11): progress, and no acknowledgement of any client."""
    LOST = 12
    """Records of a ledger (its id is in the subscription's field) that the disk damaged
    (``topics/subscriptions/damaged_records.py``).
    """
    ACKED_BY_MANY = 13
    """``ACKED``, of several subscriptions at once. ``expand`` returns it as one change for each of them."""
    PULSAR = 14
    """How far messages went to and came from a region of Apache Pulsar, whose name is in the subscription's field
    (``topics/publishing/pulsar_places.py``).
    """
    VOTES = 16
    """To which regions this one has promised streams of a subscription, and for how long
    (``topics/dispatch_scope/votes.py``).
    """

    SEVERAL = 17
    """Small records of a snapshot. ``expand`` returns the change of each. On bookies, each entry costs as much as a
    few hundred bytes of it.
    """


_KINDS: Final = frozenset(Kind)


class Change(NamedTuple):
    """One record."""

    kind: Kind
    subscription: str
    time_ms: int
    payload: bytes


class ProgressLogError(ValueError):
    """A record of the progress log cannot be read."""


def encode(kind: Kind, subscription: str, time_ms: int, payload: bytes) -> bytes:
    """One record as bytes."""
    name = subscription.encode()
    return _HEAD.pack(FORMAT_VERSION, kind, len(name), time_ms) + name + payload


def encode_many(subscriptions: Sequence[str], time_ms: int, delta: bytes) -> bytes:
    """One record of the same acknowledgements by several subscriptions, ``MANY`` at most."""
    out = bytearray(_HEAD.pack(FORMAT_VERSION, Kind.ACKED_BY_MANY, 0, time_ms))
    out += _LENGTH.pack(len(delta)) + delta
    for subscription in subscriptions:
        name = subscription.encode()
        out += _LENGTH.pack(len(name)) + name
    return bytes(out)


def join(records: list[bytes], time_ms: int) -> list[bytes]:
    """The same records as one, unless they are few."""
    if len(records) < SEVERAL_MIN:
        return records
    parts = [_HEAD.pack(FORMAT_VERSION, Kind.SEVERAL, 0, time_ms)]
    for record in records:
        parts += _SIZE.pack(len(record)), record
    return [b"".join(parts)]


def expand(record: bytes) -> list[Change]:
    """The changes that a record stands for; those that acknowledge the same share one payload.

    :raises ProgressLogError: a newer format, or not a valid record.
    """
    change = decode(record)
    if change.kind == Kind.SEVERAL:
        return [one for held in _held(change.payload) for one in expand(held)]
    if change.kind != Kind.ACKED_BY_MANY:
        return [change]
    try:
        return [Change(Kind.ACKED, *one) for one in _many(change)]
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise ProgressLogError(
            f"{len(record)} bytes are not acknowledgements of many subscriptions: {error}"
        ) from error


def _held(payload: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(payload):
        begin = at + _SIZE.size
        size = int.from_bytes(payload[at:begin], "big")
        at = begin + size
        held = payload[begin:at]
        if len(held) < max(size, _HEAD.size) or held[1] == Kind.SEVERAL:
            raise ProgressLogError(f"{len(payload)} bytes are not several progress records: one of them is not whole")
        yield held


def _many(change: Change) -> Iterator[tuple[str, int, bytes]]:
    parts, at = list[bytes](), 0
    while at < len(change.payload):
        (length,) = _LENGTH.unpack_from(change.payload, at)
        at += _LENGTH.size + length
        if at > len(change.payload):
            raise ValueError("the end is missing")
        parts.append(change.payload[at - length : at])
    if not 1 < len(parts) <= MANY + 1:
        raise ValueError(f"they name {len(parts) - 1} subscriptions")
    for name in parts[1:]:
        yield str(name, "utf-8"), change.time_ms, parts[0]


def decode(record: bytes) -> Change:
    """The record as it was written.

    :raises ProgressLogError: a newer format, or not a valid record.
    """
    try:
        version, kind, length, time_ms = _HEAD.unpack_from(record)
        if version != FORMAT_VERSION:
            raise ProgressLogError(unreadable("the progress record", version, FORMAT_VERSION))
        if not kind:
            raise ProgressLogError("the progress record is damaged: no kind has number 0")
        if kind not in _KINDS:
            raise ProgressLogError(
                f"the progress record was written by a newer version of Meridian (this one does not know kind {kind}); "
                "upgrade this broker"
            )
        end = _HEAD.size + length
        return Change(Kind(kind), str(record[_HEAD.size : end], "utf-8"), time_ms, bytes(record[end:]))
    except (struct.error, UnicodeDecodeError) as error:
        raise ProgressLogError(f"{len(record)} bytes are not a progress record: {error}") from error
