# SPDX-License-Identifier: Apache-2.0
"""What is left of deleted subscriptions: tombstones, and names that clients must not use for a while (R16)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from meridian_broker.topics.errors import LimitReached, NotAllowed
from meridian_broker.topics.journal.subscription_record import SubscriptionRecord
from meridian_broker.topics.subscriptions.incoming_records import TOMBSTONE_MS, is_too_old

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext

TOMBSTONES_MAX: Final = 100_000
"""Tombstones per topic; about 25 MB. None is dropped early, because a region that was away would then bring its
subscription back: a topic at the limit creates no more replicated subscriptions until the oldest tombstone expires.
"""


class Tombstones(dict[str, SubscriptionRecord]):
    """The tombstones of one topic, by the subscription's name."""

    def __init__(self, topic: TopicContext) -> None:
        super().__init__()
        self._topic = topic

    def check_room(self) -> None:
        """:raises LimitReached: another replicated subscription could leave one tombstone too many."""
        if len(self) < TOMBSTONES_MAX:
            return
        now_ms = self._topic.scheduler.now_ms()
        for record in list(self.values()):
            if is_too_old(record, now_ms):
                del self[record.name]
        if len(self) >= TOMBSTONES_MAX:
            days = TOMBSTONE_MS // 86_400_000
            raise LimitReached(
                f"{len(self)} replicated subscriptions of {self._topic.name} were deleted within {days} days, the "
                "limit: do not replicate short-lived subscriptions"
            )

    def snapshot(self) -> Iterator[SubscriptionRecord]:
        """Those that have not expired."""
        for record in list(self.values()):
            if self.get(record.name) is not record:
                continue  # it changed while the snapshot was written
            if is_too_old(record, self._topic.scheduler.now_ms()):
                del self[record.name]
            else:
                yield record


class ClosedNames:
    """Names of subscriptions that were deleted by force a moment ago: clients that may not know of the deletion yet
    must not create them again by themselves."""

    def __init__(self, topic: TopicContext) -> None:
        self._topic = topic
        self._until_ms: dict[str, int] = {}
        """In order of time: every name is closed for the same period."""

    def __len__(self) -> int:
        return len(self._until_ms)

    def close(self, name: str, since_ms: int | None = None) -> None:
        """:param since_ms: when it was deleted; None: now."""
        now_ms = self._topic.scheduler.now_ms()
        closed = self._until_ms
        closed.pop(name, None)
        closed[name] = (now_ms if since_ms is None else since_ms) + round(self._topic.limits.closed_seconds * 1000)
        while (oldest := next(iter(closed))) != name and closed[oldest] <= now_ms:
            del closed[oldest]

    def open(self, name: str) -> None:
        """It was created again on purpose."""
        self._until_ms.pop(name, None)

    def check(self, name: str) -> None:
        """:raises NotAllowed: the name is closed.

        "Not found" would be wrong here: some clients would then retry until they succeed.
        """
        until = self._until_ms.get(name)
        if until is None:
            return
        left = until - self._topic.scheduler.now_ms()
        if left <= 0:
            del self._until_ms[name]
            return
        raise NotAllowed(
            f"subscription {name!r} was deleted a moment ago: create it through the admin API, or subscribe again in "
            f"{left // 1000 + 1} s"
        )
