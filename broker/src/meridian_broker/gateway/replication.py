# SPDX-License-Identifier: Apache-2.0
"""Runs the replicators: gives each a producer at its remote region, and lets it go on whatever happens.

One task per (topic, remote). It connects, prepares the remote topic, opens the producer, then reads and sends until
something ends that; then it begins anew. What to send and what to believe is decided in ``replication.replicator``.
All replicators to a region share one connection per broker there; a few of them read at a time, so that memory stays
bounded however many have a backlog. Writes of one turn of the loop leave together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import TYPE_CHECKING, Final

from meridian_broker.gateway.client import MAX_REDIRECTS, PulsarClientConnection
from meridian_broker.gateway.client_errors import ClientError, ConnectionLost, RequestRefused, code_name
from meridian_broker.gateway.links import STEADY, Backoff, Link, Resolver
from meridian_broker.gateway.remote_admin import OtherDeletion, RemoteAdmin
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.replication.replicator import (
    QUEUE_SIZE,
    RemotePlace,
    ReplicationSource,
    Replicator,
    last_own_durable,
)
from meridian_broker.replication.replicator_status import Hold, ReplicatorStatus, State
from meridian_broker.topics.incarnations import Told
from meridian_broker.topics.recalled import Feed, Found, NotWanted, PeerAway, Want
from meridian_broker.topics.throttling import Throttle
from meridian_broker.wire.proto import peer_pb2
from meridian_broker.wire.proto import pulsar_pb2 as pb

if TYPE_CHECKING:
    from meridian_broker.gateway.client_options import ClientOptions

logger = logging.getLogger(__name__)

LAST_DELAY: Final = 5.0
"""Seconds between attempts of a replicator that is refused again and again."""
READERS: Final = 4
"""Replicators to one region that read the log at the same time; each holds up to a mebibyte meanwhile."""
RATE_SECONDS_MAX: Final = 1.0
"""A rate may be changed while its wait is on, so it is asked this often."""
ASK_SECONDS: Final = 5.0
"""Longest wait for entries that another region is asked for. Producers of a topic wait for its first answers."""
CLOSE_PATIENCE: Final = 1.0
"""Seconds to wait for the remote's answer when a producer is closed."""


def replicator_name(local: str, remote: str) -> str:
    """Name of the producer that carries ``local``'s entries to ``remote``; Pulsar's form."""
    return f"pulsar.repl.{local}-->{remote}"


def partitioned_topic(name: str) -> str:
    """``...-partition-3`` -> the partitioned topic's own name."""
    base, separator, number = name.rpartition("-partition-")
    return base if separator and number.isdecimal() else name


class ReplicatorRunner:
    """Owns every replicator of this broker."""

    def __init__(
        self,
        region: str,
        resolve: Resolver,
        options: ClientOptions,
        *,
        jitter: Callable[[], float],
        now_ms: Callable[[], int],
        admin_token: str | None = None,
        queue_size: int = QUEUE_SIZE,
    ) -> None:
        """
        :param region: this one.
        :param resolve: region -> (service URL, admin URL), asked at each attempt.
        :param options: from ``client_options.peer_options``.
        :param admin_token: bearer token for the remote's admin REST.
        """
        self._resolve = resolve
        self._options = options
        self._jitter = jitter
        self._now_ms = now_ms
        self._region = region
        self._queue_size = queue_size
        self._admin = RemoteAdmin(resolve, admin_token, options.tls)
        self._remotes: dict[str, _Remote] = {}
        self._running: dict[str, dict[str, _Run]] = {}
        self._linked: frozenset[str] = frozenset()
        self._ending: set[asyncio.Future[None]] = set()

    def start(self, topic: ReplicationSource, remote: str) -> None:
        """Begin to replicate; nothing happens when that is going on already."""
        runs = self._running.setdefault(topic.name, {})
        if remote in runs:
            return
        place = self._used(remote)
        core = Replicator(
            topic.name,
            topic.region,
            remote,
            topic.incarnation,
            queue_size=self._queue_size,
            own_before=topic.own_before,
            came_back=topic.came_back,
        )
        runs[remote] = _Run(topic, core, place, self._admin, Backoff(self._jitter, last=LAST_DELAY), self._now_ms)

    def stop(self, topic_name: str, remote: str | None = None) -> asyncio.Future[None]:
        """Stop replicating a topic, to one remote or to all. Effective at once; await the result for its end."""
        runs = self._running.get(topic_name, {})
        ending = [runs.pop(name) for name in ([remote] if remote is not None else list(runs)) if name in runs]
        if not runs:
            self._running.pop(topic_name, None)
        return self._spawn(self._end(ending))

    def set_regions(self, regions: Iterable[str]) -> None:
        """Those that may be asked, whether a topic is replicated there or not."""
        wanted = frozenset(regions)
        for region in wanted - self._linked:
            self._used(region)
        gone = [self._remotes[region] for region in self._linked - wanted]
        self._linked = wanted
        if gone:
            self._spawn(self._let_go(gone))

    def regions(self) -> Collection[str]:
        return self._linked

    def is_reachable(self, region: str) -> bool:
        """Not known to be away: there is a connection, or the first one is being made."""
        place = self._remotes.get(region)
        return place is not None and (place.link.connection is not None or place.link.problem is None)

    async def ask(self, region: str, want: Want) -> Found:
        """``topics.recall.Peers``. :raises PeerAway: the region cannot be reached, or cannot say."""
        place = self._remotes.get(region)
        if place is None or not self.is_reachable(region):
            problem = None if place is None else place.link.problem
            raise PeerAway(f"{region} cannot be asked for entries of {want.origin}: {problem or 'no way there'}")
        asked = peer_pb2.EntriesWanted(
            request_id=0,
            region=self._region,
            topic=want.topic,
            incarnation=want.incarnation,
            origin=want.origin,
            after_ledger=want.after.ledger,
            after_entry=want.after.entry,
        )
        if want.before != LATEST:
            asked.before_ledger, asked.before_entry = want.before
        try:
            async with asyncio.timeout(ASK_SECONDS):
                connection = await place.link.ready()
                answer: peer_pb2.EntriesFound = await connection.request(pb.BaseCommand.ENTRIES_WANTED, asked)
        except (ClientError, TimeoutError) as error:
            reason = str(error) or f"no answer in {ASK_SECONDS:g} s"
            is_outside = isinstance(error, RequestRefused) and error.code == pb.NotAllowedError
            raise (NotWanted if is_outside else PeerAway)(
                f"{region} does not give entries of {want.origin}: {reason}"
            ) from error
        last = Position(answer.last_ledger, answer.last_entry)
        feed = None
        if answer.HasField("feed"):
            said = answer.feed
            confirmed, end = (
                Position(said.confirmed_ledger, said.confirmed_entry),
                Position(said.end_ledger, said.end_entry),
            )
            feed = Feed(confirmed, end, said.behind, said.held, said.subscriptions)
        origins = frozenset(answer.origins)
        return Found(tuple(answer.entries), answer.chained, answer.settled, last, origins, feed, answer.outside)

    def feed(self, topic_name: str, remote: str) -> Feed | None:
        """How far the replicator is; None: there is none. The end of the log is the caller's to say."""
        run = self._running.get(topic_name, {}).get(remote)
        if run is None:
            return None
        status = run.status()
        return Feed(status.confirmed, EARLIEST, status.backlog, "" if status.hold is None else status.last_error or "")

    def status(self, topic_name: str) -> dict[str, ReplicatorStatus]:
        """By remote region."""
        return {remote: run.status() for remote, run in self._running.get(topic_name, {}).items()}

    def topics(self) -> list[str]:
        """Names of the topics that are being replicated."""
        return list(self._running)

    def nudge(self, remote: str) -> None:
        """The region was heard of: try to reach it now."""
        place = self._remotes.get(remote)
        if place is not None and place.link.connection is None:
            place.link.nudge()
        for runs in self._running.values():
            if remote in runs:
                runs[remote].nudge()

    async def close(self) -> None:
        """End everything."""
        for topic_name in list(self._running):
            self.stop(topic_name)
        while self._ending:
            await asyncio.gather(*self._ending)
        for place in self._remotes.values():
            await place.close()
        self._remotes.clear()
        await self._admin.close()

    async def _end(self, runs: list[_Run]) -> None:
        await asyncio.gather(*(run.end() for run in runs))
        await self._let_go(run.place for run in runs)

    def _used(self, region: str) -> _Remote:
        """The connections to a region, of one user more."""
        place = self._remotes.get(region)
        if place is None:
            place = self._remotes[region] = _Remote(region, self._resolve, self._options, self._jitter)
        place.users += 1
        return place

    async def _let_go(self, places: Iterable[_Remote]) -> None:
        for place in places:
            place.users -= 1
            if place.users == 0 and self._remotes.get(place.region) is place:
                del self._remotes[place.region]
                await place.close()

    def _spawn(self, ending: Coroutine[None, None, None]) -> asyncio.Future[None]:
        task = asyncio.get_running_loop().create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task


class _Remote:
    """The connections to one region, shared by all replicators that go there."""

    def __init__(self, region: str, resolve: Resolver, options: ClientOptions, jitter: Callable[[], float]) -> None:
        self.region = region
        self.users = 0
        self.link = Link(region, resolve, options, jitter, "replication")
        self.link.start()
        self.turns = asyncio.Semaphore(READERS)
        self._options = options
        self._others: dict[str, PulsarClientConnection] = {}
        self._lock = asyncio.Lock()

    async def serving(self, topic: str) -> PulsarClientConnection:
        """A connection to the broker that serves ``topic``, as soon as the region can be reached."""
        connection = await self.link.ready()
        authoritative = False
        for _ in range(MAX_REDIRECTS):
            answer = await connection.lookup(topic, authoritative=authoritative)
            if not answer.redirect:
                return connection if answer.through_proxy else await self._to(answer.url)
            connection, authoritative = await self._to(answer.url), answer.authoritative
        raise ConnectionLost(f"{self.region} redirected the lookup of {topic} {MAX_REDIRECTS} times")

    async def close(self) -> None:
        await self.link.close()
        for connection in self._others.values():
            await connection.close()
        self._others.clear()

    async def _to(self, url: str) -> PulsarClientConnection:
        main = self.link.connection
        if main is not None and main.url == url:
            return main
        async with self._lock:
            known = self._others.get(url)
            if known is None or not known.is_open:
                self._others = {key: one for key, one in self._others.items() if one.is_open}
                known = self._others[url] = await PulsarClientConnection.connect(url, self._options)
            return known


class _Run:
    """The task of one replicator."""

    def __init__(
        self,
        source: ReplicationSource,
        core: Replicator,
        place: _Remote,
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
        self._ended: str | None = None  # why the producer is gone
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

    def status(self) -> ReplicatorStatus:
        problem = self.place.link.problem
        if self._core.state is State.STARTING and problem is not None:
            self._core.last_error = problem
        return self._core.status(self._source.entries_after(self._core.confirmed), self._now_ms())

    # -- what the connection says -----------------------------------------------------------------------------------

    def receipt(self, receipt: pb.CommandSendReceipt) -> None:
        if not self._core.receipt(receipt.sequence_id):
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
        """Once for all receipts that arrived together."""
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
                    logger.exception("%s: the replicator failed; it begins anew", self._task.get_name())
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
        """One producer, from its making to its end. Returns why it ended; None: the core said why itself."""
        source = self._source
        self._core.starting(source.incarnation)
        connection = await self.place.serving(source.name)
        if connection.peer_version == 0:
            raise RequestRefused(
                pb.NotAllowedError, f"{connection.url} is {connection.server_version}, no Meridian broker"
            )
        if source.partitions is not None:
            base = partitioned_topic(source.name)
            try:
                await self._admin.ensure_partitions(self.place.region, base, source.partitions, source.base_incarnation)
            except OtherDeletion:
                pass  # the answer to PRODUCER says which one
        self._ended = None
        self._epoch += 1
        told = peer_pb2.ReplicationSource(region=source.region, incarnation=self._core.incarnation)
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
            elif self._core.hold is Hold.ROLLED_BACK:
                source.rolled_back(self._core.remote)
            elif self._core.hold is Hold.INCARNATION and place.told is not None:
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
            pass  # it is gone either way, and the next one takes its place

    async def _stream(self, connection: PulsarClientConnection) -> None:
        """Read and send until the producer is gone or the core wants no more."""
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
        """Wait while more was sent than the topic's rate allows; then how many entries may be read."""
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
        """Make the remote know a schema, and learn its number there (R41)."""
        schema = await self._source.schema_for(version)
        if schema is None:  # nobody here knows it either: the number means nothing, so it stays as it is
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
    """:raises RequestRefused: the answer does not say where to go on."""
    if state is None:
        raise RequestRefused(
            pb.NotAllowedError,
            f"{url} accepted the replicator's producer but did not say what it has: it took it for a client's. Give "
            "both regions the same peer token",
        )
    last = Position(state.last_origin_ledger, state.last_origin_entry)
    ends = {end.region: Position(end.ledger, end.entry) for end in state.ends}
    told = Told(state.incarnation, ends, state.with_base)
    return RemotePlace(last if last.ledger >= 0 else EARLIEST, state.incarnation, told)
