# SPDX-License-Identifier: Apache-2.0
"""This broker among the region's brokers: its record, and the lease that everything it owns depends on.

While the store cannot be reached, the lease lasts until it ends by this broker's own clock, which is before another
broker may take over. Then everything is dropped, and a new lease is taken as soon as the store answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from meridian_broker.ledgers.scheduling import Scheduler, later
from meridian_broker.metadata.store import Lease, MetadataError, MetadataStore
from meridian_broker.ownership import paths
from meridian_broker.ownership.records import BrokerRecord

RETRY_SECONDS: Final = 1.0
"""Pause before a failed request to the store is repeated."""
LOOKS_PER_LEASE: Final = 20
"""Checks of the lease within one lease time: the store may end it early."""
NOTICEABLE: Final = 0.05
"""Smallest change of load that is reported: each report is a write to the store that every other broker sees."""

log = logging.getLogger(__name__)


class Membership:
    """See the module's text."""

    def __init__(
        self,
        store: MetadataStore,
        scheduler: Scheduler,
        described: Callable[[str, bool], BrokerRecord],
        lease_seconds: float,
        ended: Callable[[], None],
    ) -> None:
        """
        :param described: returns this broker's record, given the name of its lease and whether it is about to stop.
        :param ended: called first when the lease has ended.
        """
        self.described = described
        self.lease: Lease | None = None
        """Perhaps no longer valid: see ``valid``."""
        self.me: BrokerRecord | None = None
        """What the other brokers know of this one; None: it has no lease."""
        self.is_stopping = False
        """This broker takes no more bundles, and no new lease after this one."""
        self._store = store
        self._scheduler = scheduler
        self._lease_seconds = lease_seconds
        self._ended = ended

    @property
    def name(self) -> str:
        """This broker's id; empty while its lease is not valid."""
        return "" if self.me is None else self.me.broker

    @property
    def usage(self) -> float:
        """The load that the other brokers know of."""
        return 0.0 if self.me is None else self.me.usage

    def valid(self) -> Lease | None:
        """The lease, if it is valid by this broker's clock."""
        lease = self.lease
        return lease if lease is not None and self._now() < lease.valid_until() else None

    async def register(self) -> None:
        """Get a lease, and appear among the brokers. :raises MetadataError: the store does not answer."""
        lease = await self._store.lease(self._lease_seconds)
        try:
            await self.tell(lease)
        except BaseException:
            await lease.revoke()
            raise
        self.lease = lease

    async def tell(self, lease: Lease) -> None:
        """Write this broker's current record. :raises MetadataError: the store does not answer."""
        me = replace(self.described(f"{lease.lease_id:x}", self.is_stopping), usage=self.usage)
        await self._store.put(paths.broker(me.broker), me.encode(), lease=lease.lease_id)
        self.me = me

    async def report(self, usage: float) -> None:
        """Tell the other brokers this broker's load, if it has changed noticeably.

        :param usage: fraction of its capacity in use.
        :raises MetadataError: the store did not answer.
        """
        lease, me = self.valid(), self.me
        if lease is None or me is None or self.is_stopping or abs(usage - me.usage) < NOTICEABLE:
            return
        me = replace(me, usage=round(usage, 2))
        await self._store.put(paths.broker(me.broker), me.encode(), lease=lease.lease_id)
        if self.lease is lease:
            self.me = me

    async def keep(self) -> None:
        """Keep a lease: take one when there is none, and call ``ended`` when it ends. Returns once the broker is
        stopping and has none."""
        while True:
            if (lease := self.lease) is None:
                if self.is_stopping:
                    return
                try:
                    await self.register()
                except MetadataError as error:
                    log.warning("this broker cannot own topics until it gets a lease; trying again: %s", error)
                    await later(self._scheduler, RETRY_SECONDS)
                continue
            left = lease.valid_until() - self._now()
            if left > 0:
                await later(self._scheduler, min(left, self._lease_seconds / LOOKS_PER_LEASE))
            elif self.lease is lease:
                self.lease = self.me = None
                self._ended()
                await lease.revoke()

    async def end(self) -> None:
        """Give the lease back; does nothing if there is none."""
        if (lease := self.lease) is not None:
            self.lease = None
            await lease.revoke()

    def _now(self) -> float:
        return self._scheduler.monotonic_ms() / 1000
