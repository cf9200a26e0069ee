# SPDX-License-Identifier: Apache-2.0
"""What acknowledgements claim: single ones, cumulative ones, and those that nobody writes down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meridian_broker.positions import ZERO, Progress, Stamp
from meridian_broker.positions.position import Position
from meridian_broker.topics import cursor

if TYPE_CHECKING:
    from meridian_broker.ledgers.log import TopicLog
    from meridian_broker.topics.claims import Confirmed
    from meridian_broker.topics.consumer import Consumer
    from meridian_broker.topics.rewinding import Resent
    from meridian_broker.topics.subscription import Subscription


def each(
    subscription: Subscription,
    consumer: Consumer,
    positions: list[Position],
    stale: frozenset[Position],
    batches: dict[Position, int],
    confirmed: Confirmed | None,
) -> None:
    """Single acknowledgements of a durable subscription. The entries' indexes are in memory.

    :param stale: those of entries that were sent before a rewind only (R13).
    """
    log = subscription.topic.log
    delta = subscription.claims.open()
    epoch = consumer.epoch
    parts: list[Position] = []
    for position in positions:
        if stale:
            epoch = ZERO if position in stale else consumer.epoch
        if not log.holds(position):
            _late(subscription, delta, epoch, position, batches.get(position))
            subscription.settle(consumer, position)
            continue
        place = log.place(position)
        part = batches.get(position)
        if part is not None:
            if place is not None:
                cursor.claim_part(log, delta, epoch, position, place, part)
            parts.append(position)
            continue
        if place is not None:
            delta.ack(epoch, place.region, place.prev, place.origin)
        subscription.settle(consumer, position)
    subscription.claims.changed(confirmed, len(positions))
    if parts:
        subscription.claims.flush()
        for position in parts:  # the last part of a batch makes it whole
            place = log.place(position)
            if place is not None and subscription.progress.is_acked(place.region, place.origin):
                subscription.settle(consumer, position)


def _late(
    subscription: Subscription, delta: Progress, epoch: Stamp, position: Position, part: int | None = None
) -> None:
    """One entry that was given back, or dropped: acknowledged elsewhere, or dropped while a consumer held it (R14)."""
    index = subscription.topic.late.index(position)
    place = None if index is None else index.place(position.entry)
    if index is None or place is None:
        return
    if part is None:
        delta.ack(epoch, place.region, place.prev, place.origin)
    else:
        size = index.messages(position.entry)
        delta.ack_batch(epoch, place.region, place.origin, size, ~part & (1 << size) - 1, place.prev)


def is_known(subscription: Subscription, position: Position) -> bool:
    """Whether a cumulative acknowledgement of ``position`` may count: nothing before it is owed, or it is the id of an
    entry that is here, or that this region sent.

    Another id is another region's. It says nothing of the entries that happen to have smaller ids here.
    """
    if position <= subscription.start():
        return True
    if position.entry < 0:  # what is before a ledger: see before_ledger
        position = Position(position.ledger, 0)
    if subscription.topic.log.holds(position):
        return True
    compacted = subscription.compacted
    if compacted is None or not subscription.durable:  # a reader claims nothing
        return compacted is not None and position <= compacted.horizon
    return compacted.knows(position)


def up_to(
    subscription: Subscription,
    consumer: Consumer,
    position: Position,
    part: int | None,
    confirmed: Confirmed | None,
    resent: Resent | None,
    behind: Position | None = None,
) -> None:
    """A cumulative acknowledgement, as far as it is about what is not read from a compacted view.

    :param part: of the last entry only, all messages but those with these bits.
    :param resent: what was sent since the newest rewind when it came; only that counts in the newest epoch (R13).
    :param behind: it is about what is behind this place; None: ask the consumer.
    """
    log = subscription.topic.log
    if behind is None:
        last = position if part is None else log.before(position)
        behind = consumer.acknowledges_to(last, in_part=part is not None)
    after = max(subscription.mark_delete, behind)
    if subscription.compacted is not None:
        after = max(after, subscription.compacted.horizon)
    upto = position if part is None else log.before(position)
    pieces = consumer.pieces
    withheld, chunks = (frozenset(), []) if pieces is None else pieces.acknowledged(position)
    needed = [after, *chunks] if subscription.share is None else [after, *chunks, position]
    ledger = cursor.index_missing(log, min(needed), position)
    if ledger is not None:
        as_now = None if resent is None else resent.copy()
        work = _load_then_up_to(ledger, subscription, consumer, position, part, confirmed, as_now, behind)
        subscription.topic.scheduler.spawn(work, "load an index for an acknowledgement")
        return
    delta = subscription.claims.open()
    only = _covered(subscription, position)
    claimed = cursor.claim_between(
        log, delta, consumer.epoch, after, upto, subscription.dropped, resent, only, withheld=withheld
    )
    if pieces is not None:
        pieces.forget(position)
        claimed += _chunks(subscription, consumer, delta, chunks, resent, only)
    if subscription.dropped is not None and only is None:  # of what was dropped it has seen the one that it names
        _late(subscription, delta, consumer.epoch if resent is None or resent.holds(position) else ZERO, position, part)
    if part is not None and position > after and log.holds(position):
        place = log.place(position)
        if place is not None:
            epoch = consumer.epoch if resent is None or resent.holds(position) else ZERO
            cursor.claim_part(log, delta, epoch, position, place, part)
            claimed += 1
    subscription.claims.changed(confirmed, claimed)


def before_ledger(log: TopicLog, position: Position, floor: Position) -> Position:
    """The last entry before a ledger, of which ``position`` names number -1: so do C++ clients that acknowledge
    cumulatively some messages of the batch that begins it. A ledger that is not here stays as it is.

    :param floor: what is acknowledged anyway, or not in the log any more.
    """
    first = Position(position.ledger, 0)
    if not log.holds(first):
        return position
    before = log.before(first)
    return before if log.holds(before) else min(before, floor)


def _chunks(
    subscription: Subscription,
    consumer: Consumer,
    delta: Progress,
    chunks: list[Position],
    resent: Resent | None,
    only: frozenset[str] | None,
) -> int:
    """All of messages that are acknowledged whole now, also what earlier acknowledgements did not cover; how many."""
    log, claimed = subscription.topic.log, 0
    for position in chunks:
        place = log.place(position) if log.holds(position) else None
        if place is not None and (only is None or place.region in only):
            epoch = consumer.epoch if resent is None or resent.holds(position) else ZERO
            delta.ack(epoch, place.region, place.prev, place.origin)
            claimed += 1
    return claimed


def _covered(subscription: Subscription, position: Position) -> frozenset[str] | None:
    """Origins that a cumulative acknowledgement of this entry is about; None: all of them."""
    share, log = subscription.share, subscription.topic.log
    if share is None:
        return None
    place = log.place(position) if log.holds(position) else None
    return frozenset() if place is None else share.covered_by(place.region, position)


async def _load_then_up_to(
    ledger: int,
    subscription: Subscription,
    consumer: Consumer,
    position: Position,
    part: int | None,
    confirmed: Confirmed | None,
    resent: Resent | None,
    behind: Position,
) -> None:
    await subscription.topic.log.load_index(ledger)
    up_to(subscription, consumer, position, part, confirmed, resent, behind)


def in_memory(
    subscription: Subscription,
    consumer: Consumer,
    positions: list[Position],
    confirmed: Confirmed | None,
    *,
    is_sharing: bool,
) -> None:
    """Readers keep no progress: only how far they are."""
    for position in positions:
        subscription.settle(consumer, position)
        if not is_sharing and subscription.topic.log.holds(position):
            subscription.mark_delete = max(subscription.mark_delete, position)
    if subscription.topic.terminated is not None:
        subscription.dispatch_soon()
    if confirmed is not None:
        confirmed(None)
