# SPDX-License-Identifier: Apache-2.0
"""A topic's subscriptions as all its regions know them: created, adopted, switched and deleted (R15-R17).

Deleting a replicated subscription leaves a *tombstone*: its record with the stamp of the deletion. It is replicated
like any other record, so a region that was away removes its copy instead of bringing the subscription back, and
progress of the earlier incarnation is refused from then on. A subscription created under the same name later is a
later incarnation.

A subscription whose replicated flag was switched off stays part of the exchange with its record, without progress, so
that the other regions learn of the switch. One that was never replicated is not part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.store import Done, LedgerError
from meridian_broker.positions import NOWHERE, ZERO, Beginning, Progress
from meridian_broker.replication.leases.quorums import VoterSets
from meridian_broker.topics.cursors import rewinding
from meridian_broker.topics.dispatch.rates import DispatchRates
from meridian_broker.topics.errors import (
    LimitReached,
    NotAllowed,
    SubscriptionInUse,
    SubscriptionNotFound,
)
from meridian_broker.topics.journal.changes import Kind
from meridian_broker.topics.journal.subscription_record import (
    SubscriptionRecord,
    decode_record,
    encode_record,
)
from meridian_broker.topics.journal.subscription_snapshot import Whole
from meridian_broker.topics.subscriptions import incoming_records
from meridian_broker.topics.subscriptions.damaged_records import LostRecords
from meridian_broker.topics.subscriptions.incoming_records import Here, Verdict
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.topics.subscriptions.tombstones import ClosedNames, Tombstones

if TYPE_CHECKING:
    from meridian_broker.topics.compaction.compaction import Compaction
    from meridian_broker.topics.compaction.view import CompactedView
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.subscriptions.newest import Newest

_ENDING: Final = (Verdict.REMOVE, Verdict.REPLACE)
"""Verdicts that end the current subscription."""


class SubscriptionRegistry:
    """All subscriptions of a topic and their tombstones. Each topic has one."""

    def __init__(
        self,
        topic: TopicContext,
        compaction: Compaction,
        record_changed: Callable[[Subscription], None],
    ) -> None:
        """:param record_changed: called when a subscription of other regions arrived, or its flag or scope changed."""
        self._topic = topic
        self.compaction = compaction
        self._record_changed = record_changed
        self.subscriptions: dict[str, Subscription] = {}
        self.newest: Newest | None = None
        """Its newest entry; None: it has few subscriptions."""
        self.tombstones = Tombstones(topic)
        self.closed_names = ClosedNames(topic)
        self.dispatch_rates: DispatchRates = DispatchRates(topic.scheduler, self.subscriptions)
        self.lost_records = LostRecords(topic, self.subscriptions, self.tombstones, self._make)
        self.messages_out_before = 0
        """Messages sent by subscriptions that no longer exist, so that the topic's totals never shrink."""
        self.bytes_out_before = 0
        compaction.when_view_changes(self._view_changed)

    def _make(self, record: SubscriptionRecord, progress: Progress) -> Subscription:
        return Subscription(self._topic, self, record, progress)

    # -- what other regions are sent ---------------------------------------------------------------------------------

    def replicated(self) -> list[str]:
        """Names that are part of the exchange, including deleted ones."""
        tombstones = self.tombstones
        names = [name for name, one in self.subscriptions.items() if one.durable and one.record.is_known_elsewhere]
        return [*(name for name in names if name not in tombstones), *tombstones] if tombstones else names

    def has_replicated(self) -> bool:
        """Whether there are any."""
        return bool(self.tombstones) or any(map(_is_known_elsewhere, self.subscriptions.values()))

    def progress(self, name: str) -> Progress | None:
        """The progress that other regions are sent, with this turn's acknowledgements; None: it is in this region
        alone.

        In snapshot mode it says only where the subscription begins; what other regions send is still joined.
        """
        subscription = self.subscriptions.get(name)
        snapshots = self._topic.snapshots
        by_snapshots = snapshots is not None and snapshots.replace_exchange_of(name)
        if subscription is not None and subscription.durable and subscription.replicated:
            if by_snapshots:
                return _beginning_of(subscription.cursor.progress)
            subscription.cursor.flush_pending()
            return subscription.cursor.progress
        record = self._replicated_record(name)
        return None if record is None else _nothing(record)

    def record(self, name: str) -> bytes | None:
        """Its encoded record, or its tombstone; None: it is in this region alone."""
        record = self._replicated_record(name)
        return None if record is None else encode_record(record)

    def _replicated_record(self, name: str) -> SubscriptionRecord | None:
        subscription = self.subscriptions.get(name)
        if subscription is not None and _is_known_elsewhere(subscription):
            return subscription.record
        return self.tombstones.get(name)

    def _tell(self, name: str) -> None:
        progress = self.progress(name)
        if progress is not None:
            self._topic.tell_others(name, progress.copy(), record_changed=True)

    # -- changes made here -------------------------------------------------------------------------------------------

    def check_room(self, name: str) -> None:
        """:raises LimitReached: the topic has reached its limit of subscriptions."""
        most = self._topic.rules.max_subscriptions
        durable = sum(subscription.durable for subscription in self.subscriptions.values()) if most else 0
        if most and durable >= most:
            raise LimitReached(f"{self._topic.name} has {durable} subscriptions, its limit: {name!r} was not created")

    def begun(self, name: str, *, replicated: bool, properties: Mapping[str, str]) -> SubscriptionRecord:
        """The record of a new subscription. A flag that was not asked for carries no stamp, so any decision wins over
        it (R17).

        :raises LimitReached: it would be replicated, and the topic has too many tombstones.
        :raises NotAllowed: it would be replicated, and the topic is a shadow.
        """
        if replicated:
            self._topic.check_own_log("replicate a subscription of")
        grave = self.tombstones.get(name)
        if replicated and grave is None:
            self.tombstones.check_room()
        incarnation = ZERO if grave is None else grave.deleted
        stamp = self._topic.clock.next(after=incarnation)
        if replicated:
            self.tombstones.pop(name, None)
        self.closed_names.open(name)
        return SubscriptionRecord(name, replicated, stamp if replicated else ZERO, stamp, dict(properties), incarnation)

    def write(self, subscription: Subscription, done: Done | None = None) -> None:
        """Record the subscription as it is now, and send that to the other regions."""
        self._topic.progress_log.append(Kind.WHOLE, subscription.name, whole(subscription).encode(), done)
        if self._topic.snapshots is not None:
            self._topic.snapshots.moved(subscription.name)
        if _is_known_elsewhere(subscription):
            self._tell(subscription.name)

    def set_replicated(self, subscription: Subscription, replicated: bool, done: Done | None = None) -> None:
        """Switch the replicated flag. The later stamp wins everywhere; switching on unites the progress of all
        regions (R17).

        :raises NotAllowed: a replicated subscription of that name was deleted after this one was created.
        :raises LimitReached: the flag is switched on, and the topic has too many tombstones.
        """
        if replicated:
            self._topic.check_own_log("replicate a subscription of")
        record, grave = subscription.record, self.tombstones.get(subscription.name)
        if grave is not None and grave.deleted != record.deleted:
            raise NotAllowed(
                f"another subscription {record.name!r} was deleted in all regions in the meantime: this one cannot be "
                "replicated, delete and recreate it"
            )
        if replicated:
            if grave is None and not record.is_known_elsewhere:
                self.tombstones.check_room()
            self.tombstones.pop(subscription.name, None)
        stamp = self._topic.clock.next(max(record.flag_stamp, record.created))
        subscription.follow_record(replace(record, replicated=replicated, flag_stamp=stamp))
        if replicated:
            subscription.cursor.keep_first_hand()
        self.write(subscription, done)
        self._record_changed(subscription)

    def set_scope(
        self,
        subscription: Subscription,
        scope: str,
        preferred: Mapping[str, str],
        done: Done | None = None,
        *,
        witness: str | None = None,
    ) -> None:
        """Set which region dispatches which messages; the later stamp wins everywhere (R25, R26).

        :param witness: a region outside the topic that votes as well, empty for none; None: unchanged.
        """
        record = subscription.record
        stamp = self._topic.clock.next(max(record.scope_stamp, record.created))
        witness = record.witness if witness is None else witness
        preferred = dict(sorted(preferred.items()))
        subscription.follow_record(
            replace(record, scope=scope, preferred=preferred, scope_stamp=stamp, witness=witness)
        )
        self.write(subscription, done)
        self._record_changed(subscription)

    def set_voter_sets(self, subscription: Subscription, known: VoterSets) -> None:
        """Record who votes, as far as is known (R26). What one region reported is passed on: a third may not
        know it.
        """
        subscription.follow_record(replace(subscription.record, voter_sets=known))
        self._topic.progress_log.append(Kind.SUBSCRIPTION, subscription.name, encode_record(subscription.record))
        if _is_known_elsewhere(subscription):
            self._tell(subscription.name)

    def may_be_known_elsewhere(self, subscription: Subscription) -> bool:
        """Whether other regions know of it, or may know because it was created again here from a damaged record."""
        return _is_known_elsewhere(subscription) or self.lost_records.stands_in(subscription)

    def is_in_doubt(self, name: str) -> bool:
        """Whether other regions may know more of it than is left of it here, perhaps that it is replicated."""
        return self.lost_records.concerns(name)

    def check_unused(self, name: str) -> None:
        """:raises SubscriptionNotFound: there is none of that name.
        :raises SubscriptionInUse: it has consumers in this region (R16).
        """
        users = len(self._find(name).consumers)
        if users:
            raise SubscriptionInUse(
                f"subscription {name!r} of {self._topic.name} has {users} consumers: close them first, or force"
            )

    def _find(self, name: str) -> Subscription:
        subscription = self.subscriptions.get(name)
        if subscription is None:
            raise SubscriptionNotFound(f"there is no subscription {name!r} on {self._topic.name}")
        return subscription

    def delete(self, name: str, done: Done | None = None, *, forced: bool = False) -> None:
        """Delete it, in all regions if they share it or might share it (``damaged_records.py``).

        :param forced: disconnect its consumers; clients cannot create it again by themselves for a while, because
            they may not know of the deletion yet (R16).
        :raises SubscriptionNotFound: there is none of that name.
        :raises SubscriptionInUse: it has consumers, and ``forced`` is not set.
        """
        subscription = self._find(name)
        if not forced:
            self.check_unused(name)
        record = subscription.record
        is_known_elsewhere, may_be_known_elsewhere = (
            _is_known_elsewhere(subscription),
            self.may_be_known_elsewhere(subscription),
        )
        self._remove(subscription)
        if forced and subscription.durable:
            self.closed_names.close(name)
        if may_be_known_elsewhere:
            if not is_known_elsewhere:
                self._end_local(name)
            epoch = subscription.cursor.progress.epoch
            stamp = self._topic.clock.next(after=max(record.created, record.deleted, epoch))
            self._bury(SubscriptionRecord(name, True, ZERO, ZERO, {}, stamp, forced), done)
            self._tell(name)
        elif subscription.durable:
            self._topic.progress_log.append(Kind.REMOVED, name, b"", done)
        elif done is not None:
            done(None)

    def _remove(self, subscription: Subscription) -> None:
        del self.subscriptions[subscription.name]
        self.count_gone(subscription)
        subscription.disconnect_consumers()

    def _end_local(self, name: str) -> None:
        """In a replay, the tombstone that follows does not end a subscription that was in this region alone; this
        record does."""
        self._topic.progress_log.append(Kind.REMOVED, name, b"")

    def count_gone(self, subscription: Subscription) -> None:
        """The subscription is removed; what it sent still counts in the topic's totals."""
        self.messages_out_before += subscription.messages_out
        self.bytes_out_before += subscription.bytes_out

    def forget_reader(self, subscription: Subscription) -> None:
        """Remove a subscription that is not durable; its reader has left."""
        if self.subscriptions.pop(subscription.name, None) is not None:
            self.count_gone(subscription)

    def _view_changed(self, view: CompactedView | None) -> None:
        """Another compacted view is in force, or none."""
        for subscription in self.subscriptions.values():
            if subscription.cursor.compacted is None:
                continue
            if view is not None:
                subscription.cursor.compacted.compare(view)
                subscription.cursor.advance()
            elif subscription.durable:
                subscription.read_anew()

    def _bury(self, record: SubscriptionRecord, done: Done | None = None) -> None:
        self.tombstones[record.name] = record
        self._topic.progress_log.append(Kind.SUBSCRIPTION, record.name, encode_record(record), done)

    # -- changes of other regions ------------------------------------------------------------------------------------

    def merge(self, name: str, delta: Progress, record: bytes | None, done: Callable[[str | None], None]) -> None:
        """Merge what another region sent: a record, progress, a deletion. ``done`` as in ``ExchangeHost``."""

        def durable(error: LedgerError | None) -> None:
            done(None if error is None else str(error))

        try:
            if record is not None:
                told = decode_record(record)
                if told.name != name:
                    raise ValueError(f"the record of {told.name[:80]!r} came for {name[:80]!r}")
                self._adopt(told)
        except ValueError as error:
            done(str(error))
            return
        subscription, grave = self.subscriptions.get(name), self._replicated_record(name)
        incarnation = grave.deleted if grave is not None else ZERO
        if subscription is None and grave is None:
            done(f"there is no subscription {name!r} here, and its record did not come with the delta")
        elif delta.beginning.incarnation > incarnation:
            done(f"{name!r} was deleted there, and its record did not come with the delta")
        elif subscription is None or not subscription.replicated:
            self._topic.progress_log.when_durable(durable)  # of an earlier incarnation, or switched off: ignored
        else:
            rewinding.merge(subscription.cursor, delta, done)

    def _adopt(self, told: SubscriptionRecord) -> None:
        """:raises ValueError: an unrelated subscription of that name exists here."""
        name, subscription = told.name, self.subscriptions.get(told.name)
        stands_in = subscription is not None and self.lost_records.stands_in(subscription)
        here = self._here(name, stands_in=stands_in)
        verdict, record, closes = incoming_records.told(told, here, self._topic.scheduler.now_ms())
        if verdict is Verdict.NOTHING:
            return
        if verdict is Verdict.REFUSE:
            raise ValueError(
                f"{self._topic.region} has its own subscription {name!r}, older than the deletion of the "
                "one in other regions: delete it there"
            )
        ended = subscription if verdict in _ENDING else None
        if ended is not None and not here.is_known_elsewhere:
            self._end_local(name)
        if closes:
            self.closed_names.close(name)
        if ended is not None:
            self._remove(ended)
        if record.is_gone:
            self._bury(record)
            return
        self.tombstones.pop(name, None)
        if subscription is None or ended is not None:
            subscription = self.subscriptions[name] = self._make(record, _nothing(record))
            subscription.cursor.start_cursor()
        else:
            subscription.follow_record(record)
        if verdict is Verdict.TURN_ON:
            subscription.cursor.keep_first_hand()
            self.write(subscription)
        else:
            self._topic.progress_log.append(Kind.SUBSCRIPTION, name, encode_record(record))
        self._record_changed(subscription)

    def _here(self, name: str, *, stands_in: bool = False) -> Here:
        subscription, grave = self.subscriptions.get(name), self.tombstones.get(name)
        if subscription is None:
            return Here(grave=grave)
        record, has_consumers = subscription.record, bool(subscription.consumers)
        return Here(record, _is_known_elsewhere(subscription), stands_in, has_consumers, grave)

    # -- restarts ----------------------------------------------------------------------------------------------------

    def replay(self, record: SubscriptionRecord, time_ms: int) -> None:
        """Replay a record of the progress log; the last one counts."""
        subscriptions, name = self.subscriptions, record.name
        if record.is_known_elsewhere and not record.is_gone:
            self.tombstones.pop(name, None)
        if name in subscriptions and not record.is_gone:
            self.lost_records.follow_progress(subscriptions[name])
        verdict, after, closes = incoming_records.logged(record, self._here(name))
        if after.is_gone:
            self.tombstones[name] = after
            if verdict is Verdict.REMOVE:
                del subscriptions[name]
            if closes:
                self.closed_names.close(name, time_ms)
            return
        if verdict in (Verdict.MAKE, Verdict.REPLACE):
            subscriptions[name] = self._make(after, _nothing(after))
        else:
            subscriptions[name].follow_record(after)


def whole(subscription: Subscription) -> Whole:
    """The snapshot of a subscription in the progress log, without its drops."""
    first_hand = b"" if subscription.cursor.first_hand is None else subscription.cursor.first_hand.encode()
    return Whole(encode_record(subscription.record), subscription.cursor.progress.encode(), first_hand)


def count_replicated(subscriptions: Mapping[str, Subscription]) -> int:
    """How many of them other regions should have as well."""
    return sum(one.durable and one.replicated for one in subscriptions.values())


def _is_known_elsewhere(subscription: Subscription) -> bool:
    return subscription.durable and subscription.record.is_known_elsewhere


def _beginning_of(progress: Progress) -> Progress:
    """Progress that begins there (R15), with nothing acked."""
    begun = Progress()
    begun.begin(progress.beginning)
    return begun


def _nothing(record: SubscriptionRecord) -> Progress:
    """Progress of that incarnation with nothing acked."""
    progress = Progress()
    progress.begin(Beginning(record.deleted, ZERO, NOWHERE))
    return progress
