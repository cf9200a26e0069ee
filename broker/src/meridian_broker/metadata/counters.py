# SPDX-License-Identifier: Apache-2.0
"""Numbers that are given out only once: ledger ids and broker epochs."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final

from meridian_broker.metadata import keys
from meridian_broker.metadata.access import Access, check_name
from meridian_broker.metadata.records import encode
from meridian_broker.metadata.store import MetadataError, VersionConflict

EPOCH_2020_MS: Final = 1_577_836_800_000
"""2020-01-01T00:00:00Z in milliseconds since 1970."""

LEDGER_ID_END: Final = 1 << 53
"""Ledger ids stay below this, where numbers in JSON are exact."""

BLOCK: Final = 64
"""Ledger ids per block. Ids left over when a process ends are never used."""

BLOCKS_AT_ONCE: Final = 16
"""Most blocks taken by one write of the metadata, which takes only as many as the waiting callers need."""

LEAP_MS: Final = 1 << 22
"""How far ahead of its clock a broker may choose ids when it starts with a clock behind the last id: 70 minutes."""

_MS_BITS: Final = 12
"""Ids per millisecond: 64 blocks, of which a region uses one, chosen by its name."""


class LedgerIds:
    """Ledger ids that were never used before, not even by a region that this one was rebuilt from (R1).

    The upper bits are milliseconds since 2020, or those of the last id plus one: after a restore from a backup the
    counter may be old, but time has moved on.

    A clock that was set back is ignored until it has caught up with the last id. Brokers restored from the same copy
    would all continue from there and use the same ids, so each first leaps ahead by a random amount.

    The lower bits begin with a hash of the region's name. Otherwise regions that start together would number their
    ledgers alike, and an id that a client brings from another region would refer to an unrelated message here.

    A thousand topics that begin a ledger at once share a few writes: one caller at a time allocates blocks, enough for
    all that wait behind it. Otherwise each would write, and all but the first would conflict.
    """

    def __init__(
        self,
        access: Access,
        now_ms: Callable[[], int],
        draw: Callable[[int], int],
        alone: AbstractAsyncContextManager[object] = nullcontext(),  # noqa: B008  (stateless)
    ) -> None:
        """
        :param draw: a random number from 0 to below the given one.
        :param alone: a lock, if there may be concurrent callers. Without one ids still grow, but blocks are wasted.
        """
        self._access = access
        self._now_ms = now_ms
        self._draw = draw
        self._alone = alone
        self._waiting = 0
        self._blocks: deque[range] = deque()
        self._newest = -1
        """First id of the newest block that this process took."""
        self._floor = -1
        """Ids up to this one are never given out."""
        self._lower = zlib.crc32(access.region.encode()) * BLOCK % (1 << _MS_BITS)

    async def allocate(self) -> int:
        """:raises MetadataError: the ids are used up, or the clock is centuries ahead."""

        async def attempt() -> int | None:
            if not self._blocks:
                await self._take_blocks()
            return self._next()

        if (ledger_id := self._next()) is not None:
            return ledger_id
        self._waiting += 1
        try:
            async with self._alone:
                return await self._access.retry("allocating a ledger id", attempt)
        finally:
            self._waiting -= 1

    async def never_below(self, ledger_id: int) -> None:
        """Give out only ids above this one from now on: it was used before, though this region forgot (R1).

        :raises MetadataError: the ids are used up.
        """
        if self._blocks and self._blocks[0].start > ledger_id:
            return

        async def attempt() -> bool | None:
            last, _, version = await self._access.value(keys.LEDGER_IDS)
            if last is None or int(last) < ledger_id:
                if ledger_id + BLOCK >= LEDGER_ID_END:
                    raise MetadataError(
                        f"another region refers to our ledger {ledger_id}: there are no ids left above it"
                    )
                try:
                    await self._access.store.put(keys.LEDGER_IDS, encode(ledger_id), expected=version)
                except VersionConflict:
                    return None
            return True

        await self._access.retry("raising the ledger ids", attempt)
        self.skip_to(ledger_id)

    def skip_to(self, ledger_id: int) -> None:
        """Give out only ids above this one, which another broker of the region took from the same counter.

        A topic's ledgers are ordered by id, so an owner must not use ids that it took before an earlier owner of the
        topic took greater ones.
        """
        self._floor = max(self._floor, ledger_id)
        above = (range(max(block.start, ledger_id + 1), block.stop) for block in self._blocks)
        self._blocks = deque(block for block in above if block)

    def _next(self) -> int | None:
        if not self._blocks:
            return None
        block = self._blocks.popleft()
        if len(block) > 1:
            self._blocks.appendleft(block[1:])
        return block[0]

    async def _take_blocks(self) -> None:
        """Take more blocks. If another broker was faster, none are taken, and the caller tries again."""
        last, _, version = await self._access.value(keys.LEDGER_IDS)
        after = 0 if last is None else (int(last) >> _MS_BITS) + 1
        now = self._now_ms() - EPOCH_2020_MS
        if now < after and self._newest < 0:
            after += self._draw(LEAP_MS)
        first_ms = max(after, now)
        count = min(-(-self._waiting // BLOCK), BLOCKS_AT_ONCE)
        starts = [ms << _MS_BITS | self._lower for ms in range(first_ms, first_ms + count)]
        if starts[-1] + BLOCK > LEDGER_ID_END:
            raise MetadataError(f"the next ledger id would be {starts[0]}, over 2^53: is this machine's clock right?")
        try:
            await self._access.store.put(keys.LEDGER_IDS, encode(starts[-1] + BLOCK - 1), expected=version)
        except VersionConflict:
            return
        # Ids must grow, or a topic's log would be out of order: blocks whose write returns late are not used.
        oldest = max(self._newest, self._floor)
        self._blocks.extend(range(start, start + BLOCK) for start in starts if start > oldest)
        self._newest = max(self._newest, starts[-1])


class BrokerEpochs:
    """Counts the starts of each broker: the count is its ledger fence, so a later start outranks an earlier one."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def next(self, broker_id: str, above: int = 0) -> int:
        """The epoch of a new start: at least 1, greater each time, and greater than ``above``."""
        path = self.path(broker_id)

        async def attempt() -> int | None:
            value, _, version = await self._access.value(path)
            epoch = max(0 if value is None else int(value), above) + 1
            try:
                await self._access.store.put(path, encode(epoch), expected=version)
            except VersionConflict:
                return None
            return epoch

        return await self._access.retry(f"counting the starts of broker {broker_id}", attempt)

    async def newest(self, broker_id: str) -> int:
        """The epoch of the last start; 0: there was none."""
        value, _, _ = await self._access.value(self.path(broker_id))
        return 0 if value is None else int(value)

    def path(self, broker_id: str) -> str:
        """The path of a broker's epoch."""
        return keys.broker_epoch(check_name(broker_id, "broker"))
