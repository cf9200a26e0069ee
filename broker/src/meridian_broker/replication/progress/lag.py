# SPDX-License-Identifier: Apache-2.0
"""How far each region is behind this one: what it has not confirmed as durable, since when, and why.

Counted is everything that was acknowledged here (or passed on by us) and offered to the peer, from the moment of the
offer: waiting to be sent, in flight, or *missed*, because the link was down or the peer did not answer. The first two
end with the peer's confirmation. Missed changes are healed by digests, which name no deltas; so they count until a
digest of the peer equals ours, or until the peer, after it was sent the state it asked for, confirms a newer delta.

The price is a few attribute writes per delta and peer, not per acknowledgement, and a record per subscription for which
anything was ever sent. ``topics/lifecycle/unconfirmed.py`` reports what was missed before the broker started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from meridian_broker.replication.progress.messages import SubscriptionKey
from meridian_broker.replication.progress.pending import Pending


class Why(StrEnum):
    """Why a subscription is not in step with a region. The values appear in status, stats and metrics."""

    LINK_DOWN = "LinkDown"
    """Our link to the region's broker is down."""
    OTHER_VERSION = "OtherVersion"
    """The link is up, but the region speaks no version of the peer protocol that we know."""
    OTHER_INCARNATION = "OtherIncarnation"
    """One side has deleted the topic and the other not yet, or differently (R8)."""
    NOT_A_REGION = "NotARegionOfTheTopic"
    """Only one of the two sides counts the other among the topic's regions."""
    UNKNOWN_SUBSCRIPTION = "UnknownSubscription"
    """The region lacks the subscription and does not take it over."""
    UNDECODABLE = "Undecodable"
    """One side cannot read the progress of the other."""
    REFUSED = "Refused"
    """The region could not merge or store it."""
    TOO_LARGE = "TooLarge"
    """The progress does not fit a message."""
    NOT_CONFIRMED = "NotConfirmed"
    """The link is up, and the region does not answer."""
    DISPATCH_WAITS = "DispatchWaits"
    """The region can be reached but refuses to report what was acknowledged there, so dispatch waits here."""
    CATCHING_UP = "CatchingUp"
    """The link is up again, and missed changes are being compared."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """One reason, since when, in a sentence."""

    why: Why
    text: str
    since_ms: int


@dataclass(slots=True)
class Behind:
    """One peer's lag for one subscription, as far as we know."""

    outstanding: list[Pending] = field(default_factory=list)
    """Waiting or on its way, oldest first."""
    missed_entries: int = 0
    missed_since_ms: int | None = None
    """None: nothing was missed."""
    state_sent_ms: int | None = None
    """When the peer was sent the state it asked for, after the last thing it missed."""
    sent_ms: int | None = None
    """When a delta of the subscription left for the peer last, ..."""
    confirmed_ms: int | None = None
    """... was confirmed as durable by it last, ..."""
    applied_ms: int | None = None
    """... and when progress of the peer that was taken here came last."""

    @property
    def is_idle(self) -> bool:
        return not self.outstanding and self.missed_since_ms is None

    @property
    def entries(self) -> int:
        """Entries acknowledged here that the peer has not confirmed; a batch acknowledged in part counts as one."""
        return self.missed_entries + sum(pending.entries for pending in self.outstanding)

    def since(self) -> int | None:
        """When the oldest of it was offered; None: the peer has all of it."""
        times = [] if self.missed_since_ms is None else [self.missed_since_ms]
        times += [self.outstanding[0].since_ms] if self.outstanding else []
        return min(times, default=None)

    def missed(self, entries: int, since_ms: int) -> None:
        """Something that was offered will not be confirmed."""
        self.missed_entries += entries
        self.missed_since_ms = since_ms if self.missed_since_ms is None else min(self.missed_since_ms, since_ms)
        self.state_sent_ms = None

    def has_all(self) -> None:
        """Whatever was missed has arrived by another way."""
        self.missed_entries = 0
        self.missed_since_ms = self.state_sent_ms = None


class Lag:
    """Everything one peer is behind with."""

    def __init__(self, most: int) -> None:
        """:param most: subscriptions remembered; beyond it those that are in step are forgotten, then new ones."""
        self._most = most
        self._count = 0
        self._behind: dict[str, dict[str, Behind]] = {}
        """By topic and subscription."""
        self._missed: dict[str, set[str]] = {}
        """Topic -> subscriptions with missed changes."""

    def __len__(self) -> int:
        return self._count

    def get(self, key: SubscriptionKey) -> Behind | None:
        return self._behind.get(key[0], _NONE).get(key[1])

    def of(self, key: SubscriptionKey) -> Behind:
        """The peer's lag for the subscription, created if missing; not recorded when there are too many."""
        topic, name = key
        behind = self._behind.get(topic, _NONE).get(name)
        if behind is None:
            behind = Behind()
            if self._count >= self._most:
                self._forget_idle()
            if self._count < self._most:
                self._behind.setdefault(topic, {})[name] = behind
                self._count += 1
        return behind

    def behind(self) -> Iterator[tuple[SubscriptionKey, Behind]]:
        """Subscriptions with which the peer is behind."""
        for topic, lacks in self._behind.items():
            for name, behind in lacks.items():
                if not behind.is_idle:
                    yield (topic, name), behind

    def _forget_idle(self) -> None:
        kept = {
            topic: {name: behind for name, behind in lacks.items() if not behind.is_idle}
            for topic, lacks in self._behind.items()
        }
        self._behind = {topic: lacks for topic, lacks in kept.items() if lacks}
        self._count = sum(map(len, self._behind.values()))

    # -- life of a delta

    def missed(self, key: SubscriptionKey, entries: int, since_ms: int) -> None:
        """It was offered, and the peer will not confirm it."""
        self.of(key).missed(entries, since_ms)
        self._missed.setdefault(key[0], set()).add(key[1])

    def given_up(self, key: SubscriptionKey, pending: Pending) -> None:
        """It waited or was on its way, and the peer will not confirm it."""
        self._over(key, pending)
        self.missed(key, pending.entries, pending.since_ms)

    def confirmed(self, key: SubscriptionKey, pending: Pending, now_ms: int) -> None:
        """The peer has it on disk."""
        behind = self._over(key, pending)
        behind.confirmed_ms = now_ms
        if behind.state_sent_ms is not None and pending.since_ms >= behind.state_sent_ms:
            behind.has_all()

    def taken_back(self, key: SubscriptionKey, pending: Pending) -> None:
        """It is offered again in another form."""
        self._over(key, pending)

    def _over(self, key: SubscriptionKey, pending: Pending) -> Behind:
        behind = self.of(key)
        waiting = behind.outstanding
        if waiting and waiting[0] is pending:
            del waiting[0]  # confirmations nearly always arrive in order
        else:
            behind.outstanding = [one for one in waiting if one is not pending]
        return behind

    # -- results of digests

    def state_sent(self, key: SubscriptionKey, now_ms: int) -> None:
        """The peer was sent the state it asked for."""
        behind = self.get(key)
        if behind is not None and behind.missed_since_ms is not None:
            behind.state_sent_ms = now_ms

    def same_topic(self, topic: str) -> None:
        """The peer's digest of the topic equals ours."""
        for name in self._missed.pop(topic, ()):
            self.same((topic, name))

    @property
    def has_missed(self) -> bool:
        return bool(self._missed)

    def same_topics(self, topics: Set[str]) -> None:
        """The same for several topics."""
        for topic in self._missed.keys() & topics:
            self.same_topic(topic)

    def same(self, key: SubscriptionKey) -> None:
        """The peer's digest of the subscription equals ours."""
        behind = self.get(key)
        if behind is not None:
            behind.has_all()

    def hand_over(self, topic: str, other: Lag) -> None:
        """The topic has another peer from now on, which may lack the same."""
        for name, behind in self._behind.pop(topic, {}).items():
            self._count -= 1
            if (since := behind.since()) is not None:
                other.missed((topic, name), behind.entries, since)
        self._missed.pop(topic, None)

    def forget(self, is_known: Callable[[str], bool]) -> None:
        """Forget topics that no longer exist."""
        for topic in [topic for topic in self._behind if not is_known(topic)]:
            self._count -= len(self._behind.pop(topic))
            self._missed.pop(topic, None)


_NONE: Final[Mapping[str, Behind]] = {}
