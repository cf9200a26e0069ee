# SPDX-License-Identifier: Apache-2.0
"""Damaged entries are fetched from a region that has them; what no region has is a gap (R4, R14).

``ledgers/damage.py`` explains how a copy replaces an entry that the disk damaged. Every other region is asked for it
by its origin, whichever region published it, and the answer is checked like any fetched entry (R7). A region that
cannot be asked now is asked again later. Nothing is passed over meanwhile: the cursor stays before the entry, its
replicators wait, and a cumulative acknowledgement does not claim it. Consumers of Exclusive, Failover and Key_Shared
subscriptions wait, because nothing may overtake it; those of Shared subscriptions get the other entries first.

If every region was asked and none has it, the entry is a *gap* as in ``gaps.py``: status names it, and an operator
accepts the loss. It is then recorded as dropped with cause *lost* and passed over everywhere here; other regions that
lack it treat it like an entry that its origin has trimmed. No operator is needed if no durable subscription here is
owed the entry.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from meridian_broker.ledgers.damage import Mend, mends_of
from meridian_broker.ledgers.entry import (
    FOREIGN,
    MARKER,
    EntryHeader,
    pack_extras,
    pack_foreign,
    pack_own,
    pack_replaces,
    unpack,
)
from meridian_broker.ledgers.scheduling import next_turn
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.backfill.answers import checked
from meridian_broker.topics.backfill.backfill import Backfill
from meridian_broker.topics.backfill.gaps import Gap, Gaps
from meridian_broker.topics.backfill.questions import PeerAway, Want
from meridian_broker.topics.errors import TopicError
from meridian_broker.wire.pulsar import origin_fields

if TYPE_CHECKING:
    from meridian_broker.ledgers.index import Place
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.subscriptions.subscription import Subscription

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses before the disk and the other regions are asked again; the last one repeats."""
PATIENCE_MS: Final = 10_000
"""An entry that no subscription is owed is given up after this time: until then another region may still receive it."""
READS_AT_ONCE: Final = 100
"""Damaged entries that are read again before others run."""
AT_ONCE: Final = 1000
"""Damaged entries that are processed in one turn of the loop."""
ON_RECORD_MAX: Final = 1000
"""Ranges of damaged entries in a topic's record. A disk with more of them should be replaced."""


class _Run(NamedTuple):
    """Damaged entries of one origin, each following the one before it in the chain; ``AT_ONCE`` at most."""

    origin: str
    places: dict[Position, Place]
    """By their positions here."""

    @property
    def after(self) -> Position:
        return next(iter(self.places.values())).prev

    @property
    def upto(self) -> Position:
        return next(reversed(self.places.values())).origin


class Repair:
    """Repairs the damaged entries of one topic. Each topic has one."""

    def __init__(
        self, topic: TopicContext, subscriptions: Mapping[str, Subscription], lacking: Gaps, backfill: Backfill | None
    ) -> None:
        """:param subscriptions: those of the topic, by name; a live view.
        :param lacking: the gaps, through which entries that no region has are passed over.
        :param backfill: asks the other regions; None: there are none to ask.
        """
        self._topic = topic
        self._subscriptions = subscriptions
        self._lacking = lacking
        self._backfill = backfill
        self._away: dict[Position, tuple[str, ...]] = {}
        """Entries that no region returned when asked, with the regions that could not be asked."""
        self._since_ms: dict[Position, int] = {}
        self._is_running = False
        self._tries = 0
        self._unrecorded: dict[Position, Position] = {}
        """Copies that are stored but could not be recorded yet."""
        self._gaps: list[Gap] = []
        """The damaged ranges as of the last check."""
        self._hopeless: dict[Position, Gap] = {}
        """What no region has and some subscription here is owed, by the first entry of each range."""
        self.replaced = 0
        """Entries replaced since the topic was opened."""

    def noticed(self) -> None:
        """There may be damaged entries: ask for them."""
        self._tries = 0
        self._start()

    def gaps(self) -> list[Gap]:
        """The damaged ranges that are not repaired. If there are many entries, as of the last check."""
        damaged = self._topic.log.damage.damaged
        if len(damaged) <= AT_ONCE:
            return _joined(self._gap(run) for run in _grouped(damaged.items()))
        return self._gaps

    def for_a_person(self) -> list[Gap]:
        """What no region has, and what blocks until an operator accepts its loss."""
        return _joined(gap for first, gap in self._hopeless.items() if first in self._topic.log.damage.damaged)

    def _gap(self, run: _Run) -> Gap:
        away = {region for position in run.places for region in self._away.get(position, ())}
        return Gap(
            *(run.origin, run.after, run.upto),
            min(self._since_ms.get(position, self._topic.scheduler.now_ms()) for position in run.places),
            is_judged=self._away.keys() >= run.places.keys(),
            lost_upto=run.upto,
            away=tuple(sorted(away)),
            is_damage=True,
        )

    async def _runs(self) -> list[_Run]:
        """The damaged entries; if there are more ranges than fit the record, the first ones. Others run in between."""
        runs: list[_Run] = []
        damaged = self._topic.log.damage.damaged
        known = iter(list(damaged))
        while len(runs) < ON_RECORD_MAX and (some := list(islice(known, AT_ONCE))):
            runs += _grouped((at, damaged[at]) for at in some if at in damaged)
            await next_turn(self._topic.scheduler)
        del runs[ON_RECORD_MAX:]
        return runs

    async def _look(self, runs: list[_Run]) -> None:
        """Update what ``gaps`` shows of many entries."""
        found: list[Gap] = []
        damaged = self._topic.log.damage.damaged
        for run in runs:
            if any(position in damaged for position in run.places):
                found.append(self._gap(run))
            if len(run.places) >= AT_ONCE // 2 or len(found) % AT_ONCE == 0:
                await next_turn(self._topic.scheduler)
        self._gaps = _joined(found)

    # -- asking

    def _start(self) -> None:
        if not self._is_running and self._topic.failure is None and self._topic.log.damage.damaged:
            self._is_running = True
            self._topic.scheduler.spawn(self._run(), f"fetch damaged entries of {self._topic.name} back")

    async def _run(self) -> None:
        topic = self._topic
        try:
            try:
                await self._repair()
            except (LedgerError, TopicError, MetadataError) as error:
                log.warning("%s: damaged entries cannot be replaced now, will retry: %s", topic.name, error)
            await self._forget_whole()
        finally:
            self._is_running = False
            if topic.log.damage.damaged:
                pause = RETRY_SECONDS[min(self._tries, len(RETRY_SECONDS) - 1)]
                self._tries += 1
                topic.scheduler.later(pause, self._start)

    async def _repair(self) -> None:
        topic = self._topic
        for count, position in enumerate(list(topic.log.damage.damaged)[:ON_RECORD_MAX], 1):
            if count % READS_AT_ONCE == 0:
                await next_turn(topic.scheduler)
            self._since_ms.setdefault(position, topic.scheduler.now_ms())
            if (entry := await topic.log.whole_again(position)) is not None:
                self._tell({position: entry})
        await self._record()
        await next_turn(topic.scheduler)
        runs = await self._runs()
        await self._look(runs)
        for run in runs:
            await self._fetch(run)
            await next_turn(topic.scheduler)
        await self._pass_over(runs)
        await self._look(runs)

    async def _forget_whole(self) -> None:
        """Forget what is known of entries that are not damaged any more."""
        damaged = self._topic.log.damage.damaged
        for known in (self._away, self._since_ms):
            positions = iter(list(known))
            while some := list(islice(positions, 10 * AT_ONCE)):
                for position in some:
                    if position not in damaged:
                        known.pop(position, None)  # it may have been removed between two turns
                await next_turn(self._topic.scheduler)

    async def _fetch(self, run: _Run) -> None:
        """Ask every region until the whole run is repaired."""
        backfill, lacking, away = self._backfill, dict(run.places), set[str]()
        members = set[str]() if backfill is None else backfill.others()
        for region in sorted(set() if backfill is None else backfill.sources()):
            assert backfill is not None
            try:
                await self._fetch_from(backfill, region, run.origin, lacking)
            except PeerAway:
                if region in members:
                    away.add(region)
            if not lacking:
                break
        missing = tuple(sorted(away))
        self._away.update((position, missing) for position in lacking)

    async def _fetch_from(self, backfill: Backfill, region: str, origin: str, lacking: dict[Position, Place]) -> None:
        """Fetch what one region has. :raises PeerAway: it cannot be asked."""
        topic = self._topic
        while lacking:
            first, last = next(iter(lacking.values())), next(reversed(lacking.values()))
            before = Position(last.origin.ledger, last.origin.entry + 1)
            want = Want(topic.name, topic.incarnation, origin, first.prev, before)
            found, copies, after = await backfill.ask(region, want), dict[Position, bytes](), first.prev
            wanted = {place.origin: position for position, place in lacking.items()}
            for entry in found.entries:
                try:
                    header, body = checked(entry, want, after)
                except TopicError as error:
                    log.warning(
                        "%s: ignoring what %s returned, because these are not the damaged entries: %s",
                        topic.name,
                        region,
                        error,
                    )
                    break
                assert header.origin is not None
                after = header.origin
                position = wanted.get(header.origin)
                if position is not None:
                    if header.region != topic.region:
                        body = await backfill.schema_numbers.renumbered(region, header, body)
                    copies[position] = _as_stored(topic.region, position, header, body)
            if not copies:
                return
            await self._store(copies)
            for position in copies:
                del lacking[position]

    # -- storing

    async def _store(self, copies: dict[Position, bytes]) -> None:
        """Replace damaged entries by copies: on disk, then in the record, then in memory."""
        topic, now_ms = self._topic, self._topic.scheduler.now_ms()
        self._mends(mends_of(dict.fromkeys(copies)))

        def done(tokens: list[Position], first: Position | LedgerError) -> None:
            if isinstance(first, Position):
                for step, position in enumerate(tokens):
                    self._unrecorded[position] = Position(first.ledger, first.entry + step)

        markers = [(MARKER, 1, 0, 0, now_ms, pack_replaces(position), copy) for position, copy in copies.items()]
        topic.log.append_own(markers, done, list(copies))
        await topic.scheduler.answer(topic.log.when_durable)
        await self._record()

    async def _record(self) -> None:
        """Read the stored copies from now on. :raises MetadataError: they were not recorded; retry."""
        topic, stored = self._topic, {**self._unrecorded}
        if not stored:
            return
        await self._in_force(mends_of(stored))
        self._unrecorded.clear()
        entries = {position: await topic.log.read_one(position) for position in stored if topic.log.holds(position)}
        for ledger in {position.ledger for position, entry in entries.items() if self._is_other(position, entry)}:
            await topic.log.reload_index(ledger)
        self.replaced += len(entries)
        log.warning("%s: replaced %d damaged entries from another region", topic.name, len(entries))
        self._tell(entries)

    def _tell(self, entries: Mapping[Position, bytes]) -> None:
        for subscription in list(self._subscriptions.values()):
            subscription.mended(entries)

    def _is_other(self, position: Position, copy: bytes) -> bool:
        """Whether the index, which was built from the entry's remains, contradicts the copy."""
        index, header = self._topic.log.index(position.ledger), unpack(copy)
        place = None if index is None else index.place(position.entry)
        if index is None or place is None:
            return index is not None
        return (index.messages(position.entry), place.prev) != (header.messages, header.prev)

    async def _in_force(self, more: Sequence[Mend]) -> None:
        """Record the repairs, then apply them."""
        mends, topic = self._mends(more), self._topic
        topic.log.damage.plan(mends)
        if topic.metadata is not None:
            await topic.metadata.save_mends(mends)
        for _ in topic.log.damage.replace(more):
            await next_turn(topic.scheduler)

    def _mends(self, more: Sequence[Mend]) -> tuple[Mend, ...]:
        """What is to be recorded. :raises LedgerError: it is too much."""
        mends = self._topic.log.damage.mends(self._topic.log.first, more)
        if len(mends) > ON_RECORD_MAX:
            raise LedgerError(
                f"more than {ON_RECORD_MAX} ranges of this log are damaged: replace the disk and rebuild the region"
            )
        return mends

    # -- giving up

    async def give_up(self, gap: Gap) -> None:
        """Pass over a range from now on. :raises MetadataError: that was not recorded."""
        topic, lost = self._topic, list[Mend]()
        damaged = topic.log.damage.damaged
        known = iter(list(damaged))
        while some := list(islice(known, AT_ONCE)):
            places = [(at, place) for at in some if (place := damaged.get(at)) is not None]
            meant = (at for at, place in places if place.region == gap.origin and gap.after < place.origin <= gap.upto)
            lost += mends_of(dict.fromkeys(meant))
            await next_turn(topic.scheduler)
        await self._in_force(lost)
        self._gaps = [one for one in self._gaps if not (one.origin == gap.origin and gap.after <= one.after < gap.upto)]
        self._tell({})

    async def _pass_over(self, runs: list[_Run]) -> None:
        """Give up what no region has and no subscription here is owed."""
        topic, hopeless = self._topic, dict[Position, Gap]()
        patient_ms = topic.scheduler.now_ms() - PATIENCE_MS
        for listed in runs:
            damaged = topic.log.damage.damaged
            run = _Run(listed.origin, {at: place for at, place in listed.places.items() if at in damaged})
            if not run.places:
                continue
            if len(run.places) >= AT_ONCE // 2:
                await next_turn(topic.scheduler)
            gap = self._gap(run)
            if gap.since_ms <= patient_ms and gap.is_judged and not gap.away:
                if self._lacking.is_compacted or self._is_owed(run.places.items()):
                    hopeless[next(iter(run.places))] = gap
                else:
                    await self._lacking.pass_over_damaged(gap)
        self._hopeless = hopeless

    def _is_owed(self, places: Iterable[tuple[Position, Place]]) -> bool:
        durable = [one for one in self._subscriptions.values() if one.durable]
        return any(one.cursor.is_owed(place.region, place.origin, at) for at, place in places for one in durable)


def _grouped(damaged: Iterable[tuple[Position, Place]]) -> list[_Run]:
    """Damaged entries as ranges, by origin."""
    runs: list[_Run] = []
    for position, place in sorted(damaged, key=lambda one: (one[1].region, one[1].origin)):
        if runs and (runs[-1].origin, runs[-1].upto) == (place.region, place.prev):
            runs[-1].places[position] = place
        else:
            runs.append(_Run(place.region, {position: place}))
    return runs


def _joined(gaps: Iterable[Gap]) -> list[Gap]:
    """Join neighbouring ranges with the same state."""
    found: list[Gap] = []
    for gap in sorted(gaps, key=lambda one: (one.origin, one.after)):
        last = found[-1] if found else None
        if last is not None and (last.origin, last.upto, last.is_judged, last.away) == (
            *(gap.origin, gap.after, gap.is_judged, gap.away),
        ):
            since_ms = min(last.since_ms, gap.since_ms)
            found[-1] = replace(last, upto=gap.upto, lost_upto=gap.lost_upto, since_ms=since_ms)
        else:
            found.append(gap)
    return found


def _as_stored(region: str, position: Position, header: EntryHeader, body: bytes) -> bytes:
    """The original entry at a position, rebuilt from what another region returned."""
    if header.region != region:
        return pack_foreign(header) + body
    assert header.origin is not None
    body = origin_fields.strip_appended(body, origin_fields.appended_bytes(body, region, *header.origin))
    if header.origin != position:  # it had been lost before, and fetched back (R5)
        return pack_foreign(header) + body
    return pack_own(
        *(header.flags & ~FOREIGN, header.messages, header.key_hash, header.origin_checksum),
        *(header.publish_time_ms, header.stored_time_ms),
        *(header.prev if header.prev > EARLIEST else EARLIEST),
        pack_extras(header.replicate_to, header.deliver_at_ms),
        body,
    )
