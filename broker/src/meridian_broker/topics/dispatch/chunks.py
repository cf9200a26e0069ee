# SPDX-License-Identifier: Apache-2.0
"""Chunks of a message are separate entries. All go to one consumer of a Shared subscription, which reassembles them
(R18)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meridian_broker.topics import entry_metadata

if TYPE_CHECKING:
    from meridian_broker.topics.dispatch.consumer import Consumer

OPEN_MESSAGES_MAX: Final = 1000
"""Chunked messages of one subscription whose consumer is remembered. A producer sends the chunks of a message in a
row, so this exceeds the number of producers that are in the middle of one. Beyond it, the oldest is forgotten and its
remaining chunks go to any consumer.
"""


class ChunkKeepers:
    """Which consumer received the chunks so far of each message that is not completely sent."""

    def __init__(self) -> None:
        self._keepers: dict[str, Consumer] = {}
        self.waits_for: Consumer | None = None
        """A keeper whose connection is not writable now: entries behind its chunk wait with it."""

    def keeper(self, entry: bytes, anybody: Consumer | None) -> Consumer | None:
        """The consumer for this chunk: the one that has the chunks before it, else ``anybody``, who becomes the
        keeper.

        A keeper gets the chunk even without permits: its client is in the middle of a message, and waiting for
        permits that only another chunk can free would block everyone.
        """
        view = entry_metadata.view(entry)
        uuid = view.uuid or ""
        is_last = (view.chunk_id or 0) + 1 >= view.num_chunks
        keeper = self._keepers.get(uuid)
        if keeper is None:
            if anybody is not None and not is_last:
                while len(self._keepers) >= OPEN_MESSAGES_MAX:
                    del self._keepers[next(iter(self._keepers))]
                self._keepers[uuid] = anybody
            return anybody
        if not keeper.writable():
            self.waits_for = keeper
            return None
        if is_last:
            del self._keepers[uuid]
        return keeper

    @property
    def waiting(self) -> bool:
        """Is a keeper's connection still full?"""
        if self.waits_for is not None and self.waits_for.writable():
            self.waits_for = None
        return self.waits_for is not None

    def gone(self, consumer: Consumer) -> None:
        """The consumer left: its messages start again with another one."""
        self._keepers = {uuid: keeper for uuid, keeper in self._keepers.items() if keeper is not consumer}
        if self.waits_for is consumer:
            self.waits_for = None

    def clear(self) -> None:
        self._keepers.clear()
        self.waits_for = None
