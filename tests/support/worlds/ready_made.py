# SPDX-License-Identifier: Apache-2.0
"""Values of several kinds, made before any is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st


def one_of_kinds(*kinds: Sequence[Any]) -> st.SearchStrategy[Any]:
    """Any value of any kind, each kind as often as the others. ``one_of`` draws the kind first: twice the cost."""
    longest = max(len(kind) for kind in kinds)
    return st.sampled_from([kind[at % len(kind)] for at in range(longest) for kind in kinds])
