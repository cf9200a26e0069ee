# SPDX-License-Identifier: Apache-2.0
"""Records of states that wait because their stamp is in the future (R43)."""

from __future__ import annotations

from meridian_broker.metadata.records import decode, encode
from meridian_broker.metadata.sync.stamped import Stamped, from_store, to_store


def parked_to_store(state: Stamped) -> bytes:
    """Here, unlike at its own path, a deletion must be distinguished from a value."""
    return encode({"deleted": state.value is None, "state": to_store(state).decode()})


def from_parked(path: str, data: bytes) -> Stamped:
    """:raises MetadataError: the record is damaged."""
    shown, _ = decode(path, data)
    return from_store(path, shown["state"].encode(), is_deletion=shown["deleted"])
