# SPDX-License-Identifier: Apache-2.0
"""Asking other brokers what their shadows need: each question has its own number."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from meridian_broker.engines.sqlite.metadata import SqliteMetadataStore
from meridian_broker.metadata.access import Access
from meridian_broker.metadata.shadow_needs import Asked, ShadowNeeds
from meridian_broker.positions.clock import HybridClock
from meridian_broker.positions.position import Position
from meridian_broker.wire.pulsar import topic_name

SOURCE = topic_name.parse("persistent://public/default/source")
SHADOW = topic_name.parse("persistent://public/default/shadow")


@pytest.fixture
async def needs(tmp_path: Path) -> AsyncIterator[ShadowNeeds]:
    store = await SqliteMetadataStore.open(tmp_path / "metadata")
    yield ShadowNeeds(Access(store, HybridClock(lambda: 1_000, "eu")))
    await store.close()


async def test_brokers_that_ask_at_once_get_separate_answers(needs: ShadowNeeds) -> None:
    first, second = await asyncio.gather(
        needs.ask(SOURCE, Asked(upto=Position(1, 9))), needs.ask(SOURCE, Asked(upto=Position(2, 9)))
    )
    assert {first, second} == {1, 2}
    assert await needs.asked(SOURCE) == Asked(upto=Position(2, 9), number=2)
    await needs.tell(SOURCE, SHADOW, Position(1, 9), 1)
    assert await needs.told(SOURCE, 2) == {}
    assert await needs.told(SOURCE, 1) == {str(SHADOW): Position(1, 9)}
