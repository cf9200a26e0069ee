# SPDX-License-Identifier: Apache-2.0
"""A topic, or one partition of it, in this region: its log, its producers, its subscriptions.

How messages get into its log is described in ``publishing/storing.py``. Everything that cannot go on - a failed disk, a
lost ledger - fences the topic: clients look it up again, and it is reopened from what is durable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from meridian_broker.ledgers.log import TopicLog
from meridian_broker.ledgers.scheduling import Scheduler
from meridian_broker.ledgers.throttling import Throttle
from meridian_broker.ledgers.under_way import UnderWay, all_over
from meridian_broker.metadata.rules import Rules
from meridian_broker.positions import HybridClock
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.backfill.backfill import Backfill
from meridian_broker.topics.backfill.gaps import Gaps
from meridian_broker.topics.backfill.holds import RetentionHolds
from meridian_broker.topics.backfill.intake import Intake
from meridian_broker.topics.backfill.questions import Peers
from meridian_broker.topics.backfill.repair import Repair
from meridian_broker.topics.backfill.schema_numbers import AddSchema
from meridian_broker.topics.compaction.borrowed import BorrowedCompaction, Views
from meridian_broker.topics.compaction.compaction import Compaction
from meridian_broker.topics.context import TopicContext, TopicSetup
from meridian_broker.topics.cursors import seeking
from meridian_broker.topics.dispatch_scope.origin_streams import follow, leave
from meridian_broker.topics.journal.progress_log import ProgressLog
from meridian_broker.topics.journal.topic_record import QUARANTINED
from meridian_broker.topics.limits import TopicLimits
from meridian_broker.topics.policies import bounds
from meridian_broker.topics.ports import Exchange
from meridian_broker.topics.publishing.admission import Admission
from meridian_broker.topics.publishing.deduplication import Deduplication
from meridian_broker.topics.publishing.from_pulsar import FromPulsar
from meridian_broker.topics.publishing.producer import Producer
from meridian_broker.topics.publishing.pulsar_places import PulsarPlaces
from meridian_broker.topics.publishing.rates import PublishRates
from meridian_broker.topics.publishing.storing import Storing
from meridian_broker.topics.shadows import Shadows
from meridian_broker.topics.subscriptions.newest import FEW, Newest
from meridian_broker.topics.subscriptions.registry import SubscriptionRegistry
from meridian_broker.topics.subscriptions.subscribing import Subscribing

log = logging.getLogger(__name__)

ALONE: Final = TopicSetup()
"""For a topic of one region, without a record."""


class Followed(Protocol):
    """The source of a shadow where another broker serves it (``service.followed_sources``)."""

    name: str
    failure: str | None
    terminated: Position | None
    ends: Mapping[str, Position]

    @property
    def log(self) -> TopicLog: ...

    @property
    def compaction(self) -> Views: ...

    @property
    def shadows(self) -> Shadows[Topic]: ...


class ShadowSource(Protocol):
    """What ties a shadow to its source (``lifecycle.shadow_source``)."""

    def returned(self, source: Topic, /) -> bool:
        """The source was opened again. False: the shadow cannot go on with it as it is."""
        ...


class Topic(TopicContext):
    """See the module's text. ``lifecycle/opening.py`` makes it, replays what is stored of it, and calls ``begin``."""

    def __init__(
        self,
        name: str,
        partition: int,
        region: str,
        incarnation: str,
        log: TopicLog,
        progress_log: Callable[[Topic], ProgressLog],
        scheduler: Scheduler,
        clock: HybridClock,
        limits: TopicLimits,
        exchange: Exchange | None,
        setup: TopicSetup = ALONE,
        *,
        publish_throttle: Callable[[], Throttle | None] = lambda: None,
        peers: Peers | None = None,
        add_schema: AddSchema | None = None,
        source: Topic | Followed | None = None,
    ) -> None:
        """
        :param publish_throttle: returns the throttle shared by all topics of the broker; None: there is none.
        :param peers: the other regions, which are asked for missing entries.
        :param add_schema: registers a schema of another region here.
        :param source: for a shadow whose source exists: the topic of whose log ``log`` is a view.
        """
        super().__init__(
            *(name, partition, region, incarnation, log, progress_log(self)),
            *(scheduler, clock, limits, exchange, setup),
        )
        self.progress_log.on_failure = self.fence
        self.when_fenced(self._send_clients_away)
        self.producers: dict[str, Producer] = {}
        self.admission = Admission(self)
        self.admit = self.admission.admit
        self.deduplication = Deduplication(self, self.producers)
        self._publish_rates = PublishRates(scheduler, publish_throttle)
        self.shadows: Shadows[Topic] = Shadows(name, setup.shadows, setup.shadows_elsewhere)
        self.when_fenced(self._leave_shadows)
        self.source: ShadowSource | None = None
        """What ties it to its source, if it is a shadow whose source was there when it was opened."""
        self.compaction: Compaction = (
            Compaction(self) if source is None else BorrowedCompaction(self, source.compaction)
        )
        self.subscription_registry = SubscriptionRegistry(self, self.compaction, follow)
        self.subscriptions = self.subscription_registry.subscriptions
        self.subscribing = Subscribing(self, self.subscription_registry)
        self.intake = Intake(self, self.subscriptions)
        self.pulsar = PulsarPlaces(self, self._keep_for)
        from_pulsar = FromPulsar(self, self.pulsar, self.intake.check_pushed)
        self.stored = Storing(self, self._publish_rates, self.intake.check_pushed, from_pulsar)
        self.publish = self.stored.own
        self.publish_foreign = self.stored.foreign
        self.gaps = Gaps(
            *(self, self.subscriptions, self.compaction),
            damaged=lambda: self.repair.gaps(),
            give_up=lambda gap: self.repair.give_up(gap),
            ask=self._ask_others,
        )
        self.backfill: Backfill | None = None
        if peers is not None and add_schema is not None:
            self.backfill = Backfill(
                *(self, peers, self.subscriptions, self.producers, self.intake, self.gaps),
                add_schema=add_schema,
                given_back=self.deduplication.given_back,
                is_joining=self.metadata is not None and self.metadata.record.joining,
            )
        self.retention_holds = RetentionHolds(self, self.backfill)
        self.repair: Repair = Repair(self, self.subscriptions, self.gaps, self.backfill)
        log.on_damage = self.repair.noticed
        self.replicated_positions: dict[str, Position] = {}
        """How far each remote region has confirmed, in local positions: retention keeps the rest."""
        self.created_ms = scheduler.now_ms()

    def _ask_others(self) -> None:
        if self.backfill is not None:
            self.backfill.start()

    def follow(self, rules: Rules) -> None:
        """Apply these rules from now on, also to connected clients."""
        before, self.rules = self.bounds, rules
        self.bounds = bounds(self.limits, rules)
        self.admission.follow(self.bounds.producers)
        self.deduplication.follow(rules.deduplication)
        self._publish_rates.follow(rules.publish_rate)
        self.subscription_registry.dispatch_rates.follow(rules.dispatch_rate, rules.subscription_dispatch_rate)
        if self.bounds != before:
            for subscription in self.subscriptions.values():
                subscription.follow_bounds()

    # -- closing -------------------------------------------------------------------------------------------------

    def _send_clients_away(self, reason: str) -> None:
        for producer in list(self.producers.values()):
            producer.gone()
            producer.port.disconnect_producer(producer)
        self.producers.clear()
        self.admission.close(reason)
        for subscription in self.subscriptions.values():
            subscription.disconnect_consumers()

    def tie_to(self, source: ShadowSource) -> None:
        """It is a shadow, and this is what ties it to its source from now on."""
        self.source = source

    def _leave_shadows(self, reason: str) -> None:
        if self.reopens:
            self.shadows.leave(reason)
        else:
            self.shadows.fence(reason)

    async def close(self, reason: str, *, to_rest: bool = False, is_soon_back: bool = False) -> None:
        """Close the topic in good order: disconnect clients, write all acknowledgements received so far, seal ledgers.

        :param to_rest: see ``ProgressLog.close``.
        :param is_soon_back: it will be opened again at this broker right afterwards; its shadows wait.
        What cannot be read or written is waited for a bounded time (``under_way.PATIENCE_SECONDS``).
        """
        self.reopens = False
        self.take_acknowledgements()
        if is_soon_back:
            self.shadows.leave(reason)
        self.fence(reason)
        if not await all_over(self.look_ups(), self.scheduler):
            log.warning(
                "%s: acknowledged entries could not be looked up in time and will be delivered again", self.name
            )
        self.take_acknowledgements()
        for subscription in self.subscriptions.values():
            leave(subscription)
        self.deduplication.record()
        self.pulsar.record()
        await self.compaction.close()
        await self.progress_log.close(to_rest=to_rest)
        await self.log.close()

    def look_ups(self) -> list[UnderWay]:
        """Acknowledgements that wait for their entries to be looked up."""
        return [one.cursor.look_ups for one in self.subscriptions.values() if one.cursor.look_ups is not None]

    def take_acknowledgements(self) -> None:
        """Write and send those whose entries are known, without waiting for the end of this turn."""
        for subscription in self.subscriptions.values():
            subscription.cursor.flush_pending()

    # -- producers -----------------------------------------------------------------------------------------------

    def entered(self, producer: Producer) -> None:
        """A producer was admitted."""
        self.deduplication.attach(producer)
        if producer.from_source is None:
            self.used()

    def remove_producer(self, producer: Producer) -> None:
        """It disconnected, or no longer waits to be admitted."""
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
        producer.gone()
        self.admission.gone(producer)
        if producer.from_source is None:
            self.used()

    def received_totals(self) -> tuple[int, int]:
        """Messages and bytes stored since it was opened, of clients and of other regions, as Pulsar counts them."""
        stored = self.stored
        return stored.messages_in + stored.messages_replicated_in, stored.bytes_in + stored.bytes_replicated_in

    # -- positions -----------------------------------------------------------------------------------------------

    async def position_at(self, time_ms: int, *, read_compacted: bool = False) -> Position:
        """The first entry published at or after ``time_ms``; right after the last one when there is none.

        :param read_compacted: a reader of the compacted view asks.
        """
        return await seeking.position_at(self.log, self.compaction if read_compacted else None, time_ms)

    # -- replication ---------------------------------------------------------------------------------------------

    def region_joined(self, remote: str) -> None:
        """A replicator to ``remote`` is about to start: from now on, entries that it still needs are kept."""
        self.remotes.add(remote)
        skipped = self.skipped_for(remote)
        begin = EARLIEST if skipped is None else skipped.upto
        self.replicated_positions.setdefault(remote, max(begin, self.pulsar.kept_from(remote) or EARLIEST))

    def _keep_for(self, remote: str, position: Position) -> None:
        if remote in self.remotes:
            self.replicated_positions[remote] = position

    def grew(self, partitions: int) -> None:
        """Its partitioned topic has grown to this many partitions."""
        self.partitions = partitions

    def region_left(self, remote: str) -> None:
        """The region left the topic: nothing is kept for it."""
        self.remotes.discard(remote)
        self.replicated_positions.pop(remote, None)
        self.pulsar.left(remote)
        if self.backfill is not None:
            self.backfill.left(remote)

    @property
    def is_quarantined(self) -> bool:
        """A copy that was not meant to be deleted (R8): all of it is kept until an operator has looked at it."""
        return self.metadata is not None and QUARANTINED in self.metadata.record.properties

    def needed_from(self, *, elsewhere: bool = True) -> Position:
        """Everything at or before this may be trimmed as far as subscriptions and replicators go.

        :param elsewhere: those of shadows that other brokers may serve count, too.
        """
        is_joining = self.backfill is not None and self.backfill.joining.keeps_all
        if self.is_quarantined or is_joining or self.subscription_registry.lost_records.in_doubt:
            return EARLIEST
        positions = [s.cursor.mark_delete for s in self.subscriptions.values() if s.durable]
        positions.extend(self.replicated_positions.values())
        if (unaccounted := self.deduplication.needed_from) is not None:
            positions.append(unaccounted)
        if (uncompacted := self.compaction.holds_from()) is not None:
            positions.append(uncompacted)
        if (held := self.shadows.needed_from(elsewhere=elsewhere)) is not None:
            positions.append(held)
        return min(positions, default=self.log.last_confirmed)

    def begin(self) -> None:
        """Start dispatching new entries, and repair damage found by the replay. Called once, after the replay."""
        self.log.watch(self._dispatch_all)
        if self.shadow_of is None:  # else its source repairs their common ledgers
            self.repair.noticed()

    def _dispatch_all(self) -> None:
        """New entries arrived: offer them to every subscription with consumers."""
        self.last_used_ms = self.scheduler.now_ms()
        if self.subscription_registry.newest is None and len(self.subscriptions) > FEW:
            self.subscription_registry.newest = Newest(self)
        if self.subscription_registry.newest is not None:
            self.subscription_registry.newest.offer(self.subscriptions.values())
            return
        for subscription in self.subscriptions.values():
            if subscription.dispatcher is not None:
                subscription.dispatch_soon()
            elif subscription.durable:
                subscription.follow()
