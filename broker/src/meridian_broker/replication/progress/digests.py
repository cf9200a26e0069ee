# SPDX-License-Identifier: Apache-2.0
"""Digests of this region's progress: one number per topic, per subscription, and per ledger of a subscription.

A topic's number is the sum of its subscriptions' numbers, so one changed subscription costs one hash and an idle topic
costs nothing but its name on the wire. Comparison descends only where numbers differ: topic, subscription, ledger,
and then the state of those ledgers travels. The numbers are 64 bits of BLAKE2b over values that both sides compute from
their own state; they guard against accidents between regions that trust each other, not against forgery.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from meridian_broker.positions.progress import Progress
from meridian_broker.replication.progress.digest_tree import Summary, number_of
from meridian_broker.replication.progress.messages import (
    ExchangeLimits,
    KeyDigest,
    SubscriptionDigest,
    SubscriptionKey,
    TopicDigest,
)

_MASK: Final = (1 << 64) - 1

FOLLOWED: Final = 2000
"""Topics in one step of a pass: some three milliseconds."""


class DigestSource(Protocol):
    """Where the state that is digested lives."""

    def progress(self, topic: str, subscription: str) -> Progress | None: ...

    def record(self, topic: str, subscription: str) -> bytes | None: ...

    def incarnation(self, topic: str) -> str: ...

    def open_topics(self) -> Collection[str]: ...

    def is_replicated(self, topic: str) -> bool: ...

    def replicated_in(self, topic: str) -> Iterable[str]: ...


def key_digests(progress: Progress) -> tuple[KeyDigest, ...]:
    """Per ledger, in a fixed order."""
    return tuple(KeyDigest(key, digest) for key, digest in sorted(progress.digests().items()))


@dataclass(frozen=True, slots=True)
class _Entry:
    digest: int
    record: int


class DigestCache:
    """Digests of everything replicated here, worked out again only where something was marked as changed."""

    def __init__(self, source: DigestSource, limits: ExchangeLimits, peers_of: Callable[[str], Container[str]]) -> None:
        """:param peers_of: the names of the peers that share a topic."""
        self._source = source
        self._limits = limits
        self._peers_of = peers_of
        self._topics: dict[str, dict[str, _Entry | None]] = {}
        """None: changed since it was last worked out."""
        self._changed: dict[str, set[str]] = {}
        """The changed subscriptions by topic; may name others, too."""
        self._sums: dict[str, int] = {}
        self._summaries: dict[str, Summary] = {}

    def __contains__(self, key: SubscriptionKey) -> bool:
        return key[1] in self._topics.get(key[0], ())

    def mark(self, topic: str, subscription: str) -> None:
        """The subscription's progress or record changed."""
        subscriptions = self._topics.setdefault(topic, {})
        self._take_off(topic, subscriptions.get(subscription))
        subscriptions[subscription] = None
        self._changed.setdefault(topic, set()).add(subscription)
        self._tell_summaries(topic)

    def _tell_summaries(self, topic: str) -> None:
        for summary in self._summaries.values():
            summary.changed(topic)

    def summary(self, peer: str) -> Summary:
        """The numbers for what is shared with a peer."""
        found = self._summaries.get(peer)
        if found is None:
            source = self._source

            def number(topic: str) -> tuple[int, int]:
                cost = 1 + self.refresh(topic)
                digest = self.topic(topic)
                if not digest or peer not in self._peers_of(topic):
                    return 0, cost
                return number_of(topic.encode(), source.incarnation(topic).encode(), digest.to_bytes(8, "big")), cost

            found = self._summaries[peer] = Summary(number, self._topics)
        return found

    def moved(self, topic: str, peers: Iterable[str]) -> None:
        """The topic is no longer shared with one of these peers, or is from now on."""
        if topic in self._topics:
            for peer in peers:
                if (summary := self._summaries.get(peer)) is not None:
                    summary.changed(topic)

    def forget(self, topic: str) -> None:
        """Its subscriptions are not those that were digested: ``follow`` finds it again."""
        if self._topics.pop(topic, None) is not None:
            self._changed.pop(topic, None)
            self._sums.pop(topic, None)
            self._tell_summaries(topic)

    def forget_summary(self, peer: str) -> None:
        """It is no longer a peer."""
        self._summaries.pop(peer, None)

    def follow(self) -> Iterator[None]:
        """Find topics that were opened, loaded or closed without a mark: a pass over all that are open when it begins.

        Each item is a step; between two of them the caller lets others run.
        """
        source = self._source
        opened = source.open_topics()
        looked = len(opened)
        for number, topic in enumerate([*opened, *self._topics]):
            if number and number % FOLLOWED == 0:
                yield
            if number >= looked and topic in opened:
                continue  # it was among the first
            if source.is_replicated(topic):
                if topic not in self._topics:
                    self._topics[topic] = {}
                    self._tell_summaries(topic)
            else:
                self.forget(topic)

    def refresh(self, topic: str) -> int:
        """Find the topic's subscriptions that were loaded or removed without a mark; it costs a look at each.

        :returns: how many it has.
        """
        known = self._topics.get(topic)
        if known is None:
            return 0
        names = list(self._source.replicated_in(topic))
        new = [name for name in names if name not in known]
        if len(known) + len(new) != len(names):
            for subscription in known.keys() - set(names):
                self._take_off(topic, known.pop(subscription))
        if new:
            known.update(dict.fromkeys(new))
            self._changed.setdefault(topic, set()).update(new)
        return len(names)

    def has_topic(self, topic: str) -> bool:
        """Whether it has replicated subscriptions here."""
        return topic in self._topics

    def topics(self) -> list[str]:
        return list(self._topics)

    def topic(self, topic: str) -> int:
        """The topic's number; 0 for one that has no replicated subscription here."""
        known = self._topics.get(topic, {})
        for subscription in self._changed.pop(topic, ()):
            if known.get(subscription, True) is None:
                self._work_out(topic, subscription)
        return self._sums.get(topic, 0)

    def subscription(self, topic: str, subscription: str) -> SubscriptionDigest | None:
        """One subscription's numbers, without its ledgers'."""
        entry = self._topics.get(topic, {}).get(subscription) or self._work_out(topic, subscription)
        return None if entry is None else SubscriptionDigest(subscription, entry.digest, entry.record)

    def listing(self, topic: str, subscription: str | None) -> Iterator[TopicDigest]:
        """The topic's subscriptions (or only one of them) with their numbers, in pieces that fit a message.

        Ledgers' numbers are inline while they are few; one subscription asked for by name always has them, unless
        there are more than fit a question.
        """
        combined, incarnation = self.topic(topic), self._source.incarnation(topic)
        names = sorted(self._topics.get(topic, ())) if subscription is None else [subscription]
        room = self._limits.keys_inline if subscription is None else self._limits.keys_per_question
        size = self._limits.subscriptions_per_digest
        for start in range(0, max(1, len(names)), size):
            listed: list[SubscriptionDigest] = []
            for name in names[start : start + size]:
                digest = self.subscription(topic, name)
                progress = self._source.progress(topic, name) if digest is not None else None
                if digest is None or progress is None:
                    continue
                keys = progress.digests() if room > 0 else None
                if keys is not None and len(keys) <= room:
                    room -= len(keys)
                    inline = tuple(KeyDigest(key, number) for key, number in sorted(keys.items()))
                    digest = SubscriptionDigest(name, digest.digest, digest.record, inline)
                listed.append(digest)
            yield TopicDigest(topic, incarnation, combined, subscriptions=tuple(listed))

    def _work_out(self, topic: str, subscription: str) -> _Entry | None:
        progress = self._source.progress(topic, subscription)
        record = self._source.record(topic, subscription)
        known = self._topics.get(topic)
        if progress is None or record is None:
            if known is not None and known.get(subscription, True) is None:
                del known[subscription]
            return None
        parts = [subscription.encode()]
        for item in key_digests(progress):
            epoch, region, ledger = item.key
            parts += [f"{epoch} {region} {ledger}".encode(), item.digest.to_bytes(8, "big")]
        record_number = number_of(record)
        entry = _Entry(number_of(*parts, record_number.to_bytes(8, "big")), record_number)
        known = self._topics.setdefault(topic, {})
        self._take_off(topic, known.get(subscription))
        known[subscription] = entry
        self._sums[topic] = (self._sums.get(topic, 0) + entry.digest) & _MASK
        self._tell_summaries(topic)  # it may have been loaded without a mark
        return entry

    def _take_off(self, topic: str, entry: _Entry | None) -> None:
        if entry is not None:
            self._sums[topic] = (self._sums[topic] - entry.digest) & _MASK
            self._tell_summaries(topic)
