# SPDX-License-Identifier: Apache-2.0
"""A real S3 server for each module; its tests use prefixes of their own in the bucket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.brokers.s3_server import CREDENTIALS, S3Server, s3_missing

MISSING = s3_missing()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "s3":
            item.add_marker(pytest.mark.skipif(MISSING is not None, reason=str(MISSING)))


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put them into the environment, where a client looks for them."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as made:
        yield made
