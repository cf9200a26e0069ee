# SPDX-License-Identifier: Apache-2.0
"""The externally visible state of a replicator."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from meridian_broker.positions.position import Position


class State(enum.Enum):
    """The words of Pulsar's replicator, so that its users recognise them."""

    DISCONNECTED = "Disconnected"
    STARTING = "Starting"
    STARTED = "Started"
    DISCONNECTING = "Disconnecting"
    TERMINATED = "Terminated"


class StopReason(enum.Enum):
    """Why a replicator does not send although the remote can be reached."""

    GAP = "gap"
    """Entries the remote still needs are no longer stored here (R4)."""
    ROLLED_BACK = "rolled-back"
    """The remote has entries of ours that we do not have: this region's log was restored from an older copy (R5)."""
    INCARNATION = "incarnation"
    """The topic was deleted and recreated, and one side does not know it yet (R8)."""
    SCHEMA = "schema"
    """The remote does not accept a schema that entries were written with."""
    REFUSED = "refused"
    """The remote refused an entry, and refused it again after we resumed at the place it reported."""


@dataclass(frozen=True, slots=True)
class ReplicatorStatus:
    """A replicator at one moment. Counters run since it was made."""

    remote: str
    state: State
    connected: bool
    hold: StopReason | None
    last_error: str | None
    warning: str
    """What the remote does not guard against, and what to do; empty: nothing is known."""
    messages_out: int
    """Messages confirmed by the remote (a batch counts as many)."""
    bytes_out: int
    entries_out: int
    backlog: int
    """Entries stored here and not yet confirmed, those never meant for the remote included until they are passed."""
    pending: int
    """Entries sent and not yet confirmed."""
    delay_ms: int
    """Age of the oldest entry known to wait for the remote; 0 when none waits."""
    confirmed: Position
    joined_at: Position | None
    """Set when the remote had nothing and earlier entries were no longer stored here: it begins with this one (R21)."""
    connected_since_ms: int | None
    connections: int
    """How often a producer was opened."""
