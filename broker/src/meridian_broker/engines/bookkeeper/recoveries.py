# SPDX-License-Identifier: Apache-2.0
"""The recoveries that this process runs, one per ledger at a time.

A recovery in the writer's own process first waits for entries in flight, so that no caller gets an error for an entry
that was stored.
"""

from __future__ import annotations

import asyncio

from meridian_broker.engines.bookkeeper.context import BookiePorts, StoreContext
from meridian_broker.engines.bookkeeper.ledger_metadata import LedgerMetadata
from meridian_broker.engines.bookkeeper.packets import master_key
from meridian_broker.engines.bookkeeper.ports import Versioned
from meridian_broker.engines.bookkeeper.recovering import Recovering
from meridian_broker.ledgers.store import LedgerError, LedgerFenced


class Recoveries:
    """See the module's text."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._recoveries: dict[int, asyncio.Task[LedgerMetadata]] = {}

    async def close(self) -> None:
        """Abandon all of them."""
        tasks = tuple(self._recoveries.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def recover(self, ledger: int, fence: int, known: Versioned) -> LedgerMetadata:
        """Recover a ledger, after any earlier recovery of it has ended.

        :param known: its metadata, just read.
        """
        while (before := self._recoveries.get(ledger)) is not None:
            await asyncio.wait([before])
        task = self._loop.create_task(self._run_recovery(ledger, fence, known), name=f"recover ledger {ledger}")
        self._recoveries[ledger] = task
        try:
            return await task
        finally:
            task.cancel()
            if self._recoveries.get(ledger) is task:
                del self._recoveries[ledger]

    async def _run_recovery(self, ledger: int, fence: int, known: Versioned) -> LedgerMetadata:
        context = self._context
        writing = context.writings.get(ledger)
        if writing is not None:
            writing.refuse(taken_over(ledger, fence))
            await context.idle(writing)
            context.forget(writing)
        heard: asyncio.Future[LedgerMetadata | LedgerError] = self._loop.create_future()

        def told(outcome: LedgerMetadata | LedgerError) -> None:
            if not heard.done():
                heard.set_result(outcome)

        ports = BookiePorts(ledger, master_key(known.metadata.password), context.bookies)
        port = context.metadata_port(ledger)
        limits, now_ms = context.settings.limits, context.bookies.now_ms()
        recovering = Recovering(ledger, fence, ports, ports, port, limits, told, known=known, now_ms=now_ms)
        context.bookies.attach(ledger, recovering)
        try:
            recovering.start()
            outcome = await heard
        finally:
            recovering.stop(LedgerError(f"the recovery of ledger {ledger} was abandoned"))
            context.bookies.detach(ledger, recovering)
        if isinstance(outcome, LedgerError):
            raise outcome
        return outcome


def taken_over(ledger: int, fence: int) -> LedgerFenced:
    """The error that a ledger's writer gets when the ledger is recovered."""
    return LedgerFenced(f"ledger {ledger} was taken over by owner epoch {fence}: this writer must close its topic")
