# SPDX-License-Identifier: Apache-2.0
"""Whether this region has everything that was acknowledged in a peer when our link to it came up: may consumers return?

Comparisons repair everything missed while a link, or this broker, was down, but there is no signal that they are
complete: under traffic the two regions' numbers are rarely equal at the moment at which they are compared. So the
topics that a comparison on this link found to differ are listed, and removed once they are found equal, or once
everything requested because of them was merged. The first round of a link compares every topic, even with changes in
flight. When the second one begins the list is complete; once it is empty this region has *caught up*, and deltas keep
it so.
"""

from __future__ import annotations

from collections.abc import Collection


class CatchingUp:
    """Tracks catching up with one peer, from the moment our link to it is up."""

    def __init__(self, *, most: int) -> None:
        """:param most: topics recorded; beyond that, only two equal digests show that catching up is over."""
        self._most = most
        self._since_ms: int | None = None
        self._first_ms: int | None = None
        self._last_ms = 0
        self._interval_ms = 0
        self._owed: set[str] = set()
        self._listed: set[str] = set()
        self._is_over = False
        self._is_overfull = False

    def begin(self, now_ms: int, interval_ms: int) -> None:
        """The link is up. :param interval_ms: between two rounds of comparison."""
        self._since_ms, self._interval_ms = now_ms, interval_ms
        self._first_ms = None
        self._owed.clear()
        self._listed.clear()
        self._is_over = self._is_overfull = False

    def round(self, now_ms: int) -> None:
        """The peer reported its state, or began to."""
        self._first_ms = now_ms if self._first_ms is None else self._first_ms
        self._last_ms = now_ms

    def equal(self) -> None:
        """Everything is equal."""
        self._owed.clear()
        self._listed.clear()
        self._is_over, self._is_overfull = True, False

    def again(self) -> None:
        """A topic that could not be compared before now can be (R8): the next two rounds count."""
        self._is_over, self._first_ms = False, None

    def differs(self, topic: str) -> None:
        """A topic differs. Once caught up, that is only motion."""
        if self._is_over:
            return
        if len(self._owed) < self._most:
            self._owed.add(topic)
        else:
            self._is_overfull = True

    def same(self, topics: Collection[str]) -> None:
        if self._owed:
            self._owed.difference_update(topics)

    def listed(self, topic: str) -> None:
        """The peer listed its progress of the topic; the missing parts are requested."""
        if topic in self._owed:
            self._listed.add(topic)

    def drained(self) -> None:
        """Nothing that was asked for is missing."""
        self._owed -= self._listed
        self._listed.clear()

    def is_over(self, now_ms: int) -> bool:
        """Whether it has caught up. A peer that sends nothing for two rounds shares nothing."""
        if self._since_ms is None:
            return False
        if not self._is_over and not self._is_overfull and not self._owed:
            if self._first_ms is None:
                self._is_over = now_ms - self._since_ms >= 2 * self._interval_ms
            else:
                self._is_over = self._last_ms - self._first_ms >= self._interval_ms // 2
        return self._is_over and not self._owed
