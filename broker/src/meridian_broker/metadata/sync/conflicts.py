# SPDX-License-Identifier: Apache-2.0
"""Conflicts: states that were replaced by a writer that did not know them. The last one of each path is kept for people
(R45)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from meridian_broker.metadata.records import decode, encode
from meridian_broker.metadata.store import MetadataError
from meridian_broker.metadata.sync.stamped import Stamped
from meridian_broker.positions.clock import Stamp

SHOWN_BYTES: Final = 4096
"""Longest value that is shown. Two of them and the states themselves have to fit into one transaction."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A state as people see it."""

    stamp: Stamp
    value: Any
    """None: a deletion, or a value that is too long to be shown."""
    is_deletion: bool


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two regions wrote a path without knowing of each other."""

    lost: Shown
    won: Shown
    caller: str = ""
    """The role that asked for the lost write; empty: this region does not know."""


def to_store(lost: Stamped, won: Stamped, caller: str = "") -> bytes:
    """:param caller: as in ``Conflict``."""
    return encode({"lost": _shown(lost), "won": _shown(won)} | ({"caller": caller} if caller else {}))


def from_store(path: str, data: bytes) -> Conflict:
    """:raises MetadataError: the record is damaged."""
    value, _ = decode(path, data)
    try:
        lost, won = (Shown(_stamp(one["stamp"]), one["value"], one["deleted"]) for one in _both(value))
        return Conflict(lost, won, str(value.get("caller", "")))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MetadataError(f"{path} holds {data[:60]!r}, which no version of Meridian wrote: restore it") from error


def _stamp(text: str) -> Stamp:
    """The stamp of a deletion that all have forgotten (``digests``) names no region."""
    return Stamp.parse(f"{text}-")._replace(region="") if text.endswith("@") else Stamp.parse(text)


def _both(value: Any) -> tuple[Any, Any]:
    return value["lost"], value["won"]


def _shown(state: Stamped) -> dict[str, Any]:
    is_shown = state.value is not None and len(state.value) <= SHOWN_BYTES
    value = json.loads(state.value) if is_shown and state.value is not None else None
    return {"stamp": str(state.stamp), "value": value, "deleted": state.value is None}
