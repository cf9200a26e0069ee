# SPDX-License-Identifier: Apache-2.0
"""Snapshots of all regions at once, and the small tables of each as :class:`RegionState`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from meridian_verifier.align.facts import (
    EARLIEST,
    Cursor,
    Hole,
    Link,
    Place,
    PulsarTopic,
    Range,
    RegionState,
    TopicState,
)
from meridian_verifier.source.client import RegionClient, RegionUnreachable, Taken
from meridian_verifier.source.pulsar import PulsarClient
from meridian_verifier.source.tables import TABLES, conform

T = TypeVar("T")
C = TypeVar("C", RegionClient, PulsarClient)


@dataclass(frozen=True, slots=True)
class Moment:
    """One snapshot of every region that answered, taken at about the same time."""

    taken: Mapping[str, Taken]
    states: Mapping[str, RegionState]
    unreachable: Mapping[str, str]
    at: float
    """When it was complete, in seconds of this machine's monotonic clock."""
    pulsar: Mapping[str, Mapping[str, PulsarTopic]] = field(default_factory=dict)
    """Regions of Apache Pulsar that answered."""


def take_moment(clients: Sequence[RegionClient], topics: str | None, pulsar: Sequence[PulsarClient] = ()) -> Moment:
    """Ask all regions at once. A region that does not answer is recorded, not raised.

    :param pulsar: asked after the others, for the topics that these replicate to it.
    """

    def ask(client: RegionClient) -> tuple[Taken, RegionState]:
        taken = client.take(topics)
        return taken, read_state(client, taken)

    answers = _each(clients, ask)
    good, silent = _apart(answers)
    states = {name: state for name, (_, state) in good.items()}
    strangers, also_silent = _apart(_each(pulsar, lambda client: client.read(_sent_to(client.region.name, states))))
    return Moment(
        {name: taken for name, (taken, _) in good.items()}, states, silent | also_silent, time.monotonic(), strangers
    )


def _sent_to(region: str, states: Mapping[str, RegionState]) -> set[str]:
    """The topics that some region replicates there."""
    return {name for state in states.values() for name, topic in state.topics.items() if region in topic.links}


def _apart(answers: Mapping[str, T | RegionUnreachable]) -> tuple[dict[str, T], dict[str, str]]:
    """The answers, and the errors of the other regions."""
    good = {name: answer for name, answer in answers.items() if not isinstance(answer, RegionUnreachable)}
    return good, {name: str(error) for name, error in answers.items() if isinstance(error, RegionUnreachable)}


def _each(clients: Sequence[C], ask: Callable[[C], T]) -> dict[str, T | RegionUnreachable]:
    def guarded(client: C) -> T | RegionUnreachable:
        try:
            return ask(client)
        except RegionUnreachable as error:
            return error

    with ThreadPoolExecutor(max_workers=max(len(clients), 1)) as pool:
        return dict(zip([client.region.name for client in clients], pool.map(guarded, clients), strict=True))


def read_state(client: RegionClient, taken: Taken) -> RegionState:
    """The table ``topics`` of a snapshot, which includes the cursors.

    :raises RegionUnreachable: the stream broke too often.
    """
    topics = {
        row["topic"]: TopicState(
            row["incarnation"] or "",
            (row["trimmed_ledger"], row["trimmed_entry"]),
            _places(row["last_origins"]),
            _places(row["joined"]),
            {
                link["remote"]: Link(bool(link["connected"]), link["backlog"] or 0, link["last_ack_ms"] or 0)
                for link in row["links"] or []
            },
            {one["subscription"]: _cursor(one) for one in row["cursors"] or []},
            None if row["trimmed_origins"] is None else _places(row["trimmed_origins"]),
            _holes(row["holes"]),
            EARLIEST if row["compacted_ledger"] is None else (row["compacted_ledger"], row["compacted_entry"]),
            _skipped(row["skipped"]),
            row["shadow_of"] or "",
            tuple((one["ledger"], one["entries"]) for one in row["ledgers"] or []),
            _told(row["told"]),
            frozenset(row["unchained"] or ()),
        )
        for row in _rows(client, taken, "topics")
    }
    return apart(RegionState(client.region.name, taken.snapshot, taken.taken_ms, topics))


def apart(state: RegionState) -> RegionState:
    """The state with shadows separated from topics. Only shadows and their sources keep their ledgers."""
    shadows = {name: topic for name, topic in state.topics.items() if topic.shadow_of}
    sources = {topic.shadow_of for topic in shadows.values()}
    topics = {
        name: topic if name in sources else dataclasses.replace(topic, ledgers=())
        for name, topic in state.topics.items()
        if name not in shadows
    }
    return dataclasses.replace(state, topics=topics, shadows=shadows)


def _cursor(row: dict[str, Any]) -> Cursor:
    return Cursor(
        bool(row["replicated"]),
        bool(row["durable"]),
        row["type"] or "",
        (row["mark_delete_ledger"], row["mark_delete_entry"]),
        row["backlog"],
        row["epoch"] or "",
    )


def _rows(client: RegionClient, taken: Taken, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for partition in range(taken.partitions.get(table, 0)):
        for batch in client.rows(taken.snapshot, table, partition):
            found += conform(batch, TABLES[table]).to_pylist()
    return found


def _places(listed: list[dict[str, Any]] | None) -> dict[str, Place]:
    return {one["region"]: (one["ledger"], one["entry"]) for one in listed or []}


def _holes(listed: list[dict[str, Any]] | None) -> dict[str, list[Hole]]:
    found: dict[str, list[Hole]] = {}
    for one in listed or []:
        hole = (one["after_ledger"], one["after_entry"]), (one["before_ledger"], one["before_entry"])
        found.setdefault(one["region"], []).append(hole)
    return found


def _told(listed: list[dict[str, Any]] | None) -> dict[str, dict[str, Place]]:
    found: dict[str, dict[str, Place]] = {}
    for one in listed or []:
        ends = found.setdefault(one["subscription"], {})
        if one["region"]:
            ends[one["region"]] = one["ledger"], one["entry"]
    return found


def _skipped(listed: list[dict[str, Any]] | None) -> dict[str, list[Range]]:
    found: dict[str, list[Range]] = {}
    for one in listed or []:
        stretch = (one["after_ledger"], one["after_entry"]), (one["upto_ledger"], one["upto_entry"])
        found.setdefault(one["remote"], []).append(stretch)
    return found
