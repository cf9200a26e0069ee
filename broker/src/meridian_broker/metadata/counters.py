# SPDX-License-Identifier: Apache-2.0
"""Numbers that are given once: ledger ids and broker epochs."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from typing import Final

from meridian_broker.metadata import keys
from meridian_broker.metadata.access import Access, check_name
from meridian_broker.metadata.records import encode
from meridian_broker.metadata.store import MetadataError, VersionConflict

EPOCH_2020_MS: Final = 1_577_836_800_000
"""2020-01-01T00:00:00Z in milliseconds since 1970."""

LEDGER_ID_END: Final = 1 << 53
"""Ledger ids stay below, where JSON's numbers are exact."""

BLOCK: Final = 64
"""Ledger ids taken per write of the metadata. What is left of a block at the end of a process is never used."""

_MS_BITS: Final = 12
"""A millisecond has so many ids: 64 blocks, and a region takes one of them, by its name."""


class LedgerIds:
    """Ledger ids that were never given before, not even by a region that this one was rebuilt from (R1).

    Milliseconds since 2020 stand in the upper bits, or one more than in the last id: after a restore from a backup the
    counter may be old, but time has gone on.

    The lower bits begin with the region's name, in short. Regions that start together would number their ledgers alike
    else, and an id that a client brings along from another region, as clients do that move by themselves, would name a
    message here that nobody meant.
    """

    def __init__(self, access: Access, now_ms: Callable[[], int]) -> None:
        self._access = access
        self._now_ms = now_ms
        self._blocks: deque[range] = deque()
        self._lower = zlib.crc32(access.region.encode()) * BLOCK % (1 << _MS_BITS)

    async def allocate(self) -> int:
        """:raises MetadataError: the ids are used up, or the clock is centuries ahead."""

        async def attempt() -> int | None:
            if not self._blocks:
                await self._take_block()
            return self._next()

        return await self._access.retry("allocating a ledger id", attempt)

    async def never_below(self, ledger_id: int) -> None:
        """Give only ids above this one from now on: it was given before, though nothing here remembers (R1).

        :raises MetadataError: the ids are used up.
        """
        if self._blocks and self._blocks[0].start > ledger_id:
            return

        async def attempt() -> bool | None:
            last, _, version = await self._access.value(keys.LEDGER_IDS)
            if last is None or int(last) < ledger_id:
                if ledger_id + BLOCK >= LEDGER_ID_END:
                    raise MetadataError(f"another region names ledger {ledger_id} of ours: no ids are left above it")
                try:
                    await self._access.store.put(keys.LEDGER_IDS, encode(ledger_id), expected=version)
                except VersionConflict:
                    return None
            return True

        await self._access.retry("raising the ledger ids", attempt)
        above = (range(max(block.start, ledger_id + 1), block.stop) for block in self._blocks)
        self._blocks = deque(block for block in above if block)

    def _next(self) -> int | None:
        if not self._blocks:
            return None
        block = self._blocks.popleft()
        if len(block) > 1:
            self._blocks.appendleft(block[1:])
        return block[0]

    async def _take_block(self) -> None:
        """One block more, unless somebody else was faster; then the caller looks again whether there is one now."""
        last, _, version = await self._access.value(keys.LEDGER_IDS)
        after = 0 if last is None else (int(last) >> _MS_BITS) + 1
        first = max(after, self._now_ms() - EPOCH_2020_MS) << _MS_BITS | self._lower
        if first + BLOCK > LEDGER_ID_END:
            raise MetadataError(f"the next ledger id would be {first}, over 2^53: is this machine's clock right?")
        try:
            await self._access.store.put(keys.LEDGER_IDS, encode(first + BLOCK - 1), expected=version)
        except VersionConflict:
            return
        self._blocks.append(range(first, first + BLOCK))


class BrokerEpochs:
    """How often each broker started: its ledger fence. A later start outranks an earlier one."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def next(self, broker_id: str, above: int = 0) -> int:
        """From 1 on, greater each time, and greater than ``above``."""
        path = keys.broker_epoch(check_name(broker_id, "broker"))

        async def attempt() -> int | None:
            value, _, version = await self._access.value(path)
            epoch = max(0 if value is None else int(value), above) + 1
            try:
                await self._access.store.put(path, encode(epoch), expected=version)
            except VersionConflict:
                return None
            return epoch

        return await self._access.retry(f"counting the starts of broker {broker_id}", attempt)
