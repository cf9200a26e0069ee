# SPDX-License-Identifier: Apache-2.0
"""A broker's part in keeping metadata equal between regions (PIP-136).

``metadata.sync.choice`` says whether and what, by settings that can be changed while brokers run; they are kept in the
region's metadata, so all its brokers follow. While a topic is chosen, a ``Session`` of it runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from meridian_broker.gateway.event_topic import EventTopic
from meridian_broker.gateway.metadata_peers import RestPeer
from meridian_broker.gateway.metadata_session import RETRY_SECONDS, Session, Shared
from meridian_broker.metadata.errors import Invalid
from meridian_broker.metadata.records import decode, encode
from meridian_broker.metadata.store import MetadataError, MetadataStore
from meridian_broker.metadata.sync import paths
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
        :param draw: a new identity for a store.
        """
        self.store = store
        self.clock = clock
        self.region = clock.region
        self.now_ms = now_ms
        self.choice = choice
        self.recording = recording
        self.standing = Standing(store, choice, clock.region, now_ms, draw)
        self._open: Callable[[str], EventTopic]
        self._shared: Shared
        self.session: Session | None = None

    def bind(
        self,
        open_topic: Callable[[str], EventTopic],
        peer: Callable[[str, str, bool], RestPeer],
        regions_of: Callable[[str], frozenset[str]],
    ) -> None:
        """What is made later than the store: topics, the way to other regions, and the catalog."""
        self._open = open_topic
        self._shared = Shared(
            self.store, self.clock, self.now_ms, self.choice, self.recording, self.standing, peer, regions_of
        )

    async def load(self) -> None:
        """Read what was set at run time. Before the first write. :raises MetadataError: the store does not answer."""
        found = await self.store.scan(paths.SETTINGS + "/")
        changed = {path.rpartition("/")[2]: str(decode(path, record.value)[0]) for path, record in found}
        self.choice.change(changed)

    async def run(self) -> None:
        """Follow the settings until cancelled."""
        running: asyncio.Task[None] | None = None
        chosen = ("", frozenset[str]())
        try:
            while True:
                try:
                    async for _ in self.store.watch(paths.SETTINGS + "/"):
                        await self.load()
                        if (self.choice.topic, self.choice.scopes) != chosen:
                            chosen = (self.choice.topic, self.choice.scopes)
                            await self._stop(running)
                            running = self._begin(chosen[0])
                except MetadataError as error:
                    log.warning("cannot follow the settings of metadata synchronization, trying again: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
        finally:
            await self._stop(running)

    def _begin(self, topic: str) -> asyncio.Task[None] | None:
        if not topic:
            return None
        log.info("metadata are synchronized by %s", topic)
        self.session = Session(self._shared, self._open(topic))
        return asyncio.create_task(self.session.run(), name="synchronize metadata")

    async def _stop(self, running: asyncio.Task[None] | None) -> None:
        self.session = None
        if running is not None:
            running.cancel()
            await asyncio.wait([running])

    async def change(self, key: str, value: str | None) -> None:
        """Set a setting for all brokers of the region; None: as their own settings say.

        :raises Invalid: there is no such setting, or the value cannot be used.
        """
        if key not in self.choice.given:
            raise Invalid(f"{key} cannot be changed while brokers run: only {', '.join(self.choice.given)}")
        self.choice.check({key: self.choice.given[key] if value is None else value})
        where = f"{paths.SETTINGS}/{key}"
        if value is None:
            await self.store.delete(where)
        else:
            await self.store.put(where, encode(value))
        await self.load()
