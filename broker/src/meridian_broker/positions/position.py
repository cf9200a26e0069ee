# SPDX-License-Identifier: Apache-2.0
"""Where an entry stands: in one region (``Position``), and where it was first stored (``Origin``, rule R2)."""

from __future__ import annotations

from typing import NamedTuple


class Position(NamedTuple):
    """``(ledger, entry)`` in one region. Positions of one topic are totally ordered, later is greater."""

    ledger: int
    entry: int

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"


class Origin(NamedTuple):
    """Where an entry was first stored. Every entry has exactly one origin, in whichever region it is read (R2)."""

    region: str
    ledger: int
    entry: int

    @property
    def position(self) -> Position:
        return Position(self.ledger, self.entry)

    def __str__(self) -> str:
        return f"{self.region}/{self.ledger}:{self.entry}"


EARLIEST = Position(-1, -1)
"""Before everything. Also the ``prev`` of an origin's first entry."""

LATEST = Position((1 << 63) - 1, (1 << 63) - 1)
"""After everything."""


def parse_position(text: str) -> Position:
    """``"12:7"`` -> ``Position(12, 7)``.

    :raises ValueError: anything else; the message shows the text.
    """
    ledger, separator, entry = text.partition(":")
    try:
        if not separator:
            raise ValueError
        return Position(int(ledger), int(entry))
    except ValueError:
        raise ValueError(f"{text!r} is not a position: expected LEDGER:ENTRY, such as 12:7") from None
