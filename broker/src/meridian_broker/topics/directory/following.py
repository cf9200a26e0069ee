# SPDX-License-Identifier: Apache-2.0
"""Follows which topics a namespace has where several brokers of a region create them.

Each broker creates the topics that it owns, and a watcher's client is connected to one of them. So a namespace that
has watchers is followed through the metadata store's watch: nothing is polled. A topic's record also changes while the
topic is used, so the names that are known are kept for as long as the namespace is followed, and only a name that
appears or goes is reported. After a watch was interrupted they are compared with the list.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from meridian_broker.ledgers.scheduling import Scheduler, in_slices, later
from meridian_broker.metadata.store import MetadataError
from meridian_broker.metadata.topic_catalog import Topics
from meridian_broker.wire.pulsar.topic_name import TopicName

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0


class FollowedNamespaces:
    """See the module's text. One per broker that is one of several."""

    def __init__(
        self,
        scheduler: Scheduler,
        topics: Topics,
        is_wanted: Callable[[str], bool],
        changed: Callable[[TopicName, bool], None],
    ) -> None:
        """
        :param is_wanted: whether a namespace has watchers; otherwise it is followed until something changes there.
        :param changed: called with each topic that was created (True) or deleted (False), by whichever broker.
        """
        self._scheduler = scheduler
        self._topics = topics
        self._is_wanted = is_wanted
        self._changed = changed
        self._known: dict[str, set[TopicName] | None] = {}
        """By namespace; None: it is not in place yet."""
        self._waiting: dict[str, list[Callable[[MetadataError | None], None]]] = {}

    async def follow(self, namespace: str) -> None:
        """Follow a namespace. Once this returns, no change goes unreported.

        :raises MetadataError: it cannot be followed now.
        """
        if namespace not in self._known:
            self._known[namespace] = None
            self._scheduler.spawn(self._run(namespace), f"follow the topics of {namespace}")
        if self._known[namespace] is None:
            waiting = self._waiting.setdefault(namespace, [])
            if (error := await self._scheduler.answer(waiting.append)) is not None:
                raise error

    async def _run(self, namespace: str) -> None:
        try:
            while self._is_wanted(namespace):
                try:
                    await self._watch(namespace)
                except MetadataError as error:
                    log.warning("cannot read the topics of %s, will report changes later: %s", namespace, error)
                    self._answer(namespace, error)
                    await later(self._scheduler, RETRY_SECONDS)
        finally:
            del self._known[namespace]
            self._answer(namespace)

    def _answer(self, namespace: str, error: MetadataError | None = None) -> None:
        for ready in self._waiting.pop(namespace, []):
            ready(error)

    async def _watch(self, namespace: str) -> None:
        """Follow it until nobody wants it. :raises MetadataError: the watch was interrupted."""
        async for changes in self._topics.watch(namespace):
            if not self._is_wanted(namespace):
                return
            known = self._known[namespace]
            if not changes:
                found = set(await self._topics.names(namespace))
                if known is not None:
                    gone, new = known - found, found - known
                    async for name in in_slices(self._scheduler, [*gone, *new]):
                        self._changed(name, name in new)
                self._known[namespace] = found
                self._answer(namespace)
                continue
            assert known is not None, "the first item of a watch is empty"
            for name, exists in changes:
                if exists != (name in known):
                    (known.add if exists else known.discard)(name)
                    self._changed(name, exists)
