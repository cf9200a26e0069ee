# SPDX-License-Identifier: Apache-2.0
"""Answers other regions that ask for entries of a topic (R5, R6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meridian_broker.positions.position import EARLIEST
from meridian_broker.topics.backfill.answers import find
from meridian_broker.topics.backfill.questions import NOTHING_TO_SEND, Found, Want
from meridian_broker.topics.errors import NotAllowed, TopicFenced, TopicNotFound
from meridian_broker.topics.service import kinds, shadow_topics
from meridian_broker.topics.subscriptions.registry import count_replicated
from meridian_broker.wire.pulsar import topic_name

if TYPE_CHECKING:
    from meridian_broker.topics.service.opener import TopicOpener


async def answer(opener: TopicOpener, asker: str, want: Want) -> Found:
    """The entries stored here of those that another region asks for.

    :raises TopicError: this region cannot answer now.
    :raises LedgerError: the entries cannot be read.
    """
    name = topic_name.parse(want.topic)
    shadow_topics.check_for_regions(opener.parts, name)
    try:
        topic = await opener.topic(name, create=False)
    except TopicNotFound:
        await kinds.check_kind(opener, name)
        return Found((), is_chained=True, is_complete=False, feed=NOTHING_TO_SEND)
    except NotAllowed:
        await kinds.check_kind(opener, name)
        raise
    is_outside = asker not in opener.parts.regions_of(topic.name)
    if is_outside and want.origin != asker:
        raise NotAllowed(f"{asker} is not a region of {topic.name} here")
    if topic.incarnation != want.incarnation:
        raise TopicFenced(
            f"{asker} refers to another incarnation of {topic.name}: wait until both regions know it (R8)"
        )
    found = await find(topic, topic.backfill, asker, want)
    if not opener.parts.ownership.owns(topic.name):  # and another broker might answer differently
        raise TopicFenced(f"another broker of {opener.parts.region} owns {topic.name}")
    feed = opener.regions.replication.feed(topic.name, asker)
    if feed is not None:
        replicated = count_replicated(topic.subscriptions)
        feed = feed._replace(end=topic.log.last_confirmed, subscriptions=replicated)
    own = {opener.parts.region} if topic.log.last_own > EARLIEST else set()
    origins = frozenset((topic.log.last_origin.keys() - topic.log.unchained) | own)
    return found._replace(origins=origins, feed=feed, is_outside=is_outside)
