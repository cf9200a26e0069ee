# SPDX-License-Identifier: Apache-2.0
"""The model: records what was promised, and compares it with what happens.

It trusts only what was confirmed to a client or is durable on a disk: receipts, confirmed acknowledgements, flushes and
barriers. From these follow two sets for each subscription: messages that *must* come (no consumer can have acked them
in the current epoch) and messages that *must not* come in a region any more (acked, and durable there). What a crash
left undecided is in neither set: both outcomes are allowed.

Its parts: ``record.py`` (everything that is kept), ``facts.py`` (one incarnation of a subscription, and what follows
for each message), ``logs.py`` (what is stored where), ``creations.py`` and ``deletions.py``, ``confirming.py`` (flushes
and barriers), ``crashes.py`` (what must survive a crash), ``judging.py`` (what must hold at the end).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions import ZERO, Progress, Stamp
from meridian_broker.positions.position import EARLIEST, Origin, Position
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.subscriptions.subscription import Subscription
from simulation import passing
from simulation.confirming import Confirming
from simulation.crashes import Crashes
from simulation.facts import Acked, Dropping, PublishedSince, Rewound, covered_origins, rewinds_of, subscription_of
from simulation.judging import Judging
from simulation.names import incarnation_of

if TYPE_CHECKING:
    from meridian_broker.metadata.topic_records import TopicRecord
    from meridian_broker.replication.progress.messages import PeerMessage
    from meridian_broker.replication.progress.waits import WaitResult
    from meridian_broker.topics.backfill.gaps import Gap
    from meridian_broker.topics.topic import Topic
    from simulation.stage import Broker, Heard, Region, Stage


class Model(Crashes):
    """See the module's text."""

    def __init__(self, world: Stage) -> None:
        super().__init__(world)
        self.confirming = Confirming(world, self.facts, self.violate)
        self.judging = Judging(world, self)
        self._ledgers: dict[str, set[int]] = defaultdict(set)
        self.delivered = 0
        self.confirmed = 0
        self.commands_us: dict[tuple[str, str], int] = {}
        """(topic, subscription) -> when its dispatch scope or takeovers last changed (R26)."""

    def is_quarantined(self, region: str, name: str, before: str, incarnation: str) -> None:
        """A region's copy of a topic is renamed."""
        self.quarantined[region, name] = incarnation_of(before, incarnation)
        self._owe_nothing(region, before)

    def topic_goes(self, region: str, topic: str, record: TopicRecord) -> None:
        """The region has recorded that it deletes the topic."""
        self.deletions.begun(region, topic, record)
        self._owe_nothing(region, topic)

    def partition_goes(self, home: Region, topic: str, record: TopicRecord) -> None:
        """The region has recorded that it deletes the topic of which this is a partition."""
        stored = [origin for ledger in home.named_ledgers(topic) for origin, _, _ in self.logs.ledger(home, ledger)]
        self.deletions.begun_with_base(home.name, topic, record, stored)
        self._owe_nothing(home.name, topic)

    def taken_back(self, home: Region, topic: str) -> None:
        """A topic without messages should not have been created."""
        self.told.taken_back(home, topic)
        self.ends.taken_back(home.name, topic)

    def _owe_nothing(self, region: str, topic: str) -> None:
        """Nobody will ask for entries trimmed from a topic that is gone."""
        self.given_to[region, topic].update(dict.fromkeys(self.trimmed[region, topic], frozenset[str]()))

    # -- ledgers

    def ledger_made(self, region: str, ledger: int) -> None:
        if ledger in self._ledgers[region]:
            self.violate("a ledger id was used twice", f"{region} creates ledger {ledger} again (R1)")
        self._ledgers[region].add(ledger)

    def ledger_deleted(self, home: Region, ledger: int) -> None:
        """A ledger is deleted with its topic, or because it is not needed: then the metadata drops it first."""
        topic = self._world.topic_of_ledger.get((home.name, ledger))
        if topic is None:
            return
        if ledger in home.named_ledgers(topic):
            wrong = self.deletions.ledger_goes(home, topic, [o for o, _, _ in self.logs.ledger(home, ledger)])
            if wrong is not None and wrong.position in self.receipts[wrong.region, topic]:
                text = f"{home.name} deletes {self._world.shown(wrong)} of {topic} with its topic"
                self.violate("deleted unseen", f"{text}, and the region that deleted it never had it (R8)")
            self.deletions.gone[home.name, topic].update(
                o for o, _, _ in self.logs.ledger(home, ledger) if o is not None
            )
            return
        broker = home.broker_of(topic)
        opened = None if broker is None else broker.topic(topic)
        going = {o: messages for o, _, messages in self.logs.ledger(home, ledger) if o is not None}
        regions = frozenset(self._world.names) if opened is None else opened.regions()
        if opened is not None and home.trimming:
            regions &= home.trimming_among.get(opened.name, regions)
        places = {origin: Position(ledger, n) for n, (origin, _, _) in enumerate(self.logs.ledger(home, ledger))}
        for origin in going.keys() - self.trimmed[home.name, topic]:
            self.given_to[home.name, topic][origin] = regions
        if opened is not None and not going.keys() <= self.trimmed[home.name, topic]:
            self._check_given_back(home, opened, going, places)
        self.trimmed[home.name, topic] |= going.keys()
        self._world.shadow_ledger_goes(home, topic, ledger)

    def trimming(self, home: Region) -> None:
        """The region begins to trim what none of its present subscriptions needs."""
        topics = [topic for broker in home.trimmers() for topic in broker.service.topics.values()]
        home.trimming_among = {topic.name: topic.regions() for topic in topics}
        home.trimming_for = {one for topic in topics for one in topic.subscriptions.values()}

    def _check_given_back(
        self, home: Region, opened: Topic, going: dict[Origin, int], places: dict[Origin | None, Position]
    ) -> None:
        """Nothing owed to a subscription known there is trimmed; a compacted reader is owed its view."""
        topic = opened.name.rpartition("/")[2]
        for subscription in home.trimming_for.intersection(opened.subscriptions.values()):
            for origin, messages in going.items():
                if subscription.cursor.compacted is not None and subscription.cursor.compacted.passes(places[origin]):
                    continue
                if bits := self.judging.owed(home, topic, subscription, origin, messages, alone=True):
                    text = f"{home.name} trims {self._world.shown(origin)} of {topic} (bits {bits:b})"
                    self.violate("trimmed unread", f"{text}, which {subscription.name} is owed")
                    return

    def published_behind(self, home: Region, topic: Topic, place: Position) -> int | None:
        """When the first entry stored after a position was published, in ms; None: nothing is stored there."""
        behind = (origin for at, origin, _ in self.logs.of_topic(home, topic) if at > place)
        return next(map(self.logs.published.__getitem__, behind), None)

    # -- between regions

    def said(self, teller: Broker, asker: Broker, message: PeerMessage) -> None:
        """A broker puts a message on a link that the asker made."""
        self.told.heard(teller, asker, message)

    def barrier_begun(self, broker: Broker, topic_name: str, name: str) -> Callable[[WaitResult], None]:
        """The result hears how it ended."""
        return self.confirming.barrier_begun(broker, topic_name, name)

    def flush_begun(self, broker: Broker, topic_name: str, name: str) -> Callable[[WaitResult], None]:
        """The result hears how it ended."""
        return self.confirming.flush_begun(broker, topic_name, name)

    # -- subscriptions

    def creation_asked(self, home: Region, topic: str, name: str, initial: Position, opened: Topic) -> None:
        """Somebody requests a subscription that does not exist."""
        self.creations.asked(home, topic, name, initial, opened)

    def creation_seen(self, home: Region, topic: str, subscription: Subscription) -> None:
        """A region has just found or created it."""
        self.creations.seen(home, topic, subscription, self.facts_of(subscription))

    def creation_refused(self, topic: str, name: str, initial: Position, opened: Topic | None) -> None:
        """The client learns that it was not created; it may have been."""
        self.creations.refused(topic, name, initial, opened)

    # -- producers and replicators

    def stored(self, home: Region, position: Position) -> None:
        """A receipt is sent."""
        if not self.logs.was_durable(home, position):
            self.violate(
                "a receipt before it was durable", f"{home.name} confirms {position}, which a crash would lose"
            )

    def receipted(self, home: Region, topic: str, position: Position, payload: bytes) -> None:
        """A client has received its receipt."""
        self.receipts[home.name, topic][position] = payload
        self.confirmed += 1

    def replicated(self, home: Region, topic: str, region: str, origin: Position) -> None:
        """A receipt is sent to a replicator."""
        places = self._replicated[home.name, topic]
        places[region] = max(places.get(region, EARLIEST), origin)

    def going_on(self, home: Region, topic: Topic) -> None:
        """The region tells a replicator how far it has everything, or continues without it."""
        places = self.given_up[home.name, topic.name.rpartition("/")[2]]
        for one in topic.gaps.accepted:
            places[one.origin] = max(one.upto, places.get(one.origin, EARLIEST))

    def replica_place(self, home: Region, remote: str, topic: str, last: Position) -> None:
        """A remote reported that it has everything of ours up to there."""
        places = self._replicated[remote, topic]
        places[home.name] = max(places.get(home.name, EARLIEST), last)

    # -- acknowledgements

    def acking(self, home: Region, topic: str, consumer: Consumer, bits: dict[Position, int], epoch: Stamp) -> Heard:
        subscription = subscription_of(consumer)
        facts = self.facts_of(subscription)
        found: dict[Origin, int] = {}
        for position, some in bits.items():
            origin, _ = self.logs.once_at(home, position)
            if origin is None:
                continue
            topic_here = subscription.topic
            if topic_here.log.holds(position) or topic_here.late.index(position) is not None:
                found[origin] = some
            else:  # trimmed, perhaps long ago: then nothing tells any more what it was
                facts.add(Acked(epoch, {origin: some}))
        return self._acked(home, topic, subscription, epoch, found)

    def acking_up_to(
        self,
        home: Region,
        topic: str,
        consumer: Consumer,
        behind: Position,
        upto: Position,
        was_sent: Callable[[Position], bool],
        came_later: Callable[[Position], bool],
        seen: Collection[Position] | None,
    ) -> list[Heard]:
        """A cumulative ack.

        :param behind: it covers what is stored after this position.
        :param was_sent: entries for which it counts in the newest epoch (R13).
        :param came_later: entries that reached the client after the one it acks: another stream, won meanwhile.
        :param seen: entries sent to a reader of the compacted view: nothing else is acknowledged.
        """
        subscription = subscription_of(consumer)
        log = self.logs.of_topic(home, subscription.topic)
        only = covered_origins(subscription, self.logs.origin_at(home, upto), upto)
        found = {
            origin: (1 << messages) - 1
            for place, origin, messages in log
            if behind < place <= upto and (only is None or (origin.region in only and not came_later(place)))
        }
        facts = self.facts_of(subscription)
        if seen is not None and subscription.cursor.compacted is not None:
            takes_out = subscription.cursor.compacted.passes
            unseen = {
                origin: found.pop(origin)
                for place, origin, _ in log
                if origin in found and (place not in seen or takes_out(place))
            }
            # What it was sent before compaction removed it may have been trimmed meanwhile: it has it all the same.
            stored = {place for place, _, _ in log}
            for place in seen:
                once, messages = self.logs.once_at(home, place)
                if behind < place <= upto and place not in stored and once is not None:
                    unseen[once] = (1 << messages) - 1
            facts.add(Acked(consumer.epoch, unseen))
        # What may have been dropped here was perhaps never sent to the consumer, whose ack then does not cover it.
        dropped = {o: bits for o, bits in found.items() if facts.perhaps_dropped(o, home.name, self.logs.published[o])}
        # Nor does it cover what lies before its beginning here: an earlier creation, not yet known here, may owe that.
        begun = subscription.cursor.progress.beginning.places
        dropped |= {o: bits for o, bits in found.items() if o.position <= begun.get(o.region, EARLIEST)}
        if dropped:
            facts.add(Acked(consumer.epoch, dropped))
        named, messages = self.logs.once_at(home, upto)
        if named is not None and named not in found:  # dropped and trimmed, but the client names it
            facts.add(Acked(consumer.epoch, {named: (1 << messages) - 1}))
        again = {origin for place, origin, _ in log if was_sent(place)}
        sent = {origin: bits for origin, bits in found.items() if origin not in dropped}
        parts = (
            (consumer.epoch, {origin: bits for origin, bits in sent.items() if origin in again}),
            (ZERO, {origin: bits for origin, bits in sent.items() if origin not in again}),
        )
        return [self._acked(home, topic, subscription, epoch, bits) for epoch, bits in parts if bits]

    def skipping(self, home: Region, topic: str, consumer: Consumer, bits: dict[Position, int]) -> Heard:
        """An operator skips the next messages. These do not include any that may have been dropped."""
        facts = self.facts_of(subscription_of(consumer))
        origins = {place: origin for place in bits if (origin := self.logs.origin_at(home, place)) is not None}
        is_compacted = subscription_of(consumer).cursor.compacted is not None  # then it skips what the view holds
        if is_compacted or any(
            facts.perhaps_dropped(origin, home.name, self.logs.published[origin]) for origin in origins.values()
        ):
            every = {origin: (1 << messages) - 1 for _, origin, messages in self.logs.of(home, topic)}
            facts.add(Acked(consumer.epoch, every))
            return lambda _: None
        return self.acking(home, topic, consumer, bits, consumer.epoch)

    def expiring(self, home: Region, some: list[Subscription], before_ms: int) -> None:
        """A region begins to drop what is older."""
        self._dropping(home, some, Dropping(self._world.loop.now_us, before_ms))

    def evicting(self, home: Region, topic: str, some: list[Subscription], upto: Position) -> None:
        """A region begins to drop everything up to there."""
        origins = frozenset(origin for place, origin, _ in self.logs.of(home, topic) if place <= upto)
        self._dropping(home, some, Dropping(self._world.loop.now_us, 0, origins))

    def accepting(self, home: Region, topic: Topic, gap: Gap) -> None:
        """A region begins to give up entries that no region has any more."""
        origin, after, upto = gap.origin, gap.after, gap.lost_upto
        some = [one for one in topic.subscriptions.values() if one.durable]
        lost = frozenset(one for one in self.logs.published if one.region == origin and after < one.position <= upto)
        self._dropping(home, some, Dropping(self._world.loop.now_us, 0, lost))

    def _dropping(self, home: Region, some: list[Subscription], what: Dropping) -> None:
        for one in some:
            self.facts[self.key(one)].dropping.setdefault(home.name, []).append(what)

    def _acked(
        self, home: Region, topic: str, subscription: Subscription, epoch: Stamp, bits: dict[Origin, int]
    ) -> Heard:
        ack = Acked(epoch, bits, rewinds_of(subscription.cursor.progress))
        ack.taken_by, ack.taken_in = home.taker(subscription.topic), subscription.topic
        self.facts_of(subscription).add(ack)

        def heard(error: LedgerError | None) -> None:
            if error is None:
                ack.known.setdefault(home.name, self._world.loop.now_us)
            else:
                ack.taken_by = None

        return heard

    def stopping(self, broker: Broker | None, topics: Collection[str] | None = None) -> Callable[[], None]:
        """A planned stop begins: what the broker accepted until now is on its disk once the stop succeeds (R20). This
        does not cover topics that it had to drop before.

        :param topics: it gives up only these."""
        taken = [
            ack
            for (incarnation, _), facts in self.facts.items()
            if topics is None or incarnation.partition(" since ")[0] in topics
            for ack in facts.acks
            if ack.taken_by is broker and (ack.taken_in is None or not ack.taken_in.failure)
        ]

        def stopped() -> None:
            for ack in taken:
                if ack.taken_by is not None:
                    ack.known.setdefault(ack.taken_by.region, self._world.loop.now_us)

        return stopped

    def seeking(
        self, home: Region, topic: str, subscription: Subscription, target: Position, time_ms: int | None = None
    ) -> Callable[[Stamp, Stamp, Progress], Heard]:
        """A seek begins. The result is called with its outcome, and returns what to call once it is durable.

        :param time_ms: for a seek by time, with ``target`` the first entry published then or later.
        """
        facts = self.facts_of(subscription)
        before = {
            o: (1 << messages) - 1
            for place, o, messages in self.logs.of_topic(home, subscription.topic)
            if place < target
        }
        begun = subscription.cursor.progress.beginning.places
        # The seek does not ack what lies before its beginning here: an earlier creation, not yet known, may owe that.
        passed = {origin for origin in before if origin.position <= begun.get(origin.region, EARLIEST)}
        after_surely = {origin for place, origin, _ in self.logs.of_topic(home, subscription.topic) if place >= target}
        given_back = self._given_back(home, topic, subscription)
        in_view = self._in_view_alone(home, topic, subscription, target)

        def done(old: Stamp, new: Stamp, progress: Progress) -> Heard:
            ack = Acked(old, {o: bits for o, bits in before.items() if o not in passed}, rewinds_of(progress))
            facts.add(ack)
            facts.add(Acked(old, {origin: before[origin] for origin in passed}))
            facts.add(Acked(old, in_view | self._in_view_alone(home, topic, subscription, target)))
            rewind: Rewound | None = None
            if new != old:
                perhaps = {
                    origin for place, origin, _ in self.logs.of_topic(home, subscription.topic) if place >= target
                } | self.lost_once
                # Entries that the region continued without lie between the positions that a rewind names.
                passed_over = passing.accepted(subscription.topic)
                perhaps |= {origin for origin in self.logs.published if passing.lies_in(passed_over, origin)}
                rewind = Rewound(new, after_surely, perhaps)
                if time_ms is not None:
                    # What its region has trimmed stays acknowledged, if it was. What lies before that and was never
                    # there, or came back late, may be un-acknowledged.
                    log = subscription.topic.log
                    rewind.surely = PublishedSince(self.logs.published, time_ms, log.gone_upto())
                    rewind.perhaps = PublishedSince(self.logs.published, time_ms, apart=given_back)
                    # This seek acknowledges it, too, so an earlier one learned of later does not undo that.
                    facts.add(Acked(new, {origin: facts.ever_acked(origin) for origin in given_back}))
                facts.rewinds.append(rewind)

            def heard(error: LedgerError | None) -> None:
                if error is None:
                    now = self._world.loop.now_us
                    ack.known.setdefault(home.name, now)
                    if rewind is not None:
                        rewind.known.setdefault(home.name, now)

            return heard

        return done

    def _in_view_alone(
        self, home: Region, topic: str, subscription: Subscription, target: Position
    ) -> dict[Origin, int]:
        """What a compacted view still has before a position and the region has trimmed: a seek of a compacted reader
        acks that, too. Its index is in memory once the seek has read it."""
        view = None if subscription.cursor.compacted is None else subscription.cursor.compacted.compaction.view
        stored = {place for place, _, _ in self.logs.of_topic(home, subscription.topic)}
        places = () if view is None else map(view.position, range(len(view)))
        once = [self.logs.once_at(home, place) for place in places if place < target and place not in stored]
        return {origin: (1 << messages) - 1 for origin, messages in once if origin is not None}

    def _given_back(self, home: Region, topic: str, subscription: Subscription) -> frozenset[Origin]:
        """What a region trimmed and knows to be acknowledged, whatever its publish time. None while a compacted view,
        which may still have it, is read."""
        if subscription.cursor.compacted is not None:
            return frozenset()
        progress = subscription.cursor.progress
        stored = {origin for _, origin, _ in self.logs.of_topic(home, subscription.topic)}
        begun = progress.beginning.places
        return frozenset(
            origin
            for origin in self.trimmed[home.name, topic] - stored
            if origin.position > begun.get(origin.region, EARLIEST)
            and progress.is_acked(origin.region, origin.position)
        )

    # -- delivery

    def delivering(
        self, broker: Broker, topic: str, subscription: Subscription, position: Position, entry: bytes, bits: int
    ) -> None:
        """An entry is sent to a client."""
        self.delivered += 1
        home = broker.home
        origin, _, _ = self.logs.look(home.name, position, entry)
        if origin is None:
            return
        name = subscription.name
        self.ends.delivering(subscription.topic, position, origin)
        facts = self.facts.get(self.key(subscription))
        if facts is None:
            return
        again = facts.surely_acked(origin, home.name, broker) & bits
        if again:
            what = f"{self._world.shown(origin)} of {topic}/{name} (bits {again:b})"
            self.violate("acked and delivered again", f"{home.name} sends {what}, acked and durable there")
