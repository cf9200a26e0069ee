# SPDX-License-Identifier: Apache-2.0
"""The step of a drain that waits for other regions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from meridian_broker.ledgers.scheduling import Scheduler, in_slices

if TYPE_CHECKING:
    from meridian_broker.gateway.exchange import ExchangeShell
    from meridian_broker.topics.service.exchange_host import ExchangeHost


async def confirmed(host: ExchangeHost, exchange: ExchangeShell, scheduler: Scheduler) -> None:
    """Wait, within the barrier's time, until peers have confirmed the changes sent to them (R20)."""

    async def flush(topic: str, subscription: str) -> None:
        await scheduler.answer(lambda ready: exchange.flush(topic, subscription, lambda: ready(None)))

    async with asyncio.TaskGroup() as flushes:
        async for topic in in_slices(scheduler, host.open_topics()):
            for name in host.replicated_in(topic):
                flushes.create_task(flush(topic, name))
