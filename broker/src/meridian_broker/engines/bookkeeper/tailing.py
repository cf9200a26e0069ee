# SPDX-License-Identifier: Apache-2.0
"""Ledgers that are read here while another broker writes them, and those of ours that others read.

An entry carries the last confirmed one as of when it was sent, so a bookie learns that an entry is confirmed only from
the next one. For a ledger that others follow, the writer therefore also tells the bookies its last confirmed entry soon
after it changes. A reader asks one bookie to answer once more is confirmed than the reader knows. If nothing is for a
while, it checks whether the ledger was sealed or moved to other bookies, and asks the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from meridian_broker.engines.bookkeeper.bookies import CONNECT_SECONDS, READ_SECONDS
from meridian_broker.engines.bookkeeper.context import StoreContext
from meridian_broker.engines.bookkeeper.lac import LacConnection, NoAnswer, wait_request, write_request
from meridian_broker.engines.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from meridian_broker.engines.bookkeeper.packets import master_key
from meridian_broker.engines.bookkeeper.writing import Writing
from meridian_broker.ledgers.store import LedgerError, LedgerNotFound
from meridian_broker.wire.proto.bookkeeper_pb2 import Answer, Request

log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 2.0
"""How long a bookie waits for more to be confirmed."""
ANNOUNCE_SECONDS: Final = 0.005
"""Pause before bookies are told what is confirmed: in a busy ledger, the next entries do that."""
RETRY_SECONDS: Final = 0.1
"""Pause after a bookie did not answer, or does not have the ledger; doubled each time, up to the maximum."""
RETRY_SECONDS_MAX: Final = 2.0
"""The longest such pause."""


class Tail(Protocol):
    """A ledger that is followed."""

    @property
    def ledger_id(self) -> int: ...

    @property
    def metadata(self) -> LedgerMetadata: ...

    def last_confirmed(self) -> int: ...

    def learn(self, confirmed: int, metadata: LedgerMetadata | None = None) -> bool:
        """Note a confirmed entry, and the metadata if it was read. Returns whether more is confirmed than before."""
        ...


class Tailing:
    """See the module's text. One per store."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._connections: dict[str, LacConnection] = {}
        self._connecting: dict[str, asyncio.Lock] = {}
        self._announced: dict[int, int] = {}
        """By ledger being announced, the last confirmed entry that its bookies were told; -1: none yet."""

    # -- reading -------------------------------------------------------------------------------------------------

    def follow(self, tail: Tail, grown: Callable[[], None]) -> Callable[[], None]:
        """See ``FollowingReader.follow``."""
        ended = asyncio.Event()
        self._context.spawn(self._follow(tail, grown, ended), f"follow ledger {tail.ledger_id}")
        return ended.set

    async def _follow(self, tail: Tail, grown: Callable[[], None], ended: asyncio.Event) -> None:
        turn, pause = 0, RETRY_SECONDS
        while not ended.is_set():
            bookies, known = tail.metadata.segments[-1].ensemble, tail.last_confirmed()
            try:
                found = await self._wait(bookies[turn % len(bookies)], tail)
            except NoAnswer as error:
                log.debug("ledger %d: %s", tail.ledger_id, error)
                found = None
            if ended.is_set():
                return
            if found is not None and found > known:
                pause = RETRY_SECONDS
                if tail.learn(found):  # unless the writer's broker said so first
                    grown()
                continue
            turn += 1
            if found is None:
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_SECONDS_MAX)
            try:
                stored = await self._context.find(tail.ledger_id)
            except LedgerNotFound:
                return
            except LedgerError as error:
                log.info(
                    "cannot check whether ledger %d was sealed, so it is still followed: %s", tail.ledger_id, error
                )
                continue
            is_sealed = stored.metadata.state is LedgerState.CLOSED
            if tail.learn(stored.metadata.last_entry if is_sealed else -1, stored.metadata):
                grown()
            if is_sealed:
                return

    async def _wait(self, bookie: str, tail: Tail) -> int:
        """What a bookie knows to be confirmed. :raises NoAnswer: it does not have the ledger, or does not answer."""
        request = wait_request(tail.ledger_id, tail.last_confirmed(), PATIENCE_SECONDS)
        answer = await self._ask(bookie, request, PATIENCE_SECONDS + READ_SECONDS)
        if answer.read_entry.status or not answer.read_entry.HasField("lac"):
            raise NoAnswer(f"bookie {bookie} answered {answer.read_entry.status or answer.status}")
        return answer.read_entry.lac

    # -- writing -------------------------------------------------------------------------------------------------

    def announce(self, writing: Writing) -> None:
        """See ``FollowedWriter.announce``."""
        if writing.ledger not in self._announced:
            self._announced[writing.ledger] = -1
            self._context.spawn(self._announce(writing), f"announce the end of ledger {writing.ledger}")

    async def _announce(self, writing: Writing) -> None:
        ledger, pause = writing.ledger, ANNOUNCE_SECONDS
        try:
            while not writing.is_closed and self._context.writings.get(ledger) is writing:
                await asyncio.sleep(pause)
                confirmed = writing.adding.confirmed
                if confirmed <= self._announced[ledger]:
                    return
                request = write_request(ledger, master_key(writing.metadata.password), confirmed)
                told = await asyncio.gather(*(self._tell(bookie, request) for bookie in writing.adding.ensemble))
                if any(told):
                    self._announced[ledger], pause = confirmed, ANNOUNCE_SECONDS
                else:
                    pause = min(max(2 * pause, RETRY_SECONDS), RETRY_SECONDS_MAX)
        finally:
            del self._announced[ledger]

    async def _tell(self, bookie: str, request: Request) -> bool:
        mine = Request()
        mine.CopyFrom(request)
        try:
            answer = await self._ask(bookie, mine, READ_SECONDS)
        except NoAnswer as error:
            log.debug("bookie %s: %s", bookie, error)
            return False
        return not answer.write_lac.status

    # -- connections ---------------------------------------------------------------------------------------------

    async def _ask(self, bookie: str, request: Request, seconds: float) -> Answer:
        """:raises NoAnswer: it cannot be reached, or does not answer."""
        return await (await self._connection(bookie)).ask(request, seconds)

    async def _connection(self, bookie: str) -> LacConnection:
        async with self._connecting.setdefault(bookie, asyncio.Lock()):
            known = self._connections.get(bookie)
            if known is not None and not known.is_lost:
                return known
            address = self._context.bookies.address(bookie)
            if address is None:
                raise NoAnswer(f"bookie {bookie} is not registered")
            made = LacConnection()
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self._context.bookies.connect(lambda: made, address)
            except OSError as error:  # a timeout is one
                raise NoAnswer(f"bookie {bookie} cannot be reached: {error!r}") from error
            self._connections[bookie] = made
            return made

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
