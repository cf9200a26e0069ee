# SPDX-License-Identifier: Apache-2.0
"""The last confirmed entry (LAC) of open ledgers: written to bookies when a broker stops, read by the next one."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import partial

from meridian_broker.engines.bookkeeper.bookies import READ_SECONDS
from meridian_broker.engines.bookkeeper.context import StoreContext
from meridian_broker.engines.bookkeeper.entries import EntryDamaged, parse_entry
from meridian_broker.engines.bookkeeper.lac import NoAnswer, exchange, last_confirmed, read_request, write_request
from meridian_broker.engines.bookkeeper.ledger_metadata import LedgerMetadata
from meridian_broker.engines.bookkeeper.packets import Code, Flags, master_key
from meridian_broker.engines.bookkeeper.writing import Writing
from meridian_broker.ledgers.store import LedgerUnreadable
from meridian_broker.wire.proto.bookkeeper_pb2 import Answer, Request

log = logging.getLogger(__name__)


class OpenLedgers:
    """See the module's text."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context

    async def confirmed(self, ledgers: dict[int, LedgerMetadata]) -> dict[int, int]:
        """The newest entry of each ledger that a bookie knows to be confirmed; -1: none."""
        found = {ledger: metadata.segments[-1].first - 1 for ledger, metadata in ledgers.items()}
        asked: defaultdict[str, list[int]] = defaultdict(list)
        for ledger, metadata in ledgers.items():
            for bookie in metadata.segments[-1].ensemble:
                asked[bookie].append(ledger)

        async def ask(bookie: str) -> None:
            answers = await self._exchange(bookie, [read_request(ledger) for ledger in asked[bookie]])
            for ledger, answer in zip(asked[bookie], answers, strict=False):
                found[ledger] = max(found[ledger], last_confirmed(ledger, answer))

        await asyncio.gather(*map(ask, asked))
        return found

    async def leave(self, writings: Collection[Writing]) -> None:
        """Write the LAC of ledgers that stay open to their bookies."""
        left: defaultdict[str, list[Request]] = defaultdict(list)
        for writing in writings:
            if writing.adding.confirmed >= 0 and not writing.is_closed:
                key = master_key(writing.metadata.password)
                request = write_request(writing.ledger, key, writing.adding.confirmed)
                for bookie in writing.adding.ensemble:
                    left[bookie].append(request)
        await asyncio.gather(*(self._exchange(bookie, requests) for bookie, requests in left.items()))

    async def _exchange(self, bookie: str, requests: Sequence[Request]) -> Sequence[Answer]:
        """The answers; none if the bookie does not answer, because the other bookies know as much."""
        address = self._context.bookies.address(bookie)
        if address is None:
            return []
        try:
            connect = self._context.bookies.connect
            return await exchange(lambda protocol: connect(protocol, address), requests, READ_SECONDS)
        except NoAnswer as error:
            log.info("going on without an answer from bookie %s at %s:%d: %s", bookie, *address, error)
            return []

    async def length(self, ledger: int, metadata: LedgerMetadata, entry: int) -> int:
        """The bytes of all entries up to this one, which is confirmed. :raises LedgerUnreadable: no bookie has it."""
        if entry < 0:
            return 0
        for bookie in metadata.bookies_of(entry):
            answer = await self._context.answer(
                partial(self._context.bookies.read, ledger, bookie, entry, Flags.NONE, b"")
            )
            if answer.code == Code.OK:
                try:
                    return parse_entry(ledger, answer.bodies[0], entry).length
                except EntryDamaged:
                    continue
        raise LedgerUnreadable(f"entry {entry} of ledger {ledger} cannot be read: are the region's bookies running?")
