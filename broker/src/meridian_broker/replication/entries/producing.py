# SPDX-License-Identifier: Apache-2.0
"""The producer of a replicator: whether there is one, what it sent that is not confirmed yet, and what keeps it from
sending. What is sent is decided in ``replicator.py``."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.replication.entries.replicator_status import ReplicatorStatus, State, StopReason

QUEUE_SIZE: Final = 1000
"""Entries sent and not yet confirmed (``replicationProducerQueueSize``)."""
QUEUE_BYTES: Final = 16 * 1024 * 1024
"""Bytes sent and not yet confirmed. One entry is always let through, however large."""
SCHEMA_CACHE: Final = 1000
"""Schema versions remembered per replicator."""


class Sent(NamedTuple):
    """An entry, or a marker, that was sent."""

    sequence: int
    position: Position
    origin: Position
    """For a marker, that of the last own entry before it."""
    size: int
    messages: int
    stored_ms: int


class Producing:
    """The producer of one (topic, remote)."""

    def __init__(self, topic: str, region: str, remote: str, incarnation: str) -> None:
        self.topic = topic
        self.region = region
        self.remote = remote
        self.incarnation = incarnation
        self.state = State.DISCONNECTED
        self.hold: StopReason | None = None
        self.last_error: str | None = None
        self.warning = ""
        """See ``ReplicatorStatus``; the shell sets it."""
        self.confirmed = EARLIEST
        self.joined_at: Position | None = None
        self.wanted_schema: bytes | None = None
        """A schema version whose number at the remote must be learned before the next read."""
        self._schemas: dict[bytes, bytes] = {}
        self._pending: deque[Sent] = deque()
        self._pending_bytes = 0
        self._waiting_since_ms: int | None = None
        self._connected_since_ms: int | None = None
        self._connections = 0
        self.messages_sent = self.bytes_sent = 0
        """Including those without a receipt."""
        self._entries_out = self._messages_out = self._bytes_out = 0
        self._refusals = 0

    def disconnected(self, reason: str | None, now_ms: int) -> None:
        """The producer is gone, for whatever reason. Pending entries are read again after the next ``connected``."""
        if self._pending:
            oldest = self._pending[0].stored_ms
            self._waiting_since_ms = min(oldest, self._waiting_since_ms or oldest)
        self._forget_pending()
        self._connected_since_ms = None
        if reason is not None:
            self.last_error = reason
        if self.state is not State.TERMINATED:
            self.state = State.DISCONNECTED
        if self._waiting_since_ms is None and self.hold is not None:
            self._waiting_since_ms = now_ms

    def stopping(self) -> None:
        """The shell lets go of the producer on purpose."""
        if self.state is not State.TERMINATED:
            self.state = State.DISCONNECTING

    def terminated(self) -> None:
        """The remote left the topic's regions, or the topic was closed. Nothing starts it again."""
        self.state = State.TERMINATED
        self._forget_pending()
        self._connected_since_ms = None

    def send_error(self, sequence: int, reason: str) -> None:
        """A SEND_ERROR. The entry and all after it are not stored: go back to where the remote says it is (R4)."""
        self._refusals += 1
        self.last_error = f"{self.topic}: {self.remote} refused send {sequence}: {reason}"
        if self._refusals >= 2:
            self.hold = StopReason.REFUSED
        self.stopping()

    def schema_known(self, version: bytes, remote_version: bytes) -> None:
        """The remote numbers the schema ``version`` as ``remote_version`` (R41)."""
        if len(self._schemas) >= SCHEMA_CACHE:
            self._schemas.clear()
        self._schemas[version] = remote_version
        if self.wanted_schema == version:
            self.wanted_schema = None

    def schema_refused(self, version: bytes, reason: str) -> None:
        """The remote does not take the schema: entries wait, because passing them over would lose them."""
        self.wanted_schema = None
        self._stop(StopReason.SCHEMA, f"{self.topic}: {self.remote} refuses schema version {version.hex()}: {reason}")

    def new_entries(self, now_ms: int) -> None:
        """Entries became durable; remembers since when something waits while nothing can be sent."""
        if self.state is not State.STARTED and self._waiting_since_ms is None:
            self._waiting_since_ms = now_ms

    def status(self, backlog: int, now_ms: int) -> ReplicatorStatus:
        """:param backlog: entries stored after ``confirmed`` (``ReplicationSource.entries_after``)."""
        since = self._pending[0].stored_ms if self._pending else self._waiting_since_ms
        return ReplicatorStatus(
            remote=self.remote,
            state=self.state,
            connected=self.state is State.STARTED,
            hold=self.hold,
            last_error=self.last_error,
            warning=self.warning,
            messages_out=self._messages_out,
            bytes_out=self._bytes_out,
            entries_out=self._entries_out,
            backlog=backlog,
            pending=len(self._pending),
            delay_ms=max(0, now_ms - since) if since is not None and backlog else 0,
            confirmed=self.confirmed,
            joined_at=self.joined_at,
            connected_since_ms=self._connected_since_ms,
            connections=self._connections,
        )

    def _release_hold(self) -> None:
        if self._refusals < 2:
            self.hold = None

    def _forget_pending(self) -> None:
        self._pending.clear()
        self._pending_bytes = 0
        self.wanted_schema = None

    def _stop(self, hold: StopReason, reason: str) -> bool:
        self.hold = hold
        self.last_error = reason
        self.stopping()
        return False
