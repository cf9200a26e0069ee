# SPDX-License-Identifier: Apache-2.0
"""Adds one ledger's entries to every bookie of its ensemble.

Every bookie of the ensemble gets every entry. What it has acknowledged is one number, its *mark*: it has all entries up
to that one. The *last confirmed* entry is the highest one that an ack quorum of marks has reached. Callers are told of
it in order, and later entries carry it to readers.

    retained                 sent or waiting; kept until every bookie that counts has it
    |--------------------------------|
    base .. confirmed .. released .. next
            |  not yet confirmed  |
                       |  not yet sent, because the slowest bookie is too far behind  |

A bookie is *lost* when its connection breaks, when it refuses an entry for a reason of its own, or when it is silent
for too long. From then on its mark no longer counts. Another bookie takes its place in a new segment of the ledger that
begins right after the last confirmed entry, and counts once the metadata says so. Meanwhile the remaining bookies
confirm entries, which is safe: they are in the ensemble both before and after the change, whichever of the two a
recovery finds. If there is no other bookie, a lost one that has recovered may continue where it left off.

An acknowledgement is always true, however late it arrives: the bookie has that entry, and its bytes never differ.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from meridian_broker.engines.bookkeeper.packets import Code
from meridian_broker.engines.bookkeeper.places import Place
from meridian_broker.engines.bookkeeper.ports import AddLimits, LinkPort, Packet
from meridian_broker.ledgers.notifying import notify_all
from meridian_broker.ledgers.store import AppendDone, LedgerError, LedgerFenced, LedgerWriteFailed

SENT_TOGETHER: Final = 256
"""Entries that one bookie is sent in one step."""

StoreEnsemble = Callable[[int, tuple[str, ...]], None]
"""The first entry, and the bookies."""


class Adding:
    """See the module's text. All times are milliseconds of a monotonic clock."""

    def __init__(
        self,
        ledger: int,
        link: LinkPort,
        store_ensemble: StoreEnsemble,
        ensemble: Sequence[str],
        ack_quorum: int,
        *,
        confirmed: int = -1,
        limits: AddLimits,
        now_ms: int,
    ) -> None:
        """
        :param store_ensemble: records that these bookies store the entries from a given one on, then calls
            ``ensemble_stored`` or ``ensemble_not_stored``, perhaps before it returns.
        :param confirmed: the bookies already have the entries up to this one.
        """
        self.ledger = ledger
        self._link = link
        self._store_ensemble = store_ensemble
        self._ack_quorum = ack_quorum
        self._limits = limits
        self._now_ms = now_ms
        self._places = [Place(bookie, confirmed, now_ms) for bookie in ensemble]
        self._bookies = tuple(ensemble)
        self.confirmed = confirmed
        self.next = self._released = self._base = confirmed + 1
        self._packets: dict[int, Packet] = {}
        self._released_bytes = 0
        self._told: deque[AppendDone] = deque()
        """Callbacks of the entries after the last confirmed one, in order."""
        self._refused: list[Callable[[], None]] = []
        """Callbacks of refused entries, called once no earlier entry is waiting."""
        self._when_idle: list[Callable[[], None]] = []
        self.failure: LedgerError | None = None
        """Why entries are no longer accepted or confirmed."""
        self.pending_bytes = 0
        """Bytes of the entries that are neither confirmed nor failed."""
        self.unconfirmed_bytes = 0
        """Bytes of the entries that ``failure`` left unconfirmed."""
        self._changing: tuple[str, ...] | None = None
        """The ensemble that is being recorded, if any."""
        self._change_first = 0
        self._is_fresh = False
        """Nothing was under way at the last tick, so no bookie has been silent since then."""
        self._retry_ms = now_ms
        self._enough_ms = now_ms
        """When there were enough bookies for the last time."""
        self._confirmed_ms = now_ms
        """When an entry was confirmed, or none was waiting, for the last time."""
        self.lost_bookies: dict[str, str] = {}
        """Bookies that were lost, and why; for messages."""

    @property
    def ensemble(self) -> tuple[str, ...]:
        """The bookies that entries are sent to, including lost ones."""
        return tuple(place.bookie for place in self._places)

    @property
    def is_idle(self) -> bool:
        """No entry is under way and no bookie is lost: ticks would change nothing."""
        return self.failure is not None or not (self._packets or any(place.is_lost for place in self._places))

    @property
    def retained(self) -> int:
        """How many entries are kept because a bookie may still need them."""
        return len(self._packets)

    # -- from the writer -----------------------------------------------------------------------------------------

    def add(self, packet: Packet, done: AppendDone) -> int:
        """Send the next entry; ``done`` is called with its id once it is confirmed. Returns the id.

        After a failure nothing is sent, and ``done`` is called with the failure in the next turn of the loop.
        """
        entry = self.next
        if self.failure is not None:
            self.refuse(done, self.failure)
            return entry
        following = self.next = entry + 1
        packets = self._packets
        if not packets:
            self._is_fresh = True
            self._link.wake()
        packets[entry] = packet
        size = len(packet[1])
        self.pending_bytes += size
        self._told.append(done)
        limits = self._limits
        if self._released == entry and entry - self._base < limits.entries and self._released_bytes < limits.bytes:
            self._released = following
            self._released_bytes += size
            self._send_new(entry, packet)
        return entry

    def refuse(self, done: AppendDone, error: LedgerError) -> None:
        """Call ``done`` with an error, after the callbacks of everything added before."""
        told = partial(done, error)
        if self._told:
            self._refused.append(told)
        else:
            self._link.defer(told)

    def when_idle(self, told: Callable[[], None]) -> None:
        """Call it once every entry is confirmed or failed, perhaps before this returns."""
        if self._told:
            self._when_idle.append(told)
        else:
            told()

    def fail(self, error: LedgerError) -> None:
        """Fail every entry that is not confirmed, and every later one."""
        if self.failure is not None:
            return
        self.failure = error
        self.unconfirmed_bytes, self.pending_bytes = self.pending_bytes, 0
        self._packets.clear()
        told = [partial(done, error) for done in self._told]
        self._told.clear()
        self._tell(told)

    # -- from the shell ------------------------------------------------------------------------------------------

    def acked(self, bookie: str, entries: list[int]) -> None:
        """A bookie acknowledged these entries."""
        place = self._place(bookie)
        if place is None or self.failure is not None:
            return
        if entries[0] == place.mark + 1 and entries == list(range(entries[0], entries[-1] + 1)):
            has_moved = entries[-1] < place.sent
            if has_moved:
                place.skip_to(entries[-1])
        else:
            before = place.mark
            for entry in entries:
                if entry < place.sent:
                    place.has(entry)
            has_moved = place.mark > before
        if has_moved:
            place.progress_ms = self._now_ms
            if not place.is_lost:
                self._advance()

    def answered(self, bookie: str, entry: int, code: Code) -> None:
        """A bookie answered an add, or the connection to it failed."""
        if code == Code.OK:
            self.acked(bookie, [entry])
            return
        place = self._place(bookie)
        if place is None or self.failure is not None:
            return
        if code in (Code.FENCED, Code.WRONG_KEY):
            self.fail(
                LedgerFenced(
                    f"ledger {self.ledger} was taken over: bookie {bookie} refused entry {entry} with {code.name}: "
                    "close its topic"
                )
            )
        elif code == Code.TOO_MANY_REQUESTS:
            if place.mark < entry < place.sent and not place.is_lost:
                place.again.add(entry)
        else:
            self._lose(place, code.name)

    def lost(self, bookie: str, why: str) -> None:
        """The connection to a bookie broke, or the bookie is no longer registered."""
        place = self._place(bookie)
        if place is not None and self.failure is None:
            self._lose(place, why)

    def room(self, bookie: str) -> None:
        """The connection to a bookie takes more entries again."""
        place = self._place(bookie)
        if place is not None and self.failure is None:
            self._send(place)

    def tick(self, now_ms: int) -> None:
        """Note the time. Call it at least every ``retry_ms``, unless ``is_idle``."""
        self._now_ms = now_ms
        if self.failure is not None:
            return
        if self._is_fresh:
            self._is_fresh = False
            self._enough_ms = self._confirmed_ms = now_ms
            for place in self._places:
                place.progress_ms = now_ms
        is_blocked = self._released < self.next and self._base <= self.confirmed
        for place in self._places:
            if place.is_lost:
                continue
            if place.mark + 1 >= place.sent and place.sent >= self._released:
                place.progress_ms = now_ms
            silent_ms = now_ms - place.progress_ms
            is_blocking = is_blocked and place.mark + 1 == self._base
            if silent_ms >= (self._limits.blocking_ms if is_blocking else self._limits.silent_ms):
                self._lose(place, f"no answer for {silent_ms} ms")
            elif place.again:
                self._send_again(place)
        if now_ms >= self._retry_ms:
            self._replace_lost(may_go_on=True)
        if sum(not place.is_lost for place in self._places) >= self._ack_quorum:
            self._enough_ms = now_ms
        elif now_ms - self._enough_ms >= self._limits.patience_ms:
            self.fail(self._too_few())
        if not self._told:
            self._confirmed_ms = now_ms
        elif now_ms - self._confirmed_ms >= self._limits.waiting_ms:
            # Bookies that accept connections and then close them count as enough each time they are retried.
            self.fail(self._none_confirmed())

    def ensemble_stored(self) -> None:
        """The ensemble given to ``store_ensemble`` has been recorded in the metadata."""
        assert self._changing is not None
        ensemble, first, self._changing = self._changing, self._change_first, None
        if self.failure is not None:
            return
        for number, bookie in enumerate(ensemble):
            if self._places[number].bookie != bookie:
                self._places[number] = Place(bookie, first - 1, self._now_ms)
                # Entries confirmed in the meantime are on the other bookies and no longer kept here.
                self._places[number].skip_to(self._base - 1)
        self._bookies = self.ensemble
        self._enough_ms = self._now_ms
        for place in self._places:
            self._send(place)
        self._advance()
        self._replace_lost()

    def ensemble_not_stored(self, error: LedgerError | None) -> None:
        """The ensemble was not recorded: try again later, or fail if there is an error."""
        self._changing = None
        self._retry_ms = self._now_ms + self._limits.retry_ms
        if error is not None:
            self.fail(error)

    # -- inside --------------------------------------------------------------------------------------------------

    def _place(self, bookie: str) -> Place | None:
        for place in self._places:
            if place.bookie == bookie:
                return place
        return None

    def _send_new(self, entry: int, packet: Packet) -> None:
        """Send an entry to every bookie that got all earlier ones; in one step if that is all of them."""
        places, following = self._places, entry + 1
        for place in places:
            if place.sent != entry or place.is_lost or place.again:
                break
        else:
            if self._link.send_all(self._bookies, entry, packet):
                for place in places:
                    place.sent = following
                return
        send = self._link.send
        for place in places:
            if place.sent == entry and not place.is_lost and not place.again and send(place.bookie, entry, (packet,)):
                place.sent = following

    def _release(self) -> None:
        """Send waiting entries to the bookies, as far as the slowest one allows."""
        limits, packets, released, size = self._limits, self._packets, self._released, self._released_bytes
        upto = min(self.next, self._base + limits.entries)
        while released < upto and size < limits.bytes:
            packet = packets[released]
            size += len(packet[1])
            self._send_new(released, packet)
            released += 1
        self._released, self._released_bytes = released, size
        for place in self._places:
            self._send(place)

    def _is_full(self) -> bool:
        """Nothing more may be sent until the slowest bookie acknowledges something."""
        return self._released - self._base >= self._limits.entries or self._released_bytes >= self._limits.bytes

    def _send(self, place: Place) -> None:
        if place.is_lost or place.again:
            return
        while place.sent < self._released:
            upto = min(self._released, place.sent + SENT_TOGETHER)
            packets = [self._packets[entry] for entry in range(place.sent, upto)]
            place.sent += self._link.send(place.bookie, place.sent, packets)
            if place.sent < upto:
                return

    def _send_again(self, place: Place) -> None:
        for entry in sorted(place.again):
            if entry > place.mark and not self._link.send(place.bookie, entry, (self._packets[entry],)):
                return
            place.again.discard(entry)
        self._send(place)

    def _advance(self) -> None:
        """A mark may have moved: confirm entries, and drop those that no bookie needs any more."""
        marks = sorted([place.mark for place in self._places if not place.is_lost], reverse=True)
        if len(marks) < self._ack_quorum:
            return
        upto = marks[self._ack_quorum - 1]
        first = self.confirmed + 1
        told = [self._told.popleft() for _ in range(first, upto + 1)]
        if told:
            self.confirmed, self._confirmed_ms = upto, self._now_ms
            packets = self._packets
            self.pending_bytes -= sum([len(packets[entry][1]) for entry in range(first, upto + 1)])
        self._let_go(min(marks[-1], self.confirmed))
        if told:
            self._tell_confirmed(first, told)

    def _tell_confirmed(self, first: int, told: list[AppendDone]) -> None:
        failure: Exception | None = None
        for entry, done in enumerate(told, first):
            try:
                done(entry)
            except Exception as error:  # the other callbacks must be called all the same
                failure = failure or error
        if not self._told:
            self._tell([])
        if failure is not None:
            raise failure

    def _let_go(self, upto: int) -> None:
        if self._changing is not None and not self._is_full():
            upto = min(upto, self._change_first - 1)  # the new bookie must get its whole segment
        if self._base > upto:
            return
        pop = self._packets.pop
        self._released_bytes -= sum([len(pop(entry)[1]) for entry in range(self._base, upto + 1)])
        self._base = upto + 1
        for place in self._places:
            if place.is_lost:
                place.skip_to(self._base - 1)
        if self._released < self.next:
            self._release()

    def _tell(self, told: Iterable[Callable[[], None]]) -> None:
        behind: list[Callable[[], None]] = []
        if not self._told:
            behind = [*self._refused, *self._when_idle]
            self._refused, self._when_idle = [], []
        notify_all([*told, *behind])

    def _lose(self, place: Place, why: str) -> None:
        if place.is_lost:
            return
        place.is_lost = True
        place.again.clear()
        self.lost_bookies[place.bookie] = why
        self._link.avoid(place.bookie)
        self._link.wake()
        self._advance()  # entries that only this bookie lacked are no longer needed
        self._replace_lost()

    def _replace_lost(self, *, may_go_on: bool = False) -> None:
        """Look for bookies to replace the lost ones."""
        if self.failure is not None or self._changing is not None or not any(place.is_lost for place in self._places):
            return
        ensemble, has_gone_on = list(self.ensemble), False
        for number, place in enumerate(self._places):
            if place.is_lost:
                found = self._link.choose(place.bookie, frozenset(ensemble))
                if found is not None and found != place.bookie:
                    ensemble[number] = found
                    place.is_given_up = True
                elif found is not None and may_go_on and not place.is_given_up:
                    self._go_on(place)
                    has_gone_on = True
        if tuple(ensemble) == self.ensemble:
            self._retry_ms = self._now_ms + self._limits.retry_ms
        else:
            self._changing, self._change_first = tuple(ensemble), self.confirmed + 1
            self._store_ensemble(self._change_first, self._changing)
        if has_gone_on:
            self._advance()  # what they acknowledged while lost counts now

    def _go_on(self, place: Place) -> None:
        """A lost bookie works again: send it everything after its mark."""
        place.is_lost = False
        place.again.clear()
        place.sent = place.mark + 1
        place.progress_ms = self._now_ms
        self._send(place)

    def _none_confirmed(self) -> LedgerError:
        failed = ", ".join(f"{bookie} ({why})" for bookie, why in self.lost_bookies.items()) or "none"
        return LedgerWriteFailed(
            f"ledger {self.ledger} cannot be written: too few bookies have acknowledged an entry for "
            f"{self._limits.waiting_ms // 1000} s. Failed bookies: {failed}. Check the bookies' logs"
        )

    def _too_few(self) -> LedgerError:
        lost = ", ".join(
            f"{place.bookie} ({self.lost_bookies[place.bookie]})" for place in self._places if place.is_lost
        )
        return LedgerWriteFailed(
            f"ledger {self.ledger} cannot be written: too few of its bookies are left, and there is no replacement for "
            f"{lost}: are the region's bookies running?"
        )
