# SPDX-License-Identifier: Apache-2.0
"""Entries that go without an acknowledgement: expired, evicted, truncated (R14).

A drop is this region's own: recorded durably beside Progress with its cause, passed over by the cursor here, and told
to nobody as an acknowledgement. Entries are dropped a page at a time, all subscriptions together: the ranges are worked
out once for all of them, and others run between pages, so that a long backlog holds up nobody.

A page's ranges also run over what is acked already: so they join to one range per origin, and an entry that is both
acked and dropped is acked. They are claimed along the chain (R3), so they never cover what is not stored here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.block_times import BLOCK
from meridian_broker.ledgers.damage import is_damaged
from meridian_broker.ledgers.entry import unpack
from meridian_broker.ledgers.index import LedgerIndex
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions import Cause, Dropped, Progress
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.topics.errors import TopicFenced
from meridian_broker.topics.journal.progress_log import Kind

if TYPE_CHECKING:
    from meridian_broker.ledgers.log import TopicLog
    from meridian_broker.ledgers.store import Done
    from meridian_broker.topics.context import TopicContext
    from meridian_broker.topics.subscriptions.subscription import Subscription

PAGE: Final = 2000
"""Entries dropped in one step."""
PAGE_BYTES: Final = 1 << 20
"""Bytes read at a time to learn how old entries are."""

Page = tuple[LedgerIndex, list[int]]
"""Entries of one ledger, ascending, all of which go."""


async def drop_old(
    topic: TopicContext, subscriptions: Collection[Subscription], before_ms: int, cause: Cause = Cause.TTL
) -> dict[str, int]:
    """Drop what was published before ``before_ms``. Says how many entries each subscription let go.

    Entries are looked at from the first one that somebody is owed, until one is younger, both by the clock of who
    published it and by ours. One that claims to be younger than it can be is kept and looked past.

    :raises LedgerError: entries cannot be read.
    :raises TopicFenced: the topic was closed meanwhile; what was dropped until then stays so.
    """
    pages = _old_pages(topic, _begin(subscriptions), before_ms)
    return await _drop(topic, subscriptions, cause, pages)


async def drop_upto(
    topic: TopicContext, subscriptions: Collection[Subscription], cause: Cause, upto: Position
) -> dict[str, int]:
    """Drop everything up to a position, itself included. Answers and raises as ``drop_old``."""
    pages = _pages_upto(topic.log, _begin(subscriptions), min(upto, topic.log.last_confirmed))
    return await _drop(topic, subscriptions, cause, pages)


def _begin(subscriptions: Collection[Subscription]) -> Position | None:
    return min((one.mark_delete for one in subscriptions), default=None)


async def _old_pages(topic: TopicContext, after: Position | None, before_ms: int) -> AsyncIterator[Page]:
    log = topic.log
    doubtful: list[Page] = []  # damaged, of unknown age: those stored before something old are old, too
    while after is not None and (found := await log.read_after(after, PAGE, PAGE_BYTES)):
        index = await log.load_index(found[0][0].ledger)
        if is_damaged(found[0][1]):
            doubtful.append((index, [found[0][0].entry]))
            after = found[0][0]
            yield index, []
            continue
        old = []
        is_over = is_any_old = False
        for position, entry in found:
            header = unpack(entry)
            is_any_old |= header.stored_time_ms < before_ms
            if header.publish_time_ms < before_ms:
                old.append(position.entry)
            elif header.stored_time_ms >= before_ms:
                is_over = True
                break
        if is_any_old:
            for page in doubtful:
                yield page
            doubtful.clear()
        yield index, old
        if is_over:
            return
        after = found[-1][0]


async def _pages_upto(log: TopicLog, after: Position | None, upto: Position) -> AsyncIterator[Page]:
    following = None if after is None else log.after(after)
    while following is not None and following <= upto:
        index = await log.load_index(following.ledger)
        end = upto.entry if following.ledger == upto.ledger else len(index) - 1
        last = min(following.entry + PAGE - 1, end)
        yield index, list(range(following.entry, last + 1))
        following = log.after(Position(following.ledger, last))


async def _drop(
    topic: TopicContext, subscriptions: Collection[Subscription], cause: Cause, pages: AsyncIterator[Page]
) -> dict[str, int]:
    counts = dict.fromkeys((one.name for one in subscriptions), 0)
    async for index, entries in pages:
        await _load_times(subscriptions, index.ledger_id, entries)
        if topic.failure is not None:
            raise TopicFenced(f"{topic.name} was closed meanwhile ({topic.failure}): look it up again")
        if entries:
            ranges = _ranges(cause, index, entries)
            for one in subscriptions:
                if one.is_there:
                    counts[one.name] += _drop_page(one, ranges, index, entries)
        await topic.scheduler.answer(lambda ready: topic.scheduler.defer(lambda: ready(None)))
    return counts


async def _load_times(subscriptions: Collection[Subscription], ledger: int, entries: list[int]) -> None:
    """After a seek by time it takes the time of an entry to know whether it is acknowledged."""
    blocks = {entry // BLOCK: entry for entry in entries}
    for one in subscriptions:
        if one.times is not None:
            for last in blocks.values():
                await one.times.load(Position(ledger, last))


def _ranges(cause: Cause, index: LedgerIndex, entries: Iterable[int]) -> Dropped:
    ranges = Dropped()
    for entry in entries:
        place = index.place(entry)
        if place is not None:
            ranges.add(cause, place.region, place.prev, place.origin)
    return ranges


def _drop_page(subscription: Subscription, ranges: Dropped, index: LedgerIndex, entries: list[int]) -> int:
    """Drop what of a page is owed to one subscription; says how many entries that are."""
    ledger, mark_delete = index.ledger_id, subscription.mark_delete
    if (ledger, entries[-1]) <= mark_delete:
        return 0
    if not subscription.durable:
        owed = [entry for entry in entries if (ledger, entry) > mark_delete]
        owed = owed[: _run_length(owed)]
        if subscription.topic.log.after(mark_delete) != (ledger, owed[0]):
            return 0  # a reader knows one place and no holes
        subscription.pass_over(Position(ledger, owed[-1]))
        return len(owed)
    owed = []
    for entry in entries:
        origin = index.origin(entry)
        at = Position(ledger, entry)
        if origin is not None and at > mark_delete and not subscription.is_settled(*origin, at):
            owed.append(entry)
    if owed:
        record(subscription, ranges)
        if subscription.let_go(Position(ledger, entry) for entry in owed):
            subscription.topic.late.note(index)
    return len(owed)


def _run_length(entries: list[int]) -> int:
    """How many entries follow each other from the first one on."""
    return next((at for at, entry in enumerate(entries) if entry != entries[0] + at), len(entries))


def record(subscription: Subscription, ranges: Dropped, done: Done | None = None) -> None:
    """Note drops of one subscription, durably. ``done`` hears when they are."""
    log = subscription.topic.progress_log
    if subscription.dropped is None:
        subscription.dropped = Dropped()
    if subscription.dropped.join(ranges):
        log.append(Kind.DROPPED, subscription.name, ranges.encode(), done)
    elif done is not None:
        log.when_durable(done)


async def durable(topic: TopicContext) -> None:
    """Wait until all that was recorded of the topic so far is on disk. :raises TopicFenced: it never will be."""
    try:
        await topic.scheduler.answer(topic.progress_log.when_durable)
    except LedgerError as error:
        raise TopicFenced(f"{topic.name} was closed meanwhile, the change may be lost: {error}") from error


def join(progress: Progress, dropped: Dropped | None, delta: Progress) -> bool:
    """Join acknowledgements or a rewind to what is known. A rewind that is new here takes drops back (R12).

    :returns: whether anything was new.
    """
    if dropped is None or dropped.is_empty:
        return progress.join(delta)
    before = progress.layers
    changed = progress.join(delta)
    if progress.layers is not before:
        known = {layer.epoch for layer in before or ()}
        for epoch, rules, publish_time_ms in progress.rewinds():
            if epoch not in known:
                if publish_time_ms is not None:  # ranges do not say when their entries were published
                    rules = {region: (EARLIEST, LATEST) for _, region, _, _ in dropped.runs()}
                dropped.take_back(rules)
    return changed
