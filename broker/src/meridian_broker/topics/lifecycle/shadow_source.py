# SPDX-License-Identifier: Apache-2.0
"""What ties an open shadow to its source, also while the source is away.

A source that is unloaded, or fails, is opened again at this broker. Meanwhile its shadows stay open: their consumers
keep what they have, and read what was confirmed. Once the source is back, they go on with its new log, if that has all
that they were told of. If it has not, or the source does not come back in time, they are fenced, and opened again from
what is true then.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.view import LogView
from meridian_broker.topics.compaction.borrowed import BorrowedCompaction
from meridian_broker.topics.lifecycle import termination

if TYPE_CHECKING:
    from meridian_broker.topics.topic import Followed, Topic

AWAY_SECONDS: Final = 10.0
"""How long a source may be away. One that is moved is back in well under a second; one that fails repeatedly stays
closed for longer and longer (``reopening.py``)."""


class ShadowSource:
    """See the module's text. Each open shadow whose source was there when it was opened has one."""

    def __init__(self, shadow: Topic, source: Topic | Followed) -> None:
        self._shadow = shadow
        self._source = source
        self._is_away = False
        self._absences = 0
        source.shadows.attach(shadow, self._left)
        shadow.when_fenced(lambda _: self._source.shadows.detach(shadow))

    def _left(self, reason: str) -> None:
        """The source was closed, and is expected back."""
        self._is_away = True
        self._absences += 1
        self._shadow.scheduler.later(AWAY_SECONDS, partial(self._give_up, self._absences, reason))

    def _give_up(self, absence: int, reason: str) -> None:
        if self._is_away and absence == self._absences:
            self._shadow.fence(f"its source {self._source.name} is not served now ({reason})")

    def returned(self, source: Topic) -> bool:
        """The source was opened again: go on with it.

        :returns: False: it was not expected, or it is not what it was. Nothing was changed.
        """
        shadow, view, compaction = self._shadow, self._shadow.log, self._shadow.compaction
        assert isinstance(view, LogView) and isinstance(compaction, BorrowedCompaction), "only a shadow has a source"
        goes_on = shadow.terminated is not None and source.terminated is None
        if not self._is_away or goes_on or not view.go_on(source.log):
            return False
        self._source, self._is_away = source, False
        compaction.go_on(source.compaction)
        source.shadows.attach(shadow, self._left)
        if source.terminated is not None and shadow.terminated is None:
            termination.ended(shadow, source.terminated, source.ends)
        return True
