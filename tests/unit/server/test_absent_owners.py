# SPDX-License-Identifier: Apache-2.0
"""Brokers that own topics and are unreachable."""

from __future__ import annotations

import asyncio
import socket

from meridian_broker.ownership.records import BrokerRecord
from meridian_broker.server.absent_owners import LOOK_MS, MARGIN_MS, AbsentOwners
from meridian_broker.server.loop import LoopScheduler

LEASE_MS = 10_000


class Scheduler(LoopScheduler):
    """A scheduler with the test's clock."""

    time_ms = 0

    def monotonic_ms(self) -> int:
        return self.time_ms


class Owner:
    """A broker that counts connections."""

    def __init__(self) -> None:
        self.connected = 0

    async def start(self, port: int = 0) -> BrokerRecord:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]
        return BrokerRecord("b", "b#1", {"": {"admin_url": f"http://127.0.0.1:{self.port}"}})

    async def _accept(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected += 1
        writer.close()

    async def die(self) -> None:
        self._server.close()
        await self._server.wait_closed()


async def test_a_dead_broker_is_absent_until_its_lease_must_have_ended() -> None:
    scheduler, owner = Scheduler(), Owner()
    absent, record = AbsentOwners(scheduler, LEASE_MS / 1000), await owner.start()
    assert not await absent.is_absent(record)
    await owner.die()
    assert not await absent.is_absent(record)  # it was reached a moment ago
    scheduler.time_ms += LOOK_MS
    assert await absent.is_absent(record)
    scheduler.time_ms += LEASE_MS + MARGIN_MS - 1
    assert await absent.is_absent(record)
    scheduler.time_ms += 1
    assert not await absent.is_absent(record)  # so it is alive, and clients may reach it


async def test_a_broker_that_is_back_is_not_absent() -> None:
    scheduler, owner = Scheduler(), Owner()
    absent, record = AbsentOwners(scheduler, LEASE_MS / 1000), await owner.start()
    await owner.die()
    assert await absent.is_absent(record)
    await owner.start(owner.port)
    scheduler.time_ms += LOOK_MS
    assert not await absent.is_absent(record)
    await owner.die()


async def test_simultaneous_checks_connect_once() -> None:
    owner = Owner()
    absent, record = AbsentOwners(Scheduler(), LEASE_MS / 1000), await owner.start()
    assert await asyncio.gather(*(absent.is_absent(record) for _ in range(100))) == [False] * 100
    assert owner.connected == 1
    await owner.die()


async def test_a_broker_without_an_address_counts_as_present() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    absent = AbsentOwners(Scheduler(), LEASE_MS / 1000)
    assert not await absent.is_absent(BrokerRecord("b", "b#1"))
    assert await absent.is_absent(BrokerRecord("b", "b#2", {"": {"admin_url_tls": f"https://127.0.0.1:{port}"}}))
