# SPDX-License-Identifier: Apache-2.0
"""A region of Apache Pulsar beside regions of Meridian: what its positions prove (R63), and what they cannot.

Pulsar reports each subscription's position in ids of its own log. Meridian knows the ids of messages published there,
as their origins, but not those that Pulsar gave to messages of other regions. Which of these it has, and has
acknowledged, is unknown: never aligned, never a loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from meridian_verifier.align.containment import told_by
from meridian_verifier.align.facts import EARLIEST
from meridian_verifier.align.findings import Finding, Reason
from meridian_verifier.align.intervals import IntervalSet
from meridian_verifier.align.loss import merged

if TYPE_CHECKING:
    from meridian_verifier.align.evidence import Evidence
    from meridian_verifier.align.facts import PulsarCursor, World


class Judged(NamedTuple):
    """A pair of regions, one of which runs Apache Pulsar. No reasons: it is aligned."""

    subscription: str
    """Empty: the topic's entries."""
    source: str
    target: str
    reasons: tuple[Reason, ...]
    is_wrong: bool
    """Otherwise the reasons say why it is unknown."""


def beside_pulsar(evidence: Evidence) -> list[Finding]:
    """What is wrong with the acknowledgements of entries that a region of Apache Pulsar published."""
    region = evidence.world.pulsar.get(evidence.origin)
    topic = region.later.get(evidence.topic) if region else None
    if topic is None:
        return []
    found = []
    for name in sorted({name for _, name in evidence.earlier} & topic.cursors.keys()):
        there = _acked(evidence, topic.cursors[name])
        found += [*_told_and_owed(evidence, name, there), *_ahead(evidence, name, there)]
    return found


def _acked(evidence: Evidence, cursor: PulsarCursor) -> IntervalSet:
    key = evidence.coordinates.key
    ranges = [(EARLIEST, cursor.mark_delete), *cursor.deleted]
    return IntervalSet.of([key(*after) for after, _ in ranges], [key(*upto) for _, upto in ranges])


def _told_and_owed(evidence: Evidence, subscription: str, there: IntervalSet) -> Iterator[Finding]:
    """Acknowledged in a Meridian region, which had told Pulsar so by S1, but still owed in Pulsar at S2."""
    for (region, name), acked in evidence.earlier.items():
        told = told_by(evidence.world, evidence.topic, name, region) if name == subscription else None
        if told is None:
            continue
        promised = IntervalSet.of([evidence.coordinates.key(*EARLIEST)], [evidence.place_key(told)])
        chosen = ((acked.full & promised) - there).holds(evidence.known.keys)
        found = evidence.finding(Reason.MISSING_ACK, subscription, region, evidence.origin, chosen)
        if found:
            yield found


def _ahead(evidence: Evidence, subscription: str, there: IntervalSet) -> Iterator[Finding]:
    """Progress at S1 beyond what Pulsar had acknowledged by S2 and what Meridian regions received. Judged only if no
    other region went unread: it may have received the ack."""
    if evidence.world.not_read(evidence.topic) != [evidence.origin]:
        return
    received = merged(acked for (_, name), acked in evidence.firsthand.items() if name == subscription)
    explained = received.full | evidence.dropped_everywhere(subscription) | there
    for (region, name), acked in evidence.earlier.items():
        if name == subscription:
            chosen = (acked.full - explained).holds(evidence.known.keys)
            found = evidence.finding(Reason.AHEAD_OF_SOURCE, subscription, evidence.origin, region, chosen)
            if found:
                yield found


def judged(world: World, topic: str, findings: Iterable[Finding]) -> Iterator[Judged]:
    """Every pair of a Meridian and an Apache Pulsar region of a topic, both ways: first its entries, then its
    subscriptions. :param findings: those about the topic."""
    about = list(findings)
    for pulsar in world.pulsar:
        regions = [
            region
            for region, state in world.later.items()
            if topic in state.topics and pulsar in state.topics[topic].links
        ]
        for region in regions:
            for subscription in ("", *world.subscriptions(topic)):
                for source, target in ((region, pulsar), (pulsar, region)):
                    yield _pair(world, topic, subscription, source, target, about)


def _pair(world: World, topic: str, subscription: str, source: str, target: str, about: Sequence[Finding]) -> Judged:
    region, pulsar = (source, target) if target in world.pulsar else (target, source)
    if world.unreachable.keys() & {region, pulsar}:
        return Judged(subscription, source, target, (Reason.UNREACHABLE,), False)
    wrong = [*_link(world, topic, source, target)]
    if subscription and target == pulsar:
        wrong += _missing(world, topic, subscription, region, pulsar)
    wrong += [
        found.reason
        for found in about
        if (found.subscription, found.source, found.target) == (subscription, source, target)
    ]
    if wrong:
        return Judged(subscription, source, target, tuple(dict.fromkeys(wrong)), True)
    is_shown = bool(subscription) and _owes_nothing(world, topic, subscription, target)
    return Judged(subscription, source, target, () if is_shown else (Reason.NOT_COMPARABLE,), False)


def _link(world: World, topic: str, source: str, target: str) -> Iterator[Reason]:
    """Pulsar reported the link down at both snapshots. Meridian regions export only links to each other."""
    told = world.pulsar.get(source)
    moments = (
        [moment[topic].links.get(target) for moment in (told.earlier, told.later) if topic in moment] if told else []
    )
    if moments == [False, False]:
        yield Reason.LINK_DOWN


def _missing(world: World, topic: str, subscription: str, region: str, pulsar: str) -> Iterator[Reason]:
    """Pulsar creates a subscription, and its topic, when it is told the position. Before that it may lack them."""
    told = world.pulsar[pulsar]
    there = told.later.get(topic)
    cursor = there.cursors.get(subscription) if there else None
    if cursor is not None:
        if not cursor.replicated:
            yield Reason.NOT_REPLICATED
    elif told_by(world, topic, subscription, region):
        yield Reason.SUBSCRIPTION_MISSING if there else Reason.TOPIC_MISSING


def _owes_nothing(world: World, topic: str, subscription: str, target: str) -> bool:
    """Everything that the region has is acknowledged there, whatever its ids elsewhere."""
    if target in world.pulsar:
        there = world.pulsar[target].later.get(topic)
        cursor = there.cursors.get(subscription) if there else None
        return there is not None and cursor is not None and cursor.mark_delete >= there.end
    found = world.cursors(target, topic, world.later).get(subscription)
    return found is not None and found.replicated and found.backlog == 0
