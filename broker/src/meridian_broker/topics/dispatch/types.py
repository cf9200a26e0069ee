# SPDX-License-Identifier: Apache-2.0
"""Table of subscription types: their names, which consumers may join, and their dispatchers.

A new type needs a module with its dispatcher (and its selection, for non-persistent topics) and a row here. Numbers and
names are those of ``CommandSubscribe.SubType`` on the wire; policies and statistics use the same names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from meridian_broker.topics.dispatch.dispatcher import Dispatcher
from meridian_broker.topics.dispatch.key_shared import KeySharedDispatcher
from meridian_broker.topics.dispatch.selection import FailoverSelection, KeySelection, RotatingSelection, Selection
from meridian_broker.topics.dispatch.shared import SharedDispatcher
from meridian_broker.topics.dispatch.single import FailoverDispatcher, SingleDispatcher


@dataclass(frozen=True, slots=True)
class SubscriptionType:
    """One row: a type of subscription."""

    number: int
    name: str
    dispatcher: type[Dispatcher]
    """The dispatcher on persistent topics."""
    selection: type[Selection]
    """The selection on non-persistent topics."""
    admits_one: bool = False
    """Whether a second consumer is refused."""

    @property
    def tracks_holders(self) -> bool:
        """Whether several consumers receive at once, see ``Dispatcher.tracks_holders``."""
        return self.dispatcher.tracks_holders


EXCLUSIVE: Final = SubscriptionType(0, "Exclusive", SingleDispatcher, Selection, admits_one=True)
SHARED: Final = SubscriptionType(1, "Shared", SharedDispatcher, RotatingSelection)
FAILOVER: Final = SubscriptionType(2, "Failover", FailoverDispatcher, FailoverSelection)
KEY_SHARED: Final = SubscriptionType(3, "Key_Shared", KeySharedDispatcher, KeySelection)

TYPES: Final = {row.number: row for row in (EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED)}
"""By their number on the wire."""
