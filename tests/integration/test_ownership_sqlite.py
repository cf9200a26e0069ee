# SPDX-License-Identifier: Apache-2.0
"""Ownership of bundles on the embedded store, where several brokers in one process can share it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from meridian_broker.engines.sqlite.metadata import SqliteMetadataStore
from meridian_broker.metadata.store import MetadataStore
from support.contracts.ownership_contract import Connect, OwningContract


@pytest.fixture
async def connect(tmp_path: Path) -> AsyncIterator[Connect]:
    store = await SqliteMetadataStore.open(tmp_path / "metadata")

    async def shared() -> MetadataStore:
        return store

    yield shared
    await store.close()


class TestOwning(OwningContract):
    pass
