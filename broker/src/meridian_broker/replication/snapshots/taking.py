# SPDX-License-Identifier: Apache-2.0
"""Taking snapshots: the side that asks (PIP-33).

A snapshot says: whoever has acknowledged everything up to *p* here has acknowledged everything up to *q* in another
region's log. To take one, a region writes a request into the topic's log, from where it is replicated; every other
region answers with the last position of its own log, in the same way. An answer arrives after everything that its
region published before it, and *p* is the position here of the last answer. So whatever was published here or in the
answering region, and is before *q* in its log, is before *p* here.

With three regions that is not enough. The log of *b* may hold, before *q*, a message of *c* that has not arrived here,
although c's answer has. It was in the log of *c* when *b* answered, so another answer of *c*, asked for after that of
*b*, arrives after it. Hence the *second round*: the positions are those of the first, and *p* is that of the last
answer to the second. And hence R30: every region of the topic has to answer, including those whose subscriptions are
kept equal in other ways. Without an answer of *c*, nobody could say what of *c* is already in the log of *b*.

The second round has an id of its own. Answers repeat the id, and markers may be replicated twice: an answer to the
first round that arrives again during the second would otherwise count there, although it was sent before the question.
Pulsar's brokers use one id for both rounds, and answer any.

A snapshot is complete once its own marker is durable. Nothing is remembered of one whose region restarts, or whose
topic gained or lost a region meanwhile: late answers to it are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.replication.snapshots.ports import SnapshotHost, SnapshotRules, needed
from meridian_broker.wire.pulsar.markers import Place, Snapshot, SnapshotRequest, SnapshotResponse

PENDING_MAX: Final = 8
"""Snapshots under way. With the usual interval that is enough for answers that take eight seconds; slower ones make
snapshots less frequent, not more numerous."""
FOLLOW_UP: Final = "follow-up/"
"""How the ids of requests begin that ask for no snapshot in return (``controller.py``)."""


@dataclass(slots=True)
class SnapshotCounts:
    """What became of the snapshots of one topic, since it was opened."""

    completed: int = 0
    timed_out: int = 0
    failed: int = 0
    """Markers that could not be stored, and changes of the topic's regions."""
    completed_ms: int = 0
    """How long the completed ones took, together."""
    last_ms: int = 0
    """How long the last one took."""


@dataclass(slots=True)
class _Attempt:
    """A snapshot under way."""

    snapshot_id: str
    began_ms: int
    regions: frozenset[str]
    answered: dict[str, Position] = field(default_factory=dict)
    """What each region answered in this round."""
    first_round: dict[str, Position] | None = None
    """The answers of the first round; None: this is the first."""
    at: Position = EARLIEST
    """The position of the last answer, here."""


class SnapshotTaker:
    """The snapshots of one topic in one region that are under way."""

    def __init__(
        self, host: SnapshotHost, rules: SnapshotRules, taken: Callable[[Snapshot], None], failed: Callable[[], None]
    ) -> None:
        """
        :param taken: a snapshot is complete.
        :param failed: one ended without result.
        """
        self._host = host
        self._rules = rules
        self._taken = taken
        self._failed = failed
        self._attempts: dict[str, _Attempt] = {}
        """By the id that answers are to repeat, the earliest begun first."""
        self._last_succeeded = False
        self.counts = SnapshotCounts()

    @property
    def pending(self) -> int:
        """How many snapshots are under way."""
        return len(self._attempts)

    @property
    def may_begin(self) -> bool:
        """Whether another one may be of use: while no answers come, one request is enough until it times out."""
        return not self._attempts or (self._last_succeeded and len(self._attempts) < PENDING_MAX)

    @property
    def deadline_ms(self) -> int | None:
        """When the first of them times out."""
        began = [one.began_ms for one in self._attempts.values()]
        return min(began) + self._rules.timeout_ms if began else None

    def begin(self, is_follow_up: bool) -> None:
        """Ask the other regions of the topic."""
        snapshot_id = FOLLOW_UP * is_follow_up + self._host.new_id()
        self._ask(snapshot_id, _Attempt(snapshot_id, self._host.now_ms(), needed(self._host)))

    def expire(self) -> None:
        """End those that timed out."""
        over_ms = self._host.now_ms() - self._rules.timeout_ms
        for round_id, one in list(self._attempts.items()):
            if one.began_ms <= over_ms:
                self.counts.timed_out += 1
                self._end(round_id)

    def answered(self, response: SnapshotResponse, at: Position) -> None:
        """An answer was stored here.

        :param at: where, here.
        """
        attempt = self._attempts.get(response.snapshot_id)
        if attempt is None:
            return
        if attempt.regions != needed(self._host):
            self._fail(response.snapshot_id)
            return
        region, position = response.place
        if region not in attempt.regions or region in attempt.answered:
            return
        attempt.answered[region] = position
        attempt.at = max(attempt.at, at)
        if len(attempt.answered) == len(attempt.regions):
            self._round_over(response.snapshot_id, attempt)

    def _round_over(self, round_id: str, attempt: _Attempt) -> None:
        if attempt.first_round is None and len(attempt.regions) > 1:
            del self._attempts[round_id]
            attempt.first_round, attempt.answered = attempt.answered, {}
            self._ask(FOLLOW_UP + self._host.new_id(), attempt)
            return
        positions = attempt.first_round or attempt.answered
        places = tuple(Place(region, positions[region]) for region in sorted(positions))
        snapshot = Snapshot(attempt.snapshot_id, attempt.at, places)

        def stored(position: Position | None) -> None:
            if self._attempts.get(round_id) is not attempt:
                return
            if position is None:
                self._fail(round_id)
                return
            del self._attempts[round_id]
            self._last_succeeded = True
            self.counts.completed += 1
            self.counts.last_ms = self._host.now_ms() - attempt.began_ms
            self.counts.completed_ms += self.counts.last_ms
            self._taken(snapshot)

        self._host.write(snapshot, self._host.region, stored)

    def _ask(self, round_id: str, attempt: _Attempt) -> None:
        self._attempts[round_id] = attempt

        def stored(position: Position | None) -> None:
            if position is None and self._attempts.get(round_id) is attempt:
                self._fail(round_id)

        self._host.write(SnapshotRequest(round_id, self._host.region), None, stored)

    def _fail(self, round_id: str) -> None:
        self.counts.failed += 1
        self._end(round_id)

    def _end(self, round_id: str) -> None:
        del self._attempts[round_id]
        self._last_succeeded = False
        self._failed()
