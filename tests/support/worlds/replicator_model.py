# SPDX-License-Identifier: Apache-2.0
"""A log, a network and a remote topic in memory, for tests of the replicator's core.

The remote applies rules R3, R4 and R7 only to the bytes it receives, and loses in a crash what was not yet durable.
When the network breaks, it loses messages in flight, or delivers them late, to the next producer.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from meridian_broker.ledgers import entry as entries
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.replication.entries.replicator import RemotePlace, Replicator
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import metadata, origin_fields
from meridian_broker.wire.pulsar.frames import FrameDecoder, Send

LOCAL, REMOTE, THIRD = "us-east", "us-west", "eu-central"


def body_of(number: int, *, schema_version: bytes | None = None, size: int = 3) -> bytes:
    message = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1_700_000_000_000 + number)
    if schema_version is not None:
        message.schema_version = schema_version
    return metadata.build_body(message.SerializeToString(), (b"%d." % number) * size)


class LocalLog:
    """The source's log: ledgers of a few entries, own ones chained by ``prev``."""

    def __init__(self) -> None:
        self.stored: list[tuple[Position, bytes]] = []
        self.wanted: list[Position] = []
        """Entries for the remote, trimmed ones included."""
        self.own = EARLIEST
        self.owns: list[Position] = []
        self.end = EARLIEST
        self._ledger = 7
        self._next = 0

    def append(
        self,
        flags: int = 0,
        *,
        replicate_to: tuple[str, ...] | None = None,
        schema_version: bytes | None = None,
        size: int = 3,
        body: bytes | None = None,
    ) -> Position:
        position = Position(self._ledger, self._next)
        self._next += 1
        if body is None:
            body = body_of(position.entry, schema_version=schema_version, size=size)
        checksum = origin_fields.origin_checksum(body, 0)
        if flags & entries.FOREIGN:
            header = entries.EntryHeader(
                flags, 0, 1, 1, checksum, 1, 1, EARLIEST, THIRD, Position(3, position.entry), replicate_to, None
            )
            stored = entries.pack_foreign(header) + body
        else:
            extras = entries.pack_extras(replicate_to, None)
            stored = entries.pack_own(flags, 2, 5, checksum, 11, 12, *self.own, extras) + body
            if not flags & (entries.MARKER | entries.NO_ORIGIN):
                self.own = position
                self.owns.append(position)
                if replicate_to is None or REMOTE in replicate_to:
                    self.wanted.append(position)
        self.stored.append((position, stored))
        self.end = position
        return position

    def roll(self) -> None:
        self._ledger += 2
        self._next = 0

    def entries(self, position: Position, max_entries: int, max_bytes: int) -> list[tuple[Position, bytes]]:
        found: list[tuple[Position, bytes]] = []
        size = 0
        for place, stored in self.stored:
            if place > position and len(found) < max_entries and (not found or size < max_bytes):
                found.append((place, stored))
                size += len(stored)
        return found

    def own_upto(self, upto: Position) -> list[Position]:
        """Own entries up to ``upto``, trimmed ones included."""
        return [position for position in self.owns if position <= upto]

    def trim(self, upto: Position) -> None:
        """Trim entries at or before ``upto``."""
        self.stored = [one for one in self.stored if one[0] > upto]


@dataclass
class RemoteTopic:
    """The receiver. The first ``durable`` of the ``stored`` entries survive a crash."""

    stored: list[Position] = field(default_factory=list)
    durable: int = 0
    unsent: deque[tuple[int, int]] = field(default_factory=deque)  # (sequence, length of stored it waits for)
    refused: list[str] = field(default_factory=list)
    markers: list[tuple[Position, Position]] = field(default_factory=list)
    """Origin of each marker, and the last entry stored here when it arrived."""

    @property
    def last(self) -> Position:
        return self.stored[-1] if self.stored else EARLIEST

    def take(self, send: Send) -> str | None:
        """Receive a SEND; return why it is refused, or None."""
        stamp = send.origin
        assert send.checksum_ok and stamp.region == LOCAL
        assert origin_fields.origin_checksum(send.body, stamp.appended_metadata_bytes) == stamp.checksum, (
            "the body changed on the way (R7)"
        )
        view = metadata.scan(send.body)
        assert view.replicated_from == LOCAL
        said = {one.key: one.value for one in metadata.parse(send.body).properties}
        assert said[metadata.SOURCE_POSITION_PROPERTY] == f"{stamp.ledger}:{stamp.entry}"
        origin = Position(stamp.ledger, stamp.entry)
        if stamp.flags & entries.MARKER:
            if Position(stamp.sent_prev_ledger, stamp.sent_prev_entry) > self.last:
                return f"gap: marker {origin} does not follow {self.last}"
            self.markers.append((origin, self.last))
        elif origin > self.last:
            if Position(stamp.sent_prev_ledger, stamp.sent_prev_entry) != self.last:
                return f"gap: {origin} does not follow {self.last}"
            self.stored.append(origin)
        self.unsent.append((send.sequence_id, len(self.stored)))
        return None

    def sync(self, count: int) -> None:
        """The next ``count`` appended entries become durable."""
        self.durable = min(len(self.stored), self.durable + count)

    def receipts(self) -> list[int]:
        ready = []
        while self.unsent and self.unsent[0][1] <= self.durable:
            ready.append(self.unsent.popleft()[0])
        return ready

    def place(self) -> RemotePlace:
        """The answer to PRODUCER, after everything appended is durable, as R4 requires."""
        self.durable = len(self.stored)
        return RemotePlace(self.last, "")

    def crash(self) -> None:
        del self.stored[self.durable :]
        self.unsent.clear()


class Wire:
    """Everything between one replicator and one remote topic."""

    def __init__(self, core: Replicator, log: LocalLog, remote: RemoteTopic) -> None:
        self.core = core
        self.log = log
        self.remote = remote
        self.sends: deque[Send] = deque()
        self.late: deque[Send] = deque()  # sent over a broken connection, not yet arrived
        self.receipts: deque[int] = deque()
        self.now = 1000

    def connect(self) -> bool:
        self.core.starting(self.core.incarnation)
        self.sends.clear()
        self.receipts.clear()
        self.remote.unsent.clear()
        return self.core.connected(1, self.remote.place(), self.log.end, self.log.own, self.now)

    def disconnect(self, *, deliver_late: bool = False) -> None:
        if deliver_late:
            self.late.extend(self.sends)
        self.core.disconnected("the network broke", self.now)
        self.sends.clear()
        self.receipts.clear()
        self.remote.unsent.clear()

    def pump(self) -> bool:
        """Read once and send; False: the core wanted nothing, or there was nothing to read."""
        want = self.core.next_read()
        if want is None:
            return False
        batch = self.log.entries(want.after, want.max_entries, want.max_bytes)
        frames = self.core.read(batch, self.log.own)
        self.sends.extend(FrameDecoder().feed(b"".join(frames)))  # type: ignore[arg-type]
        return bool(batch)

    def deliver(self, count: int) -> None:
        for _ in range(min(count, len(self.sends))):
            send = self.sends.popleft()
            problem = self.remote.take(send)
            if problem is not None:
                self.remote.refused.append(problem)
                self.core.send_error(send.sequence_id, problem)
                self.disconnect()
                return

    def deliver_late(self) -> None:
        """Messages of an earlier connection arrive; their answers are lost."""
        while self.late:
            self.remote.take(self.late.popleft())
            if self.remote.unsent:
                self.remote.unsent.pop()

    def confirm(self, count: int) -> None:
        self.remote.sync(count)
        self.receipts.extend(self.remote.receipts())
        while self.receipts:
            assert self.core.receipt(self.receipts.popleft())

    def finish(self) -> None:
        """Replicate everything over a network without faults."""
        self.disconnect()
        assert self.connect(), self.core.last_error
        for _ in range(10_000):
            moved = self.pump()
            moved = moved or bool(self.sends)
            self.deliver(10_000)
            self.confirm(10_000)
            if not moved:
                return
        raise AssertionError("replication does not end")
