# SPDX-License-Identifier: Apache-2.0
"""Meridian's keys in etcd: their prefixes, and which keys brokers may read and write.

None of them begins with a slash, whether or not the region uses BookKeeper: every bookie watches all keys that do, and
each write to one costs it 80 us.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class KeyRange(NamedTuple):
    """Keys from ``first`` up to but excluding ``end``."""

    first: bytes
    end: bytes


def metadata_of(region: str) -> str:
    """The prefix of a region's metadata keys, without the slash that begins their paths."""
    return f"meridian/{region}"


def deleted_ledgers_of(region: str) -> str:
    """The prefix of the keys that record a region's deleted BookKeeper ledgers."""
    return f"meridian-ledgers/{region}/deleted/"


OURS: Final = (KeyRange(b"meridian/", b"meridian0"), KeyRange(b"meridian-ledgers/", b"meridian-ledgers0"))
BOOKKEEPERS: Final = KeyRange(b"/ledgers", b"/ledgers0")
"""Ledger metadata and bookie registrations, which brokers on BookKeeper share with the bookies."""
SEEN_BY_BOOKIES: Final = KeyRange(b"/", b"0")
"""For bookies. Their driver watches every key that begins with a slash; etcd refuses that unless all are granted."""
