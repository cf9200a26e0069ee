# SPDX-License-Identifier: Apache-2.0
"""Two parts of a broker need each other: one is bound to the other later, exactly once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from meridian_broker.topics.service.exchange_host import ExchangeHost
from meridian_broker.topics.service.witness import WitnessStore


@pytest.mark.parametrize("part", [ExchangeHost, WitnessStore])
def test_a_second_binding_is_refused(part: Any) -> None:
    scheduler = SimpleNamespace(spawn=lambda work, _: work.close())
    ownership = SimpleNamespace(owns=bool)
    parts = SimpleNamespace(region="us", regions_of=frozenset, scheduler=scheduler, ownership=ownership)
    made = part(SimpleNamespace(parts=parts, is_served=bool, closing=False))
    first, second = object(), object()
    made.bind(first)
    for other in (second, first):
        with pytest.raises(RuntimeError, match=r"is already bound to"):
            made.bind(other)
