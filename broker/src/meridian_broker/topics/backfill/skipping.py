# SPDX-License-Identifier: Apache-2.0
"""Drops the backlog for one other region: what it has not received is skipped, and it continues with what follows.

Nothing else drops the backlog for a region, so this is how space is freed while a region is away. It is recorded
first, then passed to the replicator: after a restart the same range is skipped, and trimming does not wait for the
region. See ``positions/skipped.py`` for the meaning of a skipped range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from meridian_broker.ledgers.damage import is_damaged
from meridian_broker.ledgers.entry import unpack
from meridian_broker.ledgers.scheduling import next_turn
from meridian_broker.positions.position import Position
from meridian_broker.topics.errors import SubscriptionNotFound

if TYPE_CHECKING:
    from meridian_broker.positions.skipped import Skipped
    from meridian_broker.topics.backfill.questions import Feed
    from meridian_broker.topics.context import TopicContext

PAGE: Final = 1000
"""Entries whose age is examined in one turn of the loop."""
PAGE_BYTES: Final = 1 << 20
"""Bytes read at a time to determine the age of entries."""


class Replicators(Protocol):
    """Runs the replicators."""

    def feed(self, topic_name: str, remote: str, /) -> Feed | None:
        """How far the replicator is; None: there is none."""
        ...

    def skip(self, topic_name: str, remote: str, skipped: Skipped, /) -> None:
        """Continue after what is skipped for the remote region."""
        ...


async def skip_entries(topic: TopicContext, remote: str, replicators: Replicators, count: int | None) -> None:
    """Skip the next ``count`` stored entries of the backlog; None: all that are stored now.

    :raises SubscriptionNotFound: the topic is not replicated there.
    :raises LedgerError: the entries' headers cannot be read.
    :raises MetadataError: it was not recorded, and nothing is skipped.
    """
    confirmed = _feed(topic, remote, replicators).confirmed
    upto = topic.log.last_confirmed if count is None else _further(topic, confirmed, count)
    await _skip(topic, remote, replicators, upto)


async def skip_upto(topic: TopicContext, remote: str, replicators: Replicators, upto: Position) -> None:
    """Skip everything up to and including a position. Raises as ``skip_entries``."""
    await _skip(topic, remote, replicators, min(upto, topic.log.last_confirmed))


async def skip_old(topic: TopicContext, remote: str, replicators: Replicators, before_ms: int) -> None:
    """Skip the beginning of the backlog as long as entries were published, or stored here, before ``before_ms``.

    Raises as ``skip_entries``.
    """
    upto = at = _feed(topic, remote, replicators).confirmed
    is_over = False
    while not is_over and (found := await topic.log.read_after(at, PAGE, PAGE_BYTES)):
        for at, entry in found:
            if is_damaged(entry):
                continue  # of unknown age: skipped with an old one after it
            header = unpack(entry)
            if min(header.publish_time_ms, header.stored_time_ms) >= before_ms:
                is_over = True
                break
            upto = at
        await next_turn(topic.scheduler)
    await _skip(topic, remote, replicators, upto)


def backlog(topic: TopicContext, remote: str, replicators: Replicators) -> int:
    """The number of stored entries that wait for the region. :raises SubscriptionNotFound: the topic is not
    replicated there.
    """
    return _feed(topic, remote, replicators).behind


def _feed(topic: TopicContext, remote: str, replicators: Replicators) -> Feed:
    feed = replicators.feed(topic.name, remote) if remote in topic.remotes else None
    if feed is None:
        others = ", ".join(sorted(topic.remotes)) or "no other region"
        raise SubscriptionNotFound(f"{topic.name} is not replicated to {remote!r} from here, but to {others}")
    return feed


def _further(topic: TopicContext, after: Position, count: int) -> Position:
    """The entry ``count`` stored entries further on, or the last one."""
    for ledger, first, last in topic.log.stretches(after, topic.log.last_confirmed):
        if count <= last - first + 1:
            return Position(ledger, first + count - 1)
        count -= last - first + 1
    return topic.log.last_confirmed


async def _skip(topic: TopicContext, remote: str, replicators: Replicators, upto: Position) -> None:
    if upto <= _feed(topic, remote, replicators).confirmed:
        return
    own = await _last_own(topic, upto)
    topic.check_open()
    assert topic.metadata is not None
    known = _feed(topic, remote, replicators).remote_last
    skipped = await topic.metadata.save_skipped(remote, known, upto, own)
    replicators.skip(topic.name, remote, skipped)


async def _last_own(topic: TopicContext, upto: Position) -> Position:
    """The last own entry stored up to a position."""
    own = next(span.own_before for span in topic.log.spans() if span.ledger_id == upto.ledger)
    index = await topic.log.load_index(upto.ledger)
    for first in range(0, upto.entry + 1, PAGE):
        origins = index.origins(first, min(first + PAGE - 1, upto.entry))
        own = max((origin for _, region, origin in origins if region == topic.region and origin > own), default=own)
        await next_turn(topic.scheduler)
    return own
