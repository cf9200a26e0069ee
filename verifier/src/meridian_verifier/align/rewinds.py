# SPDX-License-Identifier: Apache-2.0
"""R12: a seek rewinds over what its region stores, and another region may have trimmed some of that.

The other region cannot deliver what is owed again. Progress is the same everywhere, so this shows only in what regions
store, and in what their cursors still wait for.
"""

from __future__ import annotations

import numpy as np

from meridian_verifier.align.containment import compared
from meridian_verifier.align.evidence import Evidence
from meridian_verifier.align.facts import EARLIEST
from meridian_verifier.align.findings import Finding, Reason
from meridian_verifier.align.intervals import EMPTY, IntervalSet, Mask


def owed_elsewhere(evidence: Evidence) -> list[Finding]:
    """Per rewound subscription, entries that the source owes at S2 and the target had trimmed by S1."""
    world, topic, findings = evidence.world, evidence.topic, []
    for subscription in world.subscriptions(topic):
        for source, target in compared(world, topic, subscription):
            chosen = _owed(evidence, subscription, source) & _gone(evidence, subscription, target)
            found = evidence.finding(Reason.OWED_ELSEWHERE, subscription, source, target, chosen)
            if found and world.cursors(target, topic, world.later)[subscription].epoch:
                findings.append(found)
    return findings


def owed_by_others(evidence: Evidence, subscription: str, region: str) -> Mask:
    """The known entries of ``owed_elsewhere`` that this region has trimmed."""
    chosen = np.zeros(len(evidence.known.keys), dtype=np.bool_)
    epoch = evidence.world.cursors(region, evidence.topic, evidence.world.later)[subscription].epoch
    for source, target in compared(evidence.world, evidence.topic, subscription) if epoch else ():
        if target == region:
            chosen |= _owed(evidence, subscription, source)
    return chosen & _gone(evidence, subscription, region)


def _owed(evidence: Evidence, subscription: str, region: str) -> Mask:
    """The known entries that a region stores and its cursor has not passed."""
    keys, held = evidence.known.keys, evidence.stored.get(region)
    if held is None or evidence.world.later[region].topics[evidence.topic].compacted_to != EARLIEST:
        return np.zeros(len(keys), dtype=np.bool_)
    passed = evidence.passed.get((region, subscription), EMPTY)
    return np.isin(keys, held.keys[~passed.holds(held.local)])


def _gone(evidence: Evidence, subscription: str, region: str) -> Mask:
    """The known entries that a region had trimmed by S1, with no drop on record. None if the origin has no chain: it is
    unknown whether they were ever there."""
    keys, held = evidence.known.keys, evidence.stored.get(region)
    if not evidence.has_chain:
        return np.zeros(len(keys), dtype=np.bool_)
    state = evidence.world.earlier[region].topics[evidence.topic]
    trimmed = (state.trimmed_origins or {}).get(evidence.origin, EARLIEST)
    stretch = IntervalSet.of([evidence.joined(region)], [evidence.coordinates.key(*trimmed)])
    stretch = stretch - evidence.awaited(region) - evidence.skipped(region)
    stretch = stretch - evidence.dropped.get((region, subscription), EMPTY)
    gone = stretch.holds(keys) & evidence.known.meant_for(region)
    return gone if held is None else gone & ~np.isin(keys, held.keys)
