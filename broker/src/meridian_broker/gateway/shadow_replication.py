# SPDX-License-Identifier: Apache-2.0
"""Runs the shadow replicators: tells other brokers of this region what is confirmed in sources that this one serves.

One task for each source and each broker that serves shadows of it; ``replication/entries/shadow_replicator.py`` decides
what to send. All those to one broker share a connection. ``look`` starts and stops them, as shadows are made, deleted
and moved. Until it has noticed, and whenever a replicator cannot run, shadows read on by themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from meridian_broker.gateway.client_errors import ClientError, ConnectFailed, code_name
from meridian_broker.gateway.links import FIRST_DELAY, STEADY, Link
from meridian_broker.ledgers.backoff import Backoff
from meridian_broker.ledgers.scheduling import in_slices
from meridian_broker.positions.position import Position
from meridian_broker.replication.entries.shadow_replicator import (
    ShadowReplicator,
    ShadowReplicatorStatus,
    producer_name,
)
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode, metadata, topic_name

if TYPE_CHECKING:
    from meridian_broker.gateway.addresses import Addresses
    from meridian_broker.gateway.client import PulsarClientConnection
    from meridian_broker.gateway.client_options import ClientOptions
    from meridian_broker.ledgers.scheduling import Scheduler
    from meridian_broker.metadata.shadow_topics import ShadowRecord, ShadowTopics
    from meridian_broker.topics.topic import Topic
    from meridian_broker.wire.pulsar.topic_name import TopicName

log = logging.getLogger(__name__)

LAST_DELAY: Final = 5.0
"""Seconds between attempts of a replicator that is refused repeatedly."""
CLOSE_PATIENCE: Final = 1.0
"""Seconds to wait for the answer when a producer is closed."""
NO_SECRET: Final = "this region has no peer secret, by which its brokers would know each other: set peerTokenFile"


class OwnBrokers(Protocol):
    """The other brokers of this region, as this one knows them."""

    def serving(self, topic: TopicName, /) -> str | None:
        """Id of the other broker that serves a topic; None: this one does, or none is known to."""
        ...

    def addresses_of(self, broker: str, /) -> Addresses | None:
        """None: the broker is not alive."""
        ...


class ShadowReplication:
    """See the module's text. One per broker that is one of several."""

    def __init__(
        self,
        region: str,
        sources: Callable[[], Iterable[Topic]],
        shadows: ShadowTopics,
        brokers: OwnBrokers,
        options: ClientOptions,
        *,
        usual_limit: int,
        jitter: Callable[[], float],
        scheduler: Scheduler,
    ) -> None:
        """
        :param sources: the open topics that have shadows.
        :param options: from ``client_options.peer_options``.
        :param usual_limit: entries of backlog, for shadows that have no limit of their own; 0: none.
        """
        self._region = region
        self._sources = sources
        self._shadows = shadows
        self._brokers = brokers
        self._options = options
        self._usual_limit = usual_limit
        self._jitter = jitter
        self._scheduler = scheduler
        self._links: dict[str, Link] = {}
        self._runs: dict[tuple[str, str], ShadowRun] = {}
        """By the names of source and broker."""

    async def look(self) -> None:
        """Start the replicators that are wanted, and stop the others. Called periodically."""
        wanted: dict[tuple[str, str], dict[str, ShadowRecord]] = {}
        topics: dict[str, Topic] = {}
        async for source in in_slices(self._scheduler, self._sources() if self._has_secret() else ()):
            topics[source.name] = source
            for broker, shadows in (await self._elsewhere(source)).items():
                wanted[source.name, broker] = shadows
        gone = [key for key, run in self._runs.items() if key not in wanted or run.source is not topics[key[0]]]
        ending = [self._runs.pop(key) for key in gone]
        await asyncio.gather(*(run.end() for run in ending))
        for key, shadows in wanted.items():
            if key not in self._runs:
                self._runs[key] = ShadowRun(
                    topics[key[0]],
                    ShadowReplicator(*key),
                    self._link(key[1]),
                    Backoff(self._jitter, FIRST_DELAY, LAST_DELAY),
                    self._scheduler.now_ms,
                )
            self._runs[key].follow(sorted(shadows), self._limit(shadows.values()))
        used = {broker for _, broker in self._runs}
        unused = [self._links.pop(broker) for broker in self._links.keys() - used]
        await asyncio.gather(*(link.close() for link in unused))

    def status(self, source: str, shadow: TopicName) -> ShadowReplicatorStatus | str:
        """Of the replicator that tells the broker of a shadow; text: why there is none."""
        if not self._has_secret():
            return NO_SECRET
        broker = self._brokers.serving(shadow)
        if broker is None:
            return f"no broker serves {shadow} now"
        run = self._runs.get((source, broker))
        return f"the replicator to broker {broker} has not begun yet" if run is None else run.status()

    async def close(self) -> None:
        """Stop all of them."""
        runs, self._runs = list(self._runs.values()), {}
        await asyncio.gather(*(run.end() for run in runs))
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links))

    def _has_secret(self) -> bool:
        return self._options.peer is not None and bool(self._options.peer.secrets())

    async def _elsewhere(self, source: Topic) -> Mapping[str, dict[str, ShadowRecord]]:
        """By broker, the names of the source's shadows that it serves, with their records."""
        name = topic_name.parse(source.name)
        found: dict[str, dict[str, ShadowRecord]] = defaultdict(dict)
        async for record in in_slices(self._scheduler, self._shadows.of(name)):
            shadow = record.shadow_of(name)
            if (broker := self._brokers.serving(shadow)) is not None:
                found[broker][str(shadow)] = record
        return found

    def _limit(self, shadows: Iterable[ShadowRecord]) -> int:
        """They are told together, so the backlog may be as large as any of them allows; 0: any size."""
        limits = [record.reset_behind or self._usual_limit for record in shadows]
        return 0 if 0 in limits else max(limits)

    def _link(self, broker: str) -> Link:
        link = self._links.get(broker)
        if link is None:
            options, purpose = self._options.within(broker), "shadow replication"
            link = Link(self._region, self._resolve, options, self._jitter, purpose, peer=broker)
            self._links[broker] = link
            link.start()
        return link

    def _resolve(self, broker: str) -> tuple[str, None] | None:
        """:raises ConnectFailed: the broker has no address that may be used."""
        found = self._brokers.addresses_of(broker)
        if found is None:
            return None
        url = found.service_url if self._options.tls is None else found.service_url_tls
        if url is None:
            missing = "pulsar:// address" if self._options.tls is None else "pulsar+ssl:// address"
            raise ConnectFailed(f"broker {broker} has no {missing}, see brokerClientTlsEnabled")
        return url, None


class ShadowRun:
    """One replicator, until ``end``: opens a producer, then sends what is new until something ends that."""

    def __init__(
        self, source: Topic, core: ShadowReplicator, link: Link, backoff: Backoff, now_ms: Callable[[], int]
    ) -> None:
        self.source = source
        self._core = core
        self._link = link
        self._backoff = backoff
        self._now_ms = now_ms
        self._shadows: list[str] = []
        self._limit = 0
        self._wake = asyncio.Event()
        self._ended: str | None = None
        """Why the producer ended."""
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run(), name=f"shadow replicator {source.name} -> {core.broker}")

    def follow(self, shadows: list[str], limit: int) -> None:
        """
        :param shadows: those at that broker; one of them is told, on behalf of all.
        :param limit: for the backlog, in entries; 0: none.
        """
        self._shadows, self._limit = shadows, limit
        if self._core.is_connected and self._core.shadow not in shadows:
            self.producer_closed(f"{self._core.shadow} is not served there any more")
        self._check_backlog()

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def status(self) -> ShadowReplicatorStatus:
        if not self._core.is_connected and self._link.problem is not None:
            self._core.last_error = self._link.problem
        return self._core.status(self._backlog(), self._now_ms())

    def _backlog(self) -> int | None:
        confirmed, source = self._core.confirmed, self.source.log
        return None if confirmed is None else source.distance(confirmed, source.last_confirmed)

    def _check_backlog(self) -> None:
        if self._limit and (backlog := self._backlog()) is not None:
            is_connected = self._core.is_connected
            if self._core.keep_within(self._limit, backlog, self.source.log.last_confirmed) and is_connected:
                self.producer_closed(f"{backlog} entries were not read: going on from the end of the source")

    # -- callbacks of the connection -----------------------------------------------------------------------------

    def receipt(self, receipt: pb.CommandSendReceipt) -> None:
        """The other broker has read that far."""
        if self._core.receipt(receipt.sequence_id):
            self._wake.set()
        else:
            self.producer_closed(str(self._core.last_error))

    def send_error(self, error: pb.CommandSendError) -> None:
        """It did not accept an id."""
        self.producer_closed(f"{error.message} ({code_name(error.error)})")

    def producer_closed(self, reason: str) -> None:
        """The producer cannot be used any more."""
        self._ended = reason
        self._wake.set()

    # -- the task ------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        unwatch = self.source.log.watch(self._wake.set)
        try:
            while True:
                began = self._loop.time()
                try:
                    reason = await self._session()
                except ClientError as error:
                    reason = str(error)
                except Exception as error:
                    log.exception("%s failed and restarts", self._task.get_name())
                    reason = repr(error)
                if reason is not None and reason != self._core.last_error:
                    log.info("%s is down, so shadows there read on by themselves: %s", self._task.get_name(), reason)
                self._core.disconnected(reason)
                if self._loop.time() - began >= STEADY:
                    self._backoff.reset()
                await asyncio.sleep(self._backoff.next())
        finally:
            unwatch()

    async def _session(self) -> str | None:
        """One producer, from its creation to its end. Returns why it ended."""
        connection = await self._link.ready()
        if not self._shadows:
            return None
        shadow, self._ended = self._shadows[0], None
        name = producer_name(self.source.name, shadow)
        command = pb.CommandProducer(
            topic=shadow, producer_name=name, user_provided_producer_name=True, producer_id=0, request_id=0
        )
        opened = await connection.open_producer(command, self)
        described = pb.MessageMetadata(producer_name=name, sequence_id=0, publish_time=self._now_ms())
        body = metadata.build_body(described.SerializeToString(), b"")
        self._core.connected(shadow, self.source.log.last_confirmed, self._now_ms())
        try:
            await self._stream(connection, opened.producer_id, body)
        finally:
            await self._close(connection, opened.producer_id)
        return self._ended

    async def _stream(self, connection: PulsarClientConnection, producer_id: int, body: bytes) -> None:
        core, source, wake = self._core, self.source.log, self._wake
        while self._ended is None:
            wake.clear()
            end = source.last_confirmed
            notice = core.next(end, self._now_ms())
            if notice is None:
                await wake.wait()
                continue
            core.entries_out += source.distance(core.counted, end)
            core.counted = end
            connection.write(self._send(producer_id, notice.sequence_id, end, body))
            self._check_backlog()

    def _send(self, producer_id: int, sequence_id: int, end: Position, body: bytes) -> list[bytes]:
        place = encode.message_id(end.ledger, end.entry)
        return encode.send(producer_id, sequence_id, body, shadow_message_id=place)

    async def _close(self, connection: PulsarClientConnection, producer_id: int) -> None:
        try:
            async with asyncio.timeout(CLOSE_PATIENCE):
                await connection.close_producer(producer_id)
        except (ClientError, TimeoutError):
            pass  # it is gone either way, and the next one replaces it
