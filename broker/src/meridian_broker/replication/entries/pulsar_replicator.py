# SPDX-License-Identifier: Apache-2.0
"""Carrying a topic's own entries to a region of Apache Pulsar.

It does not report what it has of ours, as a Meridian region does (``replicator.py``), so how far it was served is kept
on record here, and sending continues after that. Entries after it that it had confirmed are sent again: it drops them
if deduplication is on there, by the source position that each carries.

Markers of snapshots (PIP-33) are carried, as Pulsar carries its own. Only an *answer* to a snapshot of the remote needs
care: it says that the remote has everything of ours up to the place that it names. So it is held back until the remote
has confirmed all that, and is sent once at most: not again after a reconnect, nor by a replicator that began after it
was written. The remote would take a repeated answer to its first round for one to its second, and asks again for what
goes unanswered.

Nothing of the peer protocol is sent. Messages that came from any region of Apache Pulsar are not sent on, as Pulsar
sends on only what was published in its own cluster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from meridian_broker.bounds.clients import FRAME_PADDING_BYTES
from meridian_broker.ledgers import entry as entries
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.replication.entries.producing import QUEUE_SIZE
from meridian_broker.replication.entries.pulsar_sending import PulsarSendWriter
from meridian_broker.replication.entries.replicator import Passed, Reached, RemotePlace, Replicator
from meridian_broker.replication.entries.replicator_status import State, StopReason
from meridian_broker.wire.pulsar import markers

HELD_MAX: Final = 1000
"""Answers that wait; the remote asks again for what goes unanswered."""
_BEYOND: Final = FRAME_PADDING_BYTES - 1024
"""How far a message may exceed the announced length: as a frame may, less the command before it and what is added to
its metadata. Chunks use the announced length up.
"""


class PulsarReplicator(Replicator):
    """The state machine of one (topic, region of Apache Pulsar). See the module's text."""

    def __init__(
        self,
        topic: str,
        region: str,
        remote: str,
        incarnation: str,
        *,
        queue_size: int = QUEUE_SIZE,
        own_before: Callable[[int], Position] = lambda _: EARLIEST,
        came_back: Callable[[str, Position, Position], bool] = lambda *_: False,
        last_marker: Callable[[], Position] | None = None,
        end: Position = EARLIEST,
    ) -> None:
        """:param end: of the log, now: no answer up to there is sent any more."""
        super().__init__(
            *(topic, region, remote, incarnation),
            queue_size=queue_size,
            own_before=own_before,
            came_back=came_back,
            last_marker=last_marker,
        )
        self._writer = PulsarSendWriter(region)
        self._largest = 0
        self._answered = end
        """No answer up to here is sent, or held back, any more."""
        self._held: deque[tuple[Position, bytes]] = deque()
        """Answers, stored, that wait for what is before them to be confirmed."""

    def resume(
        self, producer_id: int, reached: Reached, largest: int, end: Position, last_own: Position, now_ms: int
    ) -> bool:
        """As ``connected``.

        :param reached: how far the remote was served.
        :param largest: bytes of the largest message it accepts; 0: not known.
        """
        self._largest = largest and largest + _BEYOND
        self._passed = Passed(reached.chain, reached.scanned, reached.chain, reached.scanned)
        return self.connected(producer_id, RemotePlace(reached.chain, self.incarnation), end, last_own, now_ms)

    def read(self, batch: list[tuple[Position, bytes]], last_own: Position) -> list[bytes]:
        """As in a region of Meridian; stops before an entry that the remote would refuse for its size, because it would
        store those after it."""
        for number, (place, stored) in enumerate(batch):
            if self._largest and len(stored) - (stored[2] << 8 | stored[3]) > self._largest:
                if number == 0:
                    self._stop(
                        StopReason.REFUSED,
                        f"{self.topic}: message {place} has {len(stored)} bytes with its metadata, and {self.remote} "
                        f"accepts {self._largest - _BEYOND}: raise maxMessageSize there, or skip it",
                    )
                    return []
                batch = batch[:number]
                break
        return super().read(batch, last_own) + self._due()

    @property
    def has_due(self) -> bool:
        """Whether an answer that was held back may be sent: ``read`` returns it."""
        if not self._held:
            return False
        place, _ = self._held[0]
        return self._pending[0].position > place if self._pending else self._scanned >= place

    def _due(self) -> list[bytes]:
        frames: list[bytes] = []
        while self.state is State.STARTED and self.has_due:
            place, stored = self._held.popleft()
            frames += super()._marker(place, stored)
            if len(self._pending) > 1:
                before = self._pending[-2]
                self._pending[-1] = self._pending[-1]._replace(position=before.position, origin=before.origin)
            else:
                self._pending[-1] = self._pending[-1]._replace(position=self.confirmed, origin=self._confirmed_chain)
        return frames

    def _marker(self, place: Position, stored: bytes) -> tuple[bytes, ...]:
        if markers.kind(stored[stored[2] << 8 | stored[3] :]) != markers.RESPONSE:
            return super()._marker(place, stored)
        if place > self._answered:
            self._answered = place
            if len(self._held) >= HELD_MAX:
                self._held.popleft()
            self._held.append((place, stored))
        return ()

    def receipt_by_source(self, source: Position) -> bool:
        """As ``receipt``, of a remote that names the entry by its source position."""
        if not self._pending:
            return self.receipt(-1)
        sent = self._pending[0]
        return self.receipt(sent.sequence if sent.messages and sent.origin == source else -1)

    def receipt_of_marker(self, sequence: int) -> bool:
        """As ``receipt``, of a marker, where entries are named by their source position."""
        return self.receipt(sequence if self._pending and not self._pending[0].messages else -1)

    def _permitted(self, stored: bytes) -> bool:
        header = entries.unpack(stored)
        return header.came_from is None and (header.replicate_to is None or self.remote in header.replicate_to)

    def _stop_gap(self, missing: Position, before: Position) -> bool:
        self.missing = missing
        where = f"before {before} " if before != EARLIEST else ""
        return self._stop(
            StopReason.GAP,
            f"{self.topic}: {self.remote} was sent {self.region}'s messages up to {self._chain}, but {missing} {where}"
            f"is damaged or not stored in {self.region} any more. Replication resumes once an operator skips it: "
            f"pulsar-admin topics skip -s pulsar.repl.{self.remote}",
        )
