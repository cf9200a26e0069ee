# SPDX-License-Identifier: Apache-2.0
"""What acknowledgements claim: single ones, cumulative ones, and those that nobody writes down."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.ledgers.under_way import UnderWay
from meridian_broker.positions import ZERO, Progress, Stamp
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.topics.cursors import log_walks

if TYPE_CHECKING:
    from meridian_broker.ledgers.log import TopicLog
    from meridian_broker.ledgers.store import Done
    from meridian_broker.topics.cursors.rewinding import Resent
    from meridian_broker.topics.dispatch.consumer import Consumer
    from meridian_broker.topics.subscriptions.subscription import Subscription

log = logging.getLogger(__name__)

Rest = Coroutine[Any, Any, None]
"""What is left of an acknowledgement whose entries have to be looked up first. Raises ``LedgerError`` if that fails."""


def look_ups(subscription: Subscription) -> UnderWay:
    """Counts the acknowledgements whose entries are being looked up; a close waits for them."""
    if subscription.look_ups is None:
        subscription.look_ups = UnderWay()
    return subscription.look_ups


def go_on_later(subscription: Subscription, rest: Rest, confirmed: Done | None) -> None:
    """Do the rest of an acknowledgement while others run."""
    work = _go_on(subscription, look_ups(subscription).begin(), rest, confirmed)
    subscription.topic.serve(work, "look acknowledged entries up")


async def _go_on(subscription: Subscription, number: int, rest: Rest, confirmed: Done | None) -> None:
    """Whoever waits hears of a failure. Where nobody does it is raised and fences the topic: so the consumer comes back
    and gets again what could not be acknowledged, instead of counting on it."""
    failure: LedgerError | None = None
    try:
        await rest
    except Exception as error:
        failure = error if isinstance(error, LedgerError) else LedgerError(f"its entry cannot be looked up: {error}")
        log.warning("%s, %s: an acknowledgement is lost: %s", subscription.topic.name, subscription.name, failure)
        if confirmed is not None:
            confirmed(failure)
        if confirmed is None or not isinstance(error, LedgerError):
            raise
    finally:
        look_ups(subscription).end(number, failure)


async def once_indexed(subscription: Subscription, ledger: int, attempt: Callable[[], int | None]) -> None:
    """Load the index of ``ledger``, then of each ledger that ``attempt`` names, until it names none."""
    missing: int | None = ledger
    while missing is not None:
        await log_walks.load_index(subscription.topic.log, missing)
        missing = attempt()


def each(
    subscription: Subscription,
    consumer: Consumer,
    positions: list[Position],
    stale: frozenset[Position],
    batches: dict[Position, int],
    confirmed: Done | None,
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
                log_walks.claim_part(log, delta, epoch, position, place, part)
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
) -> int:
    """One entry that was given back, or dropped: acknowledged elsewhere, or dropped while a consumer held it (R14).
    Says how many entries that claims."""
    index = subscription.topic.late.index(position)
    place = None if index is None else index.place(position.entry)
    if index is None or place is None:
        return 0
    if part is None:
        delta.ack(epoch, place.region, place.prev, place.origin)
    else:
        size = index.messages(position.entry)
        delta.ack_batch(epoch, place.region, place.origin, size, ~part & (1 << size) - 1, place.prev)
    return 1


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
    behind: Position,
    position: Position,
    part: int | None,
    confirmed: Done | None,
    resent: Resent | None,
) -> Rest | None:
    """A cumulative acknowledgement, as far as it is about what is not read from a compacted view.

    :param behind: it is about what is stored behind this place.
    :param part: of the last entry only, all messages but those with these bits.
    :param resent: what was sent since the newest rewind when it came; only that counts in the newest epoch (R13).

    What it covers becomes one piece of progress, also where that takes several turns of the loop: of the chunks of a
    message either all count or none (R18).

    :returns: what is left to do, where it takes several turns or an index that is not in memory.
    """
    log = subscription.topic.log
    after = max(subscription.mark_delete, behind)
    if subscription.compacted is not None:
        after = max(after, subscription.compacted.horizon)
    pieces = consumer.pieces
    withheld, chunks = (frozenset(), []) if pieces is None else pieces.acknowledged(position)
    if pieces is not None:
        pieces.forget(position)
    read = EARLIEST if subscription.dispatcher is None else subscription.dispatcher.read
    exceptions = log_walks.Exceptions(subscription.dropped, resent, withheld=withheld, damage=log.damage, read=read)
    delta = subscription.progress.empty_delta()
    steps = _claim_up_to(subscription, consumer.epoch, delta, after, position, part, chunks, exceptions)

    try:
        wanted = next(steps)
    except StopIteration as done:
        subscription.claims.add(delta, done.value, confirmed)
        return None
    if resent is not None:  # what is sent from here on was not meant by it
        exceptions.resent = resent.copy()
    return _take_steps(subscription, delta, steps, wanted, confirmed)


def _claim_up_to(
    subscription: Subscription,
    epoch: Stamp,
    delta: Progress,
    after: Position,
    position: Position,
    part: int | None,
    chunks: list[Position],
    exceptions: log_walks.Exceptions,
) -> log_walks.Steps[int]:
    """Claim in ``delta`` everything behind ``after`` that an acknowledgement of ``position`` covers."""
    log = subscription.topic.log
    if subscription.share is not None:
        yield from _index_of(log, position)
    only = exceptions.only = _covered(subscription, position)
    upto = position if part is None else log.before(position)
    claimed = yield from log_walks.claim_between(log, delta, epoch, after, upto, exceptions)
    for chunk in chunks:  # of messages that are whole now, also what earlier acknowledgements did not cover
        yield from _index_of(log, chunk)
        place = log.place(chunk) if log.holds(chunk) else None
        if place is not None and (only is None or place.region in only):
            delta.ack(exceptions.counted(chunk, epoch), place.region, place.prev, place.origin)
            claimed += 1
    counted = exceptions.counted(position, epoch)
    if subscription.dropped is not None and only is None:  # of what was dropped it has seen the one that it names
        claimed += _late(subscription, delta, counted, position, part)
    if part is not None and position > after and log.holds(position):
        yield from _index_of(log, position)
        place = log.place(position)
        if place is not None:
            log_walks.claim_part(log, delta, counted, position, place, part)
            claimed += 1
    return claimed


def _index_of(log: TopicLog, position: Position) -> Iterator[int]:
    """Have the index of the entry's ledger in memory, as long as it is stored."""
    while log.holds(position) and log.index(position.ledger) is None:
        yield position.ledger


async def _take_steps(
    subscription: Subscription,
    delta: Progress,
    steps: log_walks.Steps[int],
    wanted: int | None,
    confirmed: Done | None,
) -> None:
    """Take the rest of the steps, and let others run in between."""
    while True:
        await log_walks.make_way(subscription.topic.log, subscription.topic.scheduler, wanted)
        try:
            wanted = next(steps)
        except StopIteration as done:
            subscription.claims.open()  # others may have rewound it meanwhile
            subscription.claims.add(delta, done.value, confirmed)
            return


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


def _covered(subscription: Subscription, position: Position) -> frozenset[str] | None:
    """Origins that a cumulative acknowledgement of this entry is about; None: all of them."""
    share, log = subscription.share, subscription.topic.log
    if share is None:
        return None
    place = log.place(position) if log.holds(position) else None
    return frozenset() if place is None else share.covered_by(place.region, position)


def in_memory(
    subscription: Subscription,
    consumer: Consumer,
    positions: list[Position],
    confirmed: Done | None,
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
