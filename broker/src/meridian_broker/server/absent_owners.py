# SPDX-License-Identifier: Apache-2.0
"""Brokers of the region that own topics but cannot be reached: most likely they have just died.

Their leases have not ended, so nobody else may serve their topics yet, and lookups would keep naming them. Each of
their clients would try to connect in vain, and pause for longer after each attempt. So lookups wait here instead until
the topic has another owner, but no longer than a lease: a broker that still has its bundles by then is alive, and
clients may reach it although this broker does not.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from meridian_broker.gateway.addresses import Addresses
from meridian_broker.ledgers.scheduling import Scheduler
from meridian_broker.ownership.records import BrokerRecord

LOOK_MS: Final = 1000
"""How long a broker counts as alive after it was reached."""
REACH_SECONDS: Final = 1.0
"""How long a connection may take."""
MARGIN_MS: Final = 10_000
"""From the end of a lease until other brokers have heard of it and own the bundles, even on a busy machine. Clients
wait thirty seconds for an answer."""
SESSIONS_MAX: Final = 100
"""Brokers that are remembered: the last ones checked."""


@dataclass(slots=True)
class _Seen:
    looked_ms: int
    gone_ms: int | None
    """Since when it has not been reached."""


class AbsentOwners:
    """See the module's text."""

    def __init__(self, scheduler: Scheduler, lease_seconds: float) -> None:
        self._scheduler = scheduler
        self._patience_ms = int(lease_seconds * 1000) + MARGIN_MS
        self._seen: dict[str, _Seen] = {}
        """By session."""
        self._looking: dict[str, asyncio.Future[None]] = {}

    async def is_absent(self, broker: BrokerRecord) -> bool:
        """It cannot be reached, and that may be because its lease has not ended yet."""
        now, seen = self._scheduler.monotonic_ms(), self._seen.get(broker.session)
        if seen is None or now - seen.looked_ms >= LOOK_MS:
            await self._look(broker)
            now, seen = self._scheduler.monotonic_ms(), self._seen.get(broker.session)
        return seen is not None and seen.gone_ms is not None and now - seen.gone_ms < self._patience_ms

    async def _look(self, broker: BrokerRecord) -> None:
        """One check serves all concurrent callers."""
        looking = self._looking.get(broker.session)
        if looking is None:
            looking = self._looking[broker.session] = asyncio.get_running_loop().create_future()
            self._scheduler.spawn(self._reach(broker, looking), f"see whether broker {broker.broker} is alive")
        await asyncio.shield(looking)

    async def _reach(self, broker: BrokerRecord, looking: asyncio.Future[None]) -> None:
        begun = self._scheduler.monotonic_ms()
        try:
            is_there = await _connects(broker)
            before = self._seen.pop(broker.session, None)
            since = begun if before is None or before.gone_ms is None else before.gone_ms
            self._seen[broker.session] = _Seen(self._scheduler.monotonic_ms(), None if is_there else since)
            while len(self._seen) > SESSIONS_MAX:
                del self._seen[next(iter(self._seen))]
        finally:
            del self._looking[broker.session]
            looking.set_result(None)


async def _connects(broker: BrokerRecord) -> bool:
    """Whether its admin port accepts a connection. True if that cannot be tried, because it announces no address."""
    addresses = Addresses.of(broker.addresses.get("", {}))
    place = urlsplit(addresses.admin_url or addresses.admin_url_tls or "")
    if not place.hostname or place.port is None:
        return True
    try:
        async with asyncio.timeout(REACH_SECONDS):
            _, writer = await asyncio.open_connection(place.hostname, place.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
