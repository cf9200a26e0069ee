# SPDX-License-Identifier: Apache-2.0
"""In-process brokers, and the real client from PyPI for brokers that are processes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pulsar
import pytest
from meridian_broker.server.broker import BrokerProcess
from support.brokers.broker_inside import broker_inside
from support.brokers.broker_process import BrokerProcess as RunningBroker
from support.brokers.broker_process import RegionsProcess
from support.brokers.etcd_server import EtcdServer, etcd_missing
from support.brokers.region_clients import connected, new_topic
from support.protocol.raw_connection import RawConnection


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    """A broker for this test alone, in its event loop."""
    async with broker_inside(tmp_path) as made:
        yield made


@pytest.fixture
async def wire(inside: BrokerProcess) -> AsyncIterator[RawConnection]:
    """A client of that broker which sends what the test writes."""
    made = await RawConnection.open(inside.settings.network.broker_service_port)
    yield made
    await made.close()


@pytest.fixture(scope="module")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One etcd per module. Tests that share it use prefixes of their own."""
    if (missing := etcd_missing()) is not None:
        pytest.skip(missing)
    started = EtcdServer(tmp_path_factory.mktemp("etcd"))
    yield started
    started.close()


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[pulsar.Client]:
    """A client of the module's broker."""
    with connected(broker.service_url) as made:
        yield made


@pytest.fixture
def clients(regions: RegionsProcess) -> Iterator[dict[str, pulsar.Client]]:
    """One client per region."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(connected(regions.service_url(name))) for name in regions.regions}


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """The name, as clients write it, of a topic that no other test uses."""
    return new_topic(request.module.__name__.removeprefix("test_")).rpartition("/")[2]
