# SPDX-License-Identifier: Apache-2.0
"""The state of a ledger that has, or is to have, a copy in the object store.

The ledger is sealed, so its copy never changes, and every broker makes an identical one. Two things always hold: the
original or a complete, recorded copy exists, and everything in the object store is recorded until it is deleted::

    (none) -> UPLOADING -> COPIED -> LEAVING -> AWAY
       |          |           |         |         |
       +----------+-----------+----+----+---------+
                                   v
                                DOOMED -> (none)

Each step is one write of the record against its last version, made *before* the work it announces begins; the next step
follows only when that work is done. So a broker that finds a record after a crash knows what may have
happened, and repeats it:

- UPLOADING: objects of this copy may exist. A broker that finds this begins another copy, under another name; what is
  left of this one is deleted once the original is gone, because until then another broker may still be making it.
- COPIED: the copy is whole, and the original exists.
- LEAVING: the original is being deleted; the ledger is read from the copy.
- AWAY: there is only the copy.
- DOOMED: nobody needs the ledger; its copies are being deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.records import Json, mapping, take


class State(StrEnum):
    """See the module's text."""

    UPLOADING = "uploading"
    COPIED = "copied"
    LEAVING = "leaving"
    AWAY = "away"
    DOOMED = "doomed"


FOLLOWING: Final[Mapping[State, frozenset[State]]] = {
    State.UPLOADING: frozenset((State.UPLOADING, State.COPIED, State.AWAY, State.DOOMED)),
    State.COPIED: frozenset((State.UPLOADING, State.LEAVING, State.DOOMED)),
    State.LEAVING: frozenset((State.AWAY, State.DOOMED)),
    State.AWAY: frozenset((State.DOOMED,)),
    State.DOOMED: frozenset((State.DOOMED,)),
}
"""The states that may follow. UPLOADING after COPIED: objects of the copy were missing, and the original still exists.
AWAY after UPLOADING: the record is from an older backup, and the original has been deleted since."""

WHOLE: Final = frozenset((State.COPIED, State.LEAVING, State.AWAY))
"""There is a whole copy."""


@dataclass(frozen=True, slots=True)
class Offloaded:
    """The record of one ledger."""

    ledger_id: int
    state: State
    copy: str
    """The name of its copy, a new one for each attempt."""
    since_ms: int
    """When the state was entered."""
    entries: int = 0
    size: int = 0
    """Bytes of the entries."""
    label: bytes = b""
    """The ledger's label, which names its topic."""
    was_uploading: bool = False
    """If doomed: an upload may still be running somewhere, so the copies are deleted again later."""

    @property
    def is_whole(self) -> bool:
        return self.state in WHOLE

    def follow(self, state: State, now_ms: int, copy: str | None = None) -> Offloaded:
        """The record in its next state.

        :param copy: the name of another copy.
        :raises ValueError: that state may not follow.
        """
        if state not in FOLLOWING[self.state]:
            raise ValueError(f"ledger {self.ledger_id} is {self.state} and cannot be {state} next")
        was_uploading = self.was_uploading or (state is State.DOOMED and self.state is State.UPLOADING)
        named = self.copy if copy is None else copy
        return replace(self, state=state, since_ms=now_ms, copy=named, was_uploading=was_uploading)

    def to_json(self) -> Json:
        return {
            "state": self.state.value,
            "copy": self.copy,
            "sinceMs": self.since_ms,
            "entries": self.entries,
            "size": self.size,
            "label": self.label.hex(),
            **({"wasUploading": True} if self.was_uploading else {}),
        }

    @classmethod
    def from_json(cls, ledger_id: int, source: Any) -> Offloaded:
        """:raises Invalid: a field is not valid."""
        data = mapping(source, "an offloaded ledger")
        since, entries, size = (take(data, key, int, 0) for key in ("sinceMs", "entries", "size"))
        try:
            state, label = State(take(data, "state", str, "")), bytes.fromhex(take(data, "label", str, ""))
        except ValueError as error:
            raise Invalid(f"the record of offloaded ledger {ledger_id}: {error}") from None
        was_uploading = take(data, "wasUploading", bool, False)
        return cls(ledger_id, state, take(data, "copy", str, ""), since, entries, size, label, was_uploading)
