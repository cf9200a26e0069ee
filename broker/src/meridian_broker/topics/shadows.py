# SPDX-License-Identifier: Apache-2.0
"""The shadows of one topic (PIP-180): what they still need of its ledgers, and what they learn from it.

A shadow reads through the source's log (``ledgers/view.py``), and opening one opens its source first. When the source
is fenced and will be opened again here, its shadows wait for it (``lifecycle/shadow_source.py``); otherwise they are
fenced with it. A shadow that is on record and not open, not replayed yet, or still waiting, may need everything:
nothing of the source is trimmed until its needs are known.

Where another broker of the region serves the source, a shadow reads a log that follows the source's
(``ledgers/followed.py``). The source's broker then asks before it deletes anything, and the shadows answer what they
need, through the metadata (``Elsewhere``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
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
        """Write the acknowledgements of this turn."""
        ...

    def fence(self, reason: str, *, for_good: bool = False) -> None:
        """Stop serving it."""
        ...


class Elsewhere(Protocol):
    """The shadows of a topic that other brokers of the region serve."""

    async def hear(self) -> None:
        """Learn of every shadow that another broker has opened by now, even if its record was not reported yet.

        :raises MetadataError: the records cannot be read now.
        """
        ...

    async def ask(self, upto: Position, truncated: Position, names: Collection[str], /) -> Mapping[str, Position]:
        """Ask them to need nothing at or before ``upto``, or at least nothing at or before ``truncated``.

        :param names: names of the shadows.
        :returns: for each that answered in time, the position at or before which it needs nothing.
        :raises MetadataError: they cannot be asked now.
        """
        ...


S = TypeVar("S", bound=Shadow)
OnRecord = Callable[[], Mapping[str, bool]]
"""Returns the names of a topic's shadows, each with whether it holds its source's ledgers."""


class Shadows(Generic[S]):
    """See the module's text. Each topic has one."""

    def __init__(self, name: str, on_record: OnRecord, elsewhere: Elsewhere | None = None) -> None:
        """
        :param name: of the topic.
        :param elsewhere: None: this broker serves all of them.
        """
        self._name = name
        self._on_record = on_record
        self._elsewhere = elsewhere
        self._told: Mapping[str, Position] = {}
        self.open: dict[str, S] = {}
        """By name."""
        self._left: dict[str, Callable[[str], None]] = {}

    def attach(self, shadow: S, left: Callable[[str], None]) -> None:
        """The shadow was replayed: its needs are known from now on.

        :param left: called with the reason once the source is closed and expected back.
        """
        self.open[shadow.name] = shadow
        self._left[shadow.name] = left

    def detach(self, shadow: S) -> None:
        """The shadow is not open any more."""
        if self.open.get(shadow.name) is shadow:
            del self.open[shadow.name]
            del self._left[shadow.name]

    def needed_from(self, *, elsewhere: bool = True) -> Position | None:
        """The shadows need nothing at or before this; None: they hold nothing.

        :param elsewhere: include those that other brokers may serve, by their last answers.
        """
        needed: list[Position] = []
        for name, holds in self._on_record().items():
            shadow = self.open.get(name)
            if shadow is not None:
                if holds:
                    needed.append(shadow.needed_from())
            elif elsewhere or self._elsewhere is None:
                needed.append(self._told.get(name, EARLIEST))
        return min(needed, default=None)

    async def ask(self, upto: Position, *, truncated: Position = EARLIEST) -> bool:
        """Ask shadows that other brokers may serve, before anything is deleted. See ``Elsewhere.ask``.

        :returns: whether all of them have said that they do not need it.
        :raises MetadataError: it is not known what they need.
        """
        if self._elsewhere is None:
            return True
        await self._elsewhere.hear()
        others = self._on_record().keys() - self.open.keys()
        if not others:
            return True
        self._told = await self._elsewhere.ask(upto, truncated, others)
        return all(self._told.get(name, EARLIEST) >= upto for name in others)

    def fence(self, reason: str) -> None:
        """Their source is fenced, and not expected back."""
        for shadow in list(self.open.values()):
            shadow.take_acknowledgements()
            shadow.fence(f"its source {self._name} is not served now ({reason})")
        self.open.clear()
        self._left.clear()

    def leave(self, reason: str) -> None:
        """Their source is fenced, and will be opened again at this broker: they wait for it."""
        waiting, self._left = self._left, {}
        self.open.clear()
        for left in waiting.values():
            left(reason)
