# SPDX-License-Identifier: Apache-2.0
"""What snapshots need from their topic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from meridian_broker.positions.position import Position
from meridian_broker.wire.pulsar.markers import Marker


@dataclass(frozen=True, slots=True)
class SnapshotRules:
    """How often, how long, how many. The defaults are Pulsar's."""

    interval_ms: int = 1000
    """Between the beginnings of two snapshots of one topic."""
    timeout_ms: int = 30_000
    """How long all answers to one snapshot are waited for."""
    cached: int = 30
    """Snapshots that are kept for each subscription."""

    @property
    def flush_ms(self) -> int:
        """Between the beginnings of two snapshots when consumers leave: consumers that come and go in a loop cost no
        more than ten times the usual."""
        return self.interval_ms // 10


class SnapshotHost(Protocol):
    """A topic, in one region."""

    @property
    def region(self) -> str:
        """This region."""
        ...

    def now_ms(self) -> int:
        """A clock that is never set back."""
        ...

    def new_id(self) -> str:
        """An id that no snapshot ever had."""
        ...

    def others(self) -> frozenset[str]:
        """All other regions of the topic, whatever they run and whatever their subscriptions are kept equal by
        (R30)."""
        ...

    def given_up(self) -> frozenset[str]:
        """Those of the others that an operator considers lost, so that snapshots are taken without them.

        After such a *partial* snapshot a region of Pulsar skips what it has of the lost one, even if this one never had
        it. Only a person can weigh that against subscriptions that do not follow at all.
        """
        ...

    def without_records(self) -> frozenset[str]:
        """Those of the others that know of a subscription only what updates say: regions of Apache Pulsar."""
        ...

    def is_moved_by(self, region: str) -> bool:
        """Whether updates of that region move subscriptions here; otherwise it tells what it knows by itself."""
        ...

    def linked_at(self, region: str) -> Position:
        """Where this log ended when the link from a region of Apache Pulsar began: what that region published since is
        sent here, and nothing from before. It may be given too late, but not too early. ``LATEST``: there was none yet.
        """
        ...

    def is_connected(self, region: str) -> bool:
        """Whether entries reach that region at the moment."""
        ...

    def last_position(self) -> Position:
        """The last durable entry, or ``EARLIEST``."""
        ...

    def entries_before(self, position: Position) -> int:
        """How many entries of the topic were stored before; needs to be right only as a measure of distance."""
        ...

    def write(self, marker: Marker, only_to: str | None, done: Callable[[Position | None], None]) -> None:
        """Append a marker to the topic's log, from where it is replicated after everything stored before it.

        :param only_to: as in ``marker_body``.
        :param done: called once, when it is durable, with its position; None: it could not be stored.
        """
        ...

    def acknowledge(self, subscription: str, position: Position, sender: str, unknown: frozenset[str]) -> None:
        """Another region says that everything up to ``position`` of this log is acknowledged.

        It counts for the entries which that region could have had (R31, ``could_have_had``). A subscription that is not
        there is created, replicated, at the earliest entry first.

        :param unknown: regions of the topic of which it does not say what it had: the snapshot was partial.
        """
        ...


def needed(host: SnapshotHost) -> frozenset[str]:
    """The regions without which there is no snapshot: R30, and the one exception that a person may make."""
    return host.others() - host.given_up()


def could_have_had(sender: str, unknown: frozenset[str], origin: str, replicate_to: tuple[str, ...] | None) -> bool:
    """Whether an entry may have reached a region, and been acknowledged there (R31).

    A cumulative acknowledgement from there says nothing about an entry that was never meant for it, nor about those of
    regions that it took no account of. Entries that were dropped before they were sent there are another such case,
    which only those who sent them know.

    :param unknown: as in ``SnapshotHost.acknowledge``.
    :param origin: the region where it was first stored.
    :param replicate_to: as in its metadata; None: every region.
    """
    return origin == sender or (origin not in unknown and (replicate_to is None or sender in replicate_to))
