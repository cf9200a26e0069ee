# SPDX-License-Identifier: Apache-2.0
"""Chunks of a message are separate entries. All go to one consumer of a Shared subscription, which reassembles them
(R18)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meridian_broker.topics import entry_metadata

if TYPE_CHECKING:
    from meridian_broker.topics.dispatch.consumer import Consumer

OPEN_MESSAGES_MAX: Final = 1000
"""Chunked messages of one subscription whose consumer is remembered. Producers send the chunks of a message in a row,
so this is more than the producers of a topic have under way; of the oldest beyond it, the rest goes to anybody."""


class ChunkKeepers:
    """Who got the chunks so far of each message that is not sent whole yet."""

    def __init__(self) -> None:
        self._keepers: dict[str, Consumer] = {}
        self.waits_for: Consumer | None = None
        """A keeper whose connection takes no bytes now: what is behind its chunk waits with it."""

    def keeper(self, entry: bytes, anybody: Consumer | None) -> Consumer | None:
        """Who gets this chunk: the one who has those before it, else ``anybody``, who keeps the message from here on.

        A keeper gets it without permits, too: its client is in the middle of a message, and waiting for permits that
        another chunk would free would hold up everybody.
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
        if not keeper.port.writable():
            self.waits_for = keeper
            return None
        if is_last:
            del self._keepers[uuid]
        return keeper

    @property
    def waiting(self) -> bool:
        """Is a keeper's connection still full?"""
        if self.waits_for is not None and self.waits_for.port.writable():
            self.waits_for = None
        return self.waits_for is not None

    def gone(self, consumer: Consumer) -> None:
        """Its messages start anew with somebody else."""
        self._keepers = {uuid: keeper for uuid, keeper in self._keepers.items() if keeper is not consumer}
        if self.waits_for is consumer:
            self.waits_for = None

    def clear(self) -> None:
        self._keepers.clear()
        self.waits_for = None
