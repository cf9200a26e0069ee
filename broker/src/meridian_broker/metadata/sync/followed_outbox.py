# SPDX-License-Identifier: Apache-2.0
"""The outbox as a watch reports it, and which of its entries were sent.

What was sent is not removed at once: that would cost a transaction for each message. Until it is removed, together with
what else was sent, a write may take its place (``entry``), which then need not be removed either. So only what is
*idle* is removed: a path that is written again and again keeps its entry, and writers do not disturb the removal.
"""

from __future__ import annotations

from collections.abc import Iterable

from meridian_broker.metadata.store import Change, Record
from meridian_broker.metadata.sync import outbox
from meridian_broker.metadata.sync.publishing import Owed


class FollowedOutbox:
    """See the module's text."""

    def __init__(self) -> None:
        self.unsent: dict[str, Record] = {}
        """Entries to send."""
        self.sent: dict[str, Owed] = {}
        """Entries that were sent and are still stored: no write was added to them."""
        self._looked_at: dict[str, Owed] = {}
        """What ``sent`` was when ``idle`` looked last."""

    def read(self, found: Iterable[tuple[str, Record]]) -> None:
        """Take these for all entries."""
        earlier = self.sent
        self.unsent, self.sent = dict(found), {}
        self.were_sent(earlier.values())

    def hear(self, changes: Iterable[Change]) -> None:
        """Entries have changed."""
        for change in changes:
            self.unsent.pop(change.path, None)
            self.sent.pop(change.path, None)
            if change.record is not None:
                self.unsent[change.path] = change.record

    def were_sent(self, some: Iterable[Owed]) -> None:
        """Their events are in the topic. One to which a write was added meanwhile is to be sent again."""
        for one in some:
            if self.unsent.get(one.path) == one.record:
                del self.unsent[one.path]
                self.sent[one.path] = one

    def were_removed(self, some: Iterable[Owed]) -> None:
        """Entries were removed: known before the watch reports it."""
        for one in some:
            if self.sent.get(one.path) == one:
                del self.sent[one.path]

    def idle(self) -> list[Owed]:
        """Entries to remove: sent before the last call of this, and not written since."""
        found = [one for path, one in self.sent.items() if self._looked_at.get(path) is one]
        self._looked_at = dict(self.sent)
        return found

    def entry(self, path: str) -> Record | None:
        """What is probably at a path; with ``outbox.SENT`` if all of it was sent. None: nothing is there."""
        one = self.sent.get(path)
        return self.unsent.get(path) if one is None else Record(outbox.SENT, one.record.version)
