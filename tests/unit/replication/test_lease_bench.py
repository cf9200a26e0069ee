# SPDX-License-Identifier: Apache-2.0
"""bench/leases runs. It plays topics to the real lease manager, and nothing else shows that it still plays enough."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

MEASURE = Path(__file__).parents[3] / "bench" / "leases" / "measure.py"


@pytest.mark.parametrize("by_name", [True, False])
def test_regions_at_rest_renew_their_leases(by_name: bool) -> None:
    row = runpy.run_path(str(MEASURE))["measure"](5, by_name=by_name)
    assert row["messages_per_second"] > 0
