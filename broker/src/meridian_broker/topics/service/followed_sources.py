# SPDX-License-Identifier: Apache-2.0
"""Sources that other brokers of the region serve, followed for the shadows that are open here.

A followed source is put together from what its broker writes anyway: the topic's record in the metadata, which is
watched, and its ledgers (``ledgers/followed.py``). The shadows here share it: each entry is read once, and the source's
broker is asked for nothing. If what it finds is not a later state of the same topic, because the source was deleted,
made again or restored, the shadows are fenced: they are opened again, from the record as it is then.

Whoever serves the source does not matter, so it may move. If it comes to this broker, its shadows are opened again and
read it directly.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from meridian_broker.ledgers.followed import FollowedLog
from meridian_broker.ledgers.scheduling import later
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.ledgers.view import LogView
from meridian_broker.metadata.shadow_needs import Asked
from meridian_broker.metadata.store import MetadataError
from meridian_broker.metadata.topic_records import TopicRecord
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.compaction.borrowed import FollowedViews
from meridian_broker.topics.cursors import drops
from meridian_broker.topics.errors import TopicError
from meridian_broker.topics.journal.topic_record import mends_of, spans_of
from meridian_broker.topics.lifecycle import termination
from meridian_broker.topics.retention import trimming
from meridian_broker.topics.shadows import Shadows
from meridian_broker.wire.pulsar import topic_name

if TYPE_CHECKING:
    from meridian_broker.topics.lifecycle.parts import BrokerParts
    from meridian_broker.topics.service.registry import TopicRegistry
    from meridian_broker.topics.topic import Topic
    from meridian_broker.wire.pulsar.topic_name import TopicName

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_SECONDS: Final = 1.0
GRACE_SECONDS: Final = 30.0
"""How long a source is followed that no shadow reads: one may be about to be opened, or opened again."""


class FollowedSource:
    """See the module's text. One per source, for as long as a shadow reads it."""

    def __init__(self, parts: BrokerParts, name: TopicName, over: Callable[[], None]) -> None:
        """:param over: called once nothing of it is left here."""
        self._parts = parts
        self._over = over
        self._topic = name
        self.name = str(name)
        self.log = self._new_log()
        self.compaction = FollowedViews(parts.store)
        self.shadows: Shadows[Topic] = Shadows(self.name, dict)
        self.failure: str | None = None
        """None: a followed source does not fail; what cannot be read is tried again."""
        self.terminated: Position | None = None
        self.ends: Mapping[str, Position] = {}
        self._incarnation = ""
        self._record: TopicRecord | None = None
        self._asked = Asked()
        self._answered: dict[str, int] = {}
        """The last question that was answered for each shadow."""
        self._turn = parts.new_lock()
        self._until_ms = 0
        self._is_due = self._is_at_work = False
        self._watched: set[str] = set()
        """What is being watched: a watch ends with the first change that nobody needs."""

    def _new_log(self) -> FollowedLog:
        parts = self._parts
        made = FollowedLog(parts.region, parts.store, parts.scheduler, parts.log_limits, parts.cache)
        made.on_grown = self._wake
        return made

    def is_used(self) -> bool:
        """Whether a shadow reads it, or may be about to."""
        return bool(self.shadows.open) or self._parts.scheduler.monotonic_ms() < self._until_ms

    # -- for shadows ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Bring it up to date for a shadow that is being opened: up to the last entry that is confirmed now.

        :raises MetadataError, LedgerError: that is not possible now.
        """
        self._until_ms = self._parts.scheduler.monotonic_ms() + int(GRACE_SECONDS * 1000)
        self._parts.scheduler.later(GRACE_SECONDS + 1, self._wake)
        async with self._turn:
            self._record = (found := await self._parts.catalog.topics.find(self._topic)) and found[0]
            self._asked = await self._parts.catalog.shadow_needs.asked(self._topic)
            await self._catch_up()
        needs, topics = self._parts.catalog.shadow_needs, self._parts.catalog.topics
        self._watch(f"the record of {self.name}", partial(topics.follow, self._topic), self._learn)
        self._watch(f"what {self.name} asks", partial(needs.follow, self._topic), self._hear)

    def _whole_ledgers(self, needed: Position) -> Position:
        """The place before the first ledger that is needed: only whole ledgers are deleted."""
        first = EARLIEST
        for ledger, entries, _ in self.log.counts():
            first = Position(ledger, -1)
            if Position(ledger, entries - 1) > needed:
                break
        return first

    # -- following it --------------------------------------------------------------------------------------------

    def _watch(self, what: str, watch: Callable[[], AsyncIterator[T]], learn: Callable[[T], None]) -> None:
        if what not in self._watched:
            self._watched.add(what)
            self._parts.scheduler.spawn(self._watching(what, watch, learn), f"follow {what}")

    async def _watching(self, what: str, watch: Callable[[], AsyncIterator[T]], learn: Callable[[T], None]) -> None:
        """Follow it until no shadow reads it and something changes."""
        try:
            while self.is_used():
                try:
                    async for found in watch():
                        if not self.is_used():
                            return
                        learn(found)
                except MetadataError as error:
                    log.warning("cannot follow %s, will retry: %s", self.name, error)
                    await later(self._parts.scheduler, RETRY_SECONDS)
        finally:
            self._watched.discard(what)
            self._check_over()

    def _check_over(self) -> None:
        if not self._watched and not self.is_used():
            self._over()

    def _learn(self, record: TopicRecord | None) -> None:
        self._record = record
        self._wake()

    def _hear(self, asked: Asked) -> None:
        self._asked = asked
        self._wake()

    def _wake(self) -> None:
        self._is_due = True
        if not self._is_at_work:
            self._is_at_work = True
            self._parts.scheduler.spawn(self._work(), f"read on in {self.name}")

    async def _work(self) -> None:
        try:
            while self._is_due:
                self._is_due = False
                try:
                    async with self._turn:
                        if not self.is_used():
                            await self._rest()
                            return
                        await self._catch_up()
                except (LedgerError, MetadataError, TopicError) as error:
                    log.warning("cannot read on in %s, will retry: %s", self.name, error)
                    await later(self._parts.scheduler, RETRY_SECONDS)
                    self._is_due = True
        finally:
            self._is_at_work = False

    async def _rest(self) -> None:
        """No shadow reads it any more."""
        await self.log.close()
        self.log = self._new_log()
        await self.compaction.take(None)
        self._check_over()

    async def _catch_up(self) -> None:
        """Read on from what is known of its record. :raises LedgerError, MetadataError, TopicError: not now."""
        record = self._record if self._record is not None and self._record.deleting is None else None
        spans = [] if record is None else spans_of(record)
        is_same = record is not None and record.incarnation == self._incarnation and self.log.fits(spans)
        if self.log.exists and (not is_same or (self.terminated is not None and record and record.terminated is None)):
            await self._begin_again("no longer exists" if record is None else "was made again")
        if record is None:
            return
        source = self.log
        if not source.exists:
            self._incarnation, source.exists = record.incarnation, True
            self.shadows.fence("it is back")
        source.holes.ranges = {region: list(ranges) for region, ranges in record.holes.items()}
        source.joined.update(record.joined)
        for _ in source.damage.restore(mends_of(record)):
            pass
        source.take(spans, record.last_own, record.last_origins)
        source.reset_behind = self._reset_behind()
        await self._skip_gone()
        await source.advance()
        await self.compaction.take(record.compacted)
        end = record.terminated
        if end is not None and self.terminated is None and source.last_confirmed >= end:
            self.terminated, self.ends = end, record.terminated_origins
            for shadow in list(self.shadows.open.values()):
                termination.ended(shadow, end, self.ends)
        for shadow in list(self.shadows.open.values()):
            await self._answer(shadow)

    def _reset_behind(self) -> int:
        """The shadows share it, so it is read ahead as far as any of them wants; 0: all of it."""
        shadows, usual = self._parts.catalog.shadows, self._parts.topic_limits.shadow_reset_backlog
        records = [shadows.find(topic_name.parse(name)) for name in self.shadows.open]
        limits = [usual if record is None else record.reset_behind or usual for record in records]
        return 0 if 0 in limits else max(limits, default=usual)

    async def _begin_again(self, why: str) -> None:
        """It is no longer the topic that was followed."""
        log.info("%s %s: reopening its shadows", self.name, why)
        old, self.log = self.log, self._new_log()
        self.terminated, self.ends, self._incarnation = None, {}, ""
        await old.close()
        await self.compaction.take(None)
        self.shadows.fence(f"it {why}")

    async def _skip_gone(self) -> None:
        """Ledgers were deleted that a shadow may still be owed: it moved back since it was asked, or was restored."""
        if (gone := self.log.gone) is None:
            return
        for shadow in list(self.shadows.open.values()):
            try:
                await trimming.skip(shadow, gone)
            except LedgerError as error:  # what is not stored any more cannot be recorded one by one
                log.warning(
                    "%s skips what %s deleted, without a record of each entry: %s", shadow.name, self.name, error
                )
        self.log.forget_gone()

    async def _answer(self, shadow: Topic) -> None:
        """Skip what the source's broker asks to, and report what is still needed."""
        asked, name = self._asked, topic_name.parse(shadow.name)
        record = self._parts.catalog.shadows.find(name)
        if record is None or asked.number == self._answered.get(shadow.name, 0):
            return
        upto = asked.truncated if record.holds else max(asked.truncated, asked.upto)
        if upto > EARLIEST:
            await trimming.skip(shadow, upto)
        needed = shadow.needed_from()
        await drops.durable(shadow)  # what is reported as not needed may be deleted
        if self._parts.ownership.holds(name):  # otherwise another broker answers for it
            needs = self._parts.catalog.shadow_needs
            await needs.tell(self._topic, name, self._whole_ledgers(min(needed, shadow.needed_from())), asked.number)
        self._answered[shadow.name] = asked.number


class FollowedSources:
    """See the module's text. One per broker that is one of several."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._sources: dict[str, FollowedSource] = {}

    async def open(self, name: TopicName, shadow: TopicName) -> FollowedSource:
        """The source, up to date. Its broker deletes nothing from now on without asking this shadow.

        :raises MetadataError, LedgerError: it cannot be followed now.
        """
        await self._parts.catalog.shadow_needs.note(name, shadow)
        key = str(name)
        if key not in self._sources:
            self._sources[key] = FollowedSource(self._parts, name, partial(self._forget, key))
        found = self._sources[key]
        await found.open()
        return found

    def _forget(self, key: str) -> None:
        self._sources.pop(key, None)


def open_of(topics: Mapping[str, Topic], name: TopicName) -> list[Topic]:
    """This topic or its partitions, as far as they are open."""
    plain, partition = str(name), f"{name}-partition-"
    return [topics[key] for key in topics if key == plain or key.startswith(partition)]


def check_waiting(registry: TopicRegistry) -> None:
    """Open shadows again that wait for a source which another broker may serve by now. Called periodically."""
    ownership = registry.parts.ownership
    for shadow in () if ownership.is_sole else list(registry.topics.values()):
        if (source := shadow.shadow_of) is None or not isinstance(shadow.log, LogView):
            continue
        if shadow.log.is_alone and not ownership.holds(topic_name.parse(source)):
            shadow.fence(f"its source {source} goes to another broker")
