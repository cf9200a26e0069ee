# SPDX-License-Identifier: Apache-2.0
"""A durable subscription, or a reader's, that reads the topic's compacted view.

The cursor passes what compaction took out, and that is all that happens to it: it is not claimed as acknowledged. What
was taken out here may still be unread by the same subscription in another region, or by a later consumer that wants
the whole log (*never over-claim*). So mark-delete is the image of the progress *and* of the view, worked out anew and
written nowhere; and an acknowledgement, single or cumulative, claims of what the view covers only what the view holds:
of a batch that lost messages, those that are left. Therefore such acknowledgements look their entries up in the view.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyroaring import BitMap

from meridian_broker.ledgers.entry import NO_ORIGIN, EntryHeader, unpack
from meridian_broker.ledgers.store import LedgerError, LedgerNotFound
from meridian_broker.ledgers.telling import tell_each
from meridian_broker.positions import ZERO, AckSet, Stamp
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics import acknowledging

if TYPE_CHECKING:
    from meridian_broker.positions import Progress
    from meridian_broker.topics.claims import Confirmed
    from meridian_broker.topics.consumer import Consumer
    from meridian_broker.topics.rewinding import Resent
    from meridian_broker.topics.subscription import Subscription

SLICE_ENTRIES: Final = 500
SLICE_BYTES: Final = 1 << 20
"""What is looked up at a time."""
SENT_MAX: Final = 10_000
"""Batches of which it is remembered what was sent. Of older ones that compaction takes out an ack says nothing."""
Ranges = dict[str, tuple[Position, Position]]
Epochs = Callable[[Position], Stamp]


class _Claim(NamedTuple):
    """One entry of the view that is acknowledged, ``remaining``: but for these messages of it."""

    position: Position
    header: EntryHeader
    remaining: int = 0


class CompactedReading:
    """Lives as long as the subscription's consumers ask for the view."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._compaction = subscription.topic.compaction
        self._settled = EARLIEST
        """Everything in the view up to here is acknowledged."""
        self._claimed = EARLIEST
        """Everything in the view up to here was claimed by cumulative acknowledgements of this time."""
        self._thinned_done: dict[int, BitMap] = {}
        """Batches that lost messages to compaction and whose others are acknowledged: ledger -> entries."""
        self._sent: dict[Position, int] = {}
        """Of batches that were sent, which of their messages: compaction may take them out before they are acked."""
        self._ids_sent = AckSet()
        """Which entries were sent and may be owed: compaction and trimming may take one out before it is acked."""
        self._jobs: deque[tuple[int, Coroutine[Any, Any, None], Confirmed | None]] = deque()
        self._working = False

    def reset(self) -> None:
        """The subscription was rewound: what was acknowledged may not be any more."""
        self._settled = self._claimed = EARLIEST
        self._ids_sent = AckSet()
        self._thinned_done.clear()

    @property
    def horizon(self) -> Position:
        """What is at or before this is read from the view."""
        return EARLIEST if self._compaction.view is None else self._compaction.view.horizon

    @property
    def thinned_done(self) -> dict[int, BitMap]:
        """Batches that lost messages to compaction and whose others are acknowledged: ledger -> entries. A copy."""
        return {ledger: entries.copy() for ledger, entries in self._thinned_done.items()}

    def start(self) -> Position:
        """Behind which position reading begins: before mark-delete, when the view has more than the log holds."""
        subscription, view = self._subscription, self._compaction.view
        if view is not None and subscription.durable:
            first = view.after(self._settled)
            if first is not None and first < subscription.topic.log.first:
                return self._settled
        return subscription.mark_delete

    def passes(self, position: Position) -> bool:
        """May mark-delete go over this entry of the log although it is not acknowledged?"""
        view = self._compaction.view
        if view is None or position > view.horizon:
            return False
        done = self._thinned_done.get(position.ledger)
        return not view.holds(position) or (done is not None and position.entry in done)

    def knows(self, position: Position) -> bool:
        """Is this the id of an entry of the view, or of one that was sent and then compacted away?"""
        view = self._compaction.view
        return (view is not None and view.holds(position)) or self._ids_sent.contains(position)

    # -- dispatch ------------------------------------------------------------------------------------------------

    def note_sent(self, position: Position) -> None:
        """The entry, of the view or of the log behind it, was sent."""
        self._ids_sent.claim_point(position)
        if not position.entry % SLICE_ENTRIES:
            self._ids_sent.raise_floor(self.start())

    def is_done(self, position: Position, entry: bytes) -> bool:
        """Is this entry of the view acknowledged, as far as there is anything left of it?"""
        subscription, header = self._subscription, unpack(entry)
        if header.flags & NO_ORIGIN:
            return subscription.topic.log.holds(position) and position <= subscription.mark_delete
        if not self._is_settled(position, header):
            return False
        self._note_done(position, header)
        return True

    def _is_settled(self, position: Position, header: EntryHeader) -> bool:
        progress = self._subscription.progress
        region, origin = self._origin(position, header)
        if self._is_dropped(position, header):
            return True
        if header.kept is None:
            return progress.is_acked(region, origin, header.publish_time_ms)
        remaining = progress.remaining(region, origin, header.messages, header.publish_time_ms)
        return remaining is not None and not remaining & header.kept

    def _is_dropped(self, position: Position, header: EntryHeader) -> bool:
        dropped = self._subscription.dropped
        return dropped is not None and dropped.contains(*self._origin(position, header))

    def _note_done(self, position: Position, header: EntryHeader) -> None:
        if header.kept is not None:
            self._thinned_done.setdefault(position.ledger, BitMap()).add(position.entry)
        view = self._compaction.view
        if view is not None and view.after(self._settled) == position:
            self._settled = position

    def remaining(self, position: Position, entry: bytes) -> int | None:
        """The messages of a batch that are to be delivered, as bits; None: all."""
        header = unpack(entry)
        remaining: int | None = None
        if self._subscription.durable and not header.flags & NO_ORIGIN:
            region, origin = self._origin(position, header)
            progress = self._subscription.progress
            remaining = progress.remaining(region, origin, header.messages, header.publish_time_ms)
        if header.kept is not None:
            remaining = header.kept if remaining is None else header.kept & remaining
        self._sent[position] = (1 << header.messages) - 1 if remaining is None else remaining
        if len(self._sent) > SENT_MAX:
            del self._sent[next(iter(self._sent))]
        return remaining

    def _origin(self, position: Position, header: EntryHeader) -> tuple[str, Position]:
        return header.region or self._subscription.topic.region, header.origin or position

    # -- acknowledgements ----------------------------------------------------------------------------------------

    def acknowledge(
        self,
        consumer: Consumer,
        positions: list[Position],
        stale: frozenset[Position],
        batches: dict[Position, int] | None,
        confirmed: Confirmed | None,
    ) -> list[Position]:
        """Single acknowledgements. Returns those of entries behind the horizon, which are not looked up here.

        ``confirmed`` hears of the ones that are, when there are no others.
        """
        covered = [position for position in positions if position <= self.horizon]
        others = [position for position in positions if position > self.horizon]
        if covered:
            told = None if others else confirmed
            epoch = consumer.epoch
            job = self._acknowledge(lambda place: ZERO if place in stale else epoch, covered, batches or {}, told)
            self._enqueue(job, told)
        return others

    def acknowledge_up_to(
        self, consumer: Consumer, position: Position, part: int | None, confirmed: Confirmed | None
    ) -> bool:
        """A cumulative acknowledgement. False: nothing of it is in the view, that is not claimed already."""
        view = self._compaction.view
        following = None if view is None else view.after(self._claimed)
        if following is None or following > position:
            return False
        resent = self._subscription.resent
        as_now = None if resent is None else resent.copy()
        self._enqueue(self._acknowledge_up_to(consumer, position, part, as_now, confirmed), confirmed)
        return True

    def _enqueue(self, job: Coroutine[Any, Any, None], confirmed: Confirmed | None) -> None:
        self._jobs.append((acknowledging.look_ups(self._subscription).begin(), job, confirmed))
        if not self._working:
            self._working = True
            self._subscription.topic.serve(self._work(), "look acknowledged entries up in a compacted view")

    async def _work(self) -> None:
        """Whoever waits hears of a failure; where nobody does the topic is fenced, so that the consumer comes back."""
        look_ups, lost = acknowledging.look_ups(self._subscription), LedgerError("an acknowledgement was not looked up")
        unheard: LedgerError | None = None
        try:
            while self._jobs:
                number, job, confirmed = self._jobs.popleft()
                failure: LedgerError | None = lost
                try:
                    await job
                    failure = None
                except LedgerError as error:
                    failure = error
                    if confirmed is not None:
                        confirmed(error)
                    else:
                        unheard = error
                except Exception:
                    if confirmed is not None:
                        confirmed(lost)
                    raise
                finally:
                    look_ups.end(number, failure)
        finally:
            self._working = False
            jobs, self._jobs = self._jobs, deque()
            for number, job, _ in jobs:
                job.close()
                look_ups.end(number, lost)
            tell_each([confirmed for _, _, confirmed in jobs if confirmed is not None], lost)
        if unheard is not None:
            raise unheard

    async def _acknowledge(
        self, epochs: Epochs, positions: list[Position], batches: dict[Position, int], confirmed: Confirmed | None
    ) -> None:
        claims: list[_Claim] = []
        for position in positions:
            header = await self._header(position)
            if header is not None:
                claims.append(_Claim(position, header, batches.get(position, 0)))
            if position not in batches:
                self._sent.pop(position, None)
        self._claim(epochs, claims, confirmed)

    async def _header(self, position: Position) -> EntryHeader | None:
        """Of an entry of the view; of one that compaction took out meanwhile, with what of it was sent."""
        while (view := self._compaction.view) is not None and view.holds(position):
            try:
                entry = await view.read_one(position)
            except LedgerNotFound:
                if view is self._compaction.view:
                    raise
                continue  # a newer view took its place meanwhile
            return None if entry is None else unpack(entry)
        log = self._subscription.topic.log
        if not log.holds(position):
            return None
        header = unpack(await log.read_one(position))
        sent = self._sent.get(position)
        if header.messages == 1 or sent == (1 << header.messages) - 1:
            return header
        return None if not sent else header._replace(kept=sent)

    async def _acknowledge_up_to(
        self,
        consumer: Consumer,
        position: Position,
        part: int | None,
        resent: Resent | None,
        confirmed: Confirmed | None,
    ) -> None:
        def epochs(place: Position) -> Stamp:
            return consumer.epoch if resent is None or resent.holds(place) else ZERO

        upto = min(position, self.horizon)
        while entries := await self._compaction.read_view(self._claimed, SLICE_ENTRIES, SLICE_BYTES):
            inside = [stored for stored in entries if stored[0] <= upto]
            claims = [
                _Claim(at, unpack(entry), part or 0 if at == position and part is not None else 0)
                for at, entry in inside
                if not self._is_dropped(at, unpack(entry))
            ]
            self._claim(epochs, claims, None)
            if inside:
                whole = part is None or inside[-1][0] != position
                self._claimed = inside[-1][0] if whole else Position(position.ledger, position.entry - 1)
            if len(inside) < len(entries) or self._claimed < inside[-1][0]:
                break
        rest = acknowledging.up_to(self._subscription, consumer, position, part, confirmed, resent)
        if rest is not None:
            await rest

    def _claim(self, epochs: Epochs, claims: list[_Claim], confirmed: Confirmed | None) -> None:
        subscription = self._subscription
        delta = subscription.claims.open()
        for claim in claims:
            self._claim_one(delta, epochs(claim.position), claim)
        subscription.claims.changed(confirmed, len(claims))
        subscription.claims.flush()
        for position, header, _ in claims:
            if not header.flags & NO_ORIGIN and self._is_settled(position, header):
                self._note_done(position, header)
        subscription.advance()

    def _claim_one(self, delta: Progress, epoch: Stamp, claim: _Claim) -> None:
        position, header, remaining = claim
        if header.flags & NO_ORIGIN:
            return
        region, origin = self._origin(position, header)
        if header.kept is None and not remaining:
            delta.ack(epoch, region, header.prev, origin)
            return
        whole = (1 << header.messages) - 1
        acked = (whole if header.kept is None else header.kept) & ~remaining & whole
        if acked:
            delta.ack_batch(epoch, region, origin, header.messages, acked, header.prev)

    # -- seeking -------------------------------------------------------------------------------------------------

    async def move(self, delta: Progress, target: Position) -> Ranges:
        """What a seek means for the entries that only the view has: claim in ``delta`` those before ``target``; tell
        what a rewind to there rules: per origin ``(prev of its first entry, its last]``, none when nothing is acked.

        :raises LedgerError: the view cannot be read.
        """
        subscription = self._subscription
        epoch, first = subscription.progress.epoch, subscription.topic.log.first
        ranges: Ranges = {}
        is_anything_acked = False
        position = EARLIEST
        while entries := await self._compaction.read_view(position, SLICE_ENTRIES, SLICE_BYTES):
            for position, entry in entries:
                if position >= first:
                    return ranges if is_anything_acked else {}
                header = unpack(entry)
                if header.flags & NO_ORIGIN:
                    continue
                if position < target:
                    self._claim_one(delta, epoch, _Claim(position, header))
                    continue
                region, origin = self._origin(position, header)
                low, high = ranges.get(region, (header.prev, origin))
                ranges[region] = (min(low, header.prev), max(high, origin))
                time_ms = header.publish_time_ms
                remaining = subscription.progress.remaining(region, origin, header.messages, time_ms)
                is_anything_acked = is_anything_acked or remaining is not None
        return ranges if is_anything_acked else {}
