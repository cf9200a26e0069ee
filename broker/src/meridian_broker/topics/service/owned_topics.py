# SPDX-License-Identifier: Apache-2.0
"""The topics of a broker that is one of several in its region: opened in a term of ownership, and closed with it.

The room ``ownership`` decides who owns which bundle; this module connects it to topics, in both directions. Only the
owner of its bundle opens a topic, with the fence of the term. When a bundle is given up, its topics are closed cleanly.
When it is lost, they are dropped without another write, because another broker may own them.

A new owner does not know yet which topics of the bundle are on record. Until it does, it must not answer that any of
them does not exist: another region would dispatch what has been acknowledged here (R20).
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.scheduling import in_slices, later, run_all
from meridian_broker.metadata.store import MetadataError
from meridian_broker.ownership.bundles import Bundle
from meridian_broker.ownership.owner import NotServing
from meridian_broker.ownership.waiting import Waiting
from meridian_broker.topics.errors import TopicElsewhere, TopicFenced
from meridian_broker.topics.service import closing
from meridian_broker.topics.service.winding_down import wind_down
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.errors import InvalidTopicNameError

if TYPE_CHECKING:
    from meridian_broker.ownership.owner import BundleOwner
    from meridian_broker.topics.service.opener import TopicOpener
    from meridian_broker.topics.topic import Topic
    from meridian_broker.wire.pulsar.topic_name import TopicName

log = logging.getLogger(__name__)

SURVEY_SECONDS: Final = 0.5
"""Pause before the topics of a bundle are listed again because the metadata store did not answer; it doubles ..."""
SURVEY_SECONDS_MAX: Final = 10.0
"""... up to this."""

OPENED_AT_ONCE: Final = 8
"""Topics of a handed-over bundle that are opened at the same time, besides those that clients ask for."""

MOVED = "another broker is taking the topic over: look it up again"
LOST = "this broker may no longer own the topic: look it up again"


class OwnedTopics:
    """See the module's text: ``Ownership`` for topics, ``BundleTopics`` for the owner of bundles. One per broker."""

    def __init__(self, owner: BundleOwner) -> None:
        self.owner = owner
        self._surveys: set[Bundle] = set()
        """The bundles whose topics are not known yet."""
        self._listing: dict[str, set[Bundle]] = {}
        """By namespace that is being listed, the bundles for which the present listing does not count."""
        self._opener: TopicOpener | None = None

    def bind(self, opener: TopicOpener) -> None:
        """Set what opens topics: it needs this object, so it is constructed later.

        :raises RuntimeError: an opener was bound before.
        """
        if self._opener is not None:
            raise RuntimeError("the ownership of topics is already bound to an opener")
        self._opener = opener
        self._listed = Waiting(opener.parts.scheduler, SURVEY_SECONDS_MAX)
        self.owner.bind(self)

    async def follow_shadows(self) -> None:
        """Hear which shadows the other brokers make and delete, until cancelled."""
        parts = self._bound.parts
        await parts.catalog.shadows.follow(partial(later, parts.scheduler, SURVEY_SECONDS))

    # -- Ownership -----------------------------------------------------------------------------------------------

    async def acquire(self, topic: TopicName, /) -> int:
        """The fence of the topic's term.

        :raises TopicElsewhere: another broker serves the topic.
        :raises TopicFenced: no broker can serve it right now.
        """
        try:
            found = await self.owner.locate(topic)
        except NotServing as error:
            raise TopicFenced(f"{topic}: {error}") from None
        term = self.owner.term_of(topic)
        if term is None:
            raise TopicElsewhere(f"{topic} is served by broker {found.broker.broker}: look it up again")
        return term.fence

    def holds(self, topic: TopicName, fence: int | None = None, /) -> bool:
        term = self.owner.term_of(topic)
        return term is not None and fence in (None, term.fence)

    def owns(self, topic: str, /) -> bool:
        try:
            return self.holds(topic_name.parse(topic))
        except InvalidTopicNameError:
            return True

    def is_surveyed(self, topic: str | None = None, /) -> bool:
        return not self._surveys if topic is None else not any(bundle.has(topic) for bundle in self._surveys)

    @property
    def is_sole(self) -> bool:
        return False

    def is_valid(self) -> bool:
        return self.owner.is_alive

    # -- BundleTopics --------------------------------------------------------------------------------------------

    def gained(self, bundle: Bundle) -> None:
        """Arrange for the bundle's topics to be opened: delayed delivery and expiry do not wait for clients."""
        self._surveys.add(bundle)
        namespace = bundle.namespace
        if namespace not in self._listing:
            self._listing[namespace] = set()
            self._bound.parts.scheduler.spawn(self._survey(namespace), f"list the topics of {namespace}")
        else:
            self._listing[namespace].add(bundle)

    async def _survey(self, namespace: str) -> None:
        """List the topics on record of all bundles that were gained, however often the store has to be asked. Bundles
        come many at a time; those that come during a listing are served by the next one.
        """
        scheduler, registry, pause = self._bound.parts.scheduler, self._bound.registry, SURVEY_SECONDS
        try:
            while bundles := {bundle for bundle in self._surveys if bundle.namespace == namespace}:
                stale = self._listing[namespace] = set()
                try:
                    names = await registry.names(namespace)
                except MetadataError as error:
                    log.warning("topics of %s stay closed until they can be listed, will retry: %s", namespace, error)
                    await later(scheduler, pause)
                    pause = min(2 * pause, SURVEY_SECONDS_MAX)
                    continue
                async for name in in_slices(scheduler, names):
                    if name not in registry.topics and not any(bundle.has(name) for bundle in stale):
                        self._found(topic_name.parse(name))
                for bundle in (bundles - stale) & self._surveys:
                    self._surveys.discard(bundle)
                    self._listed.wake(bundle)
        finally:
            del self._listing[namespace]

    def _found(self, name: TopicName) -> None:
        """A topic on record that is not open."""
        if self.holds(name):
            unfinished = self._bound.parts.unfinished
            unfinished.unopened.add(str(name))
            unfinished.later(name)

    async def open(self, bundle: Bundle) -> None:
        """Open the bundle's topics now: clients that were sent here wait for them."""
        if bundle in self._surveys:
            await self._listed.wait(bundle)
        opener = self._bound
        names = [topic_name.parse(name) for name in await self._of(bundle, opener.parts.unfinished.unopened)]

        async def open_one(name: TopicName) -> None:
            if self.owner.term(bundle) is not None:
                await opener.open(name)

        jobs = [partial(open_one, name) for name in names]
        await run_all(opener.parts.scheduler, jobs, "open a topic that was handed over", at_once=OPENED_AT_ONCE)

    async def close(self, bundle: Bundle) -> None:
        """Close the bundle's open topics cleanly."""
        opener = self._bound
        try:
            await self._close_non_persistent(bundle, MOVED)
            await wind_down(await self._open_in(bundle), opener.parts.scheduler)
            jobs = [partial(closing.hand_over, opener, topic, MOVED) for topic in await self._open_in(bundle)]
            await run_all(opener.parts.scheduler, jobs, "close a topic of a bundle")
        finally:
            await self._forget(bundle)

    async def drop(self, bundle: Bundle) -> None:
        """Drop the bundle's open topics without another write, including those that are being closed."""
        registry = self._bound.registry
        topics, dropped = registry.topics, []
        try:
            await self._close_non_persistent(bundle, LOST)
            async for name in in_slices(self._bound.parts.scheduler, topics):
                if bundle.has(name) and (topic := topics.get(name)) is not None:
                    topic.fence(LOST, for_good=True)
                    for cut in list(registry.cuts.get(name, {}).values()):
                        cut()
                    dropped.append(topic)
            for topic in dropped:
                await self._bound.drop(topic)
        finally:
            await self._forget(bundle)

    # -- inside --------------------------------------------------------------------------------------------------

    @property
    def _bound(self) -> TopicOpener:
        if self._opener is None:
            raise RuntimeError("a topic became owned before an opener was bound")
        return self._opener

    async def _of(self, bundle: Bundle, topics: Iterable[str]) -> list[str]:
        """Those that belong to the bundle."""
        return [name async for name in in_slices(self._bound.parts.scheduler, topics) if bundle.has(name)]

    async def _open_in(self, bundle: Bundle) -> list[Topic]:
        topics = self._bound.registry.topics
        return [topics[name] for name in await self._of(bundle, topics) if name in topics]

    async def _forget(self, bundle: Bundle) -> None:
        """Keep nothing of the bundle's topics that their next owner may change."""
        self._surveys.discard(bundle)
        if bundle.namespace in self._listing:
            self._listing[bundle.namespace].add(bundle)
        self._listed.wake(bundle)
        self._bound.regions.leasing.left(_TopicsOf(bundle))
        unfinished = self._bound.parts.unfinished
        for name in await self._of(bundle, unfinished.unopened | unfinished.closed.keys()):
            unfinished.closed.pop(name, None)
            unfinished.forget(name)

    async def _close_non_persistent(self, bundle: Bundle, reason: str) -> None:
        here = self._bound.registry.non_persistent
        for name in await self._of(bundle, here.topics):
            here.drop(name, reason)


class _TopicsOf(Container[str]):
    """All topics of a bundle, open or not."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    def __contains__(self, topic: object) -> bool:
        return self._bundle.has(str(topic))
