# SPDX-License-Identifier: Apache-2.0
"""A topic as its replicators see it: ``replication.entries.source.ReplicationSource``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meridian_broker.positions.position import EARLIEST
from meridian_broker.topics.dispatch.rates import dispatch_rate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from meridian_broker.ledgers.reading import Stored
    from meridian_broker.ledgers.throttling import Rate
    from meridian_broker.positions.position import Position
    from meridian_broker.replication.entries.source import DeletionNotice
    from meridian_broker.topics.topic import Topic
    from meridian_broker.wire.proto import pulsar_pb2 as pb


class TopicSource:
    """See the module's text."""

    def __init__(
        self,
        topic: Topic,
        schema_for: Callable[[bytes], Awaitable[pb.Schema | None]],
        deleted_elsewhere: Callable[[DeletionNotice], None],
    ) -> None:
        """
        :param schema_for: returns the schema registered here under a version.
        :param deleted_elsewhere: called with another region's last deletion of the topic if it differs from ours.
        """
        self._topic = topic
        self._schema_for = schema_for
        self.name = topic.name
        self.region = topic.region
        self.incarnation = topic.incarnation
        self.base_incarnation = topic.base_incarnation
        self.created = topic.created
        self.own_before = topic.log.own_before
        self.watch = topic.log.watch
        self.skipped_for = topic.skipped_for
        self.deleted_elsewhere = deleted_elsewhere

    @property
    def partitions(self) -> int | None:
        return self._topic.partitions

    @property
    def replication_rate(self) -> Rate:
        return dispatch_rate(self._topic.rules.replicator_dispatch_rate)

    def last_confirmed(self) -> Position:
        return self._topic.log.last_confirmed

    def last_own(self) -> Position:
        return self._topic.log.last_own

    def last_marker(self) -> Position:
        return EARLIEST if self._topic.snapshots is None else self._topic.snapshots.last_marker

    def entries_after(self, position: Position) -> int:
        log = self._topic.log
        return log.distance(position, log.last_confirmed)

    async def read_after(self, position: Position, max_entries: int, max_bytes: int) -> list[Stored]:
        log = self._topic.log
        entries = await log.read_after(position, max_entries, max_bytes)
        if entries:
            await log.load_index(entries[0][0].ledger)
        return entries

    async def schema_for(self, version: bytes) -> pb.Schema | None:
        return await self._schema_for(version)

    def reached(self, remote: str) -> tuple[Position, Position]:
        return self._topic.pulsar.reached(remote)

    def served(self, remote: str, scanned: Position, chain: Position) -> None:
        self._topic.pulsar.served(remote, scanned, chain)

    def replicated_to(self, remote: str, position: Position) -> None:
        self._topic.replicated_positions[remote] = position

    def rolled_back(self, remote: str) -> None:
        if self._topic.backfill is not None:
            self._topic.backfill.ask_again(remote)

    def came_back(self, remote: str, after: Position, before: Position) -> bool:
        backfill = self._topic.backfill
        return backfill is not None and backfill.came_back(remote, after, before)
