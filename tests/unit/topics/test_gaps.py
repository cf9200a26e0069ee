# SPDX-License-Identifier: Apache-2.0
"""What a topic knows about entries that their origin can no longer send (R4)."""

from __future__ import annotations

from meridian_broker.positions.position import Position
from support.worlds.topic_of_one_region import region


async def test_a_gap_that_grew_while_regions_were_asked_is_requested_again() -> None:
    gaps = (await region()).topic.gaps
    gaps.told("eu", Position(5, 9))
    asked = gaps.open()[0]
    gaps.told("eu", Position(7, 3))
    gaps.judged(asked, asked.upto, ())
    assert [(gap.upto, gap.is_judged) for gap in gaps.open()] == [(Position(7, 3), False)]
    gaps.judged(gaps.open()[0], Position(7, 3), ("ap",))
    assert [(gap.upto, gap.is_judged, gap.away) for gap in gaps.open()] == [(Position(7, 3), True, ("ap",))]
