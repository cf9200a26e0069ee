# SPDX-License-Identifier: Apache-2.0
"""From facts and findings to verdicts.

A verdict is about a *subject*: a topic, or one replicated subscription of it. Every finding belongs to exactly one
subject, whether it concerns a pair of regions or a single one, and what is wrong with a topic is wrong with each of its
subscriptions. The subjects' states are computed here, once; the state of the run is the worst of them, and every
table, document and exit code repeats them, so none can be better than another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from meridian_verifier.align.findings import LOSS, METADATA, Finding, Flow, Reason, Strip
from meridian_verifier.align.pulsar import judged
from meridian_verifier.align.shadows import compared, without_source
from meridian_verifier.align.trust import trusted, unjudged

if TYPE_CHECKING:
    from meridian_verifier.align.facts import TopicState, World


class State(StrEnum):
    """The state in a verdict."""

    ALIGNED = "aligned"
    MISALIGNED = "misaligned"
    UNKNOWN = "unknown"


EXIT_CODES: Final = {State.ALIGNED: 0, State.MISALIGNED: 1, State.UNKNOWN: 2}
WORST_FIRST: Final = (State.MISALIGNED, State.UNKNOWN, State.ALIGNED)

Key = tuple[str, str]
"""``(topic, subscription)`` of a subject."""


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """Is ``target`` at least as far as ``source`` was? An empty ``subscription`` means the topic's entries.

    For a shadow topic both are its region, where it is compared with its source.
    """

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
class SubjectVerdict:
    """The verdict on one topic (``subscription`` is empty) or one replicated subscription."""

    topic: str
    subscription: str
    state: State
    reasons: tuple[Reason, ...]
    """Reasons for misaligned, then for unknown."""
    pairs: tuple[PairVerdict, ...]
    findings: tuple[Finding, ...]
    """Its own, and those of its topic."""
    notes: tuple[str, ...] = ()
    """What was not judged, and why: one sentence each."""

    @property
    def key(self) -> Key:
        return self.topic, self.subscription


@dataclass(frozen=True, slots=True)
class Verdict:
    """The whole run."""

    state: State
    summary: str
    world: World
    subjects: tuple[SubjectVerdict, ...]
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

    def of_region(self, region: str) -> list[Finding]:
        """Findings about one region that do not concern two regions that were asked."""
        return [
            found
            for found in self.findings
            if found.target == region and (found.source == region or found.source not in self.world.named)
        ]

    @property
    def worst_first(self) -> list[SubjectVerdict]:
        """The subjects in the order in which people should read them."""
        return sorted(self.subjects, key=lambda one: WORST_FIRST.index(one.state))


def judge(world: World, findings: Sequence[Finding], flows: Sequence[Flow], strips: Sequence[Strip]) -> Verdict:
    """The verdict. Findings without complete evidence are ignored: see :func:`trust.trusted`."""
    readable = [flow for flow in flows if flow.region not in world.unreachable]
    drawn = [strip for strip in strips if strip.region not in world.unreachable]
    kept = trusted(world, findings, flows)
    pairs = [*_pairs(world, kept), *_with_pulsar(world, kept), *_shadows(world, kept)]
    return assemble(world, pairs, kept, readable, drawn)


def with_metadata(verdict: Verdict, pairs: Collection[tuple[str, str]], findings: Sequence[Finding]) -> Verdict:
    """The verdict, extended by the metadata of these pairs of regions.

    :param pairs: source and target.
    """
    told: dict[tuple[str, str], dict[Reason, None]] = {pair: {} for pair in sorted(pairs)}
    for found in findings:
        told[found.source, found.target][found.reason] = None
    verdicts = [
        PairVerdict(METADATA, "", *pair, State.MISALIGNED if reasons else State.ALIGNED, tuple(reasons))
        for pair, reasons in told.items()
    ]
    return assemble(
        verdict.world, [*verdict.pairs, *verdicts], [*verdict.findings, *findings], verdict.flows, verdict.strips
    )


def assemble(
    world: World,
    pairs: Sequence[PairVerdict],
    findings: Iterable[Finding],
    flows: Sequence[Flow],
    strips: Sequence[Strip],
) -> Verdict:
    """The verdict that these pairs and findings make."""
    kept = sorted(findings, key=_order)
    subjects = tuple(_subjects(world, pairs, kept, flows))
    state, summary = _overall(world, subjects, kept)
    return Verdict(state, summary, world, subjects, tuple(pairs), tuple(kept), tuple(flows), tuple(strips))


def _order(one: Finding) -> tuple[str, ...]:
    return one.topic, one.subscription, one.reason, one.path, one.source, one.target


def _subjects(
    world: World, pairs: Iterable[PairVerdict], findings: Iterable[Finding], flows: Sequence[Flow]
) -> Iterator[SubjectVerdict]:
    pairs_of: dict[Key, list[PairVerdict]] = {}
    findings_of: dict[Key, list[Finding]] = {}
    for pair in pairs:
        pairs_of.setdefault((pair.topic, pair.subscription), []).append(pair)
    for found in findings:
        findings_of.setdefault((found.topic, found.subscription), []).append(found)
    names: dict[str, set[str]] = {}
    for topic, subscription in (*pairs_of, *findings_of):
        names.setdefault(topic, {""}).add(subscription)
    for topic in world.topics():
        if world.not_asked(topic):
            names.setdefault(topic, {""}).update(world.subscriptions(topic))
    notes = unjudged(world, names, flows)
    for topic in sorted(names):
        for subscription in sorted(names[topic]):
            key, of_topic = (topic, subscription), (topic, "")
            own = findings_of.get(key, [])
            inherited = findings_of.get(of_topic, []) if subscription else []
            concerned = pairs_of.get(key, []), pairs_of.get(of_topic, [])
            yield _subject(world, key, *concerned, own + inherited, notes)


def _subject(
    world: World,
    key: Key,
    pairs: Sequence[PairVerdict],
    of_topic: Sequence[PairVerdict],
    findings: Sequence[Finding],
    notes: Mapping[str, tuple[str, ...]],
) -> SubjectVerdict:
    concerned = [*pairs, *of_topic]
    wrong = [reason for pair in concerned if pair.state is State.MISALIGNED for reason in pair.reasons]
    wrong += [found.reason for found in findings]
    unknown = [reason for pair in concerned if pair.state is State.UNKNOWN for reason in pair.reasons]
    unknown += [Reason.NOT_ASKED] if world.not_asked(key[0]) else []
    state = State.MISALIGNED if wrong else State.UNKNOWN if unknown else State.ALIGNED
    reasons = tuple(dict.fromkeys(wrong + unknown))
    return SubjectVerdict(*key, state, reasons, tuple(pairs), tuple(findings), notes.get(key[0], ()))


def _pairs(world: World, findings: Iterable[Finding]) -> Iterator[PairVerdict]:
    by_subject: dict[Key, list[Finding]] = {}
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


def _with_pulsar(world: World, findings: Sequence[Finding]) -> Iterator[PairVerdict]:
    """Pairs with one region that runs Apache Pulsar."""
    for topic in world.topics():
        about = [found for found in findings if found.topic == topic]
        for one in judged(world, topic, about):
            head = one.subscription, one.source, one.target
            concerned = [found for found in about if (found.subscription, found.source, found.target) == head]
            yield PairVerdict(
                topic,
                *head,
                State.MISALIGNED if one.is_wrong else State.UNKNOWN if one.reasons else State.ALIGNED,
                one.reasons,
                sum(found.entries for found in concerned),
                sum(found.messages for found in concerned),
                world.unreachable.get(one.source, world.unreachable.get(one.target, "")),
            )


def _shadows(world: World, findings: Sequence[Finding]) -> Iterator[PairVerdict]:
    """Whether each compared shadow matches its source, in its region."""
    about: dict[tuple[str, str], list[Finding]] = {}
    for found in findings:
        if found.shadow_of and not found.subscription:
            about.setdefault((found.topic, found.target), []).append(found)
    for region, name, source in without_source(world):
        note = f"the export lacks its source, {source}: verify both topics"
        yield PairVerdict(name, "", region, region, State.UNKNOWN, (Reason.SOURCE_NOT_READ,), note=note)
    for one in compared(world):
        head = one.name, "", one.region, one.region
        if one.region in world.unreachable:
            note = world.unreachable[one.region]
            yield PairVerdict(*head, State.UNKNOWN, (Reason.UNREACHABLE,), note=note)
            continue
        wrong = about.get((one.name, one.region), [])
        reasons = tuple(dict.fromkeys(found.reason for found in wrong))
        entries = sum(found.entries for found in wrong)
        yield PairVerdict(*head, State.MISALIGNED if reasons else State.ALIGNED, reasons, entries)


def _structural(world: World, topic: str, subscription: str, source: str, target: str) -> Iterator[Reason]:
    """Reasons that are visible without looking at ranges."""
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


def _overall(world: World, subjects: Sequence[SubjectVerdict], findings: Sequence[Finding]) -> tuple[State, str]:
    wrong = [one for one in subjects if one.state is State.MISALIGNED]
    if wrong:
        paths = len({found.path for found in findings if found.path})
        losses = sum(found.reason in LOSS for found in findings)
        reasons = dict.fromkeys(reason for one in wrong for reason in one.reasons)
        said = f"{len(wrong):,} of {counted(len(subjects), 'topic or subscription', 'topics and subscriptions')}"
        said += f" misaligned, {counted(sum(found.entries for found in findings), 'entry', 'entries')} concerned"
        said += f", {counted(paths, 'path')} of metadata" if paths else ""
        said += f", {counted(losses, 'finding')} of loss" if losses else ""
        return State.MISALIGNED, f"{said}: {', '.join(reasons)}"
    if world.unreachable:
        return State.UNKNOWN, f"could not ask {', '.join(sorted(world.unreachable))}; nothing wrong among the others"
    strangers = sorted({region for topic in world.topics() for region in world.not_asked(topic)})
    if strangers:
        said = f"topics are also replicated to {', '.join(strangers)}: name every region"
        return State.UNKNOWN, f"{said}; nothing wrong among the others"
    unknown = [one for one in subjects if one.state is State.UNKNOWN]
    if unknown:
        count = counted(len(subjects), "topic or subscription", "topics and subscriptions")
        return State.UNKNOWN, f"{len(unknown):,} of {count} could not be compared: {unknown[0].reasons[0]}"
    if not subjects:
        return State.UNKNOWN, "nothing to compare: no topic of that name in two regions"
    subscriptions = sum(bool(one.subscription) for one in subjects)
    pairs = [(pair.source, pair.target) for one in subjects for pair in one.pairs]
    regions, shadows = len({pair for pair in pairs if pair[0] != pair[1]}), sum(one == other for one, other in pairs)
    parts = [f"{counted(subscriptions, 'subscription')} over {counted(regions, 'region pair')}"] if regions else []
    parts += [f"{counted(shadows, 'shadow')} matching the source"] if shadows else []
    return State.ALIGNED, f"{', '.join(parts)}, nothing lost, nothing missing"


def counted(count: int, one: str, many: str = "") -> str:
    """``1 topic``, ``2,000 topics``. ``many``: the plural, if it is not ``one`` with an *s*."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


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
