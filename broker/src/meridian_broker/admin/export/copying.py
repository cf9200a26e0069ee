# SPDX-License-Identifier: Apache-2.0
"""Copies topics of this broker to a snapshot file: all that are wanted, or bundle by bundle.

A bundle counts only if this broker owned it from before its first topic was copied until after the last one. Otherwise
its lines are removed from the file again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from meridian_broker.admin.export.capture import (
    Captured,
    SnapshotWriter,
    capture_subscription,
    capture_topic,
    capture_view,
)
from meridian_broker.admin.http.state import AdminState
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata import keys
from meridian_broker.metadata.sync import paths
from meridian_broker.ownership.bundles import Bundle, place_of
from meridian_broker.topics.errors import TopicError
from meridian_broker.topics.journal.changes import Change
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.topic_name import TopicName

log = logging.getLogger(__name__)

TURN_SECONDS: Final = 0.002
"""Maximum duration of one turn of copying."""
STRIPE_BITS: Final = 24
"""A stripe is 2^24 places: there are 256 in a namespace."""
ATTEMPTS: Final = 3
"""A topic that is closed or rolled over while it is copied is copied again."""


class Names:
    """The topics that a request selects, by their places in the hash ranges of their namespaces.

    They are kept in stripes of that range, so a bundle's are found without going through all or sorting all at once.
    """

    def __init__(self) -> None:
        self._stripes: dict[str, dict[int, list[tuple[int, str]]]] = {}

    @classmethod
    async def listed(cls, state: AdminState, wanted: Callable[[str], bool], namespaces: Iterable[str]) -> Names:
        """:raises MetadataError: the metadata store did not answer."""
        made = cls()
        began = time.monotonic()
        for namespace in namespaces:
            for name in await state.catalog.topics.names(namespace):
                if not name.local_name.startswith("__") and wanted(str(name)):
                    made.add(name)
                if time.monotonic() - began > TURN_SECONDS:
                    await asyncio.sleep(0)
                    began = time.monotonic()
        return made

    def add(self, name: TopicName) -> None:
        place = place_of(name)
        stripes = self._stripes.setdefault(name.namespace_name, {})
        stripes.setdefault(place >> STRIPE_BITS, []).append((place, str(name)))

    @property
    def namespaces(self) -> list[str]:
        """The namespaces that have such topics."""
        return list(self._stripes)

    def every(self) -> list[str]:
        """All the topics, sorted."""
        return sorted(name for some in self._stripes.values() for stripe in some.values() for _, name in stripe)

    def within(self, bundle: Bundle) -> list[str]:
        """The topics of a bundle, sorted."""
        return sorted(self._in(bundle))

    def has(self, bundle: Bundle) -> bool:
        """Whether any topic is in the bundle."""
        return any(True for _ in self._in(bundle))

    def _in(self, bundle: Bundle) -> Iterator[str]:
        stripes = self._stripes.get(bundle.namespace, {})
        for number in range(bundle.lower >> STRIPE_BITS, (bundle.upper >> STRIPE_BITS) + 1):
            yield from (name for place, name in stripes.get(number, ()) if place in bundle)


class Copying:
    """A snapshot file that is being written. ``begin``, then ``finish`` or ``abandon``."""

    def __init__(self, state: AdminState, path: Path, writer: SnapshotWriter) -> None:
        self._state = state
        self._writer = writer
        self.path = path
        self.held: list[int] = []
        """The ledgers that are kept for it."""

    @classmethod
    async def begin(cls, state: AdminState, path: Path) -> Copying:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return cls(state, path, await asyncio.to_thread(SnapshotWriter, path))

    async def topics(self, names: Iterable[str]) -> None:
        """Add those of these topics that can be read."""
        for name in names:
            await self._topic(name)

    async def bundle(self, bundle: Bundle, names: Iterable[str]) -> bool:
        """Add the topics of a bundle. False: this broker did not own it throughout; nothing was added."""
        owner = self._state.owner
        if owner is None or (term := owner.term(bundle)) is None:
            return False
        mark = await asyncio.to_thread(self._writer.mark)
        for name in names:
            await self._topic(name)
            if owner.term(bundle) is not term:
                break
        if owner.term(bundle) is term:
            return True
        await asyncio.to_thread(self._writer.undo, mark)
        return False

    async def finish(self, *, with_metadata: bool) -> dict[str, int]:
        """Returns how many partitions each table has. :raises MetadataError: the metadata cannot be read."""
        values, deleted = [], []
        if with_metadata:
            store, stones = self._state.metadata_sync.store, paths.TOMBSTONES
            values = await store.scan(keys.GEO)  # first: what is deleted in between then has a tombstone
            deleted = [(path.removeprefix(stones), record) for path, record in await store.scan(stones + "/")]
        is_synced = self._state.metadata_sync.choice.is_synced
        return await asyncio.to_thread(self._writer.finish, self._state.region, values, deleted, is_synced)

    async def close(self) -> None:
        """Close the file: nothing more is written."""
        await asyncio.to_thread(self._writer.close)

    def abandon(self) -> None:
        """There will be no snapshot."""
        self._writer.close()
        self._state.held.release(self.held)
        self.path.unlink(missing_ok=True)

    async def _topic(self, name: str) -> None:
        copied = await self._copy(name)
        if copied is not None:
            await asyncio.to_thread(self._writer.add, *copied)

    async def _copy(self, name: str) -> tuple[Captured, list[Change]] | None:
        """One topic, durable as copied; None when it is gone."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                topic = await self._state.service.opener.topic(topic_name.parse(name), create=False)
                captured = capture_topic(self._state, topic)
                self._state.held.hold(captured.ledgers)
                self.held += captured.ledgers
                began = time.monotonic()
                for subscription in list(topic.subscriptions.values()):
                    await capture_subscription(captured, subscription)
                    if time.monotonic() - began > TURN_SECONDS:
                        await asyncio.sleep(0)
                        began = time.monotonic()
                capture_view(captured, topic)
                # Deltas are merged in memory before they are durable: an exported state must survive a crash.
                await topic.scheduler.answer(topic.progress_log.when_durable)
                return captured, [change async for some in topic.progress_log.changes() for change in some]
            except (TopicError, LedgerError) as error:
                if attempt == ATTEMPTS:
                    log.warning("%s is left out of the export: %s", name, error)
        return None
