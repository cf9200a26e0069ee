# SPDX-License-Identifier: Apache-2.0
"""Keeps metadata equal with other regions while an event topic is chosen: ``metadata.sync`` with its tasks.

It publishes and applies if this broker is the active consumer of the topic, and compares this region with the others
(``metadata_comparing``). No local write waits for any of this. Failures are shown and retried."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, NoReturn

from meridian_broker.gateway.event_topic import EventTopic
from meridian_broker.gateway.metadata_comparing import Comparisons, SessionParts
from meridian_broker.gateway.metadata_standby import HOLD_SECONDS, Standby
from meridian_broker.metadata.store import MetadataError
from meridian_broker.metadata.sync import paths
from meridian_broker.metadata.sync.applying import Applier, Poison
from meridian_broker.metadata.sync.events import Changes, Message
from meridian_broker.metadata.sync.events import decode as decode_message
from meridian_broker.metadata.sync.followed_outbox import FollowedOutbox
from meridian_broker.metadata.sync.kept import Kept
from meridian_broker.metadata.sync.known import Known
from meridian_broker.metadata.sync.pace import Pace
from meridian_broker.metadata.sync.publishing import Publisher, in_groups

RETRY_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 1.0
"""Between attempts to send what is unsent, and to resolve parked states."""
MARK_SECONDS: Final = 5.0
CLEAR_SECONDS: Final = 0.5
"""Between two removals from the outbox of sent entries that were not written again since the last one."""
CLEARED_TOGETHER: Final = 48
"""Entries that one transaction removes."""

log = logging.getLogger(__name__)


class Session:
    """Synchronizes metadata by one topic, until it is cancelled."""

    def __init__(self, parts: SessionParts, topic: EventTopic) -> None:
        self._parts = parts
        self.topic = topic
        topic.register_sync_listener(self._arrived)
        store, clock, choice = parts.store, parts.clock, parts.choice
        self.publisher = Publisher(store, clock, topic.notify, parts.recording.recent)
        self.known = Known(store, lambda: asyncio.sleep(0))
        self.kept = Kept(store, self.known)
        self.applier = Applier(
            store,
            clock,
            parts.now_ms,
            choice.is_synced,
            self.regions,
            self.kept,
            lambda: choice.tombstone_retention_ms,
            lambda: choice.max_ahead_ms,
            parts.last_seen,
        )
        self.comparisons = Comparisons(parts, topic, self.known, self.applier, self.publisher, lambda: self.owed)
        self.publish_problem: str | None = None
        self._outbox = FollowedOutbox()
        self._owing = asyncio.Event()

    @property
    def owed(self) -> int:
        """Entries of the outbox, including those sent and about to be removed."""
        return len(self._outbox.unsent) + len(self._outbox.sent)

    def regions(self) -> frozenset[str]:
        """The regions that share metadata by this topic, this one included."""
        return self._parts.synced_regions(self.topic.topic)

    async def run(self) -> None:
        self._parts.recording.guess_entries(self._outbox.entry)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.topic.run())
                tasks.create_task(self._again("follow the outbox", self._watch_outbox))
                tasks.create_task(self._publish())
                tasks.create_task(self._again("remove what was sent", self._clear))
                tasks.create_task(self._again("follow values", self.known.follow_values))
                tasks.create_task(self._again("follow deletions", self.known.follow_deletions))
                tasks.create_task(self._again("follow parked states", self.kept.follow_parked))
                tasks.create_task(self._again("follow conflicts", self.kept.follow_conflicts))
                tasks.create_task(self._again("release parked states and publish marks", self._look))
                tasks.create_task(self._again("compare with other regions", self.comparisons.run))
                if self._parts.standby is not None:
                    tasks.create_task(self._stand_by(self._parts.standby))
        finally:
            self._parts.recording.guess_entries(None)
            await self.topic.close()

    async def _again(self, what: str, work: Callable[[], Awaitable[None]]) -> NoReturn:
        while True:
            try:
                await work()
            except MetadataError as error:
                log.warning("cannot %s, trying again: %s", what, error)
            except Exception:
                log.exception("cannot %s, trying again", what)
            await asyncio.sleep(RETRY_SECONDS)

    # -- publishing

    async def _watch_outbox(self) -> None:
        async for changes in self._parts.store.watch(paths.OUTBOX + "/"):
            if changes:
                self._outbox.hear(changes)
            else:
                self._outbox.read(await self._parts.store.scan(paths.OUTBOX + "/"))
            if self._outbox.unsent:
                self._owing.set()

    async def _publish(self) -> None:
        await self.comparisons.admitted.wait()
        clock = asyncio.get_running_loop().time
        pace = Pace()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._owing.wait()
            await asyncio.sleep(pace.wait(clock()))
            if not self.topic.is_active or self._parts.choice.refusal is not None:
                await asyncio.sleep(RETRY_SECONDS / 10)
                continue
            self._owing.clear()
            try:
                for some in in_groups(self._outbox.unsent.items()):
                    begun = clock()
                    await self.publisher.send(some)
                    pace.sent(begun, clock())
                    self._outbox.were_sent(some)
                self.publish_problem = None
            except MetadataError as error:
                self.publish_problem = str(error)
                self._owing.set()
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:
                log.exception("cannot publish metadata events, trying again")
                self.publish_problem = "see the log"
                await asyncio.sleep(RETRY_SECONDS)

    async def _clear(self) -> NoReturn:
        """Remove sent entries from the outbox. Nothing that is to be sent waits for this."""
        while True:
            await asyncio.sleep(CLEAR_SECONDS)
            idle = self._outbox.idle()
            for first in range(0, len(idle), CLEARED_TOGETHER):
                some = idle[first : first + CLEARED_TOGETHER]
                await self.publisher.delete(some)
                self._outbox.were_removed(some)

    async def _look(self) -> None:
        turns = 0
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            turns += 1
            is_marking = turns % round(MARK_SECONDS / LOOK_SECONDS) == 0
            if not self.topic.is_active:
                continue
            await self.applier.release()
            if is_marking and self.comparisons.admitted.is_set():
                if self._parts.choice.refusal is None and self.publish_problem is None:
                    await self.publisher.mark(self.applier.heard, self._outbox.sent)
                await self.applier.forget()

    # -- applying

    async def _arrived(self, some: Sequence[tuple[str, bytes]]) -> None:
        """:raises Poison: a message cannot be applied. :raises MetadataError: none can be applied now."""
        messages: list[Message] = []
        places: list[int] = []
        refusal: Poison | None = None
        for place, (region, message) in enumerate(some):
            try:
                decoded = _decoded(region, message)
            except Poison as poison:
                refusal = Poison(str(poison), behind=place)
                break
            if self._concerns_us(decoded):
                messages.append(decoded)
                places.append(place)
        try:
            await self.applier.apply_all(messages)
        except Poison as poison:
            poison.behind = places[poison.behind]
            raise
        if refusal is not None:
            raise refusal

    def _concerns_us(self, message: Message) -> bool:
        if isinstance(message, Changes):  # this region has its own, or regains lost ones by comparing
            return message.region != self._parts.clock.region
        # Otherwise this region may not have heard of earlier deletions yet. Marks are repeated.
        return self.comparisons.has_caught_up_with(message.region)

    async def _stand_by(self, standby: Standby) -> NoReturn:
        """See ``metadata_standby``."""
        clock = asyncio.get_running_loop().time
        while True:
            asked = clock()
            stands_in = not self.topic.is_active and not await standby.is_applied(self.topic.topic)
            if stands_in and not self.comparisons.stands_in:
                log.info(
                    "no broker is known to apply events of %s: this one compares with other regions instead",
                    self.topic.topic,
                )
            self.comparisons.stands_in = stands_in
            await asyncio.sleep(max(HOLD_SECONDS / 5, asked + HOLD_SECONDS - clock()))


def _decoded(region: str, message: bytes) -> Message:
    """:raises Poison: it is not a metadata event of this region."""
    try:
        decoded = decode_message(message)
    except ValueError as error:
        raise Poison(f"it is not a metadata event: {error}") from error
    if decoded.region != region:
        raise Poison(f"it says it is from {decoded.region}, but {region} published it")
    return decoded
