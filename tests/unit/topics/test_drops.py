# SPDX-License-Identifier: Apache-2.0
"""Drops on a real topic over in-memory ledgers: random stories against a list of what is owed (R14, R12)."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from support.worlds.topic_world import STEPS, TopicWorld

steps = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 60)), min_size=8, max_size=40)


@given(steps)
def test_owed_is_what_was_neither_acked_nor_dropped(story: list[tuple[str, int]]) -> None:
    asyncio.run(TopicWorld().live(story))
