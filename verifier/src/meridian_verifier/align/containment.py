# SPDX-License-Identifier: Apache-2.0
"""R61: what region A had acked at S1 must be acked in region B at S2, entry by entry, batch bits included.

Sets are compared as ranges first; only the differences are counted in entries. A difference without a
known entry is ignored: sets are sets of entries, and a range may end between two of them.

A subscription replicated by snapshots is judged by its own promise (R63): what A had told B by S1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meridian_verifier.align.evidence import NOTHING, Acked, Evidence
from meridian_verifier.align.facts import EARLIEST
from meridian_verifier.align.findings import Finding, Reason
from meridian_verifier.align.intervals import IntervalSet, keys_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meridian_verifier.align.facts import Place, World


def compared(world: World, topic: str, subscription: str) -> list[tuple[str, str]]:
    """The ordered pairs of regions whose sets can be compared: both listed the subscription, replicated, at both
    snapshots and in the same epoch and incarnation."""
    able = []
    for region in world.regions_of(topic):
        first = world.cursors(region, topic, world.earlier).get(subscription)
        second = world.cursors(region, topic, world.later).get(subscription)
        if first and second and first.replicated and second.replicated:
            able.append((region, first.epoch, second.epoch))
    return [
        (source, target)
        for source, epoch, _ in able
        for target, _, later in able
        if source != target
        and epoch == later
        and _incarnation(world, source, topic) == _incarnation(world, target, topic)
    ]


def _incarnation(world: World, region: str, topic: str) -> str:
    return world.later[region].topics[topic].incarnation


def missing_acks(evidence: Evidence) -> list[Finding]:
    """Every violation of containment for this origin, over all subscriptions and pairs."""
    findings = []
    names = sorted({name for _, name in evidence.earlier})
    for subscription in names:
        for source, target in compared(evidence.world, evidence.topic, subscription):
            found = _missing(evidence, subscription, source, target)
            if found:
                findings.append(found)
    return findings


def _missing(evidence: Evidence, subscription: str, source: str, target: str) -> Finding | None:
    before = evidence.earlier.get((source, subscription), NOTHING)
    after = evidence.later.get((target, subscription), NOTHING)
    lacking = before.full - after.full - evidence.dropped_everywhere(subscription)
    keys = evidence.known.keys
    told = told_by(evidence.world, evidence.topic, subscription, source)
    if told is not None:
        return _not_followed(evidence, lacking, subscription, source, target, told)
    chosen = lacking.holds(keys)
    # A message counts as missing if its bit is; an entirely missing entry counts with all its messages except those
    # that the target has acked.
    messages = int(evidence.known.messages[chosen].sum())
    for key in lacking.within(keys_of(sorted(after.partial))):
        messages -= after.partial[int(key)].bits.bit_count() if key in keys[chosen] else 0
    bits = lacking_bits(before, after)
    for key, count in bits.items():
        at = int(np.searchsorted(keys, key))
        if at < len(keys) and keys[at] == key and not chosen[at]:
            chosen[at] = True
            messages += count
    return evidence.finding(Reason.MISSING_ACK, subscription, source, target, chosen, messages)


def told_by(world: World, topic: str, subscription: str, source: str) -> Mapping[str, Place] | None:
    """Up to where the region had told the others by S1 that everything is acknowledged; None: the subscription syncs
    in mode Exact."""
    state = world.earlier[source].topics.get(topic)
    return None if state is None else state.told.get(subscription)


def _not_followed(
    evidence: Evidence, lacking: IntervalSet, subscription: str, source: str, target: str, told: Mapping[str, Place]
) -> Finding | None:
    """R63: entries that the target has and still owes, although the source acknowledged them and said so."""
    upto = evidence.coordinates.key(*told.get(evidence.origin, EARLIEST))
    promised = IntervalSet.of([evidence.low_water(target)], [upto])
    owed = (lacking & promised) - evidence.skipped(target) - evidence.awaited(target)
    chosen = owed.holds(evidence.known.keys) & evidence.known.meant_for(target)
    messages = int(evidence.known.messages[chosen].sum())
    return evidence.finding(Reason.MISSING_ACK, subscription, source, target, chosen, messages)


def lacking_bits(before: Acked, after: Acked) -> dict[int, int]:
    """Per entry partly acked in ``before``: how many of those acked messages ``after`` lacks."""
    if not before.partial:
        return {}
    keys = keys_of(sorted(before.partial))
    lacking = {}
    for key in keys[~after.full.holds(keys)].tolist():
        have = after.partial[key].bits if key in after.partial else 0
        count = (before.partial[key].bits & ~have).bit_count()
        if count:
            lacking[key] = count
    return lacking
