# SPDX-License-Identifier: Apache-2.0
"""How many parts a message of the exchange has: compared with the limits before any of them is looked at.

A region is let in because it knows the secret, and may still run a version with a fault. A frame of five megabytes has
room for two million empty parts, which would take the event loop a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from meridian_broker.bounds.regions import (
    BUNDLES,
    LISTED_SUBSCRIPTIONS,
    MESSAGE_ITEMS,
    PROGRESS_KEYS,
    REGION_BROKERS,
    REGION_NAMES,
)
from meridian_broker.wire.proto.pulsar_pb2 import BaseCommand

Counts = Iterator[tuple[str, int, int]]
"""What there is, how many, and how many there may be. What is cheap to count comes first."""


def check_counts(kind: int, message: Any) -> None:
    """:param kind: ``BaseCommand.Type`` of the message.
    :raises ValueError: it has more parts than any broker sends.
    """
    for what, count, most in _COUNTED[kind](message) if kind in _COUNTED else ():
        if count > most:
            raise ValueError(f"{count} {what} in one message; the limit is {most}")


def _lists(*names: str) -> Callable[[Any], Counts]:
    def counts(message: Any) -> Counts:
        return ((name, len(getattr(message, name)), MESSAGE_ITEMS) for name in names)

    return counts


def _delta(message: Any) -> Counts:
    yield "items", len(message.items), MESSAGE_ITEMS
    yield "names of regions", sum(len(item.unreached) for item in message.items), REGION_NAMES


def _digest(message: Any) -> Counts:
    yield from _lists("topics", "differing")(message)
    yield "buckets in flux", len(message.summary.buckets_in_flux), MESSAGE_ITEMS
    yield "numbers of ends", len(message.ends.numbers), MESSAGE_ITEMS
    yield "subscriptions", sum(len(topic.subscriptions) for topic in message.topics), LISTED_SUBSCRIPTIONS
    keys = (len(one.keys.keys) for topic in message.topics for one in topic.subscriptions)
    yield "ledgers", sum(keys), PROGRESS_KEYS


def _fetch(message: Any) -> Counts:
    yield from _lists("questions", "buckets", "parts", "buckets_in_flux")(message)
    yield "numbers of parts", sum(len(parts.numbers) for parts in message.parts), PROGRESS_KEYS
    yield "ledgers", sum(len(question.keys.keys) for question in message.questions), PROGRESS_KEYS


def _state(message: Any) -> Counts:
    yield "items", len(message.items), MESSAGE_ITEMS
    yield "ends", len(message.ends.topics), MESSAGE_ITEMS


def _barrier(message: Any) -> Counts:
    yield "ledgers", len(message.keys.keys), PROGRESS_KEYS


def _owners(message: Any) -> Counts:
    yield "brokers", len(message.brokers), REGION_BROKERS
    yield from _lists("namespaces")(message)
    yield "bundles", sum(len(one.borders) + len(one.owners) for one in message.namespaces), BUNDLES


def _voters(message: Any) -> Counts:
    yield "items", len(message.items), MESSAGE_ITEMS
    yield "names of regions", sum(len(item.lists) + len(item.wanted) for item in message.items), REGION_NAMES
    yield "names of regions", sum(len(one.names) for item in message.items for one in item.lists), REGION_NAMES


_COUNTED: Final[dict[int, Callable[[Any], Counts]]] = {
    BaseCommand.OWNERS: _owners,
    BaseCommand.DELTA: _delta,
    BaseCommand.DELTA_ACK: _lists("refusals"),
    BaseCommand.DIGEST: _digest,
    BaseCommand.FETCH: _fetch,
    BaseCommand.STATE: _state,
    BaseCommand.BARRIER: _barrier,
    BaseCommand.LEASE_ASK: _lists("items", "preferred"),
    BaseCommand.LEASE_ANSWER: _lists("items"),
    BaseCommand.LEASE_RELEASE: _lists("items"),
    BaseCommand.LEASE_RENEWAL: _lists("parts"),
    BaseCommand.LEASE_RENEWED: _lists("differing"),
    BaseCommand.VOTERS_ASK: _voters,
    BaseCommand.VOTERS_ANSWER: _voters,
}
