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
    durable_progress,
    later,
    life_of,
    rewinds_of,
    subscription_of,
)
from simulation.names import HEARD_US

if TYPE_CHECKING:
    from meridian_broker.topics.topic import Topic
    from simulation.broker import SimBroker, SimRegion
    from simulation.world import World


class Model:
    """See the module's text."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.violations: list[Violation] = []
        self.receipts: dict[tuple[str, str], dict[Position, bytes]] = defaultdict(dict)
        """(region, topic) -> entries with a receipt."""
        self.facts: dict[Key, SubscriptionFacts] = defaultdict(SubscriptionFacts)
        """(topic, life of a subscription) -> what is known of it."""
        self._asked: dict[Key, dict[str, list[dict[str, Position]]]] = defaultdict(lambda: defaultdict(list))
        self._cut_off: dict[Key, list[dict[str, Position]]] = defaultdict(list)
        """What was asked for before a crash and never answered: made or not."""
        """(topic, subscription) -> region -> where creations begin that have begun there. Who asked may never hear how
        they ended, and other regions may have heard of them."""
        self._deleted: set[Key] = set()
        """(topic, subscription) that somebody deleted, or tried to."""
        self._ledgers: dict[str, set[int]] = defaultdict(set)
        self._replicated: dict[tuple[str, str], dict[str, Position]] = defaultdict(dict)
        """(region, topic name) -> origin region -> last one confirmed to its replicator."""
        self.payloads: dict[Origin, bytes] = {}
        self.published: dict[Origin, int] = {}
        self._entries: dict[tuple[str, int], list[tuple[Origin | None, bytes, int]]] = {}
        self.trimmed: dict[tuple[str, str], set[Origin]] = defaultdict(set)
        """(region, topic) -> given back, with reason."""
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

    # -- ledgers

    def ledger_made(self, region: str, ledger: int) -> None:
        if ledger in self._ledgers[region]:
            self.violate("a ledger id was used twice", f"{region} makes ledger {ledger} again (R1)")
        self._ledgers[region].add(ledger)

    def ledger_deleted(self, home: SimRegion, ledger: int) -> None:
        topic = self._world.topic_of_ledger.get((home.name, ledger))
        if topic is not None:
            self.trimmed[home.name, topic].update(o for o, _, _ in self.entries(home, ledger) if o is not None)

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

    def subscription_deleted(self, topic: str, name: str) -> None:
        """Somebody deletes it, and all that was promised of this life of it."""
        self._deleted.add((topic, name))

    def subscription_seen(self, home: SimRegion, topic: str, subscription: Subscription) -> None:
        """What a region thinks when it has just found or made it."""
        name, created = subscription.name, subscription.record.created
        facts = self.facts[topic, life_of(name, subscription.progress)]
        asked = self._asked[topic, name][home.name]
        places = asked.pop(0) if asked else {}  # who asks first makes it
        if home.name in places:  # the latest message when it was made, which is at some moment before the answer
            stored = subscription.topic.log
            places = {**stored.last_origin, home.name: stored.last_own}
        if created.region == home.name:
            facts.made.setdefault(home.name, created)
            facts.places.setdefault(created, places)

    def check_record(self, topic: str, subscription: Subscription) -> None:
        """Of several creations the earliest counts (R15)."""
        name, created = subscription.name, subscription.record.created
        made = list(self.facts[topic, life_of(name, subscription.progress)].made.values())
        for one in made:
            if later(created, one):
                self.violate("a later creation won", f"{topic}/{name} was made at {one}, and {created} counts")

    def acking(self, home: SimRegion, topic: str, consumer: Consumer, bits: dict[Position, int], epoch: Stamp) -> Heard:
        subscription = subscription_of(consumer)
        facts = self.facts[topic, life_of(subscription.name, subscription.progress)]
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
        upto: Position,
        was_sent: Callable[[Position], bool],
        came_later: Callable[[Position], bool],
    ) -> list[Heard]:
        """A cumulative ack.

        :param was_sent: of these it counts in the newest epoch (R13).
        :param came_later: these the client had not got yet when it got the one it acks: another share, won meanwhile.
        """
        subscription = subscription_of(consumer)
        log = self._log_of(home, subscription.topic)
        only = covered_origins(subscription, self._origin_at(home, upto), upto)
        found = {
            origin: (1 << messages) - 1
            for place, origin, messages in log
            if place <= upto and (only is None or (origin.region in only and not came_later(place)))
        }
        facts = self.facts[topic, life_of(subscription.name, subscription.progress)]
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
            self.facts[topic, life_of(one.name, one.progress)].dropping.setdefault(home.name, []).append(what)

    def _origin_at(self, home: SimRegion, position: Position) -> Origin | None:
        entries = self.entries(home, position.ledger)
        return entries[position.entry][0] if 0 <= position.entry < len(entries) else None

    def _acked(
        self, home: SimRegion, topic: str, subscription: Subscription, epoch: Stamp, bits: dict[Origin, int]
    ) -> Heard:
        ack = Acked(epoch, bits, rewinds_of(subscription.progress))
        self.facts[topic, life_of(subscription.name, subscription.progress)].add(ack)

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
        facts = self.facts[topic, life_of(subscription.name, subscription.progress)]
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
        known = self._known(home.name, topic_name, name)
        now = self._world.loop.now_us
        restores = {r: one.restores for r, one in self._world.regions.items() if now - one.restored_us >= HEARD_US}

        def done(result: WaitResult) -> None:
            regions = self._world.regions
            same = {region for region in result.confirmed if regions[region].restores == restores.get(region)}
            if home.is_one:
                self._spread(known, frozenset(region for region in same if regions[region].is_one))
            self._complete("flush", home, result)

        return done

    def barrier_begun(self, home: SimRegion, topic_name: str, name: str) -> Callable[[WaitResult], None]:
        """What is durable now in a region that answers is known here then, and durable here as soon as can be."""
        known = {region: self._known(region, topic_name, name) for region in self._world.names}

        def done(result: WaitResult) -> None:
            for region in result.confirmed:
                if home.is_one and self._world.regions[region].is_one:
                    self._hear(home, topic_name, known[region])
            self._complete("barrier", home, result)

        return done

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

    def _complete(self, what: str, home: SimRegion, result: WaitResult) -> None:
        if result.missing and self._world.calm():
            missing = ", ".join(f"{region} ({reason})" for region, reason in sorted(result.missing.items()))
            self.violate(f"a {what} was not complete", f"in {home.name} without {missing}, though nothing was wrong")

    def _known(self, region: str, topic_name: str, name: str) -> list[Acked | Rewound]:
        topic = topic_name.rpartition("/")[2]
        lives = [
            facts
            for (of, life), facts in self.facts.items()
            if of == topic and (life == name or life.startswith(f"{name} since "))
        ]
        return [one for facts in lives for one in facts.all() if region in one.known]

    def _spread(self, known: list[Acked | Rewound], regions: frozenset[str]) -> None:
        now = self._world.loop.now_us
        for one in known:
            if one.known:
                for region in regions:
                    one.known.setdefault(region, now)

    # -- crashes and restores

    def crashed(self, home: SimRegion) -> None:
        """The power is gone: look at what is left."""
        for key, asked in self._asked.items():
            self._cut_off[key] += asked.pop(home.name, [])
        self.check_replicas(home)
        for topic in {topic for topic, _ in self.facts}:
            self.check_known(home, topic, durable_progress(home, topic))

    def check_open(self) -> None:
        """What regions were told and confirmed, they have in memory too."""
        for home in self._world.regions.values():
            for topic in {topic for topic, _ in self.facts}:
                broker = home.broker_of(topic)
                opened = broker.topic(topic) if broker is not None else None
                if opened is not None:
                    progress = {name: one.progress for name, one in opened.subscriptions.items()}
                    self.check_known(home, topic, progress, broker)

    def check_known(
        self, home: SimRegion, topic: str, progress: dict[str, Progress], broker: SimBroker | None = None
    ) -> None:
        """Every acknowledgement that the region confirmed, to a client or to another region, is there.

        :param broker: whose memory it is; None: it is the disk.
        """
        for (known, life), facts in self.facts.items():
            if known != topic:
                continue
            name = life.partition(" since ")[0]
            have = progress.get(name)
            if (topic, name) in self._deleted and (have is None or life_of(name, have) != life):
                continue
            for origin in facts.by_origin:
                bits = facts.surely_acked(origin, home.name, broker)
                if not bits:
                    continue
                left = None
                if have is not None:
                    time_ms = self.published[origin]
                    left = have.remaining(origin.region, origin.position, bits.bit_length(), time_ms)
                if bits if left is None else left & bits:
                    self.violate(
                        "an acknowledgement was lost",
                        f"{home.name} confirmed {self._world.shown(origin)} of {topic}/{name} and has it not "
                        + ("on its disk" if broker is None else "in memory"),
                    )
                    return

    def check_replicas(self, home: SimRegion) -> None:
        """Whatever a replicator was told to be stored must be there."""
        for (region, topic), places in self._replicated.items():
            if region == home.name and places:
                durable = self._durable_origins(home, topic.rpartition("/")[2])
                for origin_region, last in places.items():
                    if last > durable.get(origin_region, EARLIEST):
                        has = durable.get(origin_region, EARLIEST)
                        text = f"{region} confirmed {origin_region}/{last}, and has {has}"
                        self.violate("a replicator was told too much", text)

    def _durable_origins(self, home: SimRegion, topic: str) -> dict[str, Position]:
        last: dict[str, Position] = {}
        for origin in self.trimmed[home.name, topic]:
            last[origin.region] = max(last.get(origin.region, EARLIEST), origin.position)
        for ledger in home.volume.disk.ledgers:
            if self._world.topic_of_ledger.get((home.name, ledger)) == topic:
                for found, _, _ in self.entries(home, ledger):
                    if found is not None:
                        last[found.region] = max(last.get(found.region, EARLIEST), found.position)
        return last

    def restored(self, home: SimRegion, saved_us: int, lost: dict[str, set[Origin]]) -> None:
        """A region went back to an older copy: what it knew since then, it does not know."""
        for (region, topic), receipts in self.receipts.items():
            if region == home.name:
                known = home.known_ledgers(topic)
                for position in [p for p in receipts if p.ledger not in known or not home.volume.holds(*p)]:
                    if Origin(region, *position) not in self.trimmed[region, topic]:
                        del receipts[position]
        for facts in self.facts.values():
            if facts.made.pop(home.name, None) is not None:
                facts.is_a_creation_forgotten = True
            for one in facts.all():
                if one.known.get(home.name, -1) > saved_us:
                    del one.known[home.name]
                    if isinstance(one, Acked):
                        one.heard_by.pop(home.name, None)
        for (region, _), places in self._replicated.items():
            if region == home.name:
                places.clear()
        for region, ledger in [key for key in self._entries if key[0] == home.name]:
            del self._entries[region, ledger]
        for topic, origins in lost.items():
            self.trimmed[home.name, topic] -= {origin for origin in self.trimmed[home.name, topic] if origin in origins}
            own = {origin for origin in origins if origin.region == home.name}
            if own:
                self.rolled_back.add(home.name)
                self.lost_once |= own

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
        facts = self.facts.get((topic, life_of(name, subscription.progress)))
        if facts is None:
            return
        again = facts.surely_acked(origin, home.name, home.broker) & bits
        if again:
            what = f"{self._world.shown(origin)} of {topic}/{name} (bits {again:b})"
            self.violate("acked and delivered again", f"{home.name} sends {what}, acked and durable there")

    # -- in the end

    def check_logs(self, topic: str) -> None:
        """Entries: none lost, none twice, each origin's in order, each chained to the one before."""
        for home in self._world.regions.values():
            log = self.log(home, topic)
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
            for position in self.receipts[home.name, topic]:
                origin = Origin(home.name, *position)
                if position not in stored and origin not in self.trimmed[home.name, topic]:
                    self.violate("lost", f"{home.name} confirmed {self._world.shown(origin)} and has it no more")
                elif self.payloads[origin] != self.receipts[home.name, topic][position]:
                    self.violate(
                        "another message under the receipt's id", f"{self._world.shown(origin)} in {home.name}"
                    )
            self.check_replicas(home)

    def is_dropped_somewhere(self, topic: str, subscription: Subscription, origin: Origin) -> bool:
        """Whether some region may have let it go, perhaps the one that dispatches it (R14)."""
        facts = self.facts[topic, life_of(subscription.name, subscription.progress)]
        return any(facts.perhaps_dropped(origin, region, self.published[origin]) for region in self._world.names)

    def check_delivered(
        self, home: SimRegion, topic: str, subscription: Subscription, got: dict[Position, int]
    ) -> None:
        """What one consumer got who looked at everything, after all was quiet."""
        name = subscription.name
        facts = self.facts[topic, life_of(name, subscription.progress)]
        asked = [places for some in self._asked[topic, name].values() for places in some] + self._cut_off[topic, name]
        for position, origin, messages in self.log(home, topic):
            whole = (1 << messages) - 1
            bits = got.get(position, 0)
            missing = whole & ~(bits | facts.perhaps_acked(origin))
            begins_later = facts.lies_before(origin) or any(
                origin.position <= places.get(origin.region, EARLIEST) for places in asked
            )
            dropped = facts.perhaps_dropped(origin, home.name, self.published[origin])
            if missing and not dropped and not begins_later:
                self.violate(
                    "skipped",
                    f"{home.name} never delivers {self._world.shown(origin)} of {topic}/{name} (bits {missing:b}), "
                    "which nobody acked",
                )
            # What must not come is seen when it is sent.

    def all_know(self, topic: str, subscription: Subscription) -> None:
        """Progress is equal in all regions, and durable: whatever one of them knew, all know."""
        facts = self.facts[topic, life_of(subscription.name, subscription.progress)]
        self._spread(facts.all(), frozenset(self._world.names))
