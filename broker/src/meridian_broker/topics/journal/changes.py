# SPDX-License-Identifier: Apache-2.0
"""A record of a topic's progress log: one change of a subscription, as bytes.

Layout, big-endian: ``u8 version | u8 kind | u16 length of the name | u64 time ms | name | payload``.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

FORMAT_VERSION: Final = 1
_HEAD: Final = struct.Struct(">BBHQ")


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
    """A whole subscription (``subscription_snapshot.py``): created, or its flag switched. It is one record, so that a
    crash never leaves a subscription behind whose beginning is unknown.
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
    VOTES = 16
    """To which regions this one has promised shares of a subscription, and for how long
    (``topics/dispatch_scope/votes.py``).
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


def decode(record: bytes) -> Change:
    """:raises ProgressLogError: a newer format, or not a valid record."""
    try:
        version, kind, length, time_ms = _HEAD.unpack_from(record)
        if version != FORMAT_VERSION:
            raise ProgressLogError(
                f"progress record of format {version}; this broker reads {FORMAT_VERSION}: a newer broker wrote it, "
                "start that version again"
            )
        if kind not in _KINDS:
            raise ProgressLogError(
                f"progress record of kind {kind}, which this broker does not know: a newer broker wrote it, "
                "start that version again"
            )
        end = _HEAD.size + length
        return Change(Kind(kind), str(record[_HEAD.size : end], "utf-8"), time_ms, bytes(record[end:]))
    except (struct.error, UnicodeDecodeError) as error:
        raise ProgressLogError(f"{len(record)} bytes are not a progress record: {error}") from error
