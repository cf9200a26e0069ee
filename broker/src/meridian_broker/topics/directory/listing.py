# SPDX-License-Identifier: Apache-2.0
"""Lists of topics, made in slices: a namespace of a hundred thousand topics does not block the loop."""

from __future__ import annotations

from typing import Final, NamedTuple

from meridian_broker.ledgers.scheduling import Scheduler, next_turn
from meridian_broker.metadata.topic_listing import Listing
from meridian_broker.topics.directory.patterns import Digest, TopicPattern

SLICE: Final = 500
"""Names in one turn of the loop: some five milliseconds where a pattern is tried on each."""


class Selected(NamedTuple):
    """Topics of a namespace that a client asked for."""

    names: list[str]
    digest: str
    encoded_bytes: int
    """Of all names in UTF-8."""


async def names_of(listing: Listing, scheduler: Scheduler) -> list[str]:
    """The full names, sorted."""
    names: list[str] = []
    for first in range(0, len(listing), SLICE):
        if first:
            await next_turn(scheduler)
        names += listing.names(first, first + SLICE)
    names.sort()
    return names


async def select(names: list[str], pattern: TopicPattern | None, scheduler: Scheduler) -> Selected:
    """Those that match, all without a pattern.

    :param names: sorted.
    """
    found: list[str] = []
    digest = Digest()
    for first in range(0, len(names), SLICE):
        if first:
            await next_turn(scheduler)
        some = names[first : first + SLICE]
        if pattern is not None:
            some = [name for name in some if pattern.matches(name)]
        digest.add(some)
        found += some
    return Selected(found, str(digest), digest.encoded_bytes)
