# SPDX-License-Identifier: Apache-2.0
"""Chunks of a message are separate entries: a cumulative acknowledgement covers all of them or none (R18)."""

from __future__ import annotations

from collections import deque
from typing import Final

from meridian_broker.bounds.clients import CHUNKS
from meridian_broker.positions.position import Position
from meridian_broker.topics import entry_metadata

OPEN_MESSAGES_MAX: Final = 1000
"""Chunked messages of one consumer that are remembered. A producer sends the chunks of a message in a row, so this
exceeds the number of producers that are in the middle of one.
"""


class _Message:
    """A message that a consumer is being, or was, sent in chunks."""

    __slots__ = ("is_whole", "pieces", "uuid")

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.pieces: list[Position] = []
        self.is_whole = False
        """Its client has all chunks."""


class Pieces:
    """The chunks that one consumer of an Exclusive or Failover subscription was sent.

    Messages of several producers interleave, so a cumulative acknowledgement of one may lie after the first chunks of
    another that the consumer does not have completely. If those counted, no consumer could reassemble that message.
    """

    def __init__(self) -> None:
        self._under_way: dict[str, _Message] = {}
        """By producer. It sends the chunks of a message in a row, so a message that it abandoned is not waited for."""
        self._sent: deque[_Message] = deque(maxlen=OPEN_MESSAGES_MAX)
        """Messages sent to their last chunk and not yet acknowledged cumulatively."""

    def sent(self, position: Position, entry: bytes, acked_to: Position, mark_delete: Position) -> None:
        """:param acked_to: clients drop what they receive up to here, so they do not have it.
        :param mark_delete: everything up to here is acknowledged, perhaps individually.
        """
        view = entry_metadata.view(entry)
        producer = view.producer_name
        if view.chunk_id == 0:
            while len(self._under_way) >= OPEN_MESSAGES_MAX:
                del self._under_way[next(iter(self._under_way))]
            self._under_way[producer] = _Message(view.uuid or "")
        message = self._under_way.get(producer)
        if message is None or message.uuid != view.uuid:
            return
        message.pieces.append(position)
        if len(message.pieces) > CHUNKS:
            del self._under_way[producer]
            return
        if (view.chunk_id or 0) + 1 >= view.num_chunks:
            message.is_whole = message.pieces[0] > acked_to
            while self._sent and self._sent[0].pieces[-1] <= mark_delete:
                self._sent.popleft()
            self._sent.append(self._under_way.pop(producer))

    def acknowledged(self, upto: Position) -> tuple[frozenset[Position], list[Position]]:
        """The chunks up to ``upto`` that a cumulative acknowledgement does not cover, and those that it does: all
        chunks of each message that ends there or before.
        """
        withheld: set[Position] = set()
        covered: list[Position] = []
        for message in (*self._sent, *self._under_way.values()):
            if message.is_whole and message.pieces[-1] <= upto:
                covered += message.pieces
            else:
                withheld.update(piece for piece in message.pieces if piece <= upto)
        return frozenset(withheld), covered

    def forget(self, upto: Position) -> None:
        """Forget the messages that are covered now."""
        kept = [message for message in self._sent if not message.is_whole or message.pieces[-1] > upto]
        self._sent = deque(kept, maxlen=OPEN_MESSAGES_MAX)
