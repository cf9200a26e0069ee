# SPDX-License-Identifier: Apache-2.0
"""How long each subscription may be behind, and how a later comparison changes a verdict.

Acknowledgements only accumulate, so what is aligned after a short wait is aligned after a longer one. A subject that is
behind after a short wait, and may be for longer, is compared again when its own time is over: same S1, later S2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from meridian_verifier.align.findings import Reason
from meridian_verifier.align.verdicts import Key, State, Verdict, assemble

PASSING: Final = frozenset(
    {
        Reason.MISSING_ACK,
        Reason.EPOCH_BEHIND,
        Reason.LINK_DOWN,
        Reason.SUBSCRIPTION_MISSING,
        Reason.NOT_REPLICATED,
        Reason.TOPIC_MISSING,
        Reason.SHADOW_INCOMPLETE,
        Reason.SHADOW_STRANGE,
    }
)
"""Reasons that mean being behind. Waiting cures no other reason."""


@dataclass(frozen=True, slots=True)
class MaxLags:
    """Milliseconds that regions may be behind one another."""

    default_ms: int
    of: Mapping[Key, int] = field(default_factory=dict)
    """By topic, without its partition, and subscription."""

    @property
    def shortest_ms(self) -> int:
        return min([self.default_ms, *self.of.values()])

    def by_subject(self, verdict: Verdict) -> dict[Key, int]:
        """The allowed lag of every subject; a topic's is the longest that one of its subscriptions allows."""
        lags: dict[Key, int] = {}
        for one in verdict.subjects:
            lag = self.of.get((_base(one.topic), one.subscription), self.default_ms)
            of_topic = one.topic, ""
            lags[one.key] = max(lag, lags.get(one.key, 0))
            lags[of_topic] = max(lag, lags.get(of_topic, 0))
        return lags


def behind(verdict: Verdict, lags: MaxLags, waited_ms: int) -> dict[Key, int]:
    """Subjects that are behind and may still be after ``waited_ms``, with their allowed lags."""
    allowed = lags.by_subject(verdict)
    return {
        one.key: allowed[one.key]
        for one in verdict.subjects
        if allowed[one.key] > waited_ms
        and any(reason in PASSING for pair in one.pairs if pair.state is State.MISALIGNED for reason in pair.reasons)
    }


def superseded(verdict: Verdict, again: Verdict, subjects: Collection[Key]) -> Verdict:
    """The verdict with the results of a later comparison for these subjects. Permanent findings stay."""
    told = {one.key for one in again.subjects if one.pairs and one.key in subjects}
    pairs = [pair for pair in verdict.pairs if (pair.topic, pair.subscription) not in told]
    pairs += [pair for pair in again.pairs if (pair.topic, pair.subscription) in told]
    later = [found for found in again.findings if (found.topic, found.subscription) in told]
    repeated = {(one.reason, one.topic, one.subscription, one.origin, one.source, one.target) for one in later}
    kept = [
        one
        for one in verdict.findings
        if not ((one.topic, one.subscription) in told and one.reason in PASSING)
        and (one.reason, one.topic, one.subscription, one.origin, one.source, one.target) not in repeated
    ]
    return assemble(verdict.world, pairs, kept + later, verdict.flows, verdict.strips)


def undecided(verdict: Verdict, subjects: Collection[Key]) -> Verdict:
    """The verdict with these subjects unknown if they are only behind: the check did not wait long enough."""
    pairs = []
    for pair in verdict.pairs:
        if (pair.topic, pair.subscription) in subjects and pair.state is State.MISALIGNED:
            left = tuple(reason for reason in pair.reasons if reason not in PASSING)
            state, reasons = (State.MISALIGNED, left) if left else (State.UNKNOWN, (Reason.LAGGING,))
            pair = dataclasses.replace(pair, state=state, reasons=reasons)
        pairs.append(pair)
    kept = [
        one for one in verdict.findings if not ((one.topic, one.subscription) in subjects and one.reason in PASSING)
    ]
    return assemble(verdict.world, pairs, kept, verdict.flows, verdict.strips)


def _base(topic: str) -> str:
    head, separator, number = topic.rpartition("-partition-")
    return head if separator and number.isdigit() else topic
