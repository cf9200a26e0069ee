# SPDX-License-Identifier: Apache-2.0
"""Applies what other regions wrote to this region's store.

The events of a message become one transaction, if a store takes so many operations, and so do messages that arrive
together, as long as no path occurs twice: a burst costs few transactions. They are durable when ``apply`` returns. It
may be called again with the same message, and by two brokers at once: each decision is checked by the transaction that
carries it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from meridian_broker.metadata import keys
from meridian_broker.metadata.errors import Contended
from meridian_broker.metadata.limits import BadRequest
from meridian_broker.metadata.records import decode, encode
from meridian_broker.metadata.store import Check, Delete, MetadataStore, Put, Record
from meridian_broker.metadata.sync import conflicts as conflict_records
from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.converging import (
    MAX_AHEAD_MS,
    Verdict,
    before,
    decide,
    expelled,
    horizon_of,
    is_forgettable,
    overwrites_unseen,
    written,
)
from meridian_broker.metadata.sync.events import MAX_COUNTER, Changes, Event, Mark, Message
from meridian_broker.metadata.sync.grouping import in_bursts, in_transactions
from meridian_broker.metadata.sync.kept import Waiting
from meridian_broker.metadata.sync.marks import read_mark, write_mark
from meridian_broker.metadata.sync.merging import is_merged, is_same_topic, loses_nothing, united
from meridian_broker.metadata.sync.parked import from_parked, parked_to_store
from meridian_broker.metadata.sync.publishing import PAUSE_MS
from meridian_broker.metadata.sync.reading import Seen, read, with_tombstones
from meridian_broker.metadata.sync.recording import owing, stamp_after
from meridian_broker.metadata.sync.shapes import refusal_of
from meridian_broker.metadata.sync.stamped import BEGINNING, Moment, Stamped, from_store, moment
from meridian_broker.metadata.sync.unheard import list_unheard
from meridian_broker.positions.clock import HybridClock

ATTEMPTS: Final = 64
"""How often a decision is made again because a path changed meanwhile."""

STONES_TOGETHER: Final = 64
"""Tombstones removed in one transaction."""


class Poison(Exception):
    """A message that this region cannot apply, now or later. It belongs in the dead-letter topic, with this reason."""

    def __init__(self, reason: str, *, behind: int = 0) -> None:
        """:param behind: how many messages that came with it, and before it, are applied; those after it are not."""
        super().__init__(reason)
        self.behind = behind


REFUSALS_SHOWN: Final = 3
"""Events of one message whose reasons the dead letter spells out."""


@dataclass(frozen=True, slots=True)
class Latest:
    """When a message of another region was written, by that region's clock, and applied here."""

    written_ms: int
    applied_ms: int


@dataclass(slots=True)
class Applied:
    """What became of the events since the start."""

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    conflicts: int = 0


class Applier:
    """See the module's text."""

    def __init__(
        self,
        store: MetadataStore,
        clock: HybridClock,
        now_ms: Callable[[], int],
        is_synced: Callable[[str], bool],
        regions: Callable[[], frozenset[str]],
        waiting: Waiting,
        retention_ms: Callable[[], int] = lambda: 0,
        max_ahead_ms: Callable[[], int] = lambda: MAX_AHEAD_MS,
        last_seen: Callable[[str], tuple[Record | None] | None] = lambda _: None,
    ) -> None:
        """
        :param store: the region's own, not a recording one: what is applied here need not be sent again.
        :param regions: all regions that take part, this one included.
        :param retention_ms: how long tombstones wait for a region that is away; 0: until it is back.
        :param max_ahead_ms: how far ahead of this region's clock a stamp may be.
        :param last_seen: what is probably stored at a path; None: unknown. It saves reading.
        """
        self._store = store
        self._clock = clock
        self._now_ms = now_ms
        self._is_synced = is_synced
        self._regions = regions
        self._waiting = waiting
        self._retention_ms = retention_ms
        self._max_ahead_ms = max_ahead_ms
        self._last_seen = last_seen
        self._horizon: dict[str, Record | None] = {}
        """The horizon, as it was last read; empty: it may have changed."""
        self.counts = Applied()
        self.latest: dict[str, Latest] = {}
        """By region, the last message with events of it."""

    @property
    def region(self) -> str:
        """This region."""
        return self._clock.region

    async def apply_all(self, messages: Sequence[Message]) -> None:
        """Apply these, in their order.

        :raises Poison: as ``apply``, and which one it is.
        :raises MetadataError: the store does not answer. Apply all of them again.
        """
        applied = 0
        for burst in in_bursts(messages):
            if await self._apply_burst(burst):
                applied += len(burst)
                continue
            for message in burst:
                try:
                    await self.apply(message)
                except Poison as poison:
                    poison.behind = applied
                    raise
                applied += 1

    async def _apply_burst(self, burst: Sequence[Message]) -> bool:
        """Apply these in one transaction. False: nothing was done, each has to be looked at by itself."""
        regions = self._regions()
        some = [message for message in burst if isinstance(message, Changes) and message.region in regions]
        events = [event for message in some for event in message.events if self._is_wanted(event)]
        if len(burst) == 1 or len(some) < len(burst) or any(map(refusal_of, events)):
            return False
        try:
            await self.take(events)
        except BadRequest:
            return False
        for message in some:
            self._note_latest(message)
        return True

    def _is_wanted(self, event: Event) -> bool:
        """Whether it is in a scope that this region shares, or in none."""
        return paths.scope_of(event.path) is None or self._is_synced(event.path)

    def _note_latest(self, message: Changes) -> None:
        written_ms = max(event.state.stamp.time_ms for event in message.events)
        self.latest[message.region] = Latest(written_ms, self._now_ms())

    async def apply(self, message: Message) -> None:
        """
        :raises Poison: it is from a region that does not take part, or some of its events cannot be applied: of paths
            that never travel, or of values that cannot be served. The others were applied, except those in scopes that
            this region does not share.
        :raises MetadataError: the store does not answer. Apply it again.
        """
        regions = self._regions()
        if message.region not in regions:
            raise Poison(
                f"{message.region} is not a region of the event topic: add it there, or stop it from publishing"
            )
        if isinstance(message, Mark):
            await self._hear(message)
            return
        events = [event for event in message.events if self._is_wanted(event)]
        refused = {event.path: why for event in events if (why := refusal_of(event)) is not None}
        try:
            for some in in_transactions([event for event in events if event.path not in refused]):
                await self.take(some)
        except BadRequest as error:
            raise Poison(f"events of {message.region} do not fit into a metadata store: {error}") from error
        self._note_latest(message)
        if refused:
            raise Poison("; ".join([*refused.values()][:REFUSALS_SHOWN]))

    async def take(self, events: Sequence[Event], *, are_new: bool = False, alive_upto: Moment = BEGINNING) -> None:
        """Decide about these events and store the result, in one transaction.

        :param are_new: probably nothing is known of these paths: the write checks that, and they are read only if it
            fails.
        :param alive_upto: they are values of a region that has heard of every deletion up to here.
        :raises Contended: other writers kept changing the paths.
        """
        if not events:
            return
        wanted = [*with_tombstones(event.path for event in events), *(paths.parked(e.path) for e in events)]
        if merged := [paths.outbox(event.path) for event in events if is_merged(event.path)]:
            wanted += [*merged, paths.MARK]
        for attempt in range(ATTEMPTS):
            guessed = self._guess(events, wanted, are_new=are_new) if attempt == 0 else {}
            unknown = [path for path in (*wanted, paths.HORIZON) if path not in guessed]
            seen = Seen({**(await read(self._store, unknown)).records, **guessed} if unknown else guessed)
            self._horizon = {paths.HORIZON: seen.records[paths.HORIZON]}
            verdicts, operations, conflicts = self._decide(events, seen, alive_upto)
            if not operations and guessed:
                continue  # what is only guessed is not believed before a transaction has checked it
            if not operations or await self._store.transact(list(seen.checks().values()), operations):
                self.counts.verdicts.update(verdicts)
                self.counts.conflicts += conflicts
                self._note_parked(operations)
                for event, verdict in zip(events, verdicts, strict=True):
                    if verdict is Verdict.APPLIED:
                        self._clock.observe(event.state.stamp, self._max_ahead_ms())
                self.counts.conflicts += await list_unheard(self._store, self._waiting, events, verdicts, seen)
                return
        raise Contended(f"applying {events[0].path}: others changed it {ATTEMPTS} times in the meantime")

    def _guess(self, events: Sequence[Event], wanted: Sequence[str], *, are_new: bool) -> dict[str, Record | None]:
        """What is probably at the places that matter: the first attempt does not read them, as its transaction checks
        them."""
        guessed = dict(self._horizon)
        if are_new:
            return guessed | {path: None for path in wanted if path != paths.MARK}
        for path in (event.path for event in events):
            if not self._waiting.is_noted(path):
                guessed |= {paths.tombstone(path): None, paths.parked(path): None}
            if (last := self._last_seen(path)) is not None:
                guessed[path] = last[0]
        return guessed

    async def release(self) -> None:
        """Decide again about parked states whose time has come. Call it periodically."""
        for path in await self._waiting.parked((self._latest_ms(), MAX_COUNTER)):
            where = paths.parked(path)
            record = await self._store.get(where)
            if record is not None:
                await self.take([Event(path, from_parked(where, record.value))])

    async def heard(self) -> dict[str, Moment]:
        """By region, the mark up to which everything was applied here."""
        first = await self._waiting.first_parked()
        parked = [] if first is None else [before(first)]
        return {region: min([upto, *parked]) for region, (upto, _) in (await self._marks()).items()}

    async def heard_of_all(self) -> Moment:
        """Up to where every region was heard, also one that nobody waits for; ``BEGINNING``: one never was.

        Up to there, what this region still has was not deleted by anybody."""
        return await self._heard_of(self._regions())

    async def heard_of_awaited(self) -> Moment:
        """As ``heard_of_all``, but for the regions that have not been expelled."""
        return await self._heard_of(self._regions() - await self.expelled())

    async def heard_by_all(self) -> Moment:
        """Up to where this region knows that every other one has heard it; ``BEGINNING``: some never did.

        Whoever made a deletion that has not arrived here knew what this region wrote up to there: a region's earlier
        deletions arrive before the mark that reports what it has heard."""
        others, marks = self._regions() - {self.region}, await self._marks()
        heard = [marks[region][1] if region in marks else {} for region in others]
        return min((one.get(self.region, BEGINNING) for one in heard), default=BEGINNING)

    async def _heard_of(self, regions: Collection[str]) -> Moment:
        heard = await self.heard()
        return min((heard.get(region, BEGINNING) for region in regions), default=BEGINNING)

    async def expelled(self) -> frozenset[str]:
        """The regions for which nothing waits here, because they were away for longer than tombstones are kept."""
        retention_ms, now_ms = self._retention_ms(), self._now_ms()
        seen = await read(self._store, [paths.MARK, paths.PRESENT])
        if not retention_ms or now_ms - seen.moment(paths.MARK)[0] > PAUSE_MS:
            return frozenset()
        present = seen.records[paths.PRESENT]
        since_ms = now_ms - retention_ms
        if present is None or int(decode(paths.PRESENT, present.value)[0]) > since_ms:
            return frozenset()  # this region was away itself
        marks = await self._marks()
        heard = {region: heard for region, (_, heard) in marks.items()}
        heard[self._clock.region] = {region: upto for region, (upto, _) in marks.items()}
        return expelled(self._regions(), heard, since_ms)

    async def forget(self) -> int:
        """Remove tombstones that no region needs any more. Returns how many.

        :raises MetadataError: the store does not answer. What was not removed stays.
        """
        marks = await self._marks()
        heard = {region: heard for region, (_, heard) in marks.items()}
        heard[self._clock.region] = await self.heard()
        horizon = horizon_of(self._regions() - await self.expelled(), heard)
        seen = await read(self._store, [paths.HORIZON])
        if horizon <= (now := seen.moment(paths.HORIZON)):
            horizon = now
        elif not await self._store.transact([*seen.checks().values()], [Put(paths.HORIZON, encode(list(horizon)))]):
            return 0
        else:
            self._horizon = {}
        due = await self._waiting.tombstones(horizon)
        return sum([await self._forget(due[first : first + STONES_TOGETHER], horizon) for first in _firsts(due)])

    async def _forget(self, some: Sequence[str], horizon: Moment) -> int:
        found = await read(self._store, map(paths.tombstone, some))
        stones = [
            Check(path, record.version)
            for path, record in found.records.items()
            if record is not None and is_forgettable(from_store(path, record.value, is_deletion=True), horizon)
        ]
        is_done = bool(stones) and await self._store.transact(stones, [Delete(one.path) for one in stones])
        return len(stones) if is_done else 0

    def _latest_ms(self) -> int:
        """Later stamps are in the future."""
        return self._now_ms() + self._max_ahead_ms()

    def _note_parked(self, operations: Sequence[Put | Delete]) -> None:
        """Report it before a watch does, so that no mark counts meanwhile for more than was decided."""
        for one in operations:
            if one.path.startswith(paths.PARKED):
                state = from_parked(one.path, one.value) if isinstance(one, Put) else None
                self._waiting.park(one.path.removeprefix(paths.PARKED), state)

    def _decide(
        self, events: Sequence[Event], seen: Seen, alive_upto: Moment
    ) -> tuple[list[Verdict], list[Put | Delete], int]:
        latest = self._latest_ms()
        horizon = seen.moment(paths.HORIZON)
        if horizon <= alive_upto:  # what was deleted up to the horizon, that region does not have any more
            horizon = BEGINNING
        verdicts: list[Verdict] = []
        operations: list[Put | Delete] = []
        conflicts = 0
        for event in events:
            present = seen.state(event.path)
            verdict = decide(present, event.state, horizon, latest)
            verdicts.append(verdict)
            if verdict is Verdict.APPLIED:
                # What was parked had arrived before later marks, but had replaced nothing: they do not tell what its
                # writer had seen. The state itself does.
                was_parked = seen.records[paths.parked(event.path)] is not None
                found = replace(event, replaced=None) if was_parked else event
                is_unseen = present is not None and overwrites_unseen(present, found)
                operations += self._storing(event, present, seen, is_unseen=is_unseen)
                if present is not None and is_unseen and not loses_nothing(event.path, present, event.state):
                    conflicts += 1
                    record = conflict_records.to_store(present, event.state, seen.caller(event.path))
                    operations.append(Put(paths.conflict(event.path), record))
            operations += _parking(event, verdict, seen)
        return verdicts, operations, conflicts

    def _storing(self, event: Event, present: Stamped | None, seen: Seen, *, is_unseen: bool) -> list[Put | Delete]:
        """:param is_unseen: the event's writer did not know what it replaces."""
        path, value = event.path, None
        if present is not None and (is_unseen or is_same_topic(path, present, event.state)):
            value = united(path, present, event.state)
        if value is None:
            return seen.storing(path, event.state)
        stamp = stamp_after(self._clock, max(seen.moment(paths.MARK), moment(event.state.stamp)))
        state = event.state.with_value(value, stamp).following(present, event.state)
        return [*seen.storing(path, state), owing(path, seen, {path: written(event.state)}, stamp)]

    async def _hear(self, mark: Mark) -> None:
        """A mark further in the future than a stamp may be is from a wrong clock, and promises nothing."""
        if mark.upto[0] > self._latest_ms():
            self.counts.verdicts[Verdict.PARKED] += 1
            return
        where = paths.region(mark.region)
        for _ in range(ATTEMPTS):
            seen = await read(self._store, [where])
            record = seen.records[where]
            known, heard = (None, {}) if record is None else read_mark(where, record.value)
            if known is not None and known >= mark.upto:
                return
            united = {region: max(upto, heard.get(region, upto)) for region, upto in mark.heard.items()}
            operations = [Put(where, write_mark(mark.upto, united))]
            if await self._store.transact([*seen.checks().values()], operations):
                return
        raise Contended(f"recording what {mark.region} has heard: others changed it {ATTEMPTS} times in the meantime")

    async def _marks(self) -> dict[str, tuple[Moment, Mapping[str, Moment]]]:
        found = await self._store.scan(paths.REGIONS + "/")
        return {keys.unescape(path.rpartition("/")[2]): read_mark(path, record.value) for path, record in found}


def _firsts(some: Sequence[str]) -> range:
    return range(0, len(some), STONES_TOGETHER)


def _parking(event: Event, verdict: Verdict, seen: Seen) -> list[Put | Delete]:
    """Keep the parked state that wins, and only while it does."""
    where = paths.parked(event.path)
    record = seen.records[where]
    kept = None if record is None else from_parked(where, record.value)
    if verdict is Verdict.PARKED:
        is_newest = kept is None or event.state.beats(kept)
        return [Put(where, parked_to_store(event.state))] if is_newest else []
    if kept is not None and not kept.beats(event.state):
        return [Delete(where)]
    return []
