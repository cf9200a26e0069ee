# SPDX-License-Identifier: Apache-2.0
"""From facts and findings to verdicts: per subscription and ordered pair of regions, and one for the whole run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from meridian_verifier.align.findings import LOSS, Finding, Flow, Reason, Strip

if TYPE_CHECKING:
    from meridian_verifier.align.facts import TopicState, World


class State(StrEnum):
    """What a verdict says."""

    ALIGNED = "aligned"
    MISALIGNED = "misaligned"
    UNKNOWN = "unknown"


EXIT_CODES = {State.ALIGNED: 0, State.MISALIGNED: 1, State.UNKNOWN: 2}


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """Does ``target`` stand at least where ``source`` stood? An empty ``subscription`` means the topic's entries."""

    topic: str
    subscription: str
    source: str
    target: str
    state: State
    reasons: tuple[Reason, ...] = ()
    entries: int = 0
    messages: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The whole run."""

    state: State
    summary: str
    world: World
    pairs: tuple[PairVerdict, ...]
    findings: tuple[Finding, ...]
    flows: tuple[Flow, ...]
    strips: tuple[Strip, ...]

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.state]

    @property
    def losses(self) -> tuple[Finding, ...]:
        return tuple(found for found in self.findings if found.reason in LOSS)


def judge(world: World, findings: Sequence[Finding], flows: Sequence[Flow], strips: Sequence[Strip]) -> Verdict:
    """The verdict. Findings about a region that could not be read to the end count for nothing: see :func:`trusted`."""
    restored = {flow.topic for flow in flows if flow.given_back}
    kept = sorted(
        trusted(world, findings, restored),
        key=lambda one: (one.topic, one.subscription, one.reason, one.source, one.target),
    )
    pairs = tuple(_pairs(world, kept))
    state, summary = _overall(world, pairs, kept)
    readable = [flow for flow in flows if flow.region not in world.unreachable]
    drawn = [strip for strip in strips if strip.region not in world.unreachable]
    return Verdict(state, summary, world, pairs, tuple(kept), tuple(readable), tuple(drawn))


def trusted(world: World, findings: Iterable[Finding], restored: Collection[str] = ()) -> Iterator[Finding]:
    """Findings that do not rest on a region whose export broke off: what was not read must not count as absent.

    :param restored: topics of which a region was restored from an older copy. What it had received by then is nowhere
        any more, though the others remember what it told them: what nobody received cannot be told there.
    """
    for found in findings:
        rests_on_all = found.reason is Reason.OVERCLAIMED and (world.unreachable or found.topic in restored)
        if found.source not in world.unreachable and found.target not in world.unreachable and not rests_on_all:
            yield found
        elif found.reason is Reason.ENTRY_MISSING and found.target not in world.unreachable:
            # The origin is away, but another region holds the entry: that it is missing here is seen, not guessed.
            yield found


def _pairs(world: World, findings: Sequence[Finding]) -> Iterator[PairVerdict]:
    by_subject: dict[tuple[str, str], list[Finding]] = {}
    for found in findings:
        by_subject.setdefault((found.topic, found.subscription), []).append(found)
    for topic in world.topics():
        regions = world.regions_of(topic)
        for subscription in ["", *world.subscriptions(topic)]:
            about = by_subject.get((topic, subscription), [])
            for source in regions:
                for target in regions:
                    if source != target:
                        yield _pair(world, topic, subscription, source, target, about)


def _pair(
    world: World, topic: str, subscription: str, source: str, target: str, about: Sequence[Finding]
) -> PairVerdict:
    for region in (source, target):
        if region in world.unreachable:
            return PairVerdict(
                topic,
                subscription,
                source,
                target,
                State.UNKNOWN,
                (Reason.UNREACHABLE,),
                note=world.unreachable[region],
            )
    reasons = list(_structural(world, topic, subscription, source, target))
    unknown = [reason for reason in reasons if reason in (Reason.REWOUND, Reason.INCARNATION)]
    if unknown:
        return PairVerdict(topic, subscription, source, target, State.UNKNOWN, tuple(unknown))
    concerned = [found for found in about if (found.source, found.target) == (source, target)]
    reasons += dict.fromkeys(found.reason for found in concerned)
    return PairVerdict(
        topic,
        subscription,
        source,
        target,
        State.MISALIGNED if reasons else State.ALIGNED,
        tuple(reasons),
        sum(found.entries for found in concerned),
        sum(found.messages for found in concerned),
    )


def _structural(world: World, topic: str, subscription: str, source: str, target: str) -> Iterator[Reason]:
    """What is told without looking at a single range."""
    here, there = world.later[source].topics.get(topic), world.later[target].topics.get(topic)
    if here is None:
        return
    before = world.earlier[source].topics.get(topic)
    if there is None:
        if before is not None and target in before.links and target in here.links:
            yield Reason.TOPIC_MISSING
        return
    if here.incarnation != there.incarnation:
        yield Reason.INCARNATION
        return
    if before is not None and _down(before, target) and _down(here, target):
        yield Reason.LINK_DOWN
    if subscription:
        yield from _cursors(world, topic, subscription, source, target)


def _cursors(world: World, topic: str, subscription: str, source: str, target: str) -> Iterator[Reason]:
    first = world.cursors(source, topic, world.earlier).get(subscription)
    still = world.cursors(source, topic, world.later).get(subscription)
    if first is None or still is None or not (first.replicated and still.replicated):
        return
    before = world.cursors(target, topic, world.earlier).get(subscription)
    after = world.cursors(target, topic, world.later).get(subscription)
    if after is None:
        if before is None:
            yield Reason.SUBSCRIPTION_MISSING
    elif not after.replicated:
        yield Reason.NOT_REPLICATED
    elif after.epoch < first.epoch:
        yield Reason.EPOCH_BEHIND
    elif after.epoch > first.epoch:
        yield Reason.REWOUND


def _down(state: TopicState, target: str) -> bool:
    return target in state.links and not state.links[target].connected


def _overall(world: World, pairs: Sequence[PairVerdict], findings: Sequence[Finding]) -> tuple[State, str]:
    wrong = [pair for pair in pairs if pair.state is State.MISALIGNED]
    losses = [found for found in findings if found.reason in LOSS]
    if wrong or findings:
        reasons = dict.fromkeys(
            [*(reason for pair in wrong for reason in pair.reasons), *(one.reason for one in findings)]
        )
        entries = sum(found.entries for found in findings)
        said = f"{len(wrong)} of {len(pairs)} region pairs misaligned, {entries:,} entries concerned"
        said += f", {len(losses)} findings of loss" if losses else ""
        return State.MISALIGNED, f"{said}: {', '.join(reasons)}"
    if world.unreachable:
        return State.UNKNOWN, f"could not ask {', '.join(sorted(world.unreachable))}; nothing wrong among the others"
    unknown = [pair for pair in pairs if pair.state is State.UNKNOWN]
    if unknown:
        return (
            State.UNKNOWN,
            f"{len(unknown)} of {len(pairs)} region pairs could not be compared: {unknown[0].reasons[0]}",
        )
    if not pairs:
        return State.UNKNOWN, "nothing to compare: no topic of that name in two regions"
    subscriptions = len({(pair.topic, pair.subscription) for pair in pairs if pair.subscription})
    regions = len({(pair.source, pair.target) for pair in pairs})
    compared = f"{counted(subscriptions, 'subscription')} over {counted(regions, 'region pair')}"
    return State.ALIGNED, f"{compared}, nothing lost, nothing missing"


def counted(count: int, what: str) -> str:
    """``1 topic``, ``2,000 topics``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def rewound(world: World) -> bool:
    """Whether some subscription was rewound between the snapshots, so that S1 must be taken again (R61)."""
    return any(
        cursor.epoch != after[name].epoch
        for topic in world.topics()
        for region in world.later
        for after in [world.cursors(region, topic, world.later)]
        for name, cursor in world.cursors(region, topic, world.earlier).items()
        if name in after
    )
