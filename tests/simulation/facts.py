# SPDX-License-Identifier: Apache-2.0
"""What the model knows of one incarnation of a subscription, and the consequences for each of its messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.labels import Belonging, Label
from meridian_broker.ledgers.labels import Kind as LedgerKind
from meridian_broker.metadata import keys
from meridian_broker.metadata.topic_records import TopicRecord
from meridian_broker.positions import ZERO, Beginning, Progress, Stamp
from meridian_broker.positions.position import EARLIEST, Origin, Position
from meridian_broker.topics.dispatch.consumer import Consumer
from meridian_broker.topics.journal import changes
from meridian_broker.topics.journal.changes import Kind
from meridian_broker.topics.journal.subscription_record import decode_record
from meridian_broker.topics.journal.subscription_snapshot import Whole
from meridian_broker.topics.subscriptions.subscription import Subscription
from meridian_broker.wire.pulsar import topic_name
from simulation.names import full_name, incarnation_of

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext
    from simulation.stage import Broker, Region

Key = tuple[str, str]
DROP_US: Final = 2_000_000
"""After this time an expiry has happened, or never will."""


@dataclass(frozen=True)
class Violation:
    """A broken promise."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(slots=True)
class Acked:
    """One acknowledgement: which bits of which origins, in which epoch, and where and since when it is durable."""

    epoch: Stamp
    bits: dict[Origin, int]
    heard: frozenset[Stamp] = frozenset()
    """Rewinds known in its region. Any other may undo the ack, whatever its stamp."""
    known: dict[str, int] = field(default_factory=dict)
    heard_by: dict[str, Broker] = field(default_factory=dict)
    """Region -> the broker that has it, durable or not."""
    taken_by: Broker | None = None
    """The broker that received it from a client and did not refuse it."""
    taken_in: TopicContext | None = None
    """The topic as that broker had it open then."""

    def is_in(self, said: Progress, published: dict[Origin, int]) -> bool:
        """Whether a record with this content is about it, or about a part of it."""
        for origin, bits in self.bits.items():
            left = said.remaining(origin.region, origin.position, bits.bit_length(), published[origin])
            if left is not None and left & bits != bits:
                return True
        return False


@dataclass(frozen=True, slots=True)
class PublishedSince:
    """Every entry published at or after a time, including future ones, with exceptions."""

    published: dict[Origin, int]
    time_ms: int
    upto: Mapping[str, Position] = field(default_factory=dict)
    """Per origin region: nothing published up to here, ..."""
    apart: frozenset[Origin] = frozenset()
    """... nor these."""

    def __contains__(self, origin: object) -> bool:
        if not isinstance(origin, Origin) or self.published.get(origin, 0) < self.time_ms:
            return False
        return origin.position > self.upto.get(origin.region, EARLIEST) and origin not in self.apart


@dataclass(slots=True)
class Rewound:
    """One rewind: what it surely covers, what it may cover, and where and since when it is durable."""

    stamp: Stamp
    surely: set[Origin] | PublishedSince
    perhaps: set[Origin] | PublishedSince
    known: dict[str, int] = field(default_factory=dict)

    def is_in(self, said: Progress, _: dict[Origin, int]) -> bool:
        """Whether a record with this content is about it."""
        return self.stamp in rewinds_of(said)


@dataclass(frozen=True, slots=True)
class Dropping:
    """A region drops entries: those published before a time on its wall clock, or a given set."""

    begun_us: int
    before_ms: int = 0
    origins: frozenset[Origin] = frozenset()


@dataclass(slots=True)
class SubscriptionFacts:
    acks: list[Acked] = field(default_factory=list)
    by_origin: dict[Origin, list[Acked]] = field(default_factory=lambda: defaultdict(list))
    rewinds: list[Rewound] = field(default_factory=list)
    made: dict[str, Stamp] = field(default_factory=dict)
    """Region -> stamp of the creation there, if it was created before another region reported it."""
    dropping: dict[str, list[Dropping]] = field(default_factory=dict)
    """Region -> what may be missing there without an acknowledgement."""
    places: dict[Stamp, dict[str, Position]] = field(default_factory=dict)
    """For each creation: origin region -> position up to which nothing need be delivered, because it began later."""
    nowhere: frozenset[Origin] | None = None
    """Entries that no region stored any more at its first creation: it is not owed those."""
    is_a_creation_forgotten: bool = False
    """Lost by a restore: it may still exist in other regions, or not."""

    def all(self) -> list[Acked | Rewound]:
        return [*self.acks, *self.rewinds]

    def add(self, ack: Acked) -> None:
        self.acks.append(ack)
        for origin in ack.bits:
            self.by_origin[origin].append(ack)

    def ever_acked(self, origin: Origin) -> int:
        """Bits that were acked, whatever rewinds took back."""
        bits = 0
        for ack in self.by_origin.get(origin, ()):
            bits |= ack.bits[origin]
        return bits

    def perhaps_acked(self, origin: Origin, regions: frozenset[str]) -> int:
        """Bits that may count as acked. Rewinds that none of these regions knows undo nothing there."""
        bits = 0
        rewinds = [rewind for rewind in self.rewinds if not regions.isdisjoint(rewind.known)]
        for ack in self.by_origin.get(origin, ()):
            if not any(later(r.stamp, ack.epoch) and origin in r.surely for r in rewinds):
                bits |= ack.bits[origin]
        return bits

    def lies_before(self, origin: Origin, *, is_agreed: bool) -> bool:
        """Whether the subscription began after it: the earliest creation counts (R15).

        :param is_agreed: with other regions; one that is on its own may not have heard of the earliest.
        """
        counting = list(self.made.values())
        for one in list(counting):
            counting = [other for other in counting if not later(other, one)]
        if self.is_a_creation_forgotten or not is_agreed or not counting:
            counting = list(self.places)
        return any(origin.position <= self.places[one].get(origin.region, EARLIEST) for one in counting)

    def perhaps_dropped(self, origin: Origin, region: str, published_ms: int) -> bool:
        """Whether the region may drop it without an acknowledgement (R14). A rewind undoes that."""
        for some in self.dropping.get(region, ()):
            done_us = some.begun_us + DROP_US
            owed_again = any(r.known and origin in r.surely and min(r.known.values()) > done_us for r in self.rewinds)
            if (published_ms < some.before_ms or origin in some.origins) and not owed_again:
                return True
        return False

    def surely_acked(self, origin: Origin, region: str, broker: Broker | None) -> int:
        """Bits that count as acked in the region: durably, or in that broker's memory."""
        bits = 0
        for ack in self.by_origin.get(origin, ()):
            is_known = region in ack.known or (broker is not None and ack.heard_by.get(region) is broker)
            if is_known and not any(
                origin in r.perhaps and (later(r.stamp, ack.epoch) or r.stamp not in ack.heard) for r in self.rewinds
            ):
                bits |= ack.bits[origin]
        return bits


def subscription_of(consumer: Consumer) -> Subscription:
    """Its subscription; all topics here are persistent."""
    assert isinstance(consumer.subscription, Subscription)
    return consumer.subscription


def covered_origins(subscription: Subscription, origin: Origin | None, upto: Position) -> frozenset[str] | None:
    """With dispatch scope origin a cumulative ack of an entry is about some origins only."""
    if subscription.streams is None:
        return None
    return frozenset() if origin is None else subscription.streams.covered_by(origin.region, upto)


def subscription_incarnation(name: str, progress: Progress) -> str:
    """The model's name for one incarnation of a subscription: one created after a deletion is another (R16)."""
    incarnation = progress.beginning.incarnation
    return name if incarnation == ZERO else f"{name} since {incarnation}"


def later(one: Stamp, other: Stamp) -> bool:
    """The order of stamps by the rule (R40), independent of the code."""
    if (one.time_ms, one.counter) != (other.time_ms, other.counter):
        return (one.time_ms, one.counter) > (other.time_ms, other.counter)
    return one.region < other.region


def rewinds_of(progress: Progress) -> frozenset[Stamp]:
    return frozenset(epoch for epoch, _, _ in progress.rewinds())


CREATIONS: Final = frozenset((Kind.SUBSCRIPTION, Kind.WHOLE))
"""Records that create a subscription."""


def said_of(record: changes.Change) -> Progress:
    """What a record of a progress log says about acknowledgements and rewinds."""
    if record.kind == Kind.WHOLE:
        return Progress.decode(Whole.decode(record.payload).progress)
    if record.kind in (Kind.ACKED, Kind.MERGED, Kind.PROGRESS, Kind.FLOORS):
        return Progress.decode(record.payload)
    return Progress()


def deletion_of(record: changes.Change) -> Stamp:
    """The deletion of the subscription that a record of a progress log reports; ``ZERO``: none."""
    if record.kind == Kind.WHOLE:
        return decode_record(Whole.decode(record.payload).record).deleted
    return decode_record(record.payload).deleted if record.kind == Kind.SUBSCRIPTION else ZERO


def _progress_ledgers(home: Region, topic: str, record: TopicRecord) -> list[int]:
    """As the next owner finds them: the recorded ones, and those that older metadata lacks (R5)."""
    stored, whose = home.volume.disk.ledgers, Belonging(full_name(topic), record.incarnation)
    named = {ledger for ledger in record.progress_ledgers if ledger in stored}
    after = max(record.progress_ledgers) if named else -1
    labels = {ledger: Label.decode(one.label) for ledger, one in stored.items() if one.label and ledger > after}
    return sorted(
        named | {ledger for ledger, one in labels.items() if (one.kind, one.belonging) == (LedgerKind.PROGRESS, whose)}
    )


def durable_progress(home: Region, topic: str) -> tuple[str, dict[str, Progress]]:
    """The topic's incarnation, and subscription -> progress, as read from a region's disk."""
    record = home.metadata.records.get(keys.topic(topic_name.parse(full_name(topic))))
    found: dict[str, Progress] = {}
    if record is None:
        return topic, found
    stored_record = TopicRecord.decode("", record.value)
    for ledger in _progress_ledgers(home, topic, stored_record):
        for entry in home.volume.disk.ledgers[ledger].entries:
            change = changes.decode(entry)
            kind, name, _, payload = change
            if kind == Kind.SUBSCRIPTION:
                incarnation = Beginning(decode_record(payload).deleted, ZERO, {})
                found.setdefault(name, Progress()).begin(incarnation)
            elif kind == Kind.WHOLE:
                of_this_incarnation = found.setdefault(name, Progress())
                of_this_incarnation.begin(Beginning(decode_record(Whole.decode(payload).record).deleted, ZERO, {}))
                of_this_incarnation.join(said_of(change))
            elif kind in (Kind.ACKED, Kind.MERGED, Kind.PROGRESS, Kind.FLOORS):
                found.setdefault(name, Progress()).join(said_of(change))
    return incarnation_of(topic, stored_record.incarnation), found
