# SPDX-License-Identifier: Apache-2.0
"""What was promised, kept beside the world and compared with what happens.

The model believes only what a client, or a durable disk, was told: receipts, confirmed acknowledgements, confirmed
flushes and barriers. From that follow two sets for each subscription: messages that *must* come (nobody can have acked
them in the epoch that counts) and messages that *must not* come in a region any more (acked, and durable there). In
between lies what a crash left open; there both are allowed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from meridian_broker.ledgers.entry import MARKER, unpack
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions import ZERO, Progress, Stamp
from meridian_broker.positions.position import EARLIEST, LATEST, Origin, Position
from meridian_broker.replication.exchange_waits import WaitResult
from meridian_broker.topics.consumer import Consumer
from meridian_broker.topics.subscription import Subscription
from simulation.crashes import Crashes
from simulation.deletions import Deletions
from simulation.facts import (
    Acked,
    Dropping,
    Heard,
    Key,
    PublishedSince,
    Rewound,
    SubscriptionFacts,
    Violation,
    covered_origins,
    incarnation_of,
    later,
    life_of,
    rewinds_of,
    subscription_of,
)
from simulation.names import HEARD_US

if TYPE_CHECKING:
    from meridian_broker.metadata.records import TopicRecord
    from meridian_broker.topics.topic import Topic
    from simulation.broker import SimRegion
    from simulation.world import World


class Model(Crashes):
    """See the module's text."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.violations: list[Violation] = []
        self.receipts: dict[tuple[str, str], dict[Position, bytes]] = defaultdict(dict)
        """(region, topic) -> entries with a receipt."""
        self.facts: dict[Key, SubscriptionFacts] = defaultdict(SubscriptionFacts)
        """(incarnation of a topic, life of a subscription) -> what is known of it."""
        self.deletions = Deletions()
        self.set_aside: dict[tuple[str, str], str] = {}
        """(region, name of a copy that was set aside) -> of which incarnation of which topic it is."""
        self._asked: dict[Key, dict[str, list[dict[str, Position]]]] = defaultdict(lambda: defaultdict(list))
        self._cut_off: dict[Key, list[dict[str, Position]]] = defaultdict(list)
        """What was asked for before a crash and never answered: made or not."""
        """(topic, subscription) -> region -> where creations begin that have begun there. Who asked may never hear how
        they ended, and other regions may have heard of them."""
        self._deleted: set[Key] = set()
        """(topic, subscription) that somebody deleted, or tried to."""
        self._ledgers: dict[str, set[int]] = defaultdict(set)
        self._replicated: dict[tuple[str, str], dict[str, Position]] = defaultdict(dict)
        """(region, incarnation of a topic) -> origin region -> last one confirmed to its replicator."""
        self.payloads: dict[Origin, bytes] = {}
        self.published: dict[Origin, int] = {}
        self._entries: dict[tuple[str, int], list[tuple[Origin | None, bytes, int]]] = {}
        self.trimmed: dict[tuple[str, str], set[Origin]] = defaultdict(set)
        """(region, topic) -> given back, with reason."""
        self.given_to: dict[tuple[str, str], dict[Origin, frozenset[str]]] = defaultdict(dict)
        """(region, topic) -> of what was given back: the topic's regions then, for which it had been kept."""
        self.rolled_back: set[str] = set()
        """Regions restored from a copy that lacked entries of their own."""
        self.lost_once: set[Origin] = set()
        """Entries their own region lost in a restore: a rewind rules them also where they are not back yet."""
        self.delivered = 0
        self.confirmed = 0
        self.commands_us: dict[tuple[str, str], int] = {}
        """Topic, subscription -> when somebody last said which region dispatches what (R26)."""

    def violate(self, kind: str, text: str) -> None:
        if not self.violations:
            self.violations.append(Violation(kind, f"after {self._world.loop.now_us / 1e6:.3f} s: {text}"))

    def key(self, subscription: Subscription) -> Key:
        """One life of a subscription, of one incarnation of a topic."""
        topic = subscription.topic
        named = incarnation_of(topic.name, topic.incarnation)
        return self.set_aside.get((topic.region, topic.name), named), life_of(subscription.name, subscription.progress)

    def is_set_aside(self, region: str, name: str, before: str, incarnation: str) -> None:
        """A region's copy of a topic has another name from now on."""
        self.set_aside[region, name] = incarnation_of(before, incarnation)

        self._owe_nothing(region, before)

    def topic_goes(self, region: str, topic: str, record: TopicRecord) -> None:
        """The region has written down that it deletes the topic."""
        self.deletions.begun(region, topic, record)
        self._owe_nothing(region, topic)

    def _owe_nothing(self, region: str, topic: str) -> None:
        """What was given back of a topic that is gone, nobody will ask for any more."""
        self.given_to[region, topic].update(dict.fromkeys(self.trimmed[region, topic], frozenset[str]()))

    def copies(self, region: str, topic: str) -> list[str]:
        """Short names of what the region set aside of a topic."""
        return [
            name.rpartition("/")[2]
            for (of, name), what in self.set_aside.items()
            if of == region and what.partition(" since ")[0] == topic
        ]

    # -- ledgers

    def ledger_made(self, region: str, ledger: int) -> None:
        if ledger in self._ledgers[region]:
            self.violate("a ledger id was used twice", f"{region} makes ledger {ledger} again (R1)")
        self._ledgers[region].add(ledger)

    def ledger_deleted(self, home: SimRegion, ledger: int) -> None:
        """With its topic, or because nobody needs it: then the metadata let go of it first."""
        topic = self._world.topic_of_ledger.get((home.name, ledger))
        if topic is None:
            return
        if ledger in home.named_ledgers(topic):
            wrong = self.deletions.ledger_goes(home, topic, [o for o, _, _ in self.entries(home, ledger)])
            if wrong is not None and wrong.position in self.receipts[wrong.region, topic]:
                text = f"{home.name} deletes {self._world.shown(wrong)} of {topic} with its topic"
                self.violate("deleted unseen", f"{text}, and whoever deleted that had never seen it (R8)")
            self.deletions.gone[home.name, topic].update(o for o, _, _ in self.entries(home, ledger) if o is not None)
            return
        broker = home.broker_of(topic)
        opened = None if broker is None else broker.topic(topic)
        going = {o: messages for o, _, messages in self.entries(home, ledger) if o is not None}
        regions = frozenset(self._world.names) if opened is None else opened.regions()
        for origin in going.keys() - self.trimmed[home.name, topic]:
            self.given_to[home.name, topic][origin] = regions
        if opened is not None and not going.keys() <= self.trimmed[home.name, topic]:
            self._check_given_back(home, opened, going)
        self.trimmed[home.name, topic] |= going.keys()

    def trimming(self, home: SimRegion) -> None:
        """It begins to give back what nobody needs: nobody who is there now."""
        broker = home.broker_of("")
        topics = broker.service.topics.values() if broker is not None else ()
        home.trimming_for = {one for topic in topics for one in topic.subscriptions.values()}

    def _check_given_back(self, home: SimRegion, opened: Topic, going: dict[Origin, int]) -> None:
        """Nothing goes that a subscription known there waits for."""
        topic = opened.name.rpartition("/")[2]
        for subscription in home.trimming_for.intersection(opened.subscriptions.values()):
            for origin, messages in going.items():
                if bits := self._owed(home, topic, subscription, origin, messages, alone=True):
                    text = f"{home.name} gives back {self._world.shown(origin)} of {topic} (bits {bits:b})"
                    self.violate("given back unread", f"{text}, for which {subscription.name} waits")
                    return

    def entries(self, home: SimRegion, ledger: int) -> list[tuple[Origin | None, bytes, int]]:
        """Of each durable entry of a ledger: origin (None: a marker), payload, messages."""
        stored = home.volume.disk.ledgers.get(ledger)
        if stored is None:
            return []
        known = self._entries.setdefault((home.name, ledger), [])
        if len(known) > len(stored.entries):
            del known[len(stored.entries) :]
        for number in range(len(known), len(stored.entries)):
            known.append(self._look(home.name, Position(ledger, number), stored.entries[number]))
        return known

    def _look(self, region: str, position: Position, entry: bytes) -> tuple[Origin | None, bytes, int]:
        header = unpack(entry)
        payload = entry[entry.rfind(b"#") :]
        if header.flags & MARKER:
            return None, payload, header.messages
        origin = (
            Origin(region, *position)
            if header.region is None or header.origin is None
            else Origin(header.region, *header.origin)
        )
        self.published.setdefault(origin, header.publish_time_ms)
        before = self.payloads.setdefault(origin, payload)
        if before != payload:
            self.violate("one origin, two payloads", f"{origin} is {before!r}, in {region} {payload!r}")
        return origin, payload, header.messages

    def _once_at(self, home: SimRegion, position: Position) -> tuple[Origin | None, int]:
        """Which entry stands there, or stood before it was given back, and how many messages it has."""
        entries = self.entries(home, position.ledger) or self._entries.get((home.name, position.ledger), [])
        if not 0 <= position.entry < len(entries):
            return None, 0
        origin, _, messages = entries[position.entry]
        return origin, messages

    def log(self, home: SimRegion, topic: str) -> list[tuple[Position, Origin, int]]:
        """Everything stored of a topic that is no marker: position, origin, messages."""
        broker = home.broker_of(topic)
        return self._log_of(home, broker.topic(topic) if broker is not None else None)

    def _log_of(self, home: SimRegion, opened: Topic | None) -> list[tuple[Position, Origin, int]]:
        found = []
        for ledger, count, _ in opened.log.counts() if opened is not None else ():
            for number, (origin, _, messages) in enumerate(self.entries(home, ledger)[:count]):
                if origin is not None:
                    found.append((Position(ledger, number), origin, messages))
        return found

    # -- producers and replicators

    def stored(self, home: SimRegion, position: Position) -> None:
        """A receipt leaves."""
        if not home.volume.holds(*position):
            self.violate(
                "a receipt before it was durable", f"{home.name} confirms {position}, which a crash would lose"
            )

    def receipted(self, home: SimRegion, topic: str, position: Position, payload: bytes) -> None:
        """A client has its receipt."""
        self.receipts[home.name, topic][position] = payload
        self.confirmed += 1

    def replicated(self, home: SimRegion, topic: str, region: str, origin: Position) -> None:
        """A receipt for a replicator leaves."""
        places = self._replicated[home.name, topic]
        places[region] = max(places.get(region, EARLIEST), origin)

    def replica_place(self, home: SimRegion, remote: str, topic: str, last: Position) -> None:
        """A remote said that it has everything of ours up to there."""
        places = self._replicated[remote, topic]
        places[home.name] = max(places.get(home.name, EARLIEST), last)

    # -- acknowledgements

    def subscription_made(self, home: SimRegion, topic: str, name: str, initial: Position, opened: Topic) -> None:
        is_latest = initial == LATEST
        places = {**opened.log.last_origin, home.name: opened.log.last_own} if is_latest else {}
        self._asked[topic, name][home.name].append(places)

    def subscription_refused(self, topic: str, name: str, initial: Position, opened: Topic | None) -> None:
        """Whoever asked hears that it was not made. It may have been, at any moment until now."""
        if initial == LATEST and opened is not None:
            self._cut_off[topic, name].append({**opened.log.last_origin, opened.region: opened.log.last_own})

    def subscription_deleted(self, topic: str, name: str) -> None:
        """Somebody deletes it, and all that was promised of this life of it."""
        self._deleted.add((topic, name))

    def subscription_seen(self, home: SimRegion, topic: str, subscription: Subscription) -> None:
        """What a region thinks when it has just found or made it."""
        name, created = subscription.name, subscription.record.created
        facts = self.facts[self.key(subscription)]
        asked = self._asked[topic, name][home.name]
        places = asked.pop(0) if asked else {}  # who asks first makes it
        if home.name in places:  # the latest message when it was made, which is at some moment before the answer
            stored = subscription.topic.log
            places = {**stored.last_origin, home.name: stored.last_own}
        if created.region == home.name:
            facts.made.setdefault(home.name, created)
            facts.places.setdefault(created, places)

    def check_record(self, topic: str, subscription: Subscription) -> None:
        """Of several creations the earliest counts (R15), where regions tell each other."""
        if not subscription.replicated:
            return
        name, created = subscription.name, subscription.record.created
        homes = self._world.homes_of(topic)
        made = [stamp for region, stamp in self.facts[self.key(subscription)].made.items() if region in homes]
        for one in made:
            if later(created, one):
                self.violate("a later creation won", f"{topic}/{name} was made at {one}, and {created} counts")

    def acking(self, home: SimRegion, topic: str, consumer: Consumer, bits: dict[Position, int], epoch: Stamp) -> Heard:
        subscription = subscription_of(consumer)
        facts = self.facts[self.key(subscription)]
        found: dict[Origin, int] = {}
        for position, some in bits.items():
            origin, _ = self._once_at(home, position)
            if origin is None:
                continue
            topic_here = subscription.topic
            if topic_here.log.holds(position) or topic_here.late.index(position) is not None:
                found[origin] = some
            else:  # given back, and perhaps long ago: then nothing tells any more what it was
                facts.add(Acked(epoch, {origin: some}))
        return self._acked(home, topic, subscription, epoch, found)

    def acking_up_to(
        self,
        home: SimRegion,
        topic: str,
        consumer: Consumer,
        behind: Position,
        upto: Position,
        was_sent: Callable[[Position], bool],
        came_later: Callable[[Position], bool],
    ) -> list[Heard]:
        """A cumulative ack.

        :param behind: it is about what is stored behind this place.
        :param was_sent: of these it counts in the newest epoch (R13).
        :param came_later: these the client had not got yet when it got the one it acks: another share, won meanwhile.
        """
        subscription = subscription_of(consumer)
        log = self._log_of(home, subscription.topic)
        only = covered_origins(subscription, self._origin_at(home, upto), upto)
        found = {
            origin: (1 << messages) - 1
            for place, origin, messages in log
            if behind < place <= upto and (only is None or (origin.region in only and not came_later(place)))
        }
        facts = self.facts[self.key(subscription)]
        # What may have been dropped here was perhaps never sent to the consumer, which then says nothing of it.
        dropped = {o: bits for o, bits in found.items() if facts.perhaps_dropped(o, home.name, self.published[o])}
        if dropped:
            facts.add(Acked(consumer.epoch, dropped))
        named, messages = self._once_at(home, upto)
        if named is not None and named not in found:  # dropped and given back, and it says that it has it
            facts.add(Acked(consumer.epoch, {named: (1 << messages) - 1}))
        again = {origin for place, origin, _ in log if was_sent(place)}
        sent = {origin: bits for origin, bits in found.items() if origin not in dropped}
        parts = (
            (consumer.epoch, {origin: bits for origin, bits in sent.items() if origin in again}),
            (ZERO, {origin: bits for origin, bits in sent.items() if origin not in again}),
        )
        return [self._acked(home, topic, subscription, epoch, bits) for epoch, bits in parts if bits]

    def expiring(self, home: SimRegion, topic: str, some: list[Subscription], before_ms: int) -> None:
        """A region begins to drop what is older."""
        self._dropping(home, topic, some, Dropping(self._world.loop.now_us, before_ms))

    def evicting(self, home: SimRegion, topic: str, some: list[Subscription], upto: Position) -> None:
        """A region begins to drop everything up to there."""
        origins = frozenset(origin for place, origin, _ in self.log(home, topic) if place <= upto)
        self._dropping(home, topic, some, Dropping(self._world.loop.now_us, 0, origins))

    def _dropping(self, home: SimRegion, topic: str, some: list[Subscription], what: Dropping) -> None:
        for one in some:
            self.facts[self.key(one)].dropping.setdefault(home.name, []).append(what)

    def _origin_at(self, home: SimRegion, position: Position) -> Origin | None:
        entries = self.entries(home, position.ledger)
        return entries[position.entry][0] if 0 <= position.entry < len(entries) else None

    def _acked(
        self, home: SimRegion, topic: str, subscription: Subscription, epoch: Stamp, bits: dict[Origin, int]
    ) -> Heard:
        ack = Acked(epoch, bits, rewinds_of(subscription.progress))
        self.facts[self.key(subscription)].add(ack)

        def heard(error: LedgerError | None) -> None:
            if error is None:
                ack.known.setdefault(home.name, self._world.loop.now_us)

        return heard

    def seeking(
        self, home: SimRegion, topic: str, subscription: Subscription, target: Position, time_ms: int | None = None
    ) -> Callable[[Stamp, Stamp, Progress], Heard]:
        """A seek begins; the result is told how it ended, and gives whom to tell that it is durable.

        :param time_ms: it is one by time, and ``target`` the first entry published then or later.
        """
        facts = self.facts[self.key(subscription)]
        before = [(origin, messages) for place, origin, messages in self.log(home, topic) if place < target]
        after_surely = {origin for place, origin, _ in self.log(home, topic) if place >= target}

        def done(old: Stamp, new: Stamp, progress: Progress) -> Heard:
            bits = {origin: (1 << messages) - 1 for origin, messages in before}
            ack = Acked(old, bits, rewinds_of(progress))
            facts.add(ack)
            rewind: Rewound | None = None
            if new != old:
                perhaps = {origin for place, origin, _ in self.log(home, topic) if place >= target} | self.lost_once
                rewind = Rewound(new, after_surely, perhaps)
                if time_ms is not None:
                    rewind.surely = rewind.perhaps = PublishedSince(self.published, time_ms)
                facts.rewinds.append(rewind)

            def heard(error: LedgerError | None) -> None:
                if error is None:
                    now = self._world.loop.now_us
                    ack.known.setdefault(home.name, now)
                    if rewind is not None:
                        rewind.known.setdefault(home.name, now)

            return heard

        return done

    # -- flushes and barriers

    def flush_begun(self, home: SimRegion, topic_name: str, name: str) -> Callable[[WaitResult], None]:
        """What is durable here now is durable in every region that confirms."""
        incarnation = self._incarnation(home, topic_name)
        known = self._known(home.name, incarnation, name)
        now = self._world.loop.now_us
        restores = {r: one.restores for r, one in self._world.regions.items() if now - one.restored_us >= HEARD_US}

        def done(result: WaitResult) -> None:
            regions = self._world.regions
            same = {region for region in result.confirmed if regions[region].restores == restores.get(region)}
            if home.is_one:
                told = {region for region in same if self._is_told(region, topic_name, name)}
                self._spread(known, frozenset(region for region in told if regions[region].is_one))
            self._complete("flush", home, topic_name, result)

        return done

    def barrier_begun(self, home: SimRegion, topic_name: str, name: str) -> Callable[[WaitResult], None]:
        """What is durable now in a region that answers is known here then, and durable here as soon as can be."""
        incarnation = self._incarnation(home, topic_name)
        known = {
            region: self._known(region, incarnation, name)
            for region in self._world.names
            if self._is_told(region, topic_name, name)
        }

        def done(result: WaitResult) -> None:
            for region in result.confirmed & known.keys():
                if home.is_one and self._world.regions[region].is_one and self._is_told(region, topic_name, name):
                    self._hear(home, topic_name, known[region])
            self._complete("barrier", home, topic_name, result)

        return done

    def _is_told(self, region: str, topic_name: str, name: str) -> bool:
        """Regions tell each other of the subscription, as this one has it (R17)."""
        broker = self._world.regions[region].broker_of(topic_name)
        topic = None if broker is None else broker.service.topics.get(topic_name)
        found = None if topic is None else topic.subscriptions.get(name)
        return found is None or found.replicated

    def _hear(self, home: SimRegion, topic_name: str, known: list[Acked | Rewound]) -> None:
        broker = home.broker
        topic = None if broker is None else broker.service.topics.get(topic_name)
        if broker is None or topic is None:
            return
        for one in known:
            if isinstance(one, Acked) and one.known:
                one.heard_by[home.name] = broker

        def durable(error: LedgerError | None) -> None:
            if error is None:
                self._spread(known, frozenset((home.name,)))

        topic.progress_log.when_durable(durable)

    def _complete(self, what: str, home: SimRegion, topic_name: str, result: WaitResult) -> None:
        asked = [one for one in result.missing if self._counts_in(one, home.name, topic_name)]
        if asked and self._world.calm():
            missing = ", ".join(f"{region} ({result.missing[region]})" for region in sorted(asked))
            self.violate(f"a {what} was not complete", f"in {home.name} without {missing}, though nothing was wrong")

    def _counts_in(self, region: str, other: str, topic_name: str) -> bool:
        """It counts the other one among the topic's regions, as it was told."""
        broker = self._world.regions[region].broker_of(topic_name)
        return broker is None or other in broker.service.regions_of(topic_name)

    @staticmethod
    def _incarnation(home: SimRegion, topic_name: str) -> str:
        """The one that the region has now."""
        broker = home.broker_of(topic_name)
        topic = None if broker is None else broker.service.topics.get(topic_name)
        return incarnation_of(topic_name, "" if topic is None else topic.incarnation)

    def _known(self, region: str, incarnation: str, name: str) -> list[Acked | Rewound]:
        lives = [
            facts
            for (of, life), facts in self.facts.items()
            if of == incarnation and (life == name or life.startswith(f"{name} since "))
        ]
        return [one for facts in lives for one in facts.all() if region in one.known]

    def _spread(self, known: list[Acked | Rewound], regions: frozenset[str]) -> None:
        now = self._world.loop.now_us
        for one in known:
            if one.known:
                for region in regions:
                    one.known.setdefault(region, now)

    # -- delivery

    def delivering(
        self, home: SimRegion, topic: str, subscription: Subscription, position: Position, entry: bytes, bits: int
    ) -> None:
        """An entry goes to a client."""
        self.delivered += 1
        origin, _, _ = self._look(home.name, position, entry)
        if origin is None:
            return
        name = subscription.name
        facts = self.facts.get(self.key(subscription))
        if facts is None:
            return
        again = facts.surely_acked(origin, home.name, home.broker) & bits
        if again:
            what = f"{self._world.shown(origin)} of {topic}/{name} (bits {again:b})"
            self.violate("acked and delivered again", f"{home.name} sends {what}, acked and durable there")

    # -- in the end

    def check_logs(self, topic: str) -> None:
        """Entries: none lost, none twice, each origin's in order, each chained to the one before."""
        for home in [home for home in self._world.regions.values() if home.name not in self._world.gone]:
            log = self.log(home, topic)
            gone = self.trimmed[home.name, topic] | self.deletions.gone[home.name, topic]
            stored = {position: origin for position, origin, _ in log}
            last: dict[str, Position] = {}
            seen: set[Origin] = set()
            for position, origin, _ in log:
                if origin in seen:
                    self.violate("stored twice", f"{home.name} has {self._world.shown(origin)} at {position} once more")
                seen.add(origin)
                # What a region lost and got back may come late, but then too in its order.
                key = f"{origin.region}/{origin.ledger}" if origin.region in self.rolled_back else origin.region
                if origin.position <= last.get(key, EARLIEST):
                    self.violate(
                        "order of an origin", f"{home.name} has {self._world.shown(origin)} at {position}, not in order"
                    )
                last[key] = origin.position
            for copy in self.copies(home.name, topic):
                stored |= {position: origin for position, origin, _ in self.log(home, copy)}
            for position in self.receipts[home.name, topic]:
                origin = Origin(home.name, *position)
                if position not in stored and origin not in gone:
                    self.violate("lost", f"{home.name} confirmed {self._world.shown(origin)} and has it no more")
                elif self.payloads[origin] != self.receipts[home.name, topic][position]:
                    self.violate(
                        "another message under the receipt's id", f"{self._world.shown(origin)} in {home.name}"
                    )
            self.check_replicas(home)

    def is_dropped_somewhere(self, topic: str, subscription: Subscription, origin: Origin) -> bool:
        """Whether some region may have let it go, perhaps the one that dispatches it (R14)."""
        facts = self.facts[self.key(subscription)]
        return any(facts.perhaps_dropped(origin, region, self.published[origin]) for region in self._world.names)

    def check_delivered(
        self, home: SimRegion, topic: str, subscription: Subscription, got: dict[Position, int]
    ) -> None:
        """What one consumer got who looked at everything, after all was quiet."""
        for position, origin, messages in self._log_of(home, subscription.topic):
            missing = self._owed(home, topic, subscription, origin, messages) & ~got.get(position, 0)
            if missing:
                what = f"{self._world.shown(origin)} of {topic}/{subscription.name} (bits {missing:b})"
                self.violate("skipped", f"{home.name} never delivers {what}, which nobody acked")
            # What must not come is seen when it is sent.

    def _owed(
        self,
        home: SimRegion,
        topic: str,
        subscription: Subscription,
        origin: Origin,
        messages: int,
        *,
        alone: bool = False,
    ) -> int:
        """Bits that a consumer there has still to get, whatever a crash left open.

        :param alone: as far as that region knows; else it knows all that the others do.
        """
        name, facts = subscription.name, self.facts[self.key(subscription)]
        alone = alone or not subscription.replicated or (home.name, subscription.topic.name) in self.set_aside
        homes = {} if alone else self._world.homes_of(topic)
        agreeing = frozenset(homes) if home.name in homes else frozenset((home.name,))
        if facts.perhaps_dropped(origin, home.name, self.published[origin]):
            return 0
        if facts.lies_before(origin, is_agreed=len(agreeing) > 1 and facts.made.keys() <= agreeing):
            return 0
        if topic in self._world.told and origin in self.lost_once:
            return 0  # who has it was perhaps not asked, for it was no region of the topic then
        made = self.key(subscription)[0].partition(" since ")[0], name  # a copy that was set aside had another name
        asked = [places for some in self._asked[made].values() for places in some] + self._cut_off[made]
        if any(origin.position <= places.get(origin.region, EARLIEST) for places in asked):
            return 0
        return ((1 << messages) - 1) & ~facts.perhaps_acked(origin, agreeing)

    def all_know(self, topic: str, subscription: Subscription) -> None:
        """Progress is equal in all regions of the topic, and durable: whatever one of them knew, all know."""
        homes = frozenset(self._world.homes_of(topic))
        known = [one for one in self.facts[self.key(subscription)].all() if not homes.isdisjoint(one.known)]
        self._spread(known, homes)
