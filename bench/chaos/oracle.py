# SPDX-License-Identifier: Apache-2.0
"""The expected outcome, derived only from the promises of docs/replicated-subscriptions.md.

After each round of trouble comes calm, and every region is asked what it stores and what it still delivers. The journal
has what was published, acknowledged and rewound since the last calm. For each message of each subscription one of three
verdicts follows: it must be delivered, it must not, or it is unknown (an acknowledgement in flight when a region died,
concurrent rewinds). Unknown outcomes must still be the same in all regions.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from actors import Subscription
from journal import Event, Journal, Rewind
from world import REGIONS, World

SETTLED = 2.0
"""Seconds that an undisturbed region needs to store and forward what it received, on a busy machine."""
MARGIN = 1.0
"""Maximum seconds between the clocks of clients that seek by time and of those that publish."""


class Must(Enum):
    """The verdict for one message of one subscription."""

    COME = "must come"
    NOT_COME = "must not come"
    UNKNOWN = "may come"


@dataclass
class Round:
    """The judge's knowledge when the regions are calm again."""

    began: float
    stored: dict[str, dict[str, list[str]]]
    """By topic and region: bodies in the region's order."""
    trims: bool
    """Regions trim entries that are no longer needed, each at its own time."""
    owed: dict[Subscription, set[str] | None]
    """What each subscription delivered at the last calm; None: everything, because it was recreated."""
    old: dict[str, set[str]] = field(default_factory=dict)
    """By topic: messages stored at the last calm."""
    unsure_in: dict[Subscription, set[str]] = field(default_factory=dict)
    """Regions that were away while the subscription was recreated: acknowledgements there prove nothing."""


@dataclass
class Mine:
    """The journal of one message on one subscription."""

    delivered: list[Event] = field(default_factory=list)
    acknowledged: list[Event] = field(default_factory=list)
    perhaps: bool = False
    """A cumulative acknowledgement may cover it."""


class Judge:
    """Balances the books of one round."""

    def __init__(self, world: World, journal: Journal, seen: Round) -> None:
        self._world, self._journal, self._round = world, journal, seen
        self._events = [event for event in journal.events if event.at >= seen.began]

    # Outcome of messages

    def lost(self, topic: str) -> Iterator[str]:
        """Published with a receipt but not in every region; except for losses within the stated RPO."""
        receipts = self.published(topic)
        if self._round.trims:
            return  # messages that are owed have to arrive anyway
        everywhere = set.union(*(set(bodies) for bodies in self._round.stored[topic].values()))
        for body, receipt in receipts.items():
            if body not in everywhere and self._survived(receipt.region, receipt.at):
                yield body
        yield from self._round.old.get(topic, set()) - everywhere

    def published(self, topic: str) -> dict[str, Event]:
        """Receipts of the round, by body."""
        return {one.body: one for one in self._events if one.kind == "receipt" and one.topic == topic}

    def _perhaps_twice(self, topic: str) -> set[str]:
        """Messages that their producers may have sent again, where one of the two copies may have been trimmed."""
        if not self._round.trims:
            return set()
        receipts, found = self.published(topic), set()
        for one in self._events:
            if one.kind == "published" and one.topic == topic:
                until = receipts[one.body].at if one.body in receipts else math.inf
                if not self._world.disturbed.calm(one.at, until, one.region):
                    found.add(one.body)
        return found

    def differs(self, topic: str) -> Iterator[str]:
        """Bodies that some regions store more times than others."""
        if self._round.trims:
            return
        counts = {region: Counter(bodies) for region, bodies in self._round.stored[topic].items()}
        first = counts[REGIONS[0]]
        yield from {body for other in counts.values() for body in (first - other) + (other - first)}

    def copies(self, topic: str) -> Counter[str]:
        """The most times that a region stores each: a producer whose receipt was lost sends again."""
        most: Counter[str] = Counter()
        for bodies in self._round.stored[topic].values():
            most |= Counter(bodies)
        return most

    # Expected deliveries of subscriptions

    def verdicts(self, used: Subscription) -> dict[str, Must]:
        """A verdict for each message that is stored, was stored and owed at the last calm, or has a valid receipt."""
        mine = self._mine(used)
        rewinds = [
            one
            for one in self._journal.rewinds
            if (one.topic, one.subscription) == (used.topic, used.name) and one.began >= self._round.began
        ]
        owed = self._round.owed.get(used)
        old = self._round.old.get(used.topic, set())
        published = {one.body: one for one in self._events if one.kind == "published" and one.topic == used.topic}
        stored = self.copies(used.topic)
        lasting = {body for body, one in self.published(used.topic).items() if self._survived(one.region, one.at)}
        found = {
            body: self._verdict(
                mine.get(body, Mine()),
                rewinds,
                was_owed=owed is None or body not in old or body in owed,
                at=published[body].at if body in published else -math.inf,
                unsure=self._round.unsure_in.get(used, set()),
            )
            for body in {*stored, *(owed or ()), *lasting}
        }
        for body in self._perhaps_twice(used.topic):
            if found.get(body) is Must.NOT_COME:
                found[body] = Must.UNKNOWN
        if rewinds:  # messages trimmed before cannot be delivered again
            found |= dict.fromkeys(found.keys() - stored.keys(), Must.UNKNOWN)
        return found

    def _verdict(self, mine: Mine, rewinds: list[Rewind], *, was_owed: bool, at: float, unsure: set[str]) -> Must:
        sure = [one for one in mine.acknowledged if one.region not in unsure and self._is_sure(one)]
        if not rewinds:
            if sure or not was_owed:
                return Must.NOT_COME
            return Must.UNKNOWN if mine.acknowledged or mine.perhaps else Must.COME
        if any(one.kind in ("skip", "clear", "message") for one in rewinds):
            return Must.UNKNOWN
        if all(at < one.since - MARGIN for one in rewinds):  # no seek covers it: it stays acknowledged
            return Must.NOT_COME if sure or not was_owed else Must.UNKNOWN
        if len(rewinds) > 1 or not rewinds[0].answered or at < rewinds[0].since + MARGIN:
            return Must.UNKNOWN
        return self._after(rewinds[0], mine)

    def _after(self, rewind: Rewind, mine: Mine) -> Must:
        """Verdict on a message that one seek back to a time covers."""
        if not self._survived(rewind.region, rewind.ended):
            return Must.UNKNOWN
        later = [one for one in mine.acknowledged if one.at > rewind.began]
        if not later and not mine.perhaps:
            return Must.COME
        for one in later:
            fresh = [had for had in mine.delivered if had.visit == one.visit and rewind.ended < had.at < one.at]
            same = one.region == rewind.region and fresh
            if same and self._is_sure(one) and self._world.disturbed.calm(rewind.began, one.at, one.region):
                return Must.NOT_COME
        return Must.UNKNOWN

    def again(self, used: Subscription) -> Iterator[tuple[str, str]]:
        """Deliveries during trouble of messages that the region knew to be acknowledged, each with a reason."""
        touched = [one for one in self._journal.rewinds if one.began >= self._round.began]
        if any((one.topic, one.subscription) == (used.topic, used.name) for one in touched):
            return
        if self._round.unsure_in.get(used):
            return
        copies, twice = self.copies(used.topic), self._perhaps_twice(used.topic)
        for body, mine in self._mine(used).items():
            if copies[body] != 1 or body in twice:
                continue
            for had in mine.delivered:
                for one in mine.acknowledged:
                    if self._had_heard(one, had) and one.visit != had.visit:
                        yield (
                            body,
                            f"acknowledged in {one.region} {had.at - one.at:.1f} s before {had.region} delivered it",
                        )

    def _had_heard(self, acknowledged: Event, delivered: Event) -> bool:
        here, there, since = acknowledged.region, delivered.region, acknowledged.at
        if delivered.at < since + 2 * SETTLED or not self._is_sure(acknowledged):
            return False
        if any(put >= since for name in (here, there) for _, put in self._world.put_back_at[name]):
            return False
        return here == there or self._world.disturbed.calm(since, since + SETTLED, here, there)

    def _mine(self, used: Subscription) -> dict[str, Mine]:
        found: dict[str, Mine] = defaultdict(Mine)
        orders = {
            region: {body: at for at, body in enumerate(bodies)}
            for region, bodies in self._round.stored[used.topic].items()
        }
        everything: set[str] = set().union(
            *orders.values(), self._round.owed.get(used) or (), self.published(used.topic)
        )
        taken: dict[int, list[Event]] = defaultdict(list)
        for event in self._events:
            if (event.topic, event.subscription) != (used.topic, used.name):
                continue
            if event.kind == "delivered":
                found[event.body].delivered.append(event)
                taken[event.visit].append(event)
            elif event.kind == "acknowledged":
                found[event.body].acknowledged.append(event)
            elif event.kind == "up to":
                for had in taken[event.visit]:
                    if had.place <= event.place:
                        found[had.body].acknowledged.append(event)
                order = orders[event.region]
                for body in everything:  # a message trimmed there may have been stored before it
                    if order.get(body, -1) <= order.get(event.body, len(order)):
                        found[body].perhaps = True
        return found

    def _is_sure(self, acknowledged: Event) -> bool:
        """Is it stored for good? The ordinary client requests no receipts, so it is if the region was undisturbed for a
        while afterwards, or confirmed that the consumer closed."""
        visit = self._journal.visits[acknowledged.visit]
        region, at = acknowledged.region, acknowledged.at
        calm = self._world.disturbed.calm
        stayed = visit.ended > at + SETTLED / 2 and calm(visit.began, at + SETTLED, region)
        closed = visit.closed and calm(visit.began, visit.ended, region)
        return (stayed or closed) and self._survived(region, at)

    def _survived(self, region: str, at: float) -> bool:
        """Whether what a region stored at that time still exists. Not if its disk was reset before others had it."""
        lost = [put for _, put in self._world.put_back_at[region] if put >= at]
        if not lost:
            return True
        others = (other for other in REGIONS if other != region)
        return any(
            at + SETTLED < min(lost)
            and self._world.disturbed.calm(at, at + SETTLED, region, other)
            and not any(put >= at for _, put in self._world.put_back_at[other])
            for other in others
        )


def wrong(verdicts: dict[str, Must], came: Iterable[str], copies: Counter[str]) -> Iterator[tuple[str, str]]:
    """Bodies that a region delivered but must not, or did not deliver but must."""
    counted = Counter(came)
    for body, must in verdicts.items():
        if must is Must.COME and not counted[body]:
            yield body, "is owed and is not delivered"
        elif must is Must.NOT_COME and counted[body] and copies[body] == 1:
            yield body, "is delivered again although it is acknowledged"
        elif counted[body] > copies[body]:
            yield body, f"is delivered {counted[body]} times"
    for body in counted.keys() - verdicts.keys():
        yield body, "is delivered but not stored"
