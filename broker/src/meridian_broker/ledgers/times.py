# SPDX-License-Identifier: Apache-2.0
"""When the entries of a topic were published, for the few who have to know (R12).

The index does not say: it would cost every topic eight bytes an entry. Who judges entries by their time, as a
subscription does that was sought by time, has them read from the entries' headers, a few ledgers at a time.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.entry import publish_time_ms
from meridian_broker.positions.position import Position

if TYPE_CHECKING:
    from meridian_broker.ledgers.log import TopicLog

LEDGERS_MAX: Final = 4
"""Kept in memory; of more ledgers those read longest ago go."""
PAGE: Final = 1000
PAGE_BYTES: Final = 1 << 20
"""Read at a time."""


class PublishTimes:
    """Publish times by position, in milliseconds since 1970."""

    __slots__ = ("_ledgers", "_log")

    def __init__(self, log: TopicLog) -> None:
        self._log = log
        self._ledgers: dict[int, array[int]] = {}

    def of(self, position: Position) -> int:
        """0: not in memory, ``load`` its ledger. Never 0 when it is."""
        times = self._ledgers.get(position.ledger)
        return 0 if times is None or position.entry >= len(times) else times[position.entry]

    async def load(self, ledger: int) -> None:
        """Have the times of what is stored of a ledger by now. :raises LedgerError: it cannot be read."""
        times = array("q", self._ledgers.get(ledger, ()))
        while found := await self._log.read_after(Position(ledger, len(times) - 1), PAGE, PAGE_BYTES):
            if found[0][0] != (ledger, len(times)):
                break
            times.extend(publish_time_ms(entry) for _, entry in found)
        self._ledgers.pop(ledger, None)
        self._ledgers[ledger] = times
        while len(self._ledgers) > LEDGERS_MAX:
            del self._ledgers[next(iter(self._ledgers))]
