# SPDX-License-Identifier: Apache-2.0
"""Regions that follow each other by snapshots skip nothing and end equal: random stories (``snapshot_seeds``)."""

from __future__ import annotations

import os

import pytest
from support.worlds.snapshot_seeds import SnapshotSeed

SEEDS = int(os.environ.get("SYNC_SEEDS", "300" if "SIMULATE_BUGS" in os.environ else "40"))
"""``make simulate`` runs as many as requested."""


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_nothing_is_skipped_and_all_end_equal(first: int) -> None:
    for seed in range(first, min(first + 10, SEEDS)):
        try:
            SnapshotSeed(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
