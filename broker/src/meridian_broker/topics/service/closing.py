# SPDX-License-Identifier: Apache-2.0
"""Closes topics in good order: one topic on unload, all topics when the broker stops."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from meridian_broker.ledgers.scheduling import run_all
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.ledgers.under_way import all_over
from meridian_broker.metadata.store import MetadataError
from meridian_broker.topics.service.winding_down import wind_down
from meridian_broker.wire.pulsar import topic_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from meridian_broker.topics.service.opener import TopicOpener
    from meridian_broker.topics.service.registry import TopicRegistry
    from meridian_broker.topics.topic import Topic
    from meridian_broker.wire.pulsar.topic_name import TopicName

log = logging.getLogger(__name__)


async def unload(opener: TopicOpener, name: TopicName) -> None:
    """Close the topic in good order; the next request opens it again."""
    opener.failing.end_pause(str(name), opener.parts.scheduler.monotonic_ms())
    topic = await opener.topic(name, create=False)
    await wind_down([topic], opener.parts.scheduler)
    has_shadows = bool(topic.shadows.open)
    async with opener.registry.lock(topic.name):
        if opener.registry.topics.get(topic.name) is topic:
            reason = "the topic was unloaded: look it up again"
            await _close(opener, topic, reason, to_rest=not has_shadows, is_soon_back=has_shadows)
    if has_shadows:  # their consumers stay, so no client may request it
        await opener.open(name)


async def _close_shadows(opener: TopicOpener, topic: Topic) -> list[Topic]:
    """The shadows that read a topic directly close with it, in good order this way. Returns them."""
    shadows = list(topic.shadows.open.values())
    for shadow in shadows:
        async with opener.registry.lock(shadow.name):
            if not topic.reopens:
                break  # its term has ended: they close with it
            if opener.registry.topics.get(shadow.name) is shadow:
                reason = f"its source was unloaded: look {shadow.name} up again"
                await _close(opener, shadow, reason, to_rest=True, first=topic)
    return shadows


async def hand_over(opener: TopicOpener, topic: Topic, reason: str) -> None:
    """Close a topic in good order, once it is wound down, because another broker is to serve it; one that fails is
    recovered there.

    Its shadows that stay here are opened again, and follow it there.
    """
    for shadow in await _close_shadows(opener, topic):
        opener.parts.unfinished.later(topic_name.parse(shadow.name))
    async with opener.registry.lock(topic.name):
        if opener.registry.topics.get(topic.name) is topic:
            await _close_for_good(opener, topic, reason)


async def send_consumers_away(registry: TopicRegistry) -> None:
    """Wind all topics down, then disconnect all consumers, and send their acknowledgements to the other regions. No
    more topics are opened."""
    await wind_down(list(registry.topics.values()), registry.parts.scheduler)
    registry.close()
    topics = list(registry.topics.values())
    for topic in topics:
        for subscription in topic.subscriptions.values():
            subscription.disconnect_consumers()
    await all_over([work for topic in topics for work in topic.look_ups()], registry.parts.scheduler)
    for topic in topics:
        topic.take_acknowledgements()


async def close(opener: TopicOpener) -> None:
    """The end of a drain: disconnect all clients and seal all open ledgers."""
    registry = opener.registry
    registry.close()
    registry.non_persistent.close("this broker is shutting down")
    reason = "this broker is shutting down: look the topic up again"
    jobs = [partial(_close_for_good, opener, topic, reason) for topic in registry.topics.values()]
    await run_all(opener.parts.scheduler, jobs, "close a topic")  # together, for they share the group commit


async def _close(
    opener: TopicOpener,
    topic: Topic,
    reason: str,
    *,
    to_rest: bool = False,
    is_soon_back: bool = False,
    first: Topic | None = None,
) -> None:
    """The topic stays registered until it is closed: acknowledgements that it still sends are matched to it by name.

    Closing may hang, on bookies for example. It is cut short when the term ends, as the registry tells how: what is
    left of it would be refused, and a later term of this broker, which must not begin before, would wait for it.

    :param to_rest: nobody waits for it. :param is_soon_back: see ``Topic.close``. :param first: it closes before this
        source of it, whose term counts, too.
    """
    cuts = opener.registry.cuts
    names = [topic.name] if first is None else [topic.name, first.name]

    def begun(cut: Callable[[], None]) -> None:
        for name in names:
            cuts.setdefault(name, {})[topic.name] = cut

    try:
        work = topic.close(reason, to_rest=to_rest, is_soon_back=is_soon_back)
        if not await opener.parts.scheduler.cuttable(work, begun):
            log.warning(
                "%s was not closed cleanly, because this broker may no longer own %s; its next opening recovers it",
                topic.name,
                "it" if first is None else f"it or its source {first.name}",
            )
    finally:
        for name in names:
            of_name = cuts.get(name, {})
            of_name.pop(topic.name, None)
            if not of_name:
                cuts.pop(name, None)
        await opener.drop(topic)


async def _close_for_good(opener: TopicOpener, topic: Topic, reason: str) -> None:
    try:
        await _close(opener, topic, reason)
    except (LedgerError, MetadataError) as error:  # the others are closed all the same
        log.warning("%s was not closed cleanly; its next opening recovers it: %s", topic.name, error)
    except Exception:
        log.exception("%s was not closed cleanly; its next opening recovers it", topic.name)
