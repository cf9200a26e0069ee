# SPDX-License-Identifier: Apache-2.0
"""Four real bookies, started once for all tests of this folder; each test leaves all of them running.

Their etcd holds one BookKeeper cluster, so tests use ledger ids, or a region name, of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.bookies import Bookies, bookies_missing
from support.brokers.bookkeeper_region import Region, running

MISSING = bookies_missing()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "bookkeeper":
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(900))
            item.add_marker(pytest.mark.skipif(MISSING is not None, reason=str(MISSING)))


@pytest.fixture(scope="session")
def bookies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bookies]:
    made = Bookies(tmp_path_factory.mktemp("bookies"), 4)
    yield made
    made.close()


@pytest.fixture
def region(bookies: Bookies, tmp_path: Path) -> Iterator[Region]:
    with running(Region(bookies, tmp_path)) as made:
        yield made
