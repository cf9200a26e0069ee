# SPDX-License-Identifier: Apache-2.0
"""Lists of topics, made in slices: a namespace of a hundred thousand topics does not block the loop."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple

from meridian_broker.ledgers.scheduling import Scheduler, next_turn
from meridian_broker.metadata.topic_listing import Listing
from meridian_broker.topics.directory.patterns import Digest, TopicPattern
from meridian_broker.wire.pulsar.topic_name import TopicName

SLICE: Final = 500
"""Names in one turn of the loop: some five milliseconds where a pattern is tried on each."""


class Selected(NamedTuple):
    """Topics of a namespace that a client asked for."""

    names: list[str]
    digest: str
    encoded_bytes: int
    """Size of all names in UTF-8."""


async def names_of(listing: Listing, scheduler: Scheduler) -> list[str]:
    """The full names, sorted."""
    names: list[str] = []
    for first in range(0, len(listing), SLICE):
        if first:
            await next_turn(scheduler)
        names += listing.names(first, first + SLICE)
    names.sort()  # fast: they are nearly in order
    return names


async def topic_names_of(listing: Listing, scheduler: Scheduler) -> list[TopicName]:
    """The names as values, in the listing's order."""
    names: list[TopicName] = []
    for first in range(0, len(listing), SLICE):
        if first:
            await next_turn(scheduler)
        names += listing.topic_names(first, first + SLICE)
    return names


async def in_order(names: Iterable[str], scheduler: Scheduler) -> list[str]:
    """Sort names that are in no order. Slices are sorted, then merged."""
    found = list(names)
    runs: list[list[str]] = []
    for first in range(0, len(found), SLICE):
        if first:
            await next_turn(scheduler)
        runs.append(sorted(found[first : first + SLICE]))
    merged, ordered = merge(*runs), list[str]()
    while some := list(islice(merged, SLICE)):
        if ordered:
            await next_turn(scheduler)
        ordered += some
    return ordered


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
