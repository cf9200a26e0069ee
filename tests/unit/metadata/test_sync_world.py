# SPDX-License-Identifier: Apache-2.0
"""Regions without a common store end with equal metadata, whatever happens: random stories (``sync_seeds``)."""

from __future__ import annotations

import os

import pytest
from support.worlds.sync_seeds import SyncSeed

SEEDS = int(os.environ.get("SYNC_SEEDS", "20" if "SIMULATE_BUGS" in os.environ else "5"))
"""``make simulate`` runs as many as requested."""
FOUND = (27, 30, 96, 114, 227, 332, 459, 661, 685, 1193, 1262, 2472, 3462)
"""Seeds that found a fault in the simulated world or in what it simulates."""


@pytest.mark.parametrize("seed", sorted({*range(SEEDS), *FOUND}))
def test_regions_end_equal(seed: int) -> None:
    SyncSeed(seed).run()
