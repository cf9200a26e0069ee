# SPDX-License-Identifier: Apache-2.0
"""One verification: snapshot S1, wait ``maxLag``, snapshot S2, compare, judge (R60-R62)."""

from __future__ import annotations

import dataclasses
import re
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from meridian_verifier.align.facts import PulsarRegion, TopicState, World
from meridian_verifier.align.findings import Finding
from meridian_verifier.align.patience import MaxLags, behind, superseded, undecided
from meridian_verifier.align.shadows import differences
from meridian_verifier.align.synced_metadata import pairs, shown
from meridian_verifier.align.verdicts import Key, Verdict, counted, judge, rewound, with_metadata
from meridian_verifier.examine import Outcome, examine, examine_metadata
from meridian_verifier.session import start_session, stop_session
from meridian_verifier.source.client import RegionClient, read_token
from meridian_verifier.source.pulsar import PulsarClient
from meridian_verifier.source.regions import PULSAR, Region
from meridian_verifier.source.snapshots import Moment, take_moment

ROUNDS: Final = 3
"""Total attempts at S1 if a subscription is rewound in between (R61)."""

LOOKS: Final = 4
"""How often subjects that are behind are compared again: each time those whose maxLag is over, the last time all."""
LONGEST_MS: Final = 300_000
"""A longer maxLag is not waited for: S1 lives for ten minutes in the regions, and must still be read then."""
METADATA_LOOKS: Final = (5.0, 15.0)
"""Seconds after S1 at which metadata that is behind is compared again."""
NO_TOPIC: Final = "-"
"""A pattern that matches no topic: only metadata is wanted."""
NAMED_MAX: Final = 50
"""Maximum number of topics that a snapshot request names one by one."""

Tell = Callable[[str], None]
"""Called with one sentence per step."""


@dataclass(frozen=True, slots=True)
class Request:
    """The options of one run."""

    regions: Sequence[Region]
    topics: str | None = None
    """Glob over full topic names, or ``re:`` and a regular expression; None: all."""
    max_lag_ms: int = 2000
    """How far regions may be behind one another: the time between the two snapshots."""
    max_lags: Mapping[Key, int] = field(default_factory=dict)
    """The same for single subscriptions, by topic (without its partition) and name."""
    master: str = "local[2]"
    token_file: str | None = None
    spark_settings: Mapping[str, str] = field(default_factory=dict)
    """Spark settings that override our own."""
    pulsar_token_file: str | None = None
    """For Apache Pulsar regions, which never get the other token."""

    @property
    def meridian(self) -> list[Region]:
        """The regions that export."""
        return [region for region in self.regions if region.kind != PULSAR]

    @property
    def pulsar(self) -> list[Region]:
        """The regions of Apache Pulsar."""
        return [region for region in self.regions if region.kind == PULSAR]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds each step took."""

    session: float
    snapshots: float
    examination: float


def verify(request: Request, tell: Tell) -> tuple[Verdict, Timing]:
    """Start a session, run, stop it. Regions that do not answer lead to *unknown*, never to an exception.

    The session starts first: it takes the longest, and the snapshots should be young when they are read.
    """
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="meridian-verify-", ignore_cleanup_errors=True) as scratch:
        tell(f"starting Spark ({request.master})")
        spark = start_session(request.master, Path(scratch), request.spark_settings)
        try:
            started = time.monotonic()
            verdict, timing = verify_in(spark, request, tell)
        finally:
            stop_session(spark)
    return verdict, dataclasses.replace(timing, session=started - begun)


def verify_in(spark: SparkSession, request: Request, tell: Tell) -> tuple[Verdict, Timing]:
    """Run in an existing session."""
    begun = time.monotonic()
    lags = MaxLags(request.max_lag_ms, request.max_lags)
    first, second = take_snapshots(request, lags.shortest_ms, tell)
    taken = time.monotonic()
    verdict = _compare(spark, request, first, second, tell)
    verdict = _wait_for_slow_ones(spark, request, lags, first, verdict, tell)
    if request.topics is None:
        verdict = _with_metadata(spark, request, first, second, verdict, tell)
    return verdict, Timing(0.0, taken - begun, time.monotonic() - taken)


def _wait_for_slow_ones(
    spark: SparkSession, request: Request, lags: MaxLags, first: Moment, verdict: Verdict, tell: Tell
) -> Verdict:
    """Compare subjects that are behind, but may be, with S1 again when their time is over."""
    waited = lags.shortest_ms
    clients = _clients(request)
    strangers = _strangers(request)
    for look in range(LOOKS):
        slow = {key: lag for key, lag in behind(verdict, lags, waited).items() if lag <= LONGEST_MS}
        if not slow:
            break
        waited = max(slow.values()) if look == LOOKS - 1 else min(slow.values())
        late = counted(len(slow), "subject")
        tell(f"{late} behind, within the allowed lag: comparing again {waited / 1000:g} s after S1")
        threading.Event().wait(max(0.0, first.at + waited / 1000 - time.monotonic()))
        topics = _with_sources(first, {topic for topic, _ in slow})
        later = take_moment(clients, _pattern(topics) or request.topics, strangers)
        verdict = superseded(verdict, _compare(spark, request, _only(first, set(topics)), later, tell), slow)
    return undecided(verdict, behind(verdict, lags, waited))


def _with_sources(moment: Moment, topics: Collection[str]) -> list[str]:
    """These topics and the sources of shadows among them."""
    shadows = [state.shadows[topic] for state in moment.states.values() for topic in topics if topic in state.shadows]
    return sorted({*topics, *(shadow.shadow_of for shadow in shadows)})


def _pattern(topics: Sequence[str]) -> str | None:
    """A pattern for these topics, as the export takes it; None: they are too many to name."""
    return "re:" + "|".join(map(re.escape, topics)) if len(topics) <= NAMED_MAX else None


def _only(moment: Moment, topics: Collection[str]) -> Moment:
    def those(told: Mapping[str, TopicState]) -> dict[str, TopicState]:
        return {name: state for name, state in told.items() if name in topics}

    states = {
        name: dataclasses.replace(state, topics=those(state.topics), shadows=those(state.shadows))
        for name, state in moment.states.items()
    }
    return dataclasses.replace(moment, states=states)


def _compare(spark: SparkSession, request: Request, first: Moment, second: Moment, tell: Tell) -> Verdict:
    world = world_of(request, first, second)
    topics = world.topics()
    outcome = Outcome()
    if topics:
        subscriptions = sum(len(world.subscriptions(topic)) for topic in topics)
        tell(f"comparing {counted(len(topics), 'topic')}, {counted(subscriptions, 'replicated subscription')}")
        snapshots = {name: [first.taken[name], second.taken[name]] for name in world.later}
        outcome = examine(spark, request.meridian, snapshots, world, request.token_file)
    for problem in outcome.problems.values():
        tell(f"not read to the end: {problem}")
    world = dataclasses.replace(world, unreachable={**outcome.problems, **world.unreachable})
    return judge(world, [*outcome.findings, *differences(world)], outcome.flows, outcome.strips)


def _with_metadata(
    spark: SparkSession, request: Request, first: Moment, second: Moment, verdict: Verdict, tell: Tell
) -> Verdict:
    """Compare metadata; what is behind, twice more: a change may be in transit, or have come between two requests."""
    synced = {
        name: taken.synced
        for name, taken in first.taken.items()
        if taken.synced is not None and name in second.taken and second.taken[name].synced == taken.synced
    }
    folders = pairs(synced)
    compared = set(folders)
    if not compared:
        return verdict
    tell(f"comparing the metadata of {counted(len(compared), 'pair')} of regions")
    findings: list[Finding] = []
    for look_seconds in (0.0, *METADATA_LOOKS):
        if look_seconds:
            tell(f"metadata behind: comparing again {look_seconds:g} s after S1")
            threading.Event().wait(max(0.0, first.at + look_seconds - time.monotonic()))
            second = take_moment(_clients(request), NO_TOPIC)
        there = {pair for pair in compared if all(name in second.taken for name in pair)}
        snapshots = {name: [first.taken[name], second.taken[name]] for pair in there for name in pair}
        asked = {pair: folders[pair] for pair in sorted(there)}
        outcome = examine_metadata(spark, request.meridian, snapshots, asked, request.token_file)
        for problem in outcome.problems.values():
            tell(f"not read to the end: {problem}")
        read = {pair for pair in there if not outcome.problems.keys() & set(pair)}
        if not look_seconds:
            compared = read
        findings = [found for found in findings if (found.source, found.target) not in read]  # seen before
        findings += [found for found in outcome.findings if (found.source, found.target) in read]
        if not findings:
            break
    return with_metadata(verdict, compared, shown(findings))


def _clients(request: Request) -> list[RegionClient]:
    token = read_token(request.token_file)
    return [RegionClient(region, token) for region in request.meridian]


def _strangers(request: Request) -> list[PulsarClient]:
    token = read_token(request.pulsar_token_file)
    return [PulsarClient(region, token) for region in request.pulsar]


def take_snapshots(request: Request, apart_ms: int, tell: Tell) -> tuple[Moment, Moment]:
    """S1 and S2, at least ``apart_ms`` apart. If a rewind came between, S2 becomes S1 and a new S2 is taken."""
    clients, strangers = _clients(request), _strangers(request)
    tell(f"snapshot S1 of {', '.join(region.name for region in request.regions)}")
    first = take_moment(clients, request.topics, strangers)
    for round_number in range(1, ROUNDS + 1):
        tell(f"waiting {apart_ms / 1000:g} s, then snapshot S2")
        threading.Event().wait(apart_ms / 1000)
        second = take_moment(clients, request.topics, strangers)
        if round_number == ROUNDS or not rewound(world_of(request, first, second)):
            break
        tell("a subscription was rewound in between: comparing again")
        first = second
    for problem in {**first.unreachable, **second.unreachable}.values():
        tell(f"could not ask: {problem}")
    return first, second


def world_of(request: Request, first: Moment, second: Moment) -> World:
    """Both moments as one value; a region missing from one is unreachable, and left out of both."""
    unreachable = {**first.unreachable, **second.unreachable}
    return World(
        tuple(region.name for region in request.meridian),
        {name: state for name, state in first.states.items() if name not in unreachable},
        {name: state for name, state in second.states.items() if name not in unreachable},
        unreachable,
        request.max_lag_ms,
        {
            region.name: PulsarRegion(first.pulsar.get(region.name, {}), second.pulsar.get(region.name, {}))
            for region in request.pulsar
        },
    )
