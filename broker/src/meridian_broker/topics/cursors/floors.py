# SPDX-License-Identifier: Apache-2.0
"""How far a subscription is through with each origin in all regions, acked or not: there detail is forgotten (R11).

Acks alone leave a hole in progress at each entry that was dropped (R14), for ever. So each region reports how far it
owes nothing: of each origin, up to which position every entry stored here is acked or dropped, and none will come that
is missing. A report is told once it is durable, and the drops before it are durable then, too. What every region of the
topic reported is a floor: it is joined as a floor of progress, which all regions merge by maximum.

A drop never becomes an ack by that: one region that still owes an entry keeps the floor below it. A report holds only
as long as the subscription begins where it did and no rewind came; regions that know of others wait for each other.

Regions that were removed from the topic are waited for no more. A region that is alone in a topic keeps its detail:
were it joined to others again, floors of its own would take from them what only it dropped. For the same reason it
merges old rewinds (``rewind_merging.py``) only as far as what it stores is acked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions import Position, Progress
from meridian_broker.positions.position import EARLIEST
from meridian_broker.positions.reports import Report, vouched
from meridian_broker.topics.cursors import log_walks, rewind_merging
from meridian_broker.topics.journal.progress_log import Kind

if TYPE_CHECKING:
    from meridian_broker.ledgers.index import LedgerIndex, Place
    from meridian_broker.ledgers.log import TopicLog
    from meridian_broker.topics.subscriptions.subscription import Subscription

WALK: Final = 20_000
"""Entries behind a cursor that are looked at one by one; those behind them count as owed."""


async def look_after(subscription: Subscription) -> None:
    """Called once in a while: report what is new, and let floors rise.

    :raises LedgerError: an index cannot be read.
    """
    _forget_drops(subscription)
    has_old_rewinds = rewind_merging.are_many(subscription)
    if _is_of_many(subscription):
        if has_old_rewinds or subscription.progress.count_detail():
            await _report(subscription)
            rise(subscription)
    elif has_old_rewinds and not rewind_merging.are_kept(subscription):
        done = await _settled(subscription, _acked_or_gone_upto(subscription))
        if done is not None:
            rewind_merging.merge_done(subscription, done)


def rise(subscription: Subscription) -> None:
    """Raise the floors to what all regions reported, durably, and forget what lies below."""
    if not subscription.progress.reports or not _is_of_many(subscription):
        return
    topic, progress = subscription.topic, subscription.progress
    floors = vouched(progress.reports, topic.regions(), progress.state(), progress.floors())
    if floors:
        subscription.claims.flush_pending()
        delta = progress.empty_delta()
        for region, position in floors.items():
            delta.raise_floor(region, position)
        apply(subscription, delta)
        topic.progress_log.append(Kind.FLOORS, subscription.name, delta.encode())
        topic.tell_others(subscription.name, delta)
        subscription.advance()
    if rewind_merging.are_many(subscription):
        rewind_merging.merge(subscription, topic.regions())


def apply(subscription: Subscription, delta: Progress) -> None:
    """Join floors; evidence of acks and drops below them is forgotten with all other detail."""
    subscription.progress.join(delta)
    if subscription.first_hand is not None:
        subscription.first_hand.join(delta)
    _forget_drops(subscription)


def _forget_drops(subscription: Subscription) -> None:
    """Below the floors no detail is kept, of drops neither."""
    if subscription.dropped is not None and not subscription.dropped.is_empty:
        for region, position in subscription.progress.floors().items():
            subscription.dropped.forget(region, position)


def _is_of_many(subscription: Subscription) -> bool:
    return subscription.durable and subscription.replicated and len(subscription.topic.regions()) > 1


async def _report(subscription: Subscription) -> None:
    """Tell how far nothing is owed here, where that is more than acks say and was not told yet.

    Where old rewinds are to be merged, also tell that this region knows them.
    """
    topic = subscription.topic
    found = await _settled(subscription, owed_nothing_upto(subscription))
    if found is None:
        return
    progress, acked = subscription.progress, subscription.progress.floors()
    upto = {region: position for region, position in found.items() if position > acked.get(region, EARLIEST)}
    known, state = progress.reports.get(topic.region), progress.state()
    is_worth_it = upto or rewind_merging.are_many(subscription)
    if not is_worth_it or (known is not None and known.state == state and known.upto == upto):
        return
    stamp = topic.clock.next() if known is None else topic.clock.next(after=known.stamp)
    delta = progress.empty_delta()
    delta.reports = {topic.region: Report(stamp, state, upto)}

    def durable(error: LedgerError | None) -> None:
        if error is None and subscription.is_there:
            rise(subscription)

    progress.join(delta)
    topic.progress_log.append(Kind.MERGED, subscription.name, delta.encode(), durable)
    topic.tell_others(subscription.name, delta)


def owed_nothing_upto(subscription: Subscription) -> log_walks.Steps[dict[str, Position]]:
    """Per origin: every entry up to here is settled, or is not stored in this region and will not come.

    Empty when a compacted view is read, which passes over what is not settled. Void when a rewind or an earlier
    beginning came meanwhile.
    """
    log, progress = subscription.topic.log, subscription.progress
    if subscription.compacted is not None:
        return {}
    at = subscription.mark_delete
    reached = yield from _stored_upto(log, at)
    owed: dict[str, Position] = {}
    left, looked = WALK, 0
    while (following := log.after(at)) is not None:
        ledger, first = following
        index = log.index(ledger)
        if index is None:
            yield ledger
            continue
        last = index.last_of_runs(first, log_walks.SLICE)
        some = list(index.runs(first, last))
        unsettled = [run for run in some if not progress.all_acked(*run)]
        if unsettled and left:
            last = min(last, first + min(left, log_walks.SLICE) - 1)
            some, unsettled = list(index.runs(first, last)), list(_owed(subscription, index, first, last))
            left -= last - first + 1
            looked += last - first
        for region, _, end in some:
            reached[region] = max(reached.get(region, EARLIEST), end)
        for region, prev, _ in unsettled:  # what came late stands behind later entries of its origin
            owed[region] = min(owed.get(region, prev), prev)
        at, looked = Position(ledger, last), looked + log_walks.LEDGER_COSTS + len(some)
        if looked >= log_walks.SLICE:
            yield None
            looked = 0
    for region, prev in owed.items():
        reached[region] = min(reached[region], prev)
    for region in reached:
        for missing_after, _ in log.holes.of(region):
            reached[region] = min(reached[region], missing_after)
    return reached


def _owed(subscription: Subscription, index: LedgerIndex, first: int, last: int) -> Iterator[Place]:
    """Of entries ``first`` to ``last`` of a ledger those that are not settled."""
    for entry in range(first, last + 1):
        place = index.place(entry)
        if place is not None and not subscription.is_settled(
            place.region, place.origin, Position(index.ledger_id, entry)
        ):
            yield place


async def _settled(
    subscription: Subscription, steps: log_walks.Steps[dict[str, Position]]
) -> dict[str, Position] | None:
    """What the steps find; None: the subscription is gone by then, or what they found is void.

    :raises LedgerError: an index cannot be read.
    """
    topic, progress = subscription.topic, subscription.progress
    state, reading = progress.state(), subscription.compacted
    found = await log_walks.carry_out(topic.log, topic.scheduler, steps)
    is_void = progress.state() != state or subscription.compacted is not reading
    return None if topic.failure is not None or not subscription.is_there or is_void else found


def _acked_or_gone_upto(subscription: Subscription) -> log_walks.Steps[dict[str, Position]]:
    """As ``owed_nothing_upto``, but before whatever is stored here and was dropped without an ack: old acks of it, from
    before a rewind, are not to count again. Regions that come to the topic later get it, and owe it."""
    log, progress = subscription.topic.log, subscription.progress
    upto = yield from owed_nothing_upto(subscription)
    first = next(iter(log.spans()), None)
    if subscription.dropped is None or first is None:
        return upto
    given_back, acked = {**first.origins_before, log.region: first.own_before}, progress.floors()
    for _, region, after, end in subscription.dropped.runs():
        after = max(after, given_back.get(region, EARLIEST), acked.get(region, EARLIEST))
        if after < min(end, upto.get(region, EARLIEST)) and not progress.all_acked(region, after, end):
            upto[region] = after
    return upto


def _stored_upto(log: TopicLog, upto: Position) -> log_walks.Steps[dict[str, Position]]:
    """The last entry of each origin that was ever stored at or before a place of the log."""
    found: dict[str, Position] = {}
    for span in log.spans():
        if span.ledger_id > upto.ledger:
            break
        found = {**span.origins_before, log.region: span.own_before}
    while log.holds(upto) and log.index(upto.ledger) is None:
        yield upto.ledger
    index, first = log.index(upto.ledger), 0
    while index is not None and first <= upto.entry:
        last = min(index.last_of_runs(first, log_walks.SLICE), upto.entry)
        for region, _, origin in index.runs(first, last):
            found[region] = max(found.get(region, EARLIEST), origin)
        first = last + 1
        if first <= upto.entry:
            yield None
    return found
