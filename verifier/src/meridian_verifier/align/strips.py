# SPDX-License-Identifier: Apache-2.0
"""Strip charts of a subscription: along an origin's entries, the fraction acked, dropped or missing in each region."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np
from numpy.typing import NDArray

from meridian_verifier.align.completeness import holes
from meridian_verifier.align.evidence import NOTHING, Acked, Evidence
from meridian_verifier.align.findings import Strip
from meridian_verifier.align.intervals import EMPTY, Mask

Weights = NDArray[np.float64]

BINS: Final = 120
"""Columns of a strip: as many as a reader can tell apart across a page."""


def strips(evidence: Evidence, subscriptions: Collection[str]) -> list[Strip]:
    """One strip per region and requested subscription."""
    count = len(evidence.known.keys)
    if not count:
        return []
    starts = np.unique(np.linspace(0, count, min(BINS, count) + 1).astype(np.int64))[:-1]
    sizes = np.diff(np.append(starts, count))

    def percents(weights: Mask | Weights) -> tuple[int, ...]:
        # Rounded towards the middle: 0 and 100 mean exactly none and exactly all.
        sums = np.add.reduceat(weights.astype(np.float64), starts)
        percent = np.floor(sums * 100 / sizes)
        return tuple(np.maximum(percent, sums > 0).astype(np.int64).tolist())

    drawn = []
    for region, state in evidence.world.later.items():
        if evidence.topic not in state.topics:
            continue
        missing = percents(holes(evidence, region)[0])
        for name in sorted(set(subscriptions) & set(state.topics[evidence.topic].cursors)):
            progress = evidence.later.get((region, name), NOTHING)
            acked = progress.full.holds(evidence.known.keys)
            weights = np.maximum(acked, _partly(evidence, progress))
            dropped = evidence.dropped.get((region, name), EMPTY).holds(evidence.known.keys)
            drawn.append(
                Strip(
                    evidence.topic,
                    name,
                    evidence.origin,
                    region,
                    count,
                    percents(weights),
                    percents(dropped & ~acked),
                    missing,
                )
            )
    return drawn


def _partly(evidence: Evidence, progress: Acked) -> Weights:
    """Per known entry, the fraction of its messages that is acked if not all are."""
    weights = np.zeros(len(evidence.known.keys), dtype=np.float64)
    for key, partial in progress.partial.items():
        at = int(np.searchsorted(evidence.known.keys, key))
        if at < len(weights) and evidence.known.keys[at] == key:
            weights[at] = partial.bits.bit_count() / partial.size
    return weights
