# SPDX-License-Identifier: Apache-2.0
"""The keys in etcd that are Meridian's, in one place: where they begin, and what brokers may read and write.

None of ours begins with a slash, whatever the region stores its ledgers on: every bookie watches all keys that do, and
each write to one costs it 80 us.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class KeyRange(NamedTuple):
    """Keys from ``first`` up to ``end``, which does not belong to them."""

    first: bytes
    end: bytes


def metadata_of(region: str) -> str:
    """What all keys of a region's metadata begin with, but for the slash of their paths."""
    return f"meridian/{region}"


def deleted_ledgers_of(region: str) -> str:
    """What the keys of a region's deleted ledgers on bookies begin with."""
    return f"meridian-ledgers/{region}/deleted/"


OURS: Final = (KeyRange(b"meridian/", b"meridian0"), KeyRange(b"meridian-ledgers/", b"meridian-ledgers0"))
BOOKKEEPERS: Final = KeyRange(b"/ledgers", b"/ledgers0")
"""Metadata of ledgers and registrations of bookies: for brokers on BookKeeper, which share them with bookies."""
