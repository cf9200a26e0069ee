# SPDX-License-Identifier: Apache-2.0
"""Replicators on simulated links, in place of a real broker's ``gateway/replicator_run.py`` and PRODUCER handler."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from meridian_broker.gateway.client_errors import ClientError
from meridian_broker.gateway.remote_admin import OtherDeletion, OtherKindThere
from meridian_broker.gateway.replicator_run import partitioned_topic
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataError
from meridian_broker.positions import Stamp
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.positions.skipped import Skipped
from meridian_broker.replication.entries.replicator import RemotePlace, Replicator
from meridian_broker.replication.entries.replicator_status import ReplicatorStatus, State, StopReason
from meridian_broker.replication.entries.source import ReplicationSource, last_own_durable
from meridian_broker.topics.backfill.questions import Feed, Found, NotWanted, PeerAway, Want
from meridian_broker.topics.errors import NotAllowed, OtherKind, TopicError, TopicFenced
from meridian_broker.topics.publishing.producer import Producer
from meridian_broker.topics.service import answering, incarnations
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import topic_name
from meridian_broker.wire.pulsar.frames import FrameDecoder, Send
from meridian_broker.wire.pulsar.metadata import BodyError
from simulation.loop import Event, Future
from simulation.names import incarnation_of
from simulation.network import Connection
from simulation.remote_admin import SimRemoteAdmin

if TYPE_CHECKING:
    from simulation.stage import Broker

FIRST_PAUSE_US: Final = 100_000
ASK_US: Final = 5_000_000
LAST_PAUSE_US: Final = 5_000_000


class ReplicationLinks:
    """``GeoReplication`` (``topics/service/open_topics.py``) of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.runs: dict[tuple[str, str], ReplicationRun] = {}
        self.admin = SimRemoteAdmin(broker)

    def start(self, topic: ReplicationSource, remote: str, /) -> None:
        key = (topic.name, remote)
        if key not in self.runs:
            run = self.runs[key] = ReplicationRun(self._broker, topic, remote, self.admin)
            self._broker.world.loop.spawn(self._broker, run.run(), f"replicate {topic.name} to {remote}")

    def stop(self, topic_name: str, remote: str | None = None, /) -> None:
        for key in [key for key in self.runs if key[0] == topic_name and remote in (None, key[1])]:
            self.runs.pop(key).stop()

    def is_sending(self, topic_name: str, remote: str, /) -> bool:
        run = self.runs.get((topic_name, remote))
        return run is not None and run.core.state is State.STARTED

    def nudge(self, remote: str) -> None:
        for (_, region), run in self.runs.items():
            if region == remote:
                run.nudge()

    def regions(self) -> list[str]:
        return [name for name in self._broker.world.names if name != self._broker.region]

    def is_reachable(self, region: str) -> bool:
        target = self._broker.world.regions[region].reached("")
        return target is not None and self._broker.world.network.can_dial(self._broker.region, region)

    async def ask(self, region: str, want: Want) -> Found:
        """Like ``gateway.replication`` and ``gateway.pulsar.entries``."""
        world, broker = self._broker.world, self._broker
        target = await serving(broker, region, want.topic) if self.is_reachable(region) else None
        if target is None or not target.alive or not self.is_reachable(region):
            raise PeerAway(f"{region} cannot be reached")
        connection = world.network.connect(broker, target)
        answered: Future[Found] = Future()

        def away(reason: str) -> None:
            answered.fail(PeerAway(f"{region}: {reason}"))

        async def answer() -> None:
            try:
                found = await answering.answer(target.service.opener, broker.region, want)
            except NotAllowed as error:
                refusal = NotWanted(f"{region}: {error}")
                connection.send(1, lambda: answered.fail(refusal))
                return
            except (TopicError, LedgerError, MetadataError) as error:
                reason = str(error)
                connection.send(1, lambda: away(reason))
                return
            connection.send(1, lambda: answered.resolve(found))

        connection.on_closed[0] = lambda: away("the connection broke")
        connection.send(0, lambda: target.spawn(answer(), "answer a region that lacks entries"))
        world.loop.after(ASK_US, broker, lambda: away("no answer"))
        try:
            return await answered
        finally:
            connection.close(0)

    async def schema(self, region: str, topic: str, version: bytes) -> pb.Schema | None:
        """Messages have no schema here."""
        return None

    async def make_partitioned(
        self, region: str, topic: str, partitions: int, incarnation: str, created: Stamp | None, /
    ) -> None:
        if not self.is_reachable(region):
            raise PeerAway(f"{region} cannot be reached")
        try:
            place = self._broker.world.regions[region].reached("")  # a link ends with the broker at its end
            await self.admin.ensure_partitions(region, topic, partitions, incarnation, created, connection=place)
        except OtherKindThere as error:
            raise OtherKind(str(error)) from error
        except ClientError as error:
            raise PeerAway(str(error)) from error

    def feed(self, topic_name: str, remote: str, /) -> Feed | None:
        status = self.status(topic_name).get(remote)
        if status is None:
            return None
        return Feed(status.confirmed, EARLIEST, status.backlog, "" if status.hold is None else status.last_error or "")

    def skip(self, topic_name: str, remote: str, skipped: Skipped, /) -> None:
        raise AssertionError("no story drops the backlog of a region")

    def status(self, topic: str) -> dict[str, ReplicatorStatus]:
        now = self._broker.mono_ms()
        return {
            remote: run.core.status(run.source.entries_after(run.core.confirmed), now)
            for (name, remote), run in self.runs.items()
            if name == topic
        }


async def serving(asker: Broker, region: str, topic: str) -> Broker | None:
    """The broker that serves a topic in another region, by a lookup there; None: no answer."""
    found: Future[Broker | None] = Future()
    asker.world.regions[region].look_up(asker, topic.rpartition("/")[2], found.resolve)
    return await found


class Refused(Exception):
    """The remote did not create the producer, or cannot be reached."""


class TurnedAway(Refused):
    """The remote did not create the producer."""


class ReplicationRun:
    """One replicator with its task."""

    def __init__(self, broker: Broker, source: ReplicationSource, remote: str, admin: SimRemoteAdmin) -> None:
        self._broker = broker
        self._admin = admin
        self._world = broker.world
        self.source = source
        self.remote = remote
        self.core = Replicator(
            *(source.name, source.region, remote, source.incarnation),
            queue_size=50,
            own_before=source.own_before,
            came_back=source.came_back,
            last_marker=source.last_marker,
        )
        self._wake = Event()
        self._nudged = Event()
        self._ended: str | None = None
        self._stopped = False
        self._pause_us = FIRST_PAUSE_US
        self._told = EARLIEST
        self._connection: Connection | None = None
        self._epoch = 0

    def stop(self) -> None:
        self._stopped = True
        self._ended = "stopped"
        self.core.terminated()
        self._wake.set()
        self._nudged.set()

    def nudge(self) -> None:
        self._pause_us = FIRST_PAUSE_US
        self._nudged.set()

    def _on_entries(self) -> None:
        self.core.new_entries(self._broker.mono_ms())
        self._wake.set()

    async def run(self) -> None:
        unwatch = self.source.watch(self._on_entries)
        while not self._stopped:
            reason: str | None = None
            try:
                reason = await self._session()
            except (Refused, ClientError, LedgerError) as error:
                reason = str(error)
            self.core.disconnected(reason, self._broker.mono_ms())
            if not self._stopped:
                await self._pause()
        unwatch()

    async def _pause(self) -> None:
        self._nudged.clear()
        self._world.loop.after(self._pause_us, self._broker, self._nudged.set)
        self._pause_us = min(2 * self._pause_us, LAST_PAUSE_US)
        await self._nudged.wait()

    async def _session(self) -> str | None:
        core, source, world = self.core, self.source, self._world
        core.starting(source.incarnation)
        target = None
        if world.network.can_dial(self._broker.region, self.remote):
            target = await serving(self._broker, self.remote, source.name)
        if target is None or not target.alive or not world.network.can_dial(self._broker.region, self.remote):
            raise Refused(f"{self.remote} cannot be reached")
        if source.partitions is not None:
            with contextlib.suppress(OtherDeletion):  # the answer to PRODUCER tells which
                await self._admin.ensure_partitions(
                    *(self.remote, partitioned_topic(source.name), source.partitions),
                    *(source.base_incarnation, source.created),
                    connection=target,
                )
            if not target.alive:
                raise Refused(f"{self.remote} cannot be reached")
        connection = self._connection = world.network.connect(self._broker, target)
        connection.on_closed[0] = lambda: self.producer_closed(connection, "the connection broke")
        self._ended = None
        self._epoch += 1
        server = ReplicationServer(target, connection, self, self._epoch)
        connection.on_closed[1] = server.gone
        opened: Future[RemotePlace] = Future()
        self._opened = opened
        connection.send(0, lambda: target.spawn(server.open(opened), "open a replicator's producer"))
        try:
            try:
                place = await opened
            except TurnedAway:
                if source.partitions is not None:
                    self._admin.forget(self.remote, partitioned_topic(source.name))
                raise
            end = source.last_confirmed()
            if self._stopped:
                return None
            if core.connected(1, place, end, source.last_own(), self._broker.mono_ms()):
                if target.restores == target.home.restores:  # otherwise it has forgotten meanwhile what it reported
                    of = incarnation_of(source.name, source.incarnation)
                    world.model.replica_place(self._broker.home, self.remote, of, place.last)
                self._tell_source()
                await self._stream(connection, server)
            elif core.hold is StopReason.ROLLED_BACK:
                source.rolled_back(self.remote)
            elif core.hold is StopReason.INCARNATION and place.told is not None:
                source.deleted_elsewhere(place.told)
            return self._ended
        finally:
            core.stopping()
            connection.close(0)

    async def _stream(self, connection: Connection, server: ReplicationServer) -> None:
        core, source, wake = self.core, self.source, self._wake
        while self._going():
            wake.clear()
            want = core.next_read()
            if want is None:
                await wake.wait()
                continue
            last_own = last_own_durable(source)
            batch = await source.read_after(want.after, want.max_entries, want.max_bytes)
            if not self._going():
                return
            frames = core.read(batch, last_own)
            if frames:
                server.transmit(b"".join(frames))
            self._tell_source()
            if not batch and self._going():
                await wake.wait()

    def _going(self) -> bool:
        return self._ended is None and self.core.state is State.STARTED

    def _tell_source(self) -> None:
        if self.core.trimmable != self._told:
            self._told = self.core.trimmable
            self.source.replicated_to(self.remote, self._told)

    # -- what the connection says

    def receipt(self, connection: Connection, sequence: int) -> None:
        if connection is not self._connection or self._stopped:
            return
        before = self.core.confirmed
        if not self.core.receipt(sequence):
            self.producer_closed(connection, self.core.last_error or "unexpected receipt")
            return
        if self.core.confirmed != before:
            self._pause_us = FIRST_PAUSE_US
        self._tell_source()
        self._wake.set()

    def send_error(self, connection: Connection, sequence: int, reason: str) -> None:
        if connection is self._connection and not self._stopped:
            self.core.send_error(sequence, reason)
            self._wake.set()

    def producer_closed(self, connection: Connection, reason: str) -> None:
        if connection is self._connection:
            self._ended = self._ended or reason
            self._opened.fail(Refused(reason))
            self._wake.set()


class ReplicationServer:
    """The remote's side: a connection with one producer, ``topics.producer.ProducerPort``."""

    def __init__(self, broker: Broker, connection: Connection, run: ReplicationRun, epoch: int) -> None:
        self._broker = broker
        self._connection = connection
        self._run = run
        self._epoch = epoch
        self._producer: Producer | None = None
        self._decoder = FrameDecoder()
        self._is_gone = False

    async def open(self, opened: Future[RemotePlace]) -> None:
        """PRODUCER, as ``gateway/pulsar/producers.py`` answers it."""
        run, source = self._run, self._run.source
        try:
            told = await incarnations.differing(
                self._broker.service.opener, topic_name.parse(source.name), run.core.incarnation
            )
            if told is not None:
                other = RemotePlace(EARLIEST, told.incarnation, told)
                self._connection.send(1, lambda: opened.resolve(other))
                return
            topic = await self._broker.service.opener.topic(
                topic_name.parse(source.name), create=True, incarnation=run.core.incarnation
            )
            if topic.backfill is not None:
                await topic.scheduler.answer(topic.backfill.ready)
            await topic.intake.enter(source.region)
            made = Producer(
                topic,
                self,
                1,
                f"pulsar.repl.{source.region}-->{self._broker.region}",
                name_is_given=True,
                epoch=self._epoch,
                connected_since_ms=topic.scheduler.now_ms(),
                remote_region=source.region,
            )
            if run.core.incarnation != topic.incarnation:
                raise TopicFenced(f"{source.region} has another incarnation of {topic.name}")
            topic.admission.add(made)
            if run.core.missing is not None:
                topic.gaps.told(source.region, run.core.missing)
        except (TopicError, LedgerError, MetadataError) as error:
            refusal = TurnedAway(str(error))
            self._connection.send(1, lambda: opened.fail(refusal))
            return
        if self._is_gone:
            topic.remove_producer(made)
            return
        self._producer = made

        last = topic.log.last_origin.get(source.region, EARLIEST)
        self._broker.world.model.going_on(self._broker.home, topic)

        def answer(error: LedgerError | None) -> None:
            if error is not None:
                refusal = Refused(str(error))
                self._connection.send(1, lambda: opened.fail(refusal))
                return
            place = RemotePlace(last, topic.incarnation)
            self._connection.send(1, lambda: opened.resolve(place))

        topic.log.when_durable(answer)

    def transmit(self, data: bytes) -> None:
        """The replicator's side: put SENDs on the connection."""
        self._connection.send(0, lambda: self._frames(data), may_double=True)

    def _frames(self, data: bytes) -> None:
        """SENDs arrive."""
        for send in self._decoder.feed(data):
            assert isinstance(send, Send) and send.checksum_ok
            producer = self._producer
            if producer is None:
                return
            try:
                producer.topic.publish_foreign(producer, send)
            except (TopicError, BodyError) as error:
                self.refused(producer, send, error)

    def gone(self) -> None:
        self._is_gone = True
        if self._producer is not None:
            self._producer.topic.remove_producer(self._producer)
            self._producer = None

    # -- topics.producer.ProducerPort

    def stored(self, producer: Producer, sends: list[Send], first: Position) -> None:
        del first
        assert isinstance(producer.topic, Topic)
        for send in sends:
            origin = send.origin
            of = incarnation_of(producer.topic.name, producer.topic.incarnation)
            place = Position(origin.ledger, origin.entry)
            self._broker.world.model.replicated(self._broker.home, of, origin.region, place)
            self._receipt(send.sequence_id)

    def _receipt(self, sequence: int) -> None:
        self._connection.send(1, lambda: self._run.receipt(self._connection, sequence), may_double=True)

    def dropped(self, sends: list[Send]) -> None:
        """The replicator resumes from what is durable."""

    def has_read(self, *_: object) -> None: ...

    def repeated(self, producer: Producer, send: Send) -> None:
        """Deduplication is off here."""

    def hold(self, wait_ms: Callable[[], int]) -> None:
        """No rate limits are set here."""

    def refused(self, producer: Producer, send: Send, error: Exception) -> None:
        self._connection.send(1, lambda: self._run.send_error(self._connection, send.sequence_id, str(error)))

    def disconnect_producer(self, producer: Producer) -> None:
        if self._producer is producer:
            self._producer = None
            self._connection.send(1, lambda: self._run.producer_closed(self._connection, "the producer was closed"))
