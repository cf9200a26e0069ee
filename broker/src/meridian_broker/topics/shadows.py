# SPDX-License-Identifier: Apache-2.0
"""The shadows of one topic (PIP-180): what they still need of its ledgers, and what they learn from it.

A shadow is open as long as its source is: it reads through the source's log (``ledgers/view.py``), so when the source
is fenced, for whatever reason, its shadows are, and opening one opens its source first. A shadow that is on record and
not open, or not replayed yet, may need everything: nothing of the source is trimmed until it is known what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from meridian_broker.positions.position import EARLIEST, Position


class Shadow(Protocol):
    """An open shadow."""

    @property
    def name(self) -> str: ...

    def needed_from(self) -> Position:
        """Its subscriptions need nothing at or before this."""
        ...

    def take_acknowledgements(self) -> None:
        """Write those of this turn."""
        ...

    def fence(self, reason: str, *, for_good: bool = False) -> None:
        """Stop serving it."""
        ...


S = TypeVar("S", bound=Shadow)
OnRecord = Callable[[], Mapping[str, bool]]
"""Returns the names of a topic's shadows, and of each whether it holds its source's ledgers."""


class Shadows(Generic[S]):
    """See the module's text. Each topic has one."""

    def __init__(self, name: str, on_record: OnRecord) -> None:
        """:param name: of the topic."""
        self._name = name
        self._on_record = on_record
        self.open: dict[str, S] = {}
        """By name."""

    def attach(self, shadow: S) -> None:
        """It is replayed: what it needs is known from now on."""
        self.open[shadow.name] = shadow

    def detach(self, shadow: S) -> None:
        """It is not open any more."""
        if self.open.get(shadow.name) is shadow:
            del self.open[shadow.name]

    def needed_from(self) -> Position | None:
        """The shadows need nothing at or before this; None: they hold nothing."""
        needed: list[Position] = []
        for name, holds in self._on_record().items():
            shadow = self.open.get(name)
            if shadow is None:
                return EARLIEST
            if holds:
                needed.append(shadow.needed_from())
        return min(needed, default=None)

    def fence(self, reason: str) -> None:
        """Their source is fenced."""
        for shadow in list(self.open.values()):
            shadow.take_acknowledgements()
            shadow.fence(f"its source {self._name} is not served now ({reason})")
        self.open.clear()
