# SPDX-License-Identifier: Apache-2.0
"""Topic list watchers: clients that are notified when topics of a namespace are created or deleted (PIP-145).

Nothing here keeps lists of topics. Watchers with the same namespace and pattern form a *group*. A created or deleted
topic is recorded in the groups that it matches, and a moment later each group's watchers get all changes since then in
one update. Its hash is recomputed from the metadata, in slices, so that a namespace of a hundred thousand topics does
not block the loop.

An update may contain a topic that the client already knows. Clients expect that, because the initial list may include
changes that are also reported.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from meridian_broker.ledgers.scheduling import Scheduler
from meridian_broker.metadata.store import MetadataError
from meridian_broker.topics.directory.listing import Selected, select
from meridian_broker.topics.directory.patterns import TopicPattern
from meridian_broker.topics.errors import TooManyWatchers
from meridian_broker.wire.pulsar.topic_name import TopicName

log = logging.getLogger(__name__)

WATCHERS_MAX: Final = 10_000
"""Watchers of one broker; about a kilobyte each, plus a pattern's automaton per group."""
GATHER_SECONDS: Final = 0.05
"""How long changes are collected, so that a topic of a thousand partitions does not cause a thousand notifications."""
TOLD_AT_ONCE: Final = 500
"""Names in one update: they fit a frame, however long they are."""
MISSED_MAX: Final = 10_000
"""Changes kept for one watcher that cannot be notified now."""

Names = Callable[[str], Awaitable[list[str]]]


class WatcherPort(Protocol):
    """What a watcher needs from its client's connection."""

    def writable(self) -> bool:
        """False while the client reads too slowly: the connection calls ``TopicWatchers.resume`` when that ends."""
        ...

    def topics_changed(self, watcher: Watcher, new: list[str], deleted: list[str], digest: str) -> None: ...

    def lost_watcher(self, watcher: Watcher) -> None:
        """So much changed while the client could not be notified that it has to start again."""
        ...


class Watcher:
    """One WATCH_TOPIC_LIST."""

    __slots__ = ("group", "missed", "port", "started", "watcher_id")

    def __init__(self, port: WatcherPort, watcher_id: int, group: _Group) -> None:
        self.port = port
        self.watcher_id = watcher_id
        self.group = group
        self.started = False
        """The client has its first list; before that it is not notified."""
        self.missed: dict[str, bool] = {}
        """What changed while it could not be notified: topic -> whether it exists."""


class _Group:
    """Watchers of one namespace and pattern."""

    __slots__ = ("changes", "namespace", "pattern", "telling", "watchers")

    def __init__(self, namespace: str, pattern: TopicPattern) -> None:
        self.namespace = namespace
        self.pattern = pattern
        self.watchers: dict[Watcher, None] = {}
        self.changes: dict[str, bool] = {}
        self.telling = False


class TopicWatchers:
    """All watchers of a broker."""

    def __init__(self, scheduler: Scheduler, names: Names, limit: int = WATCHERS_MAX) -> None:
        """:param names: returns every persistent topic of a namespace, from the metadata."""
        self.follow: Callable[[str], Awaitable[None]] | None = None
        """Has every change in a namespace reported to ``changed``; None: this broker's own catalog reports them."""
        self._scheduler = scheduler
        self._names = names
        self._limit = limit
        self._groups: dict[str, dict[str, _Group]] = {}
        """By namespace and the pattern's text."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, port: WatcherPort, watcher_id: int, namespace: str, pattern: TopicPattern) -> Watcher:
        """Add a watcher that records changes from now on; call ``start`` once the client has its first list.

        :raises TooManyWatchers: the broker's limit is reached.
        """
        if self._count >= self._limit:
            raise TooManyWatchers(f"{self._limit} topic list watchers are open here, the limit: poll the list instead")
        groups = self._groups.setdefault(namespace, {})
        group = groups.get(pattern.text)
        if group is None:
            group = groups[pattern.text] = _Group(namespace, pattern)
        watcher = Watcher(port, watcher_id, group)
        group.watchers[watcher] = None
        self._count += 1
        return watcher

    def remove(self, watcher: Watcher) -> None:
        """Remove a watcher; harmless if it was removed already."""
        group = watcher.group
        if watcher not in group.watchers:
            return
        del group.watchers[watcher]
        self._count -= 1
        if not group.watchers:
            groups = self._groups[group.namespace]
            del groups[group.pattern.text]
            if not groups:
                del self._groups[group.namespace]

    async def listed(self, watcher: Watcher) -> Selected:
        """What the watcher's pattern selects now. :raises MetadataError: the metadata cannot be read."""
        if self.follow is not None:
            await self.follow(watcher.group.namespace)
        return await self._selected(watcher.group)

    def start(self, watcher: Watcher) -> None:
        """The client got its first list."""
        watcher.started = True
        self.resume(watcher)

    def resume(self, watcher: Watcher) -> None:
        """The client can be notified again."""
        group = watcher.group
        if watcher.missed and watcher in group.watchers:
            self._tell_soon(group)

    def has(self, namespace: str) -> bool:
        """Whether a namespace has watchers."""
        return namespace in self._groups

    def changed(self, topic: TopicName, exists: bool) -> None:
        """A topic was created or deleted in this region."""
        groups = self._groups.get(topic.namespace_name) if topic.is_persistent else None
        if groups is None:
            return
        name = str(topic)
        for group in groups.values():
            if group.pattern.matches(name):
                group.changes[name] = exists
                self._tell_soon(group)

    def _tell_soon(self, group: _Group) -> None:
        if not group.telling:
            group.telling = True
            work = self._tell
            self._scheduler.later(GATHER_SECONDS, lambda: self._scheduler.spawn(work(group), "tell of topics"))

    async def _tell(self, group: _Group) -> None:
        try:
            selected = await self._selected(group)
        except MetadataError as error:
            log.warning("watchers of %s will be notified later: %s", group.namespace, error)
            self._scheduler.later(1.0, lambda: self._scheduler.spawn(self._tell(group), "tell of topics"))
            return
        group.telling = False
        changes, group.changes = group.changes, {}
        for watcher in list(group.watchers):
            watcher.missed.update(changes)
            if not watcher.missed:
                continue
            if watcher.started and watcher.port.writable():
                missed, watcher.missed = watcher.missed, {}
                _tell_missed(watcher, list(missed.items()), selected.digest)
            elif len(watcher.missed) > MISSED_MAX:
                self.remove(watcher)
                watcher.port.lost_watcher(watcher)

    async def _selected(self, group: _Group) -> Selected:
        return await select(await self._names(group.namespace), group.pattern, self._scheduler)


def _tell_missed(watcher: Watcher, missed: list[tuple[str, bool]], digest: str) -> None:
    """In as many updates as it takes. Only the last one has the hash: a client that got a part of them does not know
    the list."""
    for first in range(0, len(missed), TOLD_AT_ONCE):
        some = missed[first : first + TOLD_AT_ONCE]
        new = [name for name, exists in some if exists]
        deleted = [name for name, exists in some if not exists]
        is_last = first + TOLD_AT_ONCE >= len(missed)
        watcher.port.topics_changed(watcher, new, deleted, digest if is_last else "")
