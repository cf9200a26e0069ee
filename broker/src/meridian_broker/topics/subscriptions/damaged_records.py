# SPDX-License-Identifier: Apache-2.0
"""Records of a topic's progress log that the disk damaged. The topic opens without them.

What such a record said decides what happens next:

- An acknowledgement, or a drop: other regions of a replicated subscription have it and are asked before the first
  dispatch (R20). Where no region has it, its messages are delivered again. Nothing is skipped.
- The creation of a subscription: if a later record names the subscription, or the head of the damaged record does, it
  is recreated with nothing acknowledged, so everything stored is delivered again. Other regions give back what they
  know, also that it was deleted, or deleted and recreated: for a day the subscription follows them. So does one that is
  recreated because only its name can be read in the damaged record of its deletion. Deleting it within that day deletes
  it in all regions: they may share it.
- A vote (R26): this region votes on no stream of the topic until any promise that it may have forgotten is over.
- A seek backwards: it is forgotten here. Other regions of a replicated subscription still know it.

Where the head of a damaged record cannot be trusted, an unknown subscription may have been lost. While the topic is *in
doubt* for that reason, it gives no space back, and a subscription that a consumer makes begins at the first stored
message: it may be the lost one. Doubt ends after a day.

What was lost is kept in the log, so that a restart neither hides it nor ends the doubt early.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from meridian_broker.positions import ZERO, Beginning, Progress, Stamp
from meridian_broker.topics.journal.changes import Kind, ProgressLogError, decode
from meridian_broker.topics.journal.progress_ledgers import Damaged
from meridian_broker.topics.journal.subscription_record import SubscriptionRecord

if TYPE_CHECKING:
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.subscriptions.subscription import Subscription

log = logging.getLogger(__name__)

DOUBT_MS: Final = 86_400_000
"""For this long a topic that may lack a subscription waits for its consumers to return, and reports what it lost."""
NAMED_MAX: Final = 100
"""Subscriptions that a report names at most."""
_OF_SUBSCRIPTIONS: Final = frozenset(Kind) - {Kind.SEQUENCES, Kind.GAP, Kind.LOST, Kind.PULSAR}


@dataclass(frozen=True, slots=True)
class Loss:
    """What the damaged records of one progress ledger held."""

    ledger: int
    records: int
    at_ms: int
    """When the damage was found, in milliseconds since 1970."""
    subscriptions: tuple[str, ...] = ()
    """Subscriptions that lost acknowledgements or were created again; the first ``NAMED_MAX`` by name."""
    in_doubt: bool = False
    """A subscription may be missing whose very name is unknown."""

    def encode(self) -> bytes:
        """As JSON; there are only a few."""
        fields = {"records": self.records, "at_ms": self.at_ms, "names": self.subscriptions, "doubt": self.in_doubt}
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, ledger: str, data: bytes) -> Loss:
        """:raises ValueError: it is not a valid record."""
        try:
            fields = json.loads(data)
            names = tuple(map(str, fields["names"]))
            return cls(int(ledger), int(fields["records"]), int(fields["at_ms"]), names, bool(fields["doubt"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{data[:80]!r} is not a record of damaged progress records: {error}") from error


@dataclass(slots=True)
class _Found:
    """Damaged records of one ledger that is being read."""

    records: int = 0
    names: set[str] = field(default_factory=set)
    in_doubt: bool = False


class LostRecords:
    """The damage to a topic's progress log and what follows from it. Each topic has one."""

    def __init__(
        self,
        topic: TopicContext,
        subscriptions: dict[str, Subscription],
        tombstones: Mapping[str, SubscriptionRecord],
        make: Callable[[SubscriptionRecord, Progress], Subscription],
    ) -> None:
        """:param subscriptions: those of the topic; subscriptions that are created again are added.
        :param tombstones: those of deleted subscriptions.
        :param make: creates a durable subscription with this record and progress.
        """
        self._topic = topic
        self._subscriptions = subscriptions
        self._tombstones = tombstones
        self._make_one = make
        self._losses: dict[int, Loss] = {}
        self._found: dict[int, _Found] = {}
        self._missing: dict[str, tuple[int, Stamp]] = {}
        """Subscriptions that a damaged record named and no intact record has created so far: the ledger of that
        record, and the deletion before it.
        """
        self.may_have_voted = False
        """One of the lost records may be a vote of this region."""
        self.votes_from_ms = 0
        """Until then, by the clock of leases, this region does not vote: a promise that it forgot may still bind it."""

    def wait_to_vote(self, until_ms: int) -> None:
        """Do not vote until then, by the clock of leases."""
        self.votes_from_ms = until_ms

    @property
    def records(self) -> int:
        """The number of records lost within the last day."""
        return sum(loss.records for loss in self.recent())

    @property
    def in_doubt(self) -> bool:
        """Whether a subscription may be missing here."""
        return bool(self._losses) and any(loss.in_doubt for loss in self.recent())

    def concerns(self, name: str) -> bool:
        """Whether other regions may know more of this subscription than is left of it here, perhaps that it is
        replicated.
        """
        return bool(self._losses) and any(loss.in_doubt or name in loss.subscriptions for loss in self.recent())

    def stands_in(self, subscription: Subscription) -> bool:
        """Whether it was created again here and other regions have not reported yet which incarnation the damaged one
        was, nor whether it was replicated.

        One that a client created begins with the creation in its record, also after a restart.
        """
        record = subscription.record
        is_made_again = subscription.durable and subscription.cursor.progress.beginning.created != record.created
        return is_made_again and not record.is_known_elsewhere and self.concerns(record.name)

    def recent(self) -> list[Loss]:
        """Losses found within the last day."""
        since_ms = self._topic.scheduler.now_ms() - DOUBT_MS
        return [loss for loss in self._losses.values() if loss.at_ms > since_ms]

    # -- while the log is read

    def met(self, damaged: Damaged) -> None:
        """The next record cannot be read."""
        found = self._found.setdefault(damaged.ledger, _Found())
        found.records += 1
        head = _head(damaged.remains)
        if head is None:
            self.may_have_voted = found.in_doubt = True
            return
        kind, name = head
        if kind == Kind.VOTES:
            self.may_have_voted = True
        elif kind in _OF_SUBSCRIPTIONS:
            found.names.add(name)
            if name in self._subscriptions or kind == Kind.REMOVED:
                return
            if kind == Kind.SUBSCRIPTION and self._deleted(name) != ZERO:
                found.in_doubt = True  # another deletion, or a creation in another region, which reports it again
            else:
                self._missing[name] = damaged.ledger, self._deleted(name)

    @property
    def is_any(self) -> bool:
        """Whether a damaged record was met so far."""
        return bool(self._found)

    def unknown(self, name: str, incarnation: Stamp = ZERO) -> Subscription | None:
        """A record refers to a subscription that no intact record created: create it again if damage explains that.

        :param incarnation: of the subscription, as in the record.
        """
        if not self._found or incarnation < self._deleted(name):
            return None
        next(reversed(self._found.values())).names.add(name)
        return self._make(name, incarnation)

    def removed(self, name: str) -> None:
        """A record says that the subscription was deleted, so a damaged creation before it is not missing."""
        self._missing.pop(name, None)

    def _deleted(self, name: str) -> Stamp:
        """The deletion that was read last; ``ZERO``: none."""
        grave = self._tombstones.get(name)
        return ZERO if grave is None else grave.deleted

    def _make(self, name: str, incarnation: Stamp = ZERO) -> Subscription:
        progress = Progress()
        progress.begin(Beginning(incarnation, ZERO, {}))  # where it began is unknown here; other regions report it
        made = self._subscriptions[name] = self._make_one(self._record(name, incarnation), progress)
        return made

    def _record(self, name: str, incarnation: Stamp) -> SubscriptionRecord:
        return SubscriptionRecord(name, created=self._topic.clock.next(after=incarnation), deleted=incarnation)

    def follow_progress(self, subscription: Subscription) -> None:
        """Its progress may be of a later incarnation than its record: then the record of that one is damaged."""
        incarnation = subscription.cursor.progress.beginning.incarnation
        if self._found and incarnation > subscription.record.deleted:
            subscription.follow_record(self._record(subscription.name, incarnation))
            next(reversed(self._found.values())).names.add(subscription.name)

    def finish(self) -> None:
        """The whole log was read: create what is missing."""
        known = self._subscriptions
        for name, (ledger, incarnation) in self._missing.items():
            if name in known:
                continue
            self._found[ledger].in_doubt = True  # the name may be damaged, too
            if self._deleted(name) == incarnation:  # otherwise a deletion follows, maybe of an earlier incarnation
                self._make(name, incarnation)
        self._missing.clear()
        for subscription in known.values():
            self.follow_progress(subscription)

    def report(self) -> None:
        """Record what was lost. A snapshot then replaces the damaged ledger, so everything that it contains has to be
        known.
        """
        for ledger, found in self._found.items():
            if ledger not in self._losses:
                self._report(ledger, found)
        self._found.clear()

    def _report(self, ledger: int, found: _Found) -> None:
        topic, names = self._topic, sorted(found.names)
        loss = Loss(ledger, found.records, topic.scheduler.now_ms(), tuple(names[:NAMED_MAX]), found.in_doubt)
        self._losses[ledger] = loss
        topic.progress_log.append(Kind.LOST, str(ledger), loss.encode())
        log.error(
            "%s: the disk damaged %d records of progress ledger %d. What they acknowledged comes from other regions, "
            "or is delivered again. Affected: %s%s. A recent seek may be lost: repeat it",
            *(topic.name, found.records, ledger, ", ".join(map(repr, loss.subscriptions)) or "no known subscription"),
            "; a subscription may be missing, so no storage is freed for a day" if found.in_doubt else "",
        )

    # -- records of losses

    def replay(self, ledger: str, payload: bytes) -> None:
        """Replay a record of the progress log."""
        loss = Loss.decode(ledger, payload)
        self._losses[loss.ledger] = loss
        self.may_have_voted = True  # the broker that found the damage may have ended soon after

    def snapshot(self) -> Iterator[tuple[Kind, str, bytes]]:
        """The records that a new ledger of the progress log begins with."""
        return ((Kind.LOST, str(loss.ledger), loss.encode()) for loss in self.recent())


def _head(remains: bytes) -> tuple[Kind, str] | None:
    """Kind and name of a damaged record, as far as its remains can be trusted."""
    try:
        kind, name, _, _ = decode(remains)
    except ProgressLogError:
        return None
    return (kind, name) if name.isprintable() and bool(name) == (kind != Kind.SEQUENCES) else None
