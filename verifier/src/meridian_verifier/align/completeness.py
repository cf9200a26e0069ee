# SPDX-License-Identifier: Apache-2.0
"""R62: every region that should have an origin's entries stores all of them, once, in order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np

from meridian_verifier.align.findings import Finding, Flow, Reason

if TYPE_CHECKING:
    from meridian_verifier.align.evidence import Evidence, Stored
    from meridian_verifier.align.intervals import Keys, Mask

QUANTILES: Final = tuple(range(0, 101, 5))


def completeness(evidence: Evidence) -> tuple[list[Finding], list[Flow]]:
    """Findings and, for every region that holds the topic, how its copy of this origin fares."""
    findings: list[Finding | None] = []
    flows = []
    for region, state in evidence.world.later.items():
        if evidence.topic not in state.topics:
            continue
        missing, skipped, behind = holes(evidence, region)
        findings.append(evidence.finding(Reason.ENTRY_MISSING, "", evidence.origin, region, missing))
        findings.append(evidence.finding(Reason.SKIPPED, "", evidence.origin, region, skipped))
        held = evidence.stored.get(region)
        late = 0
        if held is not None:
            disorder, late = _disorder(evidence, region, held)
            findings += disorder
        flows.append(_flow(evidence, region, held, int(missing.sum()), int(behind.sum()), late))
    findings += _rolled_back(evidence)
    return [found for found in findings if found], flows


def holes(evidence: Evidence, region: str) -> tuple[Mask, Mask, Mask]:
    """The known entries that the region should hold and does not: *missing* below its high-water, *skipped* by an
    administrator, *behind* above the high-water. If the origin has no chain, none counts as missing."""
    keys = evidence.known.keys
    held = evidence.stored.get(region)
    due = (keys > evidence.low_water(region)) | evidence.awaited(region).holds(keys)
    absent = evidence.known.meant_for(region) & due
    if held is not None:
        absent &= ~np.isin(keys, held.keys)
    absent &= ~evidence.dropped_anywhere(region).holds(keys)
    skipped = absent & evidence.skipped(region).holds(keys)
    below, owed = keys <= evidence.high_water(region), absent & ~skipped
    if not evidence.has_chain:
        owed &= ~below  # nobody knows whether it was meant for the region; above, it may still come
    return owed & below, skipped, owed & ~below


def _disorder(evidence: Evidence, region: str, held: Stored) -> tuple[list[Finding | None], int]:
    """Entries that are stored twice or in another order than at the origin; and how many legitimately came late.

    An entry is behind a newer one when an earlier place of the log holds a later entry. It came *late* if the newer
    entry did not say that it follows it, but began another stretch of the chain, or was where the region joined. If the
    newer entry did say that, it should have been refused: the order is wrong.
    """
    keys = evidence.known.keys
    values, counts = np.unique(held.keys, return_counts=True)
    doubled = np.isin(keys, values[counts > 1])
    # In log order, without second copies, which are reported above.
    _, first = np.unique(held.keys, return_index=True)
    once = held.keys[np.sort(first)]
    stretch = evidence.known.stretches()[np.searchsorted(keys, once)]
    # Keys of a later stretch are greater than all of an earlier one, so none is behind an entry of another stretch.
    by_stretch = once[np.argsort(stretch, kind="stable")]
    wrong = _behind(by_stretch)
    wrong = wrong[wrong > evidence.joined(region)]
    late = len(_behind(once)) - len(wrong)
    return [
        evidence.finding(Reason.ENTRY_DOUBLED, "", region, region, doubled),
        evidence.finding(Reason.OUT_OF_ORDER, "", region, region, np.isin(keys, wrong)),
    ], late


def _behind(keys: Keys) -> Keys:
    """The keys that come after a greater one."""
    return keys[1:][keys[1:] < np.maximum.accumulate(keys)[:-1]] if len(keys) else keys


def _rolled_back(evidence: Evidence) -> Iterable[Finding | None]:
    """Entries other regions had at S1 beyond the origin's own end at S2 (R5)."""
    if evidence.origin not in evidence.world.later or evidence.origin not in evidence.world.earlier:
        return
    end = evidence.high_water(evidence.origin)
    for region in evidence.world.earlier:
        if region != evidence.origin:
            keys = evidence.known.keys
            beyond = (keys > end) & (keys <= evidence.place(region, "earlier"))
            yield evidence.finding(Reason.ORIGIN_ROLLED_BACK, "", region, evidence.origin, beyond)


def _flow(evidence: Evidence, region: str, held: Stored | None, missing: int, behind: int, late: int) -> Flow:
    at_origin = evidence.stored.get(evidence.origin)
    quantiles: tuple[int, ...] = ()
    entries = messages = given_back = 0
    if held is not None:
        entries = len(held.keys)
        given_back = held.elsewhere if region == evidence.origin else 0
        messages = int(evidence.known.messages[np.searchsorted(evidence.known.keys, held.keys)].sum())
        if at_origin is not None and region != evidence.origin:
            _, here, there = np.intersect1d(held.keys, at_origin.keys, return_indices=True)
            if len(here):
                delays = np.maximum(held.stored_ms[here] - at_origin.stored_ms[there], 0)
                quantiles = tuple(int(value) for value in np.percentile(delays, QUANTILES))
    return Flow(
        evidence.topic, evidence.origin, region, entries, messages, missing, behind, quantiles, given_back, late
    )
