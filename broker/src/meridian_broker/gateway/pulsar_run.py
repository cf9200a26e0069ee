# SPDX-License-Identifier: Apache-2.0
"""One running replicator to a region of Apache Pulsar: like ``replicator_run.py``, but it connects as Pulsar's own
replicators do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from meridian_broker.gateway.client_errors import RequestRefused
from meridian_broker.gateway.remote_admin import RemoteAdminFailed
from meridian_broker.gateway.replicator_run import ReplicatorRun, partitioned_topic, replicator_name
from meridian_broker.positions.position import Position
from meridian_broker.replication.entries.replicator import Reached
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import markers

if TYPE_CHECKING:
    from meridian_broker.gateway.pulsar_admin import PulsarAdmin
    from meridian_broker.gateway.remote_admin import RemoteAdmin
    from meridian_broker.gateway.remote_brokers import RemoteBrokers
    from meridian_broker.ledgers.backoff import Backoff
    from meridian_broker.replication.entries.pulsar_replicator import PulsarReplicator
    from meridian_broker.replication.entries.source import ReplicationSource

logger = logging.getLogger(__name__)


class PulsarRun(ReplicatorRun):
    """See the module's docstring."""

    def __init__(
        self,
        source: ReplicationSource,
        core: PulsarReplicator,
        place: RemoteBrokers,
        admin: RemoteAdmin,
        pulsar_admin: PulsarAdmin,
        backoff: Backoff,
        now_ms: Callable[[], int],
    ) -> None:
        self._pulsar = core
        self._pulsar_admin = pulsar_admin
        self._names_sources = False
        super().__init__(source, core, place, admin, backoff, now_ms)

    def receipt(self, receipt: pb.CommandSendReceipt) -> None:
        if self._names_sources and receipt.highest_sequence_id == markers.RECEIPT:
            self._received(self._pulsar.receipt_of_marker(receipt.sequence_id))
        elif self._names_sources:
            source = Position(receipt.sequence_id, receipt.highest_sequence_id)
            self._received(self._pulsar.receipt_by_source(source))
        else:
            super().receipt(receipt)

    def _after_receipts(self) -> None:
        super()._after_receipts()
        if self._pulsar.has_due:
            self._wake.set()

    def _tell_source(self) -> None:
        reached = self._core.reached
        if reached.scanned != self._told:
            self._told = reached.scanned
            self._source.served(self._core.remote, *reached)

    async def _session(self) -> str | None:
        source, region = self._source, self.place.region
        self._core.starting(source.incarnation)
        if source.partitions is not None:
            await self.place.link.ready()
            await self._pulsar_admin.ensure_partitions(region, partitioned_topic(source.name), source.partitions)
        connection = await self.place.serving(source.name)
        if connection.peer_version:
            raise RequestRefused(
                pb.NotAllowedError, f"{connection.url} is a Meridian broker: set the kind of {region} to meridian"
            )
        self._ended = None
        self._epoch += 1
        self._names_sources = connection.names_sources
        command = pb.CommandProducer(
            topic=source.name,
            producer_name=replicator_name(source.region, region),
            user_provided_producer_name=True,
            epoch=self._epoch,
            producer_id=0,
            request_id=0,
        )
        opened = await connection.open_producer(command, self)
        looking = self._loop.create_task(self._look_for_repeats(connection.names_sources))
        try:
            reached = Reached(*source.reached(region))
            end = source.last_confirmed()
            if self._pulsar.resume(
                *(opened.producer_id, reached, connection.max_message_size, end, source.last_own(), self._now_ms())
            ):
                self._tell_source()
                await self._stream(connection)
            return self._ended
        finally:
            self._core.stopping()
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            await self._close_producer(connection, opened.producer_id)

    async def _look_for_repeats(self, names_sources: bool) -> None:
        """Warn, once per topic, if the region stores resent messages twice (R32)."""
        base, region, warning = partitioned_topic(self._source.name), self.place.region, ""
        if not names_sources:
            warning = (
                f"{region} runs an Apache Pulsar that does not identify messages by their source positions, so "
                "messages resent after a failure may be stored twice there: run 4.0.3, 3.0.10 or newer"
            )
        else:
            try:
                is_dropping = await self._pulsar_admin.drops_repeats(region, base)
            except RemoteAdminFailed as error:
                logger.debug("%s: cannot tell whether deduplication is on: %s", self._task.get_name(), error)
                return
            if is_dropping is False:
                warning = (
                    f"deduplication is off in {region} for {base}, so messages resent after a failure are "
                    "stored twice there: pulsar-admin namespaces set-deduplication --enable TENANT/NAMESPACE"
                )
        if warning and not self._core.warning:
            logger.warning("%s: %s", self._task.get_name(), warning)
        self._core.warning = warning
