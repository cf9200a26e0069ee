# SPDX-License-Identifier: Apache-2.0
"""Carrying a topic's own entries to one remote region: the decisions, without sockets and without a clock.

There is one ``Replicator`` per (topic or partition, remote region); ``producing.py`` has what it knows of its producer.
It has no durable state of its own; ranges that an operator skipped are in the topic's record, and passed in (``skip``).
In its answer to PRODUCER the remote reports which of our entries it stored last, and sending continues exactly after
that one. So a restart of either side, a lost receipt or a broken connection can neither lose nor repeat an entry.

Three numbers travel with each entry and make mistakes visible instead of silent:

* ``prev``, the own entry before it in our log (R3). It is checked here, too: if the entries read do not form one chain
  from the remote's last one, something between was trimmed here (a *gap*, R4) or our log was rolled back (R5).
* ``sent_prev``, the entry before it that was meant for this remote. The remote refuses an entry whose ``sent_prev``
  is not the last one it stored. Entries that ``replicate_to`` withholds, or an operator skipped, are not meant for it.
* ``checksum`` of the entry as it was first stored (R7).

Markers of snapshots (PIP-33) travel between the entries where they were written. They are no links of the chain: one
names the entry sent before it as its ``sent_prev``, and the remote takes it once it has that one. Those that were not
confirmed are sent again after a reconnect, but not after a restart of this broker: snapshots begin anew then.

A replicator that must not continue reports why (``StopReason``) and retries from time to time: another region or an
operator can always resolve the cause. The shell that gives it a connection is ``gateway/replicator_run.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from meridian_broker.ledgers import entry as entries
from meridian_broker.ledgers.holes import is_break
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.replication.entries.producing import QUEUE_BYTES, QUEUE_SIZE, Producing, Sent
from meridian_broker.replication.entries.replicator_status import State, StopReason
from meridian_broker.replication.entries.sending import SendWriter, Stamp, schema_version_of

if TYPE_CHECKING:
    from meridian_broker.positions.skipped import Skipped
    from meridian_broker.replication.entries.source import DeletionNotice

READ_BYTES: Final = 1024 * 1024
"""Most bytes asked of the log in one read."""
_ORIGIN_BYTES: Final = 16
"""Before the region's name in the header of a foreign entry."""


class RemotePlace(NamedTuple):
    """The remote's answer to PRODUCER."""

    last: Position
    """The last of our entries it stored durably; ``EARLIEST`` for none."""
    incarnation: str
    told: DeletionNotice | None = None
    """There is no producer, because the remote knows of another deletion."""


class Read(NamedTuple):
    """A read the replicator wants from the log."""

    after: Position
    max_entries: int
    max_bytes: int


class Reached(NamedTuple):
    """How far a remote was served."""

    scanned: Position
    """Everything up to here in our log is stored there, or not meant for it."""
    chain: Position
    """Our last own entry up to there."""


class Passed(NamedTuple):
    """A place where everything was confirmed: the last entry sent, and the end of the range passed over after it."""

    sent: Position
    scanned: Position
    chain: Position
    trimmable: Position


class Replicator(Producing):
    """The state machine of one (topic, remote). Feed it events; it returns what to read and what to send."""

    def __init__(
        self,
        topic: str,
        region: str,
        remote: str,
        incarnation: str,
        *,
        queue_size: int = QUEUE_SIZE,
        queue_bytes: int = QUEUE_BYTES,
        own_before: Callable[[int], Position] = lambda _: EARLIEST,
        came_back: Callable[[str, Position, Position], bool] = lambda *_: False,
        last_marker: Callable[[], Position] | None = None,
    ) -> None:
        """
        :param own_before: see ``ReplicationSource.own_before``; asked where an entry names no predecessor.
        :param came_back: as there; asked where the remote has entries that our log says never were.
        :param last_marker: as there; None: markers are not carried.
        """
        super().__init__(topic, region, remote, incarnation)
        self.missing: Position | None = None
        """The last entry that the remote needs and that is damaged or no longer stored; reported when we connect
        (R4)."""
        self._confirmed_chain = EARLIEST
        self.trimmable = EARLIEST
        """Retention may trim up to here. Less than ``confirmed`` while own entries that are not for this remote follow
        the last one it has: after a restart they alone prove that nothing is missing between that one and the next."""
        self._writer = SendWriter(region)
        self._queue_size = queue_size
        self._queue_bytes = queue_bytes
        self._own_before = own_before
        self._came_back = came_back
        self._last_marker = last_marker
        name = region.encode()
        self._own_tag = bytes((len(name),)) + name
        self._producer_id = 0
        self._sequence = 0
        self._scanned = EARLIEST  # everything up to here has been sent or passed over
        self._chain = EARLIEST  # the last own entry seen, sent or not
        self._sent_prev = EARLIEST  # the last entry meant for this remote
        self._before_withheld: Position | None = None  # the place before the own entries passed over since then
        self._passed: Passed | None = None
        self._skipped: Skipped | None = None

    # -- connection -------------------------------------------------------------------------------------------------

    def starting(self, incarnation: str) -> None:
        """The shell starts connecting. It passes the incarnation each time, because a deletion elsewhere changes it."""
        if incarnation != self.incarnation:
            self.incarnation = incarnation
            self._passed = None
        if self.state is not State.TERMINATED:
            self.state = State.STARTING

    def connected(self, producer_id: int, place: RemotePlace, end: Position, last_own: Position, now_ms: int) -> bool:
        """The remote answered PRODUCER. True: send; False: ``hold`` has the reason, close the producer.

        :param end: our last durable entry.
        :param last_own: our last own entry (``ReplicationSource.last_own``), read after ``end``.
        """
        if self.state is State.TERMINATED:
            return False
        if place.incarnation != self.incarnation:
            return self._stop(
                StopReason.INCARNATION,
                f"{self.topic}: {self.remote} knows deletion {place.incarnation or 'none'!r} of this topic and "
                f"{self.region} knows {self.incarnation or 'none'!r}; replication waits until both know the same one",
            )
        if place.last > last_own:
            return self._stop_rolled_back(place.last, last_own)
        self.state = State.STARTED
        self._producer_id = producer_id
        self._sequence = 0
        self._forget_pending()
        self._connected_since_ms = now_ms
        self._connections += 1
        if place.last > self.confirmed:
            self._refusals = 0
        if self.missing is not None and place.last >= self.missing:
            self.missing = None
        self._resume(place.last, end, last_own)
        return True

    # -- sending ----------------------------------------------------------------------------------------------------

    def next_read(self) -> Read | None:
        """The next read, or None: wait for receipts, for the connection or for ``wanted_schema``."""
        if self.state is not State.STARTED or self.wanted_schema is not None:
            return None
        free = self._queue_size - len(self._pending)
        room = self._queue_bytes - self._pending_bytes
        if self._pending and (free <= 0 or room <= 0):
            return None
        return Read(self._scanned, max(free, 1), max(1, min(room, READ_BYTES)))

    def read(self, batch: list[tuple[Position, bytes]], last_own: Position) -> list[bytes]:
        """The answer to ``next_read``: entries strictly after its position. Returns encoded SEND frames, in order;
        each is two buffers, so that a payload is not copied once more.

        An empty batch means the end of the log; then ``last_own``, taken before the read, must have been seen.
        When ``wanted_schema`` is set afterwards, the rest of the batch was left for the next read. When the chain does
        not hold, the state becomes Disconnecting and ``hold`` tells why.
        """
        if self.state is not State.STARTED:
            return []
        if not batch:
            # If the remote has nothing and nothing is stored here there is no gap: the remote will join later.
            if last_own > self._chain and self._chain != EARLIEST:
                self._stop_gap(last_own, EARLIEST)
            else:
                self._release_hold()
            return []
        assert batch[0][0] > self._scanned, "no entry is sent twice to one producer"
        frames: list[bytes] = []
        header_of = entries.HEADER.unpack_from
        skipped = entries.MARKER | entries.FOREIGN | entries.NO_ORIGIN
        for place, stored in batch:
            _, flags, offset, messages, key_hash, checksum, published, stored_ms, ledger, number = header_of(stored)
            position = place
            if flags & skipped:
                if flags == entries.MARKER and self._last_marker is not None and self._is_for_remote(stored):
                    frames += self._marker(place, stored)
                    self._scanned = place
                    continue
                back = self._returned(stored) if flags & entries.FOREIGN else None
                if flags & entries.DAMAGED and not flags & entries.FOREIGN:
                    back = place
                if back is None or back <= self._chain:
                    self._scanned = place
                    continue
                if flags & entries.DAMAGED:
                    self._stop_gap(back, EARLIEST)
                    break
                position, flags = back, flags & ~entries.FOREIGN
            prev = self._chain
            if ledger != prev[0] or number != prev[1]:
                prev = Position(ledger, number) if ledger >= 0 else EARLIEST
                if prev != self._chain and not self._joins(prev, position, place):
                    break
            if offset == entries.HEADER.size or self._permitted(stored):
                version = None
                if (named := schema_version_of(stored, offset)) is not None:
                    if (version := self._schemas.get(named)) is None:
                        self.wanted_schema = named
                        break
                    if version == named:
                        version = None
                stamp = Stamp(
                    position, prev, self._sent_prev, checksum, messages, key_hash, published, stored_ms, flags
                )
                frame = self._writer.send(self._producer_id, self._sequence, stamp, stored, offset, version)
                size = len(frame[0]) + len(frame[1])
                self._pending.append(Sent(self._sequence, place, position, size, messages, stored_ms))
                self._pending_bytes += size
                self.messages_sent += messages
                self.bytes_sent += size
                self._sequence += 1
                self._sent_prev = position
                self._before_withheld = None
                frames += frame
            elif self._before_withheld is None and self._sent_prev != EARLIEST:
                self._before_withheld = self._scanned
            self._scanned, self._chain = place, position
        if self.state is State.STARTED and self.wanted_schema is None:
            self._release_hold()
        if not self._pending:
            self._all_confirmed()  # all of it was passed over
        return frames

    def skip(self, skipped: Skipped) -> None:
        """Pass over a range that an operator skipped. If the producer is sending, continue with a new one."""
        self._skipped = skipped
        if self.missing is not None and self.missing <= skipped.own:
            self.missing = None
        if skipped.upto > self.confirmed:
            self.confirmed = skipped.upto
            self.trimmable = max(self.trimmable, skipped.upto)
            self._forget_pending()
            self._waiting_since_ms = None
            if self.state is State.STARTED:
                self.stopping()

    # -- answers ----------------------------------------------------------------------------------------------------

    def receipt(self, sequence: int) -> bool:
        """A SEND_RECEIPT, for a stored entry or for a repeated one. False: it matches nothing that was sent: connect
        again.
        """
        if self.state is not State.STARTED:
            return True
        if not self._pending or self._pending[0].sequence != sequence:
            self.last_error = (
                f"{self.topic}: {self.remote} confirmed send {sequence}, expected "
                f"{self._pending[0].sequence if self._pending else 'none'}; connecting again"
            )
            return False
        sent = self._pending.popleft()
        self._pending_bytes -= sent.size
        self._entries_out += 1
        self._messages_out += sent.messages
        self._bytes_out += sent.size
        self.confirmed = sent.position
        if sent.messages:  # else it is a marker, which proves nothing of withheld entries before it
            self.trimmable = sent.position
        self._confirmed_chain = sent.origin
        if not self._pending:
            self._all_confirmed()
        self._waiting_since_ms = None
        self._refusals = 0
        self.hold = None
        return True

    # -- looking ----------------------------------------------------------------------------------------------------

    @property
    def reached(self) -> Reached:
        """How far the remote was served, as it confirmed."""
        return Reached(self.confirmed, self._confirmed_chain)

    @property
    def remote_last(self) -> Position | None:
        """The last of our entries that the remote is known to have, or a later one; None: it has not reported yet."""
        return None if self._passed is None else self._passed.sent

    # -- inside -----------------------------------------------------------------------------------------------------

    def _resume(self, last: Position, end: Position, last_own: Position) -> None:
        """Continue after ``last``, without reading again what is known not to be meant for this remote."""
        if self._passed is not None and self._passed.sent == last:
            _, self._scanned, self._chain, self.trimmable = self._passed
        else:
            self._scanned = self._chain = self.trimmable = last
        skipped = self._skipped
        if skipped is not None and skipped.applies_to(last) and skipped.upto > self._scanned:
            self._scanned = self.trimmable = skipped.upto
            # A remote that has nothing begins with whatever follows; a log that was rolled back ends before ``own``.
            self._chain = EARLIEST if last == EARLIEST else min(skipped.own, last_own)
        may_owe_marker = (
            self._passed is not None and self._last_marker is not None and (self._last_marker() > self._scanned)
        )
        if last == last_own and end > self._scanned and not may_owe_marker:
            self._scanned = self.trimmable = end  # everything after it came from other regions
            self._chain = last
        self._before_withheld = self.trimmable if self.trimmable < self._scanned else None
        self._sent_prev = last
        self._passed = Passed(last, self._scanned, self._chain, self.trimmable)
        self.confirmed, self._confirmed_chain = self._scanned, self._chain

    def _all_confirmed(self) -> None:
        """Nothing is pending, so everything scanned is either stored at the remote or not meant for it."""
        if self._scanned > self.confirmed:
            self.confirmed, self._confirmed_chain = self._scanned, self._chain
        self.trimmable = self._scanned if self._before_withheld is None else self._before_withheld
        self._passed = Passed(self._sent_prev, self._scanned, self._chain, self.trimmable)

    def _joins(self, prev: Position, position: Position, place: Position) -> bool:
        """Whether an entry whose ``prev`` is not the last one seen may be sent nevertheless."""
        if self._chain == EARLIEST:
            # The remote has none of our entries: it begins with what is still stored; the status shows where.
            self.joined_at = position
            return True
        if is_break(prev, position):
            known = self._own_before(place.ledger)  # not the origin's ledger: fetched-back entries are in another
            return known <= self._chain or self._stop_gap(known, position)
        if prev > self._chain:
            return self._stop_gap(prev, position)
        return self._came_back(self.remote, prev, position) or self._stop_rolled_back(self._chain, prev)

    def _returned(self, stored: bytes) -> Position | None:
        """The origin of an entry of ours that was lost and fetched back (R5); None for those of other regions."""
        if not stored.startswith(self._own_tag, entries.HEADER.size + _ORIGIN_BYTES):
            return None
        return entries.unpack(stored).origin

    def _is_for_remote(self, stored: bytes) -> bool:
        """Whether a marker is carried: it is no copy of a damaged entry, and not for other regions alone."""
        header = entries.unpack(stored)
        return header.replaces is None and (header.replicate_to is None or self.remote in header.replicate_to)

    def _marker(self, place: Position, stored: bytes) -> tuple[bytes, ...]:
        _, flags, offset, messages, key_hash, checksum, published, stored_ms, _, _ = entries.HEADER.unpack_from(stored)
        stamp = Stamp(place, self._chain, self._sent_prev, checksum, messages, key_hash, published, stored_ms, flags)
        frame = self._writer.send(self._producer_id, self._sequence, stamp, stored, offset)
        size = len(frame[0]) + len(frame[1])
        self._pending.append(Sent(self._sequence, place, self._chain, size, 0, stored_ms))
        self._pending_bytes += size
        self._sequence += 1
        return frame

    def _permitted(self, stored: bytes) -> bool:
        regions = entries.unpack(stored).replicate_to
        return regions is None or self.remote in regions

    def _stop_gap(self, missing: Position, before: Position) -> bool:
        self.missing = missing
        where = f"before {before} " if before != EARLIEST else ""
        return self._stop(
            StopReason.GAP,
            f"{self.topic}: {self.remote} has {self.region}'s entries up to {self._chain}, but {missing} {where}is no "
            f"longer stored in {self.region}, or damaged. {self.remote} asks the other regions for them; what none of "
            f"them has is lost, and replication resumes once an operator accepts that in {self.remote}: "
            "meridian topics accept-gap",
        )

    def _stop_rolled_back(self, theirs: Position, ours: Position) -> bool:
        return self._stop(
            StopReason.ROLLED_BACK,
            f"{self.topic}: {self.remote} has {self.region}'s entry {theirs}, but {self.region} has nothing after "
            f"{ours} in that place: its log was restored from an older copy; the entries are fetched back first",
        )
