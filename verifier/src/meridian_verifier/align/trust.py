# SPDX-License-Identifier: Apache-2.0
"""Which findings count: those with complete evidence from one incarnation of the topic.

What was not read must not count as absent, and two incarnations of a topic, or two epochs of a subscription, cannot be
compared. The rules report what they see; this module decides what proves something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from meridian_verifier.align.findings import Finding, Flow, Reason

if TYPE_CHECKING:
    from meridian_verifier.align.facts import World

WITHIN_A_LIFE: Final = frozenset({Reason.MISSING_ACK, Reason.PASSED_UNACKED, Reason.ENTRY_DOUBLED, Reason.OUT_OF_ORDER})
"""Proven by one region's evidence, or by regions that hold the same incarnation of the topic."""
OF_FIRST_HAND: Final = frozenset({Reason.OVERCLAIMED, Reason.AHEAD_OF_SOURCE})
"""Proven by the absence of evidence in every region."""


def trusted(world: World, findings: Iterable[Finding], flows: Iterable[Flow]) -> list[Finding]:
    """The findings that prove something.

    :param flows: they show which regions got their own entries back, that is, were restored from an older copy.
        Such a region has lost the acks it received after that copy, though the others remember those it sent.
    """
    restored = {flow.topic for flow in flows if flow.given_back}
    split = {topic for topic in world.topics() if len(_lives(world, topic)) > 1}
    return [
        found
        for found in findings
        if _was_read(world, found)
        and (found.topic not in split or found.reason in WITHIN_A_LIFE)
        and (found.reason not in OF_FIRST_HAND or _is_all_on_record(world, found, restored))
    ]


def unjudged(world: World, topics: Iterable[str], flows: Sequence[Flow]) -> Mapping[str, tuple[str, ...]]:
    """Per topic, what could not be judged and why: one sentence each, for people."""
    restored: dict[str, list[str]] = {}
    for flow in flows:
        if flow.given_back:
            restored.setdefault(flow.topic, []).append(flow.region)
    notes = {}
    for topic in topics:
        strangers = world.not_asked(topic)
        left = [region for region in world.not_read(topic) if region not in (*strangers, *world.unreachable)]
        former = [region for region in left if region not in world.pulsar]
        said = [f"{region} was not asked, though the topic is replicated to it" for region in strangers]
        said += [f"Overclaimed was not judged: {region} stored entries but was not asked" for region in former]
        said += [
            f"Overclaimed was not judged: {region} runs Apache Pulsar, which keeps no record of acks it received"
            for region in left
            if region in world.pulsar
        ]
        said += [
            f"Overclaimed was not judged: {region} was restored from an older copy"
            for region in restored.get(topic, ())
        ]
        said += [
            f"TrimmedUnacked was not judged in {region}: the topic is compacted there"
            for region, state in world.later.items()
            if topic in state.topics and state.topics[topic].gave_back_compacted
        ]
        if said:
            notes[topic] = tuple(said)
    return notes


def _was_read(world: World, found: Finding) -> bool:
    if found.target in world.unreachable:
        return False
    # If the origin is unreachable, another region holds the entry: it is certainly missing in the target.
    return found.source not in world.unreachable or found.reason is Reason.ENTRY_MISSING


def _is_all_on_record(world: World, found: Finding, restored: set[str]) -> bool:
    """Whether some region's evidence has every ack that a region of the topic ever received."""
    unread = [region for region in world.not_read(found.topic) if region != found.source or region not in world.pulsar]
    if world.unreachable or unread or found.topic in restored:
        return False
    epochs = {
        cursors[found.subscription].epoch
        for moment in (world.earlier, world.later)
        for region in moment
        for cursors in [world.cursors(region, found.topic, moment)]
        if found.subscription in cursors
    }
    return len(epochs) <= 1


def _lives(world: World, topic: str) -> set[str]:
    return {state.topics[topic].incarnation for state in world.later.values() if topic in state.topics}
