# SPDX-License-Identifier: Apache-2.0
"""One topic as its snapshots need it (``SnapshotHost``), and what the topic's parts tell them.

A topic of several regions has one of these. It costs nothing until it *takes* snapshots, because one of its replicated
subscriptions is to move in another region by them, or another region asks for one. Then it is *awake* while there is
something to do, and the broker's rounds look at it (``service/snapshot_rounds.py``).

Own markers are stored in the log, and the replicators carry them in their places. Markers of other regions are not
stored: what counts is that everything which their region published before is, and that ends with the last entry here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.policy_values import SNAPSHOT
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.replication.snapshots.controller import SnapshotController
from meridian_broker.replication.snapshots.ports import SnapshotRules, needed
from meridian_broker.topics.context import WindingDown
from meridian_broker.topics.entry_metadata import marker_entry
from meridian_broker.topics.errors import NotAllowed
from meridian_broker.topics.journal.subscription_record import LOCAL
from meridian_broker.topics.snapshots.announced import Announced
from meridian_broker.topics.snapshots.following import Following
from meridian_broker.topics.snapshots.requests import Requests
from meridian_broker.topics.snapshots.updates import Updates
from meridian_broker.wire.pulsar import markers, metadata
from meridian_broker.wire.pulsar.markers import (
    Marker,
    Snapshot,
    SnapshotRequest,
    SnapshotResponse,
    SubscriptionUpdate,
)

if TYPE_CHECKING:
    from meridian_broker.topics.topic import Topic

log = logging.getLogger(__name__)

REACHED_MS: Final = 1000
"""How often a topic is looked at while not all its regions are reached."""
LOG_EVERY_MS: Final = 60_000
"""Refused markers of one topic are logged this often at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings:
    """The rules for all topics of a broker."""

    enabled: bool = True
    rules: SnapshotRules = field(default_factory=SnapshotRules)


class TopicSnapshots:
    """See the module's text: ``topics.ports.Snapshots`` and ``SnapshotHost``."""

    def __init__(
        self,
        topic: Topic,
        settings: Callable[[], SnapshotSettings],
        is_sending: Callable[[str, str], bool],
        pulsar_regions: Callable[[], frozenset[str]],
        wake: Callable[[TopicSnapshots], None],
    ) -> None:
        """
        :param is_sending: whether entries of a topic reach a region now.
        :param pulsar_regions: those of the topic that run Apache Pulsar: subscriptions move there by snapshots alone.
        :param wake: called when there is something to look at.
        """
        self.topic = topic
        self._settings = settings
        self._is_sending = is_sending
        self._pulsar_regions = pulsar_regions
        self._wake = wake
        self.controller: SnapshotController | None = None
        self.last: Snapshot | None = None
        """The last snapshot taken here since the topic was opened."""
        self.last_ms = 0
        """When it was, in milliseconds since 1970; 0: there was none."""
        self.refused = 0
        """Markers of other regions that had no effect."""
        self.refusal = ""
        """Why the last of them had none."""
        self.last_marker = EARLIEST
        self._logged_ms = -LOG_EVERY_MS
        self._updates = Updates(topic, pulsar_regions, self.refuse)
        self._requests = Requests(topic, self.others, pulsar_regions)
        self._following = Following(topic, lambda: self.controller, lambda: wake(self))
        self._announced = Announced(topic)
        self._given_up: frozenset[str] = frozenset()
        self._mode = topic.rules.subscription_sync
        self._regions: frozenset[str] = frozenset()
        self._news: object = None
        self._at = EARLIEST
        self._before = 0
        """Entries before ``_at``, by this instance's count."""
        self._moves_others = False
        """Replicated subscriptions move in another region by snapshots of this one, unless these are switched off."""
        self.stop = topic.log.watch(self._stored)
        """Take no more notice of what is stored: the topic has no other regions any more."""

    # -- what the topic's parts tell (``topics.ports.Snapshots``) ----------------------------------------------------

    def replace_exchange_of(self, subscription: str) -> bool:
        return self._mode == SNAPSHOT and self._is_local(subscription)

    def _is_local(self, subscription: str) -> bool:
        """Dispatch scope ``origin`` divides a subscription by what each acknowledged: it needs the exact mode."""
        found = self.topic.subscriptions.get(subscription)
        return found is None or found.record.scope == LOCAL

    def moved(self, subscription: str) -> None:
        if self.takes:
            self._following.moved(subscription)
            self._wake(self)

    def consumer_left(self, subscription: str) -> None:
        if self.takes and self._is_local(subscription):
            self._following.moved(subscription, consumer_left=True)
            self._wake(self)

    def received(self, body: bytes | memoryview, sender: str, source: Position | None = None) -> None:
        if not self._settings().enabled:
            return
        try:
            marker = markers.read(body, metadata.scan(body))
        except metadata.BodyError as error:
            self.refuse(f"{sender} sent a marker that cannot be read: {error}")
            return
        if marker is None:
            return
        if isinstance(marker, SubscriptionUpdate) and not self.is_moved_by(sender) and self.controller is None:
            return  # what it says is known by the exchange, or will be
        if isinstance(marker, SnapshotResponse) and not self._is_whole:
            return  # something that its region published before may still be missing here
        if isinstance(marker, SnapshotRequest):
            if problem := self._requests.objection(sender, source, self.now_ms()):
                self.refuse(problem)
                return
            if source is not None:
                self.topic.pulsar.asked(sender, source, lambda: self._take(marker, sender))
                return
        self._take(marker, sender)

    def _take(self, marker: Marker, sender: str) -> None:
        if self.topic.failure is not None:
            return
        controller = self._controlled()
        before = controller.refused
        controller.received(marker, sender, self.topic.log.last_confirmed)
        if controller.refused > before:
            self.refuse(
                f"{sender} sent a {type(marker).__name__} that speaks for another region, or names what is not here"
            )
        self._wake(self)

    def refuse(self, why: str) -> None:
        self.refused += 1
        self.refusal = why
        now_ms = self.topic.scheduler.monotonic_ms()
        if now_ms - self._logged_ms >= LOG_EVERY_MS:
            self._logged_ms = now_ms
            log.warning("%s: %s", self.topic.name, why)

    def _stored(self) -> None:
        """Entries became durable."""
        if self.takes:
            self._wake(self)

    # -- what is to be done ------------------------------------------------------------------------------------------

    def is_moved_by(self, region: str) -> bool:
        """Whether what is acknowledged travels between that region and this one by snapshots."""
        return self._mode == SNAPSHOT or region in self._pulsar_regions()

    def follow(self) -> None:
        """The topic's rules or regions changed. What was acknowledged in one mode is not lost in the other: progress
        keeps all of it.
        """
        if self._mode != self.topic.rules.subscription_sync:
            self._mode = self.topic.rules.subscription_sync
            if self.topic.exchange is not None:
                self.topic.exchange.opened(self.topic.name)  # compare with the others again
        self._moves_others = any(map(self.is_moved_by, self.others()))
        self._wake(self)

    def look(self) -> int | None:
        """Do what is due. Returns when to look again, by ``now_ms``; None: when it is woken."""
        topic = self.topic
        if topic.failure is not None or topic.snapshots is not self or not self._settings().enabled:
            self.controller = None
            self._following.forget()
            return None
        wanted = self._wanted()
        if self.controller is None and not wanted:
            self._following.forget()
            return None
        controller = self._controlled()
        if (others := self.others()) != self._regions:
            self._regions, self._given_up = others, self._given_up & others
            controller.regions_changed()
        self._following.follow(controller, wanted, is_reached=not self.problem())
        if (news := self._stored_so_far()) != self._news:
            self._news = news
            controller.published()
        if self._following.has_moved:
            self._following.tell(controller)
        deadline = controller.deadline_ms
        if deadline is not None and deadline <= self.now_ms():
            controller.tick()
            deadline = controller.deadline_ms
        if self._following.has_moved:
            return self.now_ms()
        if not self._following.was_reached and wanted:
            again_ms = self.now_ms() + REACHED_MS
            return again_ms if deadline is None else min(deadline, again_ms)
        return deadline

    def _controlled(self) -> SnapshotController:
        if self.controller is None:
            self.controller = SnapshotController(self, self._settings().rules)
            self._following.begin()
            self._regions = self.others()
            self._news = self._stored_so_far()
        return self.controller

    def _wanted(self) -> dict[str, Position]:
        """The subscriptions that other regions are to follow by snapshots."""
        if not self.takes:
            return {}
        return {
            name: one.cursor.mark_delete
            for name, one in self.topic.subscriptions.items()
            if one.durable and one.replicated and one.record.scope == LOCAL
        }

    def _stored_so_far(self) -> object:
        """Changes whenever a message is stored, of whatever region."""
        log, stored = self.topic.log, self.topic.stored
        return stored.messages_in + stored.messages_replicated_in, log.last_own, tuple(log.last_origin.values())

    # -- the topic (``SnapshotHost``) --------------------------------------------------------------------------------

    @property
    def region(self) -> str:
        return self.topic.region

    def now_ms(self) -> int:
        return self.topic.scheduler.monotonic_ms()

    def new_id(self) -> str:
        return str(self.topic.clock.next())

    def others(self) -> frozenset[str]:
        return (self.topic.regions() | self._pulsar_regions()) - {self.topic.region}

    def given_up(self) -> frozenset[str]:
        back = {region for region in self._given_up if self._is_sending(self.topic.name, region)}
        if back:
            self._given_up -= back
        return self._given_up

    def give_up(self, regions: frozenset[str]) -> None:
        """Take snapshots without these regions, until told otherwise or the topic is opened again.

        :raises NotAllowed: one of them is not another region of the topic, or entries reach it.
        """
        for region in sorted(regions):
            if region not in self.others():
                raise NotAllowed(f"{region} is not another region of {self.topic.name}")
            if self.is_connected(region):
                raise NotAllowed(f"{region} is connected and answers, so snapshots cannot go on without it")
        self._given_up = regions
        if self.controller is not None:
            self.controller.regions_changed()
        self._wake(self)

    @property
    def _is_whole(self) -> bool:
        """Whether nothing is missing here of what its regions published before what they send now (R5, R21)."""
        backfill, holes = self.topic.backfill, self.topic.log.holes
        is_asked = backfill is None or (backfill.is_complete and not backfill.joining.is_joining)
        return is_asked and not any(holes.ranges.values())

    def without_records(self) -> frozenset[str]:
        return self._pulsar_regions()

    def linked_at(self, region: str) -> Position:
        return self.topic.pulsar.since(region)

    def is_connected(self, region: str) -> bool:
        return self._is_whole and self._is_sending(self.topic.name, region)

    def last_position(self) -> Position:
        return self.topic.log.last_confirmed

    def entries_before(self, position: Position) -> int:
        log = self.topic.log
        if position >= self._at:
            self._before += log.distance(self._at, position)
            self._at = position
            return self._before
        return self._before - log.distance(position, self._at)

    def write(self, marker: Marker, only_to: str | None, done: Callable[[Position | None], None]) -> None:
        topic, backfill = self.topic, self.topic.backfill

        def not_now() -> None:
            done(None)
            self._wake(self)  # it may be tried again

        is_closed = topic.failure is not None or topic.is_ended or topic.winding_down is not WindingDown.NOT
        if is_closed or (backfill is not None and not backfill.is_complete):
            topic.scheduler.defer(not_now)
            return

        def stored(_tokens: list[None], result: Position | LedgerError) -> None:
            if not isinstance(result, Position):
                done(None)
                topic.fence(str(result))
                return
            self.last_marker = max(self.last_marker, result)
            if isinstance(marker, Snapshot):
                self.last, self.last_ms = marker, topic.scheduler.now_ms()
                self._announced.taken(marker)
            elif isinstance(marker, SubscriptionUpdate):
                self._announced.updated(marker)
            done(result)
            self._wake(self)

        now_ms = topic.scheduler.now_ms()
        entry = marker_entry(markers.marker_body(marker, now_ms, only_to), now_ms, only_to)
        topic.log.append_own([entry], stored, [None])

    def acknowledge(self, subscription: str, position: Position, sender: str, unknown: frozenset[str]) -> None:
        self._updates.add(subscription, position, sender, unknown)

    @property
    def takes(self) -> bool:
        """Whether replicated subscriptions move in another region by snapshots of this one."""
        return self._moves_others and self._settings().enabled

    def announced(self) -> dict[str, dict[str, Position]]:
        """By subscription that Meridian regions follow by snapshots: per origin, up to where they were told that
        everything is acknowledged; as far as that was since the topic was opened."""
        if self._mode != SNAPSHOT:
            return {}
        return {name: self._announced.of(name) for name in self._wanted()}

    def held_back(self, subscription: str) -> dict[str, str]:
        """By region of Apache Pulsar that is not told how far the subscription is: why, and what to do."""
        held = {} if self.controller is None else self.controller.held_back(subscription)
        return {
            region: f"{region} is not told how far {subscription!r} is: {', '.join(sorted(others))} may still owe it "
            f"messages that {region} sent before its link to {self.region} began, and {region} would skip them. Have "
            f"them acknowledged there; if that region is lost for good, go on without it: meridian topics snapshots "
            f"{self.topic.name} --without REGION"
            for region, others in held.items()
        }

    # -- looking -----------------------------------------------------------------------------------------------------

    def problem(self) -> str:
        """Why no snapshot can be taken now; empty: nothing prevents it, or none is to be taken."""
        if not self._moves_others:
            return ""
        if not self._settings().enabled:
            return "snapshots are switched off here (enableReplicatedSubscriptions)"
        if not self._is_whole:
            return "this region waits for messages that it lost or never had"
        missing = sorted(region for region in needed(self) if not self.is_connected(region))
        return f"messages do not reach {', '.join(missing)}" if missing else ""
