# SPDX-License-Identifier: Apache-2.0
"""Snapshot of a subscription as one record of the progress log."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from meridian_broker.topics.journal.changes import ProgressLogError

_LENGTHS: Final = struct.Struct(">II")


class Whole(NamedTuple):
    """Payload of ``Kind.WHOLE``. Layout: ``u32 length of the record | u32 length of the progress | record | progress
    | first-hand progress``; the last one may be empty.
    """

    record: bytes
    progress: bytes
    first_hand: bytes

    def encode(self) -> bytes:
        return _LENGTHS.pack(len(self.record), len(self.progress)) + self.record + self.progress + self.first_hand

    @classmethod
    def decode(cls, payload: bytes) -> Whole:
        """:raises ProgressLogError: not a valid payload."""
        if len(payload) < _LENGTHS.size:
            raise ProgressLogError(f"{len(payload)} bytes are not a complete subscription")
        record, progress = _LENGTHS.unpack_from(payload)
        middle = _LENGTHS.size + record
        if middle + progress > len(payload):
            raise ProgressLogError(f"a subscription snapshot is truncated after {len(payload)} bytes")
        return cls(payload[_LENGTHS.size : middle], payload[middle : middle + progress], payload[middle + progress :])
