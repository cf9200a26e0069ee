# SPDX-License-Identifier: Apache-2.0
"""A catalog on the embedded store, and the catalogs of several brokers of one region."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from meridian_broker.engines.sqlite.metadata import SqliteMetadataStore
from meridian_broker.metadata.catalog import Catalog
from meridian_broker.positions.clock import HybridClock
from support.worlds.catalog_world import CLUSTERS, Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteMetadataStore]:
    opened = await SqliteMetadataStore.open(tmp_path / "metadata.db")
    yield opened
    await opened.close()


@pytest.fixture
def make(store: SqliteMetadataStore, clock: Clock) -> Callable[[], Catalog]:
    """Catalogs of several brokers of one region."""
    return lambda: Catalog(store, HybridClock(clock, "us-east"), clock, asyncio.sleep, lambda _: 0)


@pytest.fixture
async def catalog(make: Callable[[], Catalog]) -> Catalog:
    made = make()
    await made.ensure_bootstrap(CLUSTERS)
    return made
