# SPDX-License-Identifier: Apache-2.0
"""How many schemas one client may add in a minute."""

from __future__ import annotations

import pytest
from meridian_broker.topics.directory.schema_rates import AUTHORS_MAX, MINUTE_MS, SchemaRates
from meridian_broker.topics.errors import LimitReached


def test_a_limited_number_per_minute_for_each_author() -> None:
    rates = SchemaRates(3)
    for second in range(3):
        rates.count("app", 1000 * second)
    rates.count("other", 5000)
    for ms in (5000, MINUTE_MS - 1):
        with pytest.raises(LimitReached, match="app added 3 new schemas"):
            rates.count("app", ms)
    rates.count("app", MINUTE_MS)
    SchemaRates(0).count("app", 0)


def test_many_authors_take_bounded_memory() -> None:
    rates = SchemaRates(1)
    for number in range(2 * AUTHORS_MAX):
        rates.count(str(number), 0)
    assert len(rates._counts) == AUTHORS_MAX
    with pytest.raises(LimitReached):
        rates.count(str(2 * AUTHORS_MAX - 1), 1)
