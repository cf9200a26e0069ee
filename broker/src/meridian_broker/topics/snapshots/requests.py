# SPDX-License-Identifier: Apache-2.0
"""Which requests for a snapshot are answered. A region that asks without end, or that would speak for messages which
it never had, is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from meridian_broker.bounds.snapshots import MARKER_REGIONS, REQUESTS_PER_SECOND
from meridian_broker.ledgers.throttling import TokenBucket

if TYPE_CHECKING:
    from meridian_broker.positions.position import Position
    from meridian_broker.topics.topic import Topic


class Requests:
    """Judges the requests of one topic's other regions."""

    def __init__(
        self, topic: Topic, others: Callable[[], frozenset[str]], pulsar_regions: Callable[[], frozenset[str]]
    ) -> None:
        """
        :param others: all other regions of the topic.
        :param pulsar_regions: those of them that run Apache Pulsar.
        """
        self._topic = topic
        self._others = others
        self._pulsar_regions = pulsar_regions
        self._allowed: dict[str, TokenBucket] = {}
        """How much each region may still ask."""

    def objection(self, sender: str, source: Position | None, now_ms: int) -> str:
        """Why a region's request is not answered; empty: it is.

        :param source: where it stands in the log of a region of Apache Pulsar, as far as that says so.
        :param now_ms: by a clock that is never set back.
        """
        allowed = self._allowed.get(sender)
        if allowed is None:
            if len(self._allowed) >= MARKER_REGIONS:
                self._allowed.clear()
            allowed = self._allowed[sender] = TokenBucket(REQUESTS_PER_SECOND, 1000, now_ms)
        if allowed.wait_ms(now_ms):
            return f"{sender} asks for more than {REQUESTS_PER_SECOND} snapshots a second"
        allowed.take(1, now_ms)
        if self._has_kept_from(sender):
            return (
                f"{sender} asks for a snapshot, but an operator dropped messages from its backlog, and it would speak "
                "for them, too: use the exact mode for this topic"
            )
        if source is None and sender in self._pulsar_regions() and len(self._others()) > 1:
            return (
                f"{sender} asks for a snapshot of more than two regions without naming its own position, so a repeated "
                "request cannot be told from that of the second round: it needs Pulsar 4.0.3, 3.0.10 or newer"
            )
        return ""

    def _has_kept_from(self, region: str) -> bool:
        """Whether a third region may have messages of this one that were never sent there: it could not tell which
        (R31)."""
        if self._topic.metadata is None or len(self._others()) < 2:
            return False
        record = self._topic.metadata.record
        return region in record.skipped or region in record.skipped_before
