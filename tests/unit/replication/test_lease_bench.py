# SPDX-License-Identifier: Apache-2.0
"""bench/leases runs. It simulates topics for the real lease manager, and no other test shows that this suffices."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

MEASURE = Path(__file__).parents[3] / "bench" / "leases" / "measure.py"


@pytest.mark.parametrize("by_name", [True, False])
def test_idle_regions_renew_their_leases(by_name: bool) -> None:
    row = runpy.run_path(str(MEASURE))["measure"](5, by_name=by_name)
    assert row["messages_per_second"] > 0
