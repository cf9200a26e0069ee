# SPDX-License-Identifier: Apache-2.0
"""The real client from PyPI, for tests of one broker or of several regions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pulsar
import pytest
from support.brokers.broker_process import BrokerProcess, RegionsProcess
from support.brokers.region_clients import connected, new_topic


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    """Of the module's broker."""
    with connected(broker.service_url) as made:
        yield made


@pytest.fixture
def clients(regions: RegionsProcess) -> Iterator[dict[str, pulsar.Client]]:
    """One of each region."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(connected(regions.service_url(name))) for name in regions.regions}


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic that no other test has, as clients name it."""
    return new_topic(request.module.__name__.removeprefix("test_")).rpartition("/")[2]
