# SPDX-License-Identifier: Apache-2.0
"""Periodic work on a topic: free space that is no longer needed, and expire old messages."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from meridian_broker.ledgers.store import LedgerError
from meridian_broker.ledgers.view import LogView
from meridian_broker.positions import Cause
from meridian_broker.positions.position import Position
from meridian_broker.topics.cursors import drops, floors, trimmed
from meridian_broker.topics.errors import TopicError, TopicFenced

if TYPE_CHECKING:
    from meridian_broker.topics.cursors.cursor import Cursor
    from meridian_broker.topics.topic import Topic

log = logging.getLogger(__name__)

READER_BACK_MS: Final = 60_000
"""How long the subscription of a reader that a seek disconnected is kept; clients reconnect within seconds."""


async def expire(topic: Topic) -> None:
    """Drop what is older than the topic's message TTL, unless its namespace is missing.

    :raises LedgerError, TopicError: it failed for now; retry later.
    """
    if topic.rules.message_ttl_seconds > 0 and topic.rules.are_current and topic.failure is None:
        before_ms = topic.scheduler.now_ms() - topic.rules.message_ttl_seconds * 1000
        await drops.drop_old(topic, _cursors(topic), before_ms)


async def expire_soon(topic: Topic) -> None:
    """As ``expire``; what fails now is left to the periodic run."""
    try:
        await expire(topic)
    except (LedgerError, TopicError) as error:
        log.warning("could not expire messages of %s, will retry: %s", topic.name, error)


async def trim(topic: Topic) -> None:
    """Delete the ledgers that are no longer needed, under the topic's retention policy; none while its namespace is
    missing.

    :raises LedgerError, MetadataError: a ledger cannot be deleted now.
    """
    now, retention = topic.scheduler.now_ms(), topic.rules.retention
    keep_since = None if retention.time_minutes < 0 else now - retention.time_minutes * 60_000
    keep_bytes = None if retention.size_mb < 0 else retention.size_mb << 20
    topic.deduplication.tidy()
    _forget_readers(topic, now)
    if topic.rules.are_current:
        await _raise_floors(topic)
        if topic.shadow_of is None:  # else ledgers are its source's to delete
            await _give_back(topic, keep_bytes, keep_since)
    if now - topic.last_used_ms > 60_000:
        topic.log.drop_tail()
    topic.log.cool_indexes(topic.needed_from().ledger)
    topic.late.pack({ledger for ledger, _, _ in topic.log.counts()})


async def _raise_floors(topic: Topic) -> None:
    for cursor in _cursors(topic):
        await floors.look_after(cursor)


def _cursors(topic: Topic) -> list[Cursor]:
    return [subscription.cursor for subscription in topic.subscriptions.values()]


def _forget_readers(topic: Topic, now_ms: int) -> None:
    """Remove subscriptions of readers that have left, including those that do not return after a seek."""
    for subscription in list(topic.subscriptions.values()):
        is_left = not subscription.durable and not subscription.consumers
        if is_left and now_ms - subscription.last_left_ms > READER_BACK_MS:
            topic.subscription_registry.forget_reader(subscription)


async def truncate(topic: Topic) -> None:
    """Drop everything stored so far for all subscriptions, and free its space whatever the retention (R14).

    What another region has not received yet stays stored until it has. The shadows' subscriptions lose it, too.

    :raises LedgerError: a ledger cannot be read, created or deleted.
    :raises TopicFenced: the topic was closed meanwhile.
    :raises NotAllowed: it is a shadow.
    """
    topic.check_own_log("truncate")
    topic.check_open()
    await topic.log.roll()
    end = topic.log.last_confirmed
    await drops.drop_upto(topic, _cursors(topic), Cause.TRUNCATED, end)
    await _skip_in_shadows(topic, end)
    if not await topic.shadows.ask(end, truncated=end):
        log.warning("%s was truncated; some of it stays stored until all its shadows have skipped it", topic.name)
    topic.deduplication.tidy()
    await _raise_floors(topic)
    await _give_back(topic, 0, None)


async def _give_back(topic: Topic, keep_bytes: int | None, keep_since_ms: int | None) -> None:
    """Free space. An entry is deleted only once the ack or drop that allows it is on disk; otherwise a crash would
    leave it owed but missing.
    """
    needed = topic.needed_from(elsewhere=False)
    for cursor in _cursors(topic):
        await trimmed.note_acknowledged(cursor, topic.log.trimmable(needed, keep_bytes, keep_since_ms))
    try:
        await drops.durable(topic)
        needed = min(needed, topic.needed_from(elsewhere=False))
        upto = await topic.retention_holds.upto(needed, keep_bytes, keep_since_ms)
    except TopicFenced:
        return
    upto = min(upto, topic.needed_from(elsewhere=False))
    going = topic.log.trimmable(upto, keep_bytes, keep_since_ms)
    if going:
        last = Position(going[-1].ledger_id, going[-1].entries - 1)
        await _skip_in_shadows(topic, last)
        await topic.shadows.ask(last)
    await topic.log.trim(min(upto, topic.needed_from()), keep_bytes, keep_since_ms)


async def _skip_in_shadows(topic: Topic, upto: Position) -> None:
    """Drop what is about to be deleted for the shadows' subscriptions that are still owed it, and record that.

    :raises LedgerError, TopicError: it is not recorded: nothing may be deleted yet.
    """
    for shadow in list(topic.shadows.open.values()):
        await skip(shadow, upto)


async def skip(shadow: Topic, upto: Position) -> None:
    """Drop what its source deletes for a shadow's subscriptions that are still owed it, and record that.

    :raises LedgerError, TopicError: it is not recorded: nothing may be deleted yet.
    """
    if any(cursor.mark_delete < upto for cursor in _cursors(shadow)):
        skipped = await drops.drop_upto(shadow, _cursors(shadow), Cause.TRUNCATED, upto)
        await drops.durable(shadow)
        if (count := sum(skipped.values())) and isinstance(shadow.log, LogView):
            shadow.log.skipped(count)
            log.warning(
                "%s: its subscriptions skip %d entries, because %s deletes them",
                *(shadow.name, count, shadow.shadow_of),
            )
