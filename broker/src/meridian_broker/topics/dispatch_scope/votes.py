# SPDX-License-Identifier: Apache-2.0
"""This region's votes on who dispatches a stream: what they say, and how they are written down (R26)."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from meridian_broker.topics.journal.changes import Kind

Ballot = tuple[str, int, int]
"""Holder, term, duration in milliseconds."""
Votes = dict[str, dict[str, Ballot]]
"""Of one topic: subscription -> origin -> the newest vote."""


def encode(ballots: Mapping[str, Ballot]) -> bytes:
    """The record of votes on a subscription's streams, by origin."""
    return json.dumps(ballots, separators=(",", ":"), sort_keys=True).encode()


def decode(payload: bytes) -> dict[str, Ballot]:
    """:raises ValueError: the record is not valid."""
    try:
        return from_json(json.loads(payload))
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{payload[:80]!r} is not a record of votes: {error}") from error


def from_json(fields: Any) -> dict[str, Ballot]:
    """:raises TypeError, ValueError, AttributeError: these are not votes."""
    return {str(origin): (str(holder), int(term), int(duration)) for origin, (holder, term, duration) in fields.items()}


def replay(votes: Votes, subscription: str, payload: bytes) -> None:
    """Take a record of the progress log; later ones count. :raises ValueError: it is not valid."""
    votes.setdefault(subscription, {}).update(decode(payload))


def snapshot(votes: Votes, known: Collection[str]) -> Iterator[tuple[Kind, str, bytes]]:
    """What the progress log must begin a ledger with.

    :param known: subscriptions of the topic, deleted ones included, because a promise on their streams may still bind.
        Votes on others are forgotten here, as they are not written again.
    """
    for name in votes.keys() - known:
        del votes[name]
    for name, ballots in list(votes.items()):
        yield Kind.VOTES, name, encode(ballots)
