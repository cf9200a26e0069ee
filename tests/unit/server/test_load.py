# SPDX-License-Identifier: Apache-2.0
"""How a broker's load is measured."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from meridian_broker.ownership.bundles import Bundles
from meridian_broker.server.load import MESSAGE_BYTES, BundleTraffic, Processor


def test_the_usage_is_a_smoothed_fraction_of_one_core() -> None:
    clock, used = [0.0], [5.0]
    processor = Processor(lambda: used[0], lambda: clock[0])
    assert processor.usage() == 0.0
    clock[0], used[0] = 10.0, 13.0
    assert processor.usage() == pytest.approx(0.8)
    assert processor.usage() == pytest.approx(0.8)  # no time has passed
    clock[0] = 20.0
    assert processor.usage() == pytest.approx(0.4)


async def test_the_traffic_of_bundles_is_that_of_their_topics_since_the_last_measurement() -> None:
    one, other = Bundles.equal("t/n", 2).every()

    def topic(name: str, messages: int, size: int) -> Any:
        registry = SimpleNamespace(messages_out_before=0, bytes_out_before=0)
        subscription = SimpleNamespace(messages_out=messages, bytes_out=size)
        return SimpleNamespace(
            name=name,
            received_totals=lambda: (messages, size),
            subscription_registry=registry,
            subscriptions={"s": subscription},
        )

    async def these(*topics: Any) -> AsyncIterator[Any]:
        for each in topics:
            yield each

    measuring, of = BundleTraffic(), {"a": one, "b": other, "c": other, "elsewhere": None}.get
    first = these(topic("a", 5, 0), topic("b", 1, 0), topic("elsewhere", 9, 9))
    assert await measuring.measure(first, of) == {}
    second = these(topic("a", 8, MESSAGE_BYTES), topic("b", 1, 0), topic("c", 0, 0))
    assert await measuring.measure(second, of) == {one: 8, other: 0}
    reopened = these(topic("a", 0, 0))
    assert await measuring.measure(reopened, of) == {one: 0}
    measuring.forget()
    assert await measuring.measure(these(topic("a", 9, 0)), of) == {}
