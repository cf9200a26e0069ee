# SPDX-License-Identifier: Apache-2.0
"""Runs the replicators, and requests entries from other regions.

One task per (topic, remote), ``gateway/replicator_run.py``; ``replication.replicator`` decides what to send and which
answers to accept. All replicators to a region share one connection per broker there; only a few of them read at a
time, so that memory stays bounded however many have a backlog. Writes of one turn of the loop are sent together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from meridian_broker.gateway.client_errors import ClientError, RequestRefused
from meridian_broker.gateway.links import FIRST_DELAY, Resolver
from meridian_broker.gateway.pulsar_admin import PulsarAdmin
from meridian_broker.gateway.pulsar_run import PulsarRun
from meridian_broker.gateway.region_calls import RegionCalls
from meridian_broker.gateway.remote_admin import OtherKindThere, RemoteAdmin
from meridian_broker.gateway.remote_brokers import RemoteBrokers
from meridian_broker.gateway.replicator_run import ReplicatorRun, partitioned_topic
from meridian_broker.ledgers.backoff import Backoff
from meridian_broker.positions import Stamp
from meridian_broker.positions.position import EARLIEST, LATEST, Position
from meridian_broker.replication.entries.producing import QUEUE_SIZE
from meridian_broker.replication.entries.pulsar_replicator import PulsarReplicator
from meridian_broker.replication.entries.replicator import Replicator
from meridian_broker.topics.backfill.questions import Feed, Found, HasOtherKind, NotWanted, PeerAway, Want
from meridian_broker.topics.errors import OtherKind
from meridian_broker.wire.proto import peer_pb2
from meridian_broker.wire.proto import pulsar_pb2 as pb

if TYPE_CHECKING:
    from meridian_broker.gateway.client_options import ClientOptions
    from meridian_broker.positions.skipped import Skipped
    from meridian_broker.replication.entries.replicator_status import ReplicatorStatus
    from meridian_broker.replication.entries.source import ReplicationSource

REFUSED: Final[dict[int, type[PeerAway]]] = {pb.NotAllowedError: NotWanted, pb.TopicNotFound: HasOtherKind}
"""The meaning of the codes with which a region refuses entries."""
LAST_DELAY: Final = 5.0
"""Seconds between attempts of a replicator that is refused repeatedly."""
UP_SECONDS: Final = 1.0
"""Longest wait for a link that is down: the region may have just started, or the link may have just been lost."""
ASK_SECONDS: Final = 5.0
"""Longest wait for entries requested from another region. Producers of a topic wait for its first answers."""


class PulsarRegions(NamedTuple):
    """How regions that run Apache Pulsar are reached."""

    has: Callable[[str], bool]
    """Whether a region runs Apache Pulsar."""
    options: ClientOptions
    """From ``client_options.pulsar_options``."""
    admin: PulsarAdmin


class ReplicatorRunner:
    """Owns every replicator of this broker."""

    def __init__(
        self,
        region: str,
        resolve: Resolver,
        options: ClientOptions,
        calls: RegionCalls,
        pulsar: PulsarRegions,
        *,
        jitter: Callable[[], float],
        now_ms: Callable[[], int],
        queue_size: int = QUEUE_SIZE,
    ) -> None:
        """
        :param region: this one.
        :param resolve: region -> (service URL, admin URL), asked at each attempt.
        :param options: from ``client_options.peer_options``.
        :param calls: to the remotes' admin REST.
        :param pulsar: the remotes that run Apache Pulsar.
        """
        self._resolve = resolve
        self._options = options
        self._jitter = jitter
        self._now_ms = now_ms
        self._region = region
        self._queue_size = queue_size
        self._admin = RemoteAdmin(calls)
        self._pulsar = pulsar
        self._remotes: dict[str, RemoteBrokers] = {}
        self._running: dict[str, dict[str, ReplicatorRun]] = {}
        self._linked: frozenset[str] = frozenset()
        self._ending: set[asyncio.Future[None]] = set()

    def start(self, topic: ReplicationSource, remote: str) -> None:
        """Begin to replicate; no effect if replication is running already."""
        runs = self._running.setdefault(topic.name, {})
        if remote in runs:
            return
        place = self._used(remote)
        core: Replicator
        about = (topic.name, topic.region, remote, topic.incarnation)
        if self._pulsar.has(remote):
            core = PulsarReplicator(
                *about,
                queue_size=self._queue_size,
                own_before=topic.own_before,
                came_back=topic.came_back,
                last_marker=topic.last_marker,
                end=topic.last_confirmed(),
            )
        else:
            core = Replicator(
                *about,
                queue_size=self._queue_size,
                own_before=topic.own_before,
                came_back=topic.came_back,
                last_marker=topic.last_marker,
            )
        if (skipped := topic.skipped_for(remote)) is not None:
            core.skip(skipped)
        backoff = Backoff(self._jitter, FIRST_DELAY, LAST_DELAY)
        if isinstance(core, PulsarReplicator):
            runs[remote] = PulsarRun(topic, core, place, self._admin, self._pulsar.admin, backoff, self._now_ms)
        else:
            runs[remote] = ReplicatorRun(topic, core, place, self._admin, backoff, self._now_ms)

    def stop(self, topic_name: str, remote: str | None = None) -> asyncio.Future[None]:
        """Stop replicating a topic, to one remote or to all. Effective at once; await the result for its end."""
        runs = self._running.get(topic_name, {})
        ending = [runs.pop(name) for name in ([remote] if remote is not None else list(runs)) if name in runs]
        if not runs:
            self._running.pop(topic_name, None)
        return self._spawn(self._end(ending))

    def set_regions(self, regions: Iterable[str]) -> None:
        """Set the regions that may be asked for entries, whether or not a topic is replicated there."""
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
        """Whether the region is not known to be unreachable: connected, or still connecting for the first time."""
        place = self._remotes.get(region)
        return place is not None and (place.link.connection is not None or place.link.problem is None)

    async def ask(self, region: str, want: Want) -> Found:
        """``topics.backfill.Peers``. :raises PeerAway: the region cannot be reached, or does not have them."""
        place = self._remotes.get(region)
        if place is None or not self.is_reachable(region):
            problem = None if place is None else place.link.problem
            raise PeerAway(f"{region} cannot be asked for entries of {want.origin}: {problem or 'not connected'}")
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
                answer = await _entries(place, asked)
        except (ClientError, TimeoutError) as error:
            reason = str(error) or f"no answer in {ASK_SECONDS:g} s"
            refused = REFUSED.get(error.code, PeerAway) if isinstance(error, RequestRefused) else PeerAway
            raise refused(f"{region} did not return entries of {want.origin}: {reason}") from error
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
        return Found(tuple(answer.entries), answer.chained, answer.complete, last, origins, feed, answer.outside)

    async def schema(self, region: str, topic: str, version: bytes) -> pb.Schema | None:
        """Implements ``Peers`` (``topics/backfill/questions.py``).

        :raises PeerAway: the region cannot be reached, or does not know the schema.
        """
        place = self._remotes.get(region)
        if place is None or not self.is_reachable(region):
            raise PeerAway(f"{region} cannot be asked for a schema of {topic}: not connected")
        try:
            async with asyncio.timeout(ASK_SECONDS):
                connection = await place.link.ready()
                return await connection.get_schema(partitioned_topic(topic), version)
        except (ClientError, TimeoutError) as error:
            reason = str(error) or f"no answer in {ASK_SECONDS:g} s"
            raise PeerAway(f"{region} did not return a schema of {topic}: {reason}") from error

    async def make_partitioned(
        self, region: str, topic: str, partitions: int, incarnation: str, created: Stamp | None
    ) -> None:
        """Implements ``GeoReplication`` (``topics/lifecycle/parts.py``).

        A region whose link does not come up at once counts as away.
        """
        place = self._remotes.get(region)
        if place is None:
            raise PeerAway(f"there is no link to {region}")
        try:
            if place.link.connection is None:
                place.link.nudge()
                async with asyncio.timeout(UP_SECONDS):
                    await place.link.ready()
            async with asyncio.timeout(ASK_SECONDS):
                await self._admin.ensure_partitions(
                    *(region, topic, partitions, incarnation, created), connection=place.link.connection
                )
        except OtherKindThere as error:
            raise OtherKind(str(error)) from error
        except (ClientError, TimeoutError) as error:
            problem = place.link.problem if place.link.connection is None else f"no answer in {ASK_SECONDS:g} s"
            raise PeerAway(str(error) or problem or "it does not accept connections") from error

    def feed(self, topic_name: str, remote: str) -> Feed | None:
        """The replicator's progress; None if there is none. The caller adds the end of the log."""
        run = self._running.get(topic_name, {}).get(remote)
        if run is None:
            return None
        status = run.status()
        held = "" if status.hold is None else status.last_error or ""
        return Feed(status.confirmed, EARLIEST, status.backlog, held, remote_last=run.remote_last)

    def skip(self, topic_name: str, remote: str, skipped: Skipped) -> None:
        """Continue after the range skipped for the remote; no effect without a replicator."""
        run = self._running.get(topic_name, {}).get(remote)
        if run is not None:
            run.skip(skipped)

    def status(self, topic_name: str) -> dict[str, ReplicatorStatus]:
        """Status by remote region."""
        return {remote: run.status() for remote, run in self._running.get(topic_name, {}).items()}

    def is_sending(self, topic_name: str, remote: str) -> bool:
        """Whether entries of the topic reach the remote now."""
        run = self._running.get(topic_name, {}).get(remote)
        return run is not None and run.is_sending

    def topics(self) -> list[str]:
        """Names of the topics that are being replicated."""
        return list(self._running)

    def nudge(self, remote: str) -> None:
        """The region has shown a sign of life: try to reach it now."""
        place = self._remotes.get(remote)
        if place is not None and place.link.connection is None:
            place.link.nudge()
        for runs in self._running.values():
            if remote in runs:
                runs[remote].nudge()

    async def close(self) -> None:
        """Stop all replicators and close their connections."""
        for topic_name in list(self._running):
            self.stop(topic_name)
        while self._ending:
            await asyncio.gather(*self._ending)
        for place in self._remotes.values():
            await place.close()
        self._remotes.clear()

    async def _end(self, runs: list[ReplicatorRun]) -> None:
        await asyncio.gather(*(run.end() for run in runs))
        await self._let_go(run.place for run in runs)

    def _used(self, region: str) -> RemoteBrokers:
        """The connections to a region, with one more user."""
        place = self._remotes.get(region)
        if place is None:
            options = self._pulsar.options if self._pulsar.has(region) else self._options
            place = self._remotes[region] = RemoteBrokers(region, self._resolve, options, self._jitter)
        place.users += 1
        return place

    async def _let_go(self, places: Iterable[RemoteBrokers]) -> None:
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


async def _entries(place: RemoteBrokers, asked: peer_pb2.EntriesWanted) -> peer_pb2.EntriesFound:
    """The answer of the broker that serves the topic, in most regions the only broker."""
    connection = await place.link.ready()
    try:
        answer: peer_pb2.EntriesFound = await connection.request(pb.BaseCommand.ENTRIES_WANTED, asked)
    except RequestRefused as refused:
        if refused.code != pb.ServiceNotReady:
            raise
        owner = await place.serving(asked.topic)
        if owner is connection:
            raise
        answer = await owner.request(pb.BaseCommand.ENTRIES_WANTED, asked)
    return answer
