# SPDX-License-Identifier: Apache-2.0
"""A broker's part in keeping metadata equal between regions (PIP-136).

``metadata.sync.choice`` says whether metadata is synchronized and which, by settings that can change while brokers
run. While a topic is chosen, a ``Session`` of it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from meridian_broker.gateway.event_topic import DEAD_LETTERS, EventTopic
from meridian_broker.gateway.metadata_comparing import SessionParts
from meridian_broker.gateway.metadata_peers import RestPeer
from meridian_broker.gateway.metadata_session import Session
from meridian_broker.gateway.metadata_standby import Standby
from meridian_broker.metadata.store import MetadataStore, Record
from meridian_broker.metadata.sync.choice import SyncChoice
from meridian_broker.metadata.sync.recording import RecordingStore
from meridian_broker.metadata.sync.standing import Standing
from meridian_broker.positions.clock import HybridClock

log = logging.getLogger(__name__)


class MetadataSync:
    """See the module's text. One per broker; ``run`` is a task of it."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        clock: HybridClock,
        now_ms: Callable[[], int],
        choice: SyncChoice,
        recording: RecordingStore,
        draw: Callable[[], str],
    ) -> None:
        """
        :param store: the region's own, not a recording one.
        :param draw: returns a new identity for a store.
        """
        self.store = store
        self.clock = clock
        self.region = clock.region
        self.now_ms = now_ms
        self.choice = choice
        self.recording = recording
        self.standing = Standing(store, choice, clock.region, now_ms, draw)
        self._open: Callable[[str], EventTopic]
        self._parts: SessionParts
        self.session: Session | None = None
        """None: metadata is not synchronized, or a new session is about to begin."""
        self._chosen = ("", frozenset[str]())
        """Topic and scopes of the running session."""
        self._followed = asyncio.Event()

    def bind(
        self,
        open_topic: Callable[[str], EventTopic],
        peer: Callable[[str, str, bool], RestPeer],
        regions_of: Callable[[str], frozenset[str]],
        last_seen: Callable[[str], tuple[Record | None] | None],
        standby: Standby | None,
    ) -> None:
        """Set what is made after the store: topics, the way to other regions, and the catalog.

        :param standby: None: this broker is the only one of its region.
        """
        self._open = open_topic
        self.recording.guess_records(last_seen)
        self._parts = SessionParts(
            *(self.store, self.clock, self.now_ms, self.choice, self.recording, self.standing),
            *(peer, regions_of, last_seen, standby),
        )

    def carries_events(self, topic: str) -> bool:
        """Whether metadata is synchronized by this topic."""
        return topic == self.choice.topic

    def reserved(self, topic: str) -> str | None:
        """Why clients may not use a topic; None: they may."""
        chosen = self.choice.topic
        if not chosen or topic not in (chosen, chosen + DEAD_LETTERS):
            return None
        return (
            f"{topic} is reserved for brokers while metadata is synchronized by {chosen} (metadataSyncEventTopic): "
            "use another topic"
        )

    def regions_sharing(self, path: str) -> frozenset[str]:
        """The regions that the event topic tells of a write to this path, this one included; empty: none."""
        return frozenset() if self.session is None or not self.choice.is_synced(path) else self.session.regions()

    def follow(self, choice: SyncChoice) -> None:
        """The settings may have changed."""
        self.choice.follow(choice.values)
        if self._wanted() != self._chosen:
            self.session = None  # it belongs to the previous choice
        self._followed.set()

    async def run(self) -> None:
        """Follow the settings until cancelled."""
        running: asyncio.Task[None] | None = None
        try:
            while True:
                self._followed.clear()
                if self._wanted() != self._chosen or (self.choice.topic and self.session is None):
                    await self._stop(running)
                    self._chosen = self._wanted()
                    running = self._begin(self.choice.topic)
                await self._followed.wait()
        finally:
            await self._stop(running)

    def _wanted(self) -> tuple[str, frozenset[str]]:
        return self.choice.topic, self.choice.scopes

    def _begin(self, topic: str) -> asyncio.Task[None] | None:
        if not topic:
            return None
        log.info("metadata is synchronized by %s", topic)
        self.session = Session(self._parts, self._open(topic))
        return asyncio.create_task(self.session.run(), name="synchronize metadata")

    async def _stop(self, running: asyncio.Task[None] | None) -> None:
        self.session = None
        if running is not None:
            running.cancel()
            await asyncio.wait([running])
