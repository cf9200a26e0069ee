# SPDX-License-Identifier: Apache-2.0
"""One running replicator: a task that connects, prepares the remote topic, opens the producer, then reads and sends
until something ends that, and starts over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from meridian_broker.gateway.client_errors import ClientError, RequestRefused, code_name
from meridian_broker.gateway.links import STEADY
from meridian_broker.gateway.remote_admin import OtherDeletion
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.ledgers.throttling import Throttle
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.replication.entries.producing import QUEUE_SIZE
from meridian_broker.replication.entries.replicator import RemotePlace
from meridian_broker.replication.entries.replicator_status import State, StopReason
from meridian_broker.replication.entries.source import DeletionNotice, last_own_durable
from meridian_broker.wire.proto import peer_pb2
from meridian_broker.wire.proto import pulsar_pb2 as pb

if TYPE_CHECKING:
    from meridian_broker.gateway.client import PulsarClientConnection
    from meridian_broker.gateway.remote_admin import RemoteAdmin
    from meridian_broker.gateway.remote_brokers import RemoteBrokers
    from meridian_broker.ledgers.backoff import Backoff
    from meridian_broker.positions.skipped import Skipped
    from meridian_broker.replication.entries.replicator import Replicator
    from meridian_broker.replication.entries.replicator_status import ReplicatorStatus
    from meridian_broker.replication.entries.source import ReplicationSource

logger = logging.getLogger(__name__)

RATE_SECONDS_MAX: Final = 1.0
"""A rate may change while a replicator waits for it, so it is checked this often."""
CLOSE_PATIENCE: Final = 1.0
"""Seconds to wait for the remote's answer when a producer is closed."""


def replicator_name(local: str, remote: str) -> str:
    """Name of the producer that carries ``local``'s entries to ``remote``; Pulsar's form."""
    return f"pulsar.repl.{local}-->{remote}"


def partitioned_topic(name: str) -> str:
    """``...-partition-3`` -> the partitioned topic's own name."""
    base, separator, number = name.rpartition("-partition-")
    return base if separator and number.isdecimal() else name


class ReplicatorRun:
    """See the module's docstring. It runs until ``end``."""

    def __init__(
        self,
        source: ReplicationSource,
        core: Replicator,
        place: RemoteBrokers,
        admin: RemoteAdmin,
        backoff: Backoff,
        now_ms: Callable[[], int],
    ) -> None:
        self.place = place
        self._source = source
        self._core = core
        self._admin = admin
        self._backoff = backoff
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._nudged = asyncio.Event()
        self._blocked = False
        self._receipts = False
        self._ended: str | None = None  # why the producer ended
        self._epoch = 0
        self._throttle = Throttle(source.replication_rate, now_ms())
        self._told = EARLIEST
        self._task = self._loop.create_task(self._run(), name=f"replicator {source.name} -> {core.remote}")

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def nudge(self) -> None:
        self._backoff.reset()
        self._nudged.set()

    def skip(self, skipped: Skipped) -> None:
        """Continue after the range that an operator skipped, with a new producer."""
        is_sending = self._core.state is State.STARTED
        self._core.skip(skipped)
        self._tell_source()
        if is_sending and self._core.state is not State.STARTED:
            self.producer_closed(f"everything up to {skipped.upto} is skipped for {self._core.remote}")
        self.nudge()

    @property
    def is_sending(self) -> bool:
        """Whether there is a producer, and nothing prevents it from sending."""
        return self._core.state is State.STARTED

    @property
    def remote_last(self) -> Position | None:
        """See ``Replicator.remote_last``."""
        return self._core.remote_last

    def status(self) -> ReplicatorStatus:
        problem = self.place.link.problem
        if self._core.state is State.STARTING and problem is not None:
            self._core.last_error = problem
        return self._core.status(self._source.entries_after(self._core.confirmed), self._now_ms())

    # -- callbacks of the connection --------------------------------------------------------------------------------

    def receipt(self, receipt: pb.CommandSendReceipt) -> None:
        self._received(self._core.receipt(receipt.sequence_id))

    def _received(self, is_expected: bool) -> None:
        if not is_expected:
            self.producer_closed(self._core.last_error or "unexpected receipt")
        elif not self._receipts:
            self._receipts = True
            self._loop.call_soon(self._after_receipts)

    def send_error(self, error: pb.CommandSendError) -> None:
        self._core.send_error(error.sequence_id, f"{error.message} ({code_name(error.error)})")
        self._wake.set()

    def producer_closed(self, reason: str) -> None:
        self._ended = reason
        self._wake.set()

    def _after_receipts(self) -> None:
        """Called once for all receipts that arrived together."""
        self._receipts = False
        self._backoff.reset()
        self._tell_source()
        if self._blocked:
            self._wake.set()

    def _tell_source(self) -> None:
        if self._core.trimmable != self._told:
            self._told = self._core.trimmable
            self._source.replicated_to(self._core.remote, self._told)

    # -- the task ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        unwatch = self._source.watch(self._on_entries)
        try:
            while True:
                reason: str | None = None
                began = self._loop.time()
                try:
                    reason = await self._session()
                except (ClientError, LedgerError) as error:
                    reason = str(error)
                except Exception as error:
                    logger.exception("%s: the replicator failed and restarts", self._task.get_name())
                    reason = repr(error)
                if reason is not None and reason != self._core.last_error:
                    logger.warning("%s: %s", self._task.get_name(), reason)
                self._core.disconnected(reason, self._now_ms())
                if self._core.hold is None and self._loop.time() - began >= STEADY:
                    self._backoff.reset()
                await self._pause()
        finally:
            unwatch()
            self._core.terminated()

    def _on_entries(self) -> None:
        self._core.new_entries(self._now_ms())
        self._wake.set()

    async def _pause(self) -> None:
        self._nudged.clear()
        try:
            async with asyncio.timeout(self._backoff.next()):
                await self._nudged.wait()
        except TimeoutError:
            pass

    async def _session(self) -> str | None:
        """One producer, from its creation to its end. Returns why it ended; None: the core has recorded the reason."""
        source = self._source
        self._core.starting(source.incarnation)
        connection = await self.place.serving(source.name)
        if connection.peer_version == 0:
            raise RequestRefused(
                pb.NotAllowedError, f"{connection.url} is {connection.server_version}, not a Meridian broker"
            )
        if source.partitions is not None:
            base = partitioned_topic(source.name)
            try:
                await self._admin.ensure_partitions(
                    *(self.place.region, base, source.partitions, source.base_incarnation, source.created),
                    connection=connection,
                )
            except OtherDeletion:
                pass  # the answer to PRODUCER names that deletion
        self._ended = None
        self._epoch += 1
        told = peer_pb2.ReplicationSource(region=source.region, incarnation=self._core.incarnation)
        if source.partitions is None and source.created is not None:
            told.created = str(source.created)
        if self._core.missing is not None:
            told.missing_ledger, told.missing_entry = self._core.missing
        command = pb.CommandProducer(
            topic=source.name,
            producer_name=replicator_name(source.region, self.place.region),
            user_provided_producer_name=True,
            epoch=self._epoch,
            replication_source=told,
            producer_id=0,
            request_id=0,
        )
        try:
            opened = await connection.open_producer(command, self)
        except RequestRefused:
            if source.partitions is not None:
                self._admin.forget(self.place.region, partitioned_topic(source.name))
            raise
        try:
            place = _place(opened.replication, connection.url)
            end = source.last_confirmed()
            if self._core.connected(opened.producer_id, place, end, source.last_own(), self._now_ms()):
                self._tell_source()
                await self._stream(connection)
            elif self._core.hold is StopReason.ROLLED_BACK:
                source.rolled_back(self._core.remote)
            elif self._core.hold is StopReason.INCARNATION and place.told is not None:
                source.deleted_elsewhere(place.told)
            return self._ended
        finally:
            self._core.stopping()
            await self._close_producer(connection, opened.producer_id)

    async def _close_producer(self, connection: PulsarClientConnection, producer_id: int) -> None:
        try:
            async with asyncio.timeout(CLOSE_PATIENCE):
                await connection.close_producer(producer_id)
        except (ClientError, TimeoutError):
            pass  # it is lost either way, and the next one replaces it

    async def _stream(self, connection: PulsarClientConnection) -> None:
        """Read and send until the producer is closed or the core stops."""
        core, source, wake = self._core, self._source, self._wake
        while self._going():
            wake.clear()
            if core.wanted_schema is not None:
                await self._learn_schema(connection, core.wanted_schema)
                continue
            if core.next_read() is None:
                self._blocked = True
                await wake.wait()
                self._blocked = False
                continue
            allowed = await self._keep_rate()
            await connection.drain()
            async with self.place.turns:
                want = core.next_read()
                if want is None or not connection.writable:
                    continue
                last_own = last_own_durable(source)
                batch = await source.read_after(want.after, min(want.max_entries, allowed), want.max_bytes)
                if not self._going():
                    return
                messages, size = core.messages_sent, core.bytes_sent
                frames = core.read(batch, last_own)
                self._throttle.take(core.messages_sent - messages, core.bytes_sent - size, self._now_ms())
                if frames:
                    connection.write(frames)
            self._tell_source()
            if not batch and self._going():
                await wake.wait()

    async def _keep_rate(self) -> int:
        """Wait until the topic's rate allows sending; returns how many entries may be read then."""
        while True:
            now_ms, rate = self._now_ms(), self._source.replication_rate
            if rate != self._throttle.rate:
                self._throttle = Throttle(rate, now_ms)
            wait_ms = self._throttle.wait_ms(now_ms)
            if wait_ms == 0 or not self._going():
                return max(1, self._throttle.messages_available(now_ms, QUEUE_SIZE))
            await asyncio.sleep(min(wait_ms / 1000, RATE_SECONDS_MAX))

    def _going(self) -> bool:
        return self._ended is None and self._core.state is State.STARTED

    async def _learn_schema(self, connection: PulsarClientConnection, version: bytes) -> None:
        """Register a schema with the remote, and learn its number there (R41)."""
        schema = await self._source.schema_for(version)
        if schema is None:  # unknown here, too: the number has no meaning and is kept
            self._core.schema_known(version, version)
            return
        try:
            answer = await connection.get_or_create_schema(partitioned_topic(self._source.name), schema)
        except RequestRefused as refusal:
            if refusal.code != pb.IncompatibleSchema:
                raise
            self._core.schema_refused(version, str(refusal))
            return
        self._core.schema_known(version, answer)


def _place(state: peer_pb2.ReplicationState | None, url: str) -> RemotePlace:
    """:raises RequestRefused: the answer does not say where to continue."""
    if state is None:
        raise RequestRefused(
            pb.NotAllowedError,
            f"{url} accepted the replicator's producer but treated it as a client's, without peer authentication. Give "
            "both regions the same peer secret (peerTokenFile)",
        )
    last = Position(state.last_origin_ledger, state.last_origin_entry)
    ends = {end.region: Position(end.ledger, end.entry) for end in state.ends}
    told = DeletionNotice(state.incarnation, ends, state.with_base)
    return RemotePlace(last if last.ledger >= 0 else EARLIEST, state.incarnation, told)
