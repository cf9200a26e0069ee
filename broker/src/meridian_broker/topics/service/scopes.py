# SPDX-License-Identifier: Apache-2.0
"""Dispatch scopes of subscriptions follow their records and the topic's regions, from its opening on (R26)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meridian_broker.topics.dispatch_scope import origin_streams

if TYPE_CHECKING:
    from meridian_broker.topics.ports import Leasing
    from meridian_broker.topics.topic import Topic


def follow(topic: Topic) -> None:
    """Apply the records of the topic's subscriptions, and its regions."""
    topic.follow_regions()
    for subscription in list(topic.subscriptions.values()):
        origin_streams.follow(subscription)


def opened(topic: Topic) -> None:
    """A topic is served from now on: report this region's votes, and request its streams."""
    if topic.leasing is not None:
        lost = topic.subscription_registry.lost_records
        if lost.may_have_voted:
            lost.wait_to_vote(topic.leasing.now_ms() + _longest_ms(topic, topic.leasing))
        for name, ballots in topic.votes.items():
            for origin, ballot in ballots.items():
                topic.leasing.found((topic.name, name, origin), *ballot)
    follow(topic)


def _longest_ms(topic: Topic, leasing: Leasing) -> int:
    """How long a promise may bind whose record is lost."""
    known = (duration for ballots in topic.votes.values() for _, _, duration in ballots.values())
    return max(leasing.promise_ms, *known, 0)
