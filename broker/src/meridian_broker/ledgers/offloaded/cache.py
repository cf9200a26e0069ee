# SPDX-License-Identifier: Apache-2.0
"""Recently read blocks of offloaded ledgers, in memory.

Several consumers that read the same old entries, or one that reads them twice, cost one request. Only intact blocks are
kept: a damaged one is read again, because somebody may have repaired the object.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from meridian_broker.ledgers.notifying import notify_all
from meridian_broker.ledgers.offloaded.format import BlockContent
from meridian_broker.ledgers.store import LedgerUnreadable

Key = tuple[str, int]
"""The copy, and the number of the block."""
Load = Callable[[], Awaitable[BlockContent]]
Answer = Callable[[Callable[[Callable[[Any], None]], object]], Awaitable[Any]]
"""`Scheduler.answer`."""


class BlockCache:
    """See the module's text. One per broker."""

    def __init__(self, limit: int, answer: Answer) -> None:
        """:param limit: bytes of entries that are kept."""
        self._limit = limit
        self._answer = answer
        self._blocks: OrderedDict[Key, BlockContent] = OrderedDict()
        self._waiting: dict[Key, list[Callable[[Any], None]]] = {}
        self.used = 0
        self.hits = 0
        self.misses = 0

    def has(self, key: Key) -> bool:
        """Whether it is there or being loaded."""
        return key in self._blocks or key in self._waiting

    async def get(self, key: Key, load: Load) -> BlockContent:
        """The block, loaded once for all who wait for it. :raises LedgerError: as ``load`` does."""
        found = self._blocks.get(key)
        if found is not None:
            self._blocks.move_to_end(key)
            self.hits += 1
            return found
        waiting = self._waiting.get(key)
        if waiting is not None:
            self.hits += 1
            content: BlockContent = await self._answer(waiting.append)
            return content
        self.misses += 1
        self._waiting[key] = []
        answer: object = LedgerUnreadable("reading from the object store was interrupted: retrying")
        try:
            answer = content = await load()
        except Exception as error:
            answer = error
            raise
        finally:
            heard = self._waiting.pop(key)
            notify_all(heard, answer)
        if content.is_whole:
            self._keep(key, content)
        return content

    def forget(self, copy: str) -> None:
        """The copy is gone."""
        for key in [key for key in self._blocks if key[0].partition("/")[0] == copy]:
            self.used -= self._blocks.pop(key).size

    def _keep(self, key: Key, content: BlockContent) -> None:
        self._blocks[key] = content
        self.used += content.size
        while self.used > self._limit and self._blocks:
            self.used -= self._blocks.popitem(last=False)[1].size
