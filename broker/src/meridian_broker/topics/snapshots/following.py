# SPDX-License-Identifier: Apache-2.0
"""The subscriptions of one topic whose progress other regions learn by snapshots: which ones, and how far each is.

A subscription is followed once every region that is needed is reached, and has said what it knows of it. What its
cursor acknowledged is reported to the controller once it is on disk, and older snapshots are found in the log again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.snapshots import kept
from meridian_broker.topics.snapshots.marks import Mark

if TYPE_CHECKING:
    from meridian_broker.replication.snapshots.controller import SnapshotController
    from meridian_broker.topics.topic import Topic
    from meridian_broker.wire.pulsar.markers import Snapshot

log = logging.getLogger(__name__)


class Following:
    """See the module's text."""

    def __init__(
        self, topic: Topic, controller: Callable[[], SnapshotController | None], wake: Callable[[], None]
    ) -> None:
        """
        :param controller: the topic's, while it has one.
        :param wake: called when there is something to look at.
        """
        self._topic = topic
        self._controller = controller
        self._wake = wake
        self._marks: dict[str, Mark] = {}
        """The subscriptions that are followed."""
        self.was_reached = False
        """Messages reached all regions that are needed, at the last look."""
        self._unfound: set[str] = set()
        """Subscriptions whose older snapshots are to be found in the log again."""
        self._is_finding = False
        self._moved: set[str] = set()
        self._consumer_left = False

    @property
    def has_moved(self) -> bool:
        """Whether there is something to tell."""
        return bool(self._moved)

    def moved(self, subscription: str, *, consumer_left: bool = False) -> None:
        """Its cursor moved, or a consumer of it left."""
        self._moved.add(subscription)
        self._consumer_left |= consumer_left

    def forget(self) -> None:
        """Follow none, until they are wanted again."""
        self._marks.clear()
        self._moved.clear()

    def begin(self) -> None:
        """The controller was replaced: the new one follows none."""
        self._marks.clear()

    def follow(self, controller: SnapshotController, wanted: Mapping[str, Position], *, is_reached: bool) -> None:
        """Follow exactly these.

        :param is_reached: messages reach all regions that are needed.
        """
        for name in self._marks.keys() - wanted.keys():
            del self._marks[name]
            controller.unfollow(name)
        if is_reached and not self.was_reached:
            # A region that was away may know of an earlier creation: another place to begin at (R15).
            for name in list(self._marks):
                del self._marks[name]
                controller.pause(name)
        self.was_reached = is_reached
        if is_reached:
            for name in wanted.keys() - self._marks.keys():
                mark = self._marks[name] = Mark()
                self._introduce(controller, name, mark)

    def _introduce(self, controller: SnapshotController, name: str, mark: Mark) -> None:
        """Follow a subscription once the other regions have said what they know of it."""

        def passed() -> None:
            if self._controller() is controller and self._marks.get(name) is mark:
                controller.follow(name, EARLIEST)
                self._moved.add(name)
                self._unfound.add(name)
                if not self._is_finding:
                    self._is_finding = True
                    self._topic.scheduler.spawn(self._find(), "find the snapshots of a topic again")
                self._wake()

        if self._topic.exchange is None:
            passed()
        else:
            self._topic.exchange.barrier(self._topic.name, name, passed)

    async def _find(self) -> None:
        def found(snapshot: Snapshot) -> None:
            controller = self._controller()
            if controller is not None:
                controller.found(snapshot)

        topic = self._topic
        try:
            while self._unfound and topic.failure is None:
                names, self._unfound = self._unfound, set()
                there = [one for name in names if (one := topic.subscriptions.get(name)) is not None]
                behind = min((one.cursor.mark_delete for one in there), default=topic.log.last_confirmed)
                await kept.find(topic, behind, found)
        except LedgerError as error:
            log.warning("%s: older snapshots are not used, newer ones will be: %s", topic.name, error)
        finally:
            self._is_finding = False

    def tell(self, controller: SnapshotController) -> None:
        """What is acknowledged counts once it is on disk. What is left for another turn of the loop has still moved."""
        moved, self._moved = self._moved, set()
        marks: dict[str, Position] = {}
        for name in moved:
            mark, subscription = self._marks.get(name), self._topic.subscriptions.get(name)
            if mark is not None and subscription is not None:
                marks[name], is_all = mark.of(subscription.cursor)
                if not is_all:
                    self._moved.add(name)
        has_left, self._consumer_left = self._consumer_left, False

        def durable(error: LedgerError | None) -> None:
            if error is not None or self._controller() is not controller:
                return
            for name, position in marks.items():
                controller.moved(name, position)
            if has_left:
                controller.consumer_left()
            self._wake()

        self._topic.progress_log.when_durable(durable)
