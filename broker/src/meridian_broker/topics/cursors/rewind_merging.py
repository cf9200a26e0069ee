# SPDX-License-Identifier: Apache-2.0
"""Rewinds that nothing depends on any more are forgotten (R12): a job that seeks back every hour makes one each time.

An old rewind cannot simply be left out. Another region may not know yet what was acknowledged since, or have made
a rewind of its own that nobody has heard of. So it waits until every region has reported, as it does for floors (R11),
that it knows exactly the same rewinds, and up to where it owes nothing. Then the newest one takes over what is done
with, and the older ones are overruled like any others (``Progress.merge_rewinds``). What regions tell each other of it
is a piece of progress; it takes nobody's messages away and closes no consumers.

A subscription that other regions never knew of needs nobody's word; what is stored and was only dropped is not done
with there, for a region that comes later gets it. One whose replicated flag was switched off keeps its rewinds: what
other regions did meanwhile is united with them when it is on again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.times import PublishTimes
from meridian_broker.positions import Position, Progress
from meridian_broker.positions.position import EARLIEST
from meridian_broker.positions.reports import agreed
from meridian_broker.topics.journal.progress_log import Kind

if TYPE_CHECKING:
    from meridian_broker.topics.subscriptions.subscription import Subscription

WORTH: Final = 4
"""From so many rewinds on they are merged: regions have to report for it."""


def are_many(subscription: Subscription) -> bool:
    """Are there so many that some should go?"""
    return subscription.progress.count_rewinds() >= WORTH


def are_kept(subscription: Subscription) -> bool:
    """Did other regions know of it until its replicated flag was switched off?"""
    return subscription.record.is_shared and not subscription.replicated


def merge(subscription: Subscription, regions: Collection[str]) -> None:
    """Merge what all these regions, the topic's, agree on."""
    progress = subscription.progress
    told = agreed(progress.reports, regions, progress.state())
    if told is not None:
        acked = progress.floors()
        ends = {region: max(told.get(region, EARLIEST), acked.get(region, EARLIEST)) for region in told | acked}
        merge_done(subscription, ends)


def merge_done(subscription: Subscription, done: Mapping[str, Position]) -> None:
    """Merge, durably. What was acked once, and is owed no more, counts as acked afterwards, also where it was dropped.

    :param done: per origin up to where nothing is owed in any region that knows the subscription.
    """
    subscription.claims.flush_pending()
    delta = subscription.progress.merge_rewinds(done)
    if delta is None:
        return
    topic = subscription.topic
    subscription.progress.join(delta)
    if subscription.first_hand is not None:
        subscription.first_hand.join(delta)
    topic.progress_log.append(Kind.FLOORS, subscription.name, delta.encode())
    topic.tell_others(subscription.name, delta)
    _look_at_fewer_times(subscription)


def merged_elsewhere(subscription: Subscription) -> None:
    """Another region told that it merged some: the evidence of first-hand acknowledgements forgets as much (R60)."""
    progress = subscription.progress
    _look_at_fewer_times(subscription)
    heads = progress.heads()
    for region in progress.regions():
        newest = progress.acks(progress.epoch, region)
        if newest is not None and newest.floor > EARLIEST:
            heads.raise_floor(region, newest.floor)
    tell_first_hand(subscription, heads)


def tell_first_hand(subscription: Subscription, heads: Progress) -> None:
    """Let the evidence of first-hand acknowledgements know of rewinds that other regions made, durably."""
    if subscription.first_hand is not None:
        subscription.first_hand.join(heads)
        subscription.topic.progress_log.append(Kind.FLOORS, subscription.name, heads.encode())


def _look_at_fewer_times(subscription: Subscription) -> None:
    if subscription.times is not None:
        subscription.times = PublishTimes(subscription.topic.log, subscription.progress.moments())
