# SPDX-License-Identifier: Apache-2.0
"""Offloads ledgers of the open topics to the object store, by policy and on request.

One ledger is copied at a time. While the object store is away or refuses, nothing else of the broker notices: ledgers
stay where they are, and the next round tries again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from meridian_broker.ledgers.objects import ObjectStoreError
from meridian_broker.ledgers.offloaded.records import State
from meridian_broker.ledgers.periodic import SomeFailed
from meridian_broker.ledgers.scheduling import in_slices
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions.position import Position
from meridian_broker.topics.compaction.compaction import Status
from meridian_broker.topics.errors import OffloadRunning, TopicError
from meridian_broker.topics.retention.offloading import before, due, first_not_copied

if TYPE_CHECKING:
    from meridian_broker.ledgers.chapters import Span
    from meridian_broker.ledgers.offloaded.offloading import Offloading
    from meridian_broker.topics.service.registry import TopicRegistry
    from meridian_broker.topics.topic import Topic

log = logging.getLogger(__name__)

PAUSE_MS: Final = 60_000
"""Pause after a ledger could not be copied, doubled with each further failure up to ``PAUSE_MS_MAX``."""
PAUSE_MS_MAX: Final = 3600_000


@dataclass(slots=True)
class OffloadStatus:
    """The offloading of one topic since this broker started."""

    status: Status = Status.NOT_RUN
    """Of the last run that was requested."""
    last_error: str = ""
    first_not_copied: Position | None = None
    """After the last run that was requested."""
    last_ledger: int = -1
    """The one that was copied last, and when; -1 and 0: none."""
    succeeded_ms: int = 0
    failed_ms: int = 0


@dataclass(slots=True)
class _Pause:
    """The pause after a ledger could not be copied."""

    failures: int = 0
    until_ms: int = field(default=0)


class OffloadRounds:
    """See the module's text. One per broker that has an object store."""

    def __init__(
        self,
        registry: TopicRegistry,
        offloading: Offloading,
        turn: AbstractAsyncContextManager[Any],
        is_held: Callable[[int], bool],
        *,
        has_other_owners: bool,
    ) -> None:
        """
        :param turn: held while a ledger is copied.
        :param is_held: whether another process reads a ledger where it was stored.
        :param has_other_owners: other brokers of the region own topics, too, and may have offloaded what is ours by
        now.
        """
        self.offloading = offloading
        self._has_other_owners = has_other_owners
        self._terms: dict[str, int] = {}
        """The fence of the term in which a topic's records were read."""
        self._is_held = is_held
        self._registry = registry
        self._turn = turn
        self._statuses: dict[str, OffloadStatus] = {}
        self._pauses: dict[int, _Pause] = {}

    def status(self, topic: str) -> OffloadStatus:
        """The status of a topic, by its name."""
        return self._statuses.get(topic) or OffloadStatus()

    async def look(self) -> None:
        """Copy what is due, and let go of ledgers that were copied long enough ago, in every open topic.

        :raises SomeFailed: a ledger of some topics could not be copied or deleted; the others had their turn.
        :raises ObjectStoreError: the object store does nothing now.
        """
        scheduler, failures, topics = self._registry.parts.scheduler, dict[str, Exception](), self._registry.topics
        self._forget()
        async for topic in in_slices(scheduler, topics.values()):
            if topic.failure is None:
                try:
                    await self._look_at(topic)
                except (LedgerError, MetadataError) as error:
                    if topic.failure is None:
                        failures[topic.name] = error
        if failures:
            raise SomeFailed(failures, len(topics))

    def _forget(self) -> None:
        """Forget topics and ledgers that are not here any more."""
        for name in self._statuses.keys() - self._registry.topics.keys():
            del self._statuses[name]
        for name in self._terms.keys() - self._registry.topics.keys():
            del self._terms[name]
        now_ms = self._registry.parts.scheduler.now_ms()
        self._pauses = {one: pause for one, pause in self._pauses.items() if now_ms < pause.until_ms + PAUSE_MS_MAX}

    async def _look_at(self, topic: Topic) -> None:
        scheduler = self._registry.parts.scheduler
        rules = topic.rules
        if len(topic.log.counts()) < 2:
            return  # true of most topics: the last ledger stays
        spans = topic.log.spans()
        if self._has_other_owners:
            await self._take_over(topic, spans)
        wanted = [one for one in due(spans, rules, scheduler.now_ms()) if not self.offloading.is_copied(one)]
        for ledger_id in wanted:
            pause = self._pauses.get(ledger_id)
            if pause is None or scheduler.now_ms() >= pause.until_ms:
                await self._copy(topic, ledger_id)
        for span in spans:
            if self._may_leave(span.ledger_id, rules.offload_deletion_lag_ms) and not self._is_held(span.ledger_id):
                await self.offloading.leave(span.ledger_id)

    async def _take_over(self, topic: Topic, spans: Sequence[Span]) -> None:
        """Read what earlier owners wrote, once in each term."""
        if topic.metadata is not None and self._terms.get(topic.name) != topic.metadata.fence:
            for span in spans:
                await self.offloading.table.fetch(span.ledger_id)
            self._terms[topic.name] = topic.metadata.fence

    def _may_leave(self, ledger_id: int, lag_ms: int) -> bool:
        record = self.offloading.table.get(ledger_id)
        if record is None:
            return False
        if record.state is State.COPIED:
            return 0 <= lag_ms <= self._registry.parts.scheduler.now_ms() - record.since_ms
        return record.state is State.LEAVING

    async def _copy(self, topic: Topic, ledger_id: int) -> None:
        status = self._statuses.setdefault(topic.name, OffloadStatus())
        now_ms = self._registry.parts.scheduler.now_ms
        async with self._turn:
            if topic.failure is not None or topic.metadata is None:
                return
            try:
                await self.offloading.copy(ledger_id, topic.metadata.fence)
            except (LedgerError, MetadataError, ObjectStoreError) as error:
                status.failed_ms, status.last_error = now_ms(), str(error)
                if isinstance(error, LedgerError):
                    pause = self._pauses.setdefault(ledger_id, _Pause())
                    pause.until_ms = now_ms() + min(PAUSE_MS << min(pause.failures, 6), PAUSE_MS_MAX)
                    pause.failures += 1
                raise
        status.last_ledger, status.succeeded_ms = ledger_id, now_ms()
        self._pauses.pop(ledger_id, None)

    # -- on request ----------------------------------------------------------------------------------------------

    def start(self, topic: Topic, upto: Position) -> None:
        """Copy every ledger before a message, in the background. :raises OffloadRunning: that is being done."""
        status = self._statuses.setdefault(topic.name, OffloadStatus())
        if status.status is Status.RUNNING:
            raise OffloadRunning(f"ledgers of {topic.name} are being offloaded: wait until that is done")
        status.status, status.last_error = Status.RUNNING, ""
        wanted = before(topic.log.spans(), upto)
        self._registry.parts.scheduler.spawn(self._run(topic, status, wanted), "offload ledgers of a topic")

    async def _run(self, topic: Topic, status: OffloadStatus, wanted: Sequence[int]) -> None:
        error = "it was interrupted: request it again"
        try:
            for ledger_id in wanted:
                topic.check_open()
                if not self.offloading.is_copied(ledger_id):
                    await self._copy(topic, ledger_id)
            error = ""
        except (LedgerError, MetadataError, ObjectStoreError, TopicError) as refused:
            error = str(refused)
            log.warning("%s was not offloaded, and has to be requested again: %s", topic.name, refused)
        finally:
            status.status = Status.ERROR if error else Status.SUCCESS
            status.last_error = error
            status.first_not_copied = first_not_copied(topic.log.spans(), self.offloading.is_copied)
