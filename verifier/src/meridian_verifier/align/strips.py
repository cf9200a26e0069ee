# SPDX-License-Identifier: Apache-2.0
"""The picture of a subscription: along an origin's entries, what share is acked, dropped or missing in each region."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np

from meridian_verifier.align.completeness import holes
from meridian_verifier.align.evidence import NOTHING, Evidence
from meridian_verifier.align.findings import Strip
from meridian_verifier.align.intervals import EMPTY, Mask

SHARES: Final = 120
"""Columns of a strip: as many as a person can tell apart across a page."""


def strips(evidence: Evidence, subscriptions: Collection[str]) -> list[Strip]:
    """One strip per region and subscription of those asked for."""
    count = len(evidence.known.keys)
    if not count:
        return []
    starts = np.unique(np.linspace(0, count, min(SHARES, count) + 1).astype(np.int64))[:-1]
    sizes = np.diff(np.append(starts, count))

    def shares(mask: Mask) -> tuple[int, ...]:
        # Rounded towards the middle: 0 and 100 mean exactly none and exactly all.
        sums = np.add.reduceat(mask.astype(np.int64), starts)
        percent = np.clip(sums * 100 // sizes, np.where(sums > 0, 1, 0), 100)
        return tuple(percent.tolist())

    drawn = []
    for region, state in evidence.world.later.items():
        if evidence.topic not in state.topics:
            continue
        missing = shares(holes(evidence, region)[0])
        for name in sorted(set(subscriptions) & set(state.topics[evidence.topic].cursors)):
            acked = evidence.later.get((region, name), NOTHING).full.holds(evidence.known.keys)
            dropped = evidence.dropped.get((region, name), EMPTY).holds(evidence.known.keys)
            drawn.append(
                Strip(
                    evidence.topic,
                    name,
                    evidence.origin,
                    region,
                    count,
                    shares(acked),
                    shares(dropped & ~acked),
                    missing,
                )
            )
    return drawn
