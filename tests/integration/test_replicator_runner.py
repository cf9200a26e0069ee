# SPDX-License-Identifier: Apache-2.0
"""The shell around replicators and links: what it does if a region is down, refuses, moves a topic or is no peer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from meridian_broker.gateway.client_errors import ConnectionLost
from meridian_broker.gateway.client_options import ClientOptions, peer_options
from meridian_broker.gateway.links import PeerLinks, Send
from meridian_broker.gateway.pulsar_admin import PulsarAdmin
from meridian_broker.gateway.replication import PulsarRegions, ReplicatorRunner
from meridian_broker.ledgers.backoff import Backoff
from meridian_broker.ledgers.throttling import Rate
from meridian_broker.positions import Stamp
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.positions.skipped import Skipped
from meridian_broker.replication.entries.replicator_status import ReplicatorStatus, StopReason
from meridian_broker.replication.entries.source import DeletionNotice
from meridian_broker.wire.proto import peer_pb2
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from support.brokers.broker_regions import until
from support.brokers.peers import calls_as, identity
from support.brokers.toy_pulsar_server import ToyConnection, ToyServer, toy_server
from support.worlds.replicator_model import LOCAL, REMOTE, LocalLog

T = pb.BaseCommand
OPTIONS = peer_options(identity(LOCAL), ClientOptions(connect_timeout=30, request_timeout=30))


class Source(LocalLog):
    """A topic as replicators see it, over an in-memory log."""

    region = LOCAL
    incarnation = ""
    base_incarnation = ""
    created: Stamp | None = None
    partitions = None
    replication_rate = Rate()

    def __init__(self, name: str = "persistent://public/default/t") -> None:
        super().__init__()
        self.name = name
        self.confirmed: dict[str, Position] = {}
        self._watchers: list[Callable[[], None]] = []
        self.told: list[DeletionNotice] = []

    def deleted_elsewhere(self, told: DeletionNotice) -> None:
        self.told.append(told)

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.append()
        for watcher in self._watchers:
            watcher()

    def last_confirmed(self) -> Position:
        return self.end

    async def read_after(self, position: Position, max_entries: int, max_bytes: int) -> list[tuple[Position, bytes]]:
        return self.entries(position, max_entries, max_bytes)

    def last_own(self) -> Position:
        return self.own

    def own_before(self, ledger: int) -> Position:
        raise AssertionError(f"no ledger here begins without a predecessor, asked of {ledger}")

    def rolled_back(self, remote: str) -> None:
        raise AssertionError(f"{remote} has nothing that is not here")

    def came_back(self, remote: str, after: Position, before: Position) -> bool:
        raise AssertionError(f"{remote} has nothing between {after} and {before} that is not here")

    def last_marker(self) -> Position:
        return EARLIEST

    def entries_after(self, position: Position) -> int:
        return sum(1 for place, _ in self.stored if place > position)

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    def reached(self, _remote: str) -> tuple[Position, Position]:
        return EARLIEST, EARLIEST

    def served(self, _remote: str, _scanned: Position, _chain: Position) -> None: ...

    def replicated_to(self, remote: str, position: Position) -> None:
        self.confirmed[remote] = position

    def skipped_for(self, remote: str) -> Skipped | None:
        return None

    async def schema_for(self, version: bytes) -> pb.Schema | None:
        return None

    @property
    def watchers(self) -> int:
        return len(self._watchers)


class ToyRegion:
    """Makes a toy server store what replicators send, as R3 and R4 require."""

    def __init__(self, server: ToyServer) -> None:
        self.server = server
        self.stored: dict[str, list[Position]] = {}
        self.topic_of: dict[tuple[ToyConnection, int], str] = {}
        self.refuse_next = False
        self.incarnation = ""
        self.ends: dict[str, Position] = {}
        server.answers[T.PRODUCER] = self._producer
        server.answers[T.SEND] = self._send

    def _producer(self, connection: ToyConnection, command: Any) -> None:
        asked = command.message
        self.topic_of[connection, asked.producer_id] = asked.topic
        stored = self.stored.setdefault(asked.topic, [])
        answer = pb.CommandProducerSuccess(request_id=asked.request_id, producer_name=asked.producer_name)
        answer.replication.incarnation = self.incarnation
        for name, end in self.ends.items():
            answer.replication.ends.add(region=name, ledger=end.ledger, entry=end.entry)
        if stored:
            answer.replication.last_origin_ledger, answer.replication.last_origin_entry = stored[-1]
        connection.say(T.PRODUCER_SUCCESS, answer)

    def _send(self, connection: ToyConnection, command: Any) -> None:
        stored = self.stored[self.topic_of[connection, command.producer_id]]
        last = stored[-1] if stored else EARLIEST
        origin = Position(command.origin.ledger, command.origin.entry)
        follows = Position(command.origin.sent_prev_ledger, command.origin.sent_prev_entry) == last
        if self.refuse_next or (origin > last and not follows):
            self.refuse_next = False
            problem = encode.send_error(command.producer_id, command.sequence_id, pb.NotAllowedError, "not the next")
            connection.transport.write(problem)
            return
        if origin > last:
            stored.append(origin)
        connection.transport.write(encode.send_receipt(command.producer_id, command.sequence_id, 1, len(stored)))


@asynccontextmanager
async def running(*servers: ToyServer) -> AsyncIterator[ReplicatorRunner]:
    runner = ReplicatorRunner(
        LOCAL,
        lambda region: (servers[0].url, None) if region == REMOTE else None,
        OPTIONS,
        calls_as(LOCAL, "http://127.0.0.1:1"),
        PulsarRegions(lambda _: False, OPTIONS, PulsarAdmin(lambda _: None, None, None)),
        jitter=lambda: 0.0,
        now_ms=lambda: 1000,
    )
    try:
        yield runner
    finally:
        await runner.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a task survived its owner"


def state(runner: ReplicatorRunner, source: Source) -> ReplicatorStatus:
    return runner.status(source.name)[REMOTE]


async def test_topics_share_one_connection_and_stop_leaves_nothing_behind() -> None:
    async with toy_server() as server, running(server) as runner:
        region = ToyRegion(server)
        sources = [Source(f"persistent://public/default/t{number}") for number in range(5)]
        for source in sources:
            source.publish(20)
            runner.start(source, REMOTE)
            runner.start(source, REMOTE)
        await until(lambda: all(source.confirmed.get(REMOTE) == source.end for source in sources))
        assert server.accepted == 1
        assert all(region.stored[source.name] == source.wanted for source in sources)
        assert server.of(T.PRODUCER)[0].message.producer_name == "pulsar.repl.us-east-->us-west"

        await runner.stop(sources[0].name)
        assert runner.status(sources[0].name) == {}
        assert sources[0].watchers == 0
        assert len(server.of(T.CLOSE_PRODUCER)) == 1
        sources[0].publish(1)
        sources[1].publish(1)
        await until(lambda: sources[1].confirmed[REMOTE] == sources[1].end)
        assert len(region.stored[sources[0].name]) == 20

        for source in sources[1:]:
            runner.stop(source.name, REMOTE)
        await server.until(lambda: not server.connections)  # no replicator needs it any more


async def test_a_broken_connection_repeats_nothing() -> None:
    async with toy_server() as server, running(server) as runner:
        region = ToyRegion(server)
        source = Source()
        runner.start(source, REMOTE)
        for round_number in range(1, 6):
            source.publish(30)
            await server.until(lambda number=round_number: len(region.stored.get(source.name, ())) > number * 30 - 25)  # type: ignore[misc]
            server.drop()
        await until(lambda: source.confirmed.get(REMOTE) == source.end)
        assert region.stored[source.name] == source.wanted
        assert state(runner, source).connections >= 5


async def test_an_unreachable_region_is_named_and_reached_once_it_is_up() -> None:
    async with toy_server() as server:
        region = ToyRegion(server)
        await server.close()
        async with running(server) as runner:
            source = Source()
            source.publish(3)
            runner.start(source, REMOTE)
            await until(lambda: "cannot connect" in (state(runner, source).last_error or ""))
            assert not state(runner, source).connected
            assert state(runner, source).backlog == 3
            await server.open()
            runner.nudge(REMOTE)
            await until(lambda: source.confirmed.get(REMOTE) == source.end)
            assert region.stored[source.name] == source.wanted
            assert state(runner, source).delay_ms == 0


async def test_a_refused_send_restarts_where_the_region_is() -> None:
    async with toy_server() as server, running(server) as runner:
        region = ToyRegion(server)
        region.refuse_next = True
        source = Source()
        source.publish(10)
        runner.start(source, REMOTE)
        await until(lambda: source.confirmed.get(REMOTE) == source.end)
        assert region.stored[source.name] == source.wanted
        assert "not the next (NOT_ALLOWED)" in (state(runner, source).last_error or "")
        assert state(runner, source).hold is None


async def test_a_gap_is_shown_and_closes_when_another_region_brings_the_rest() -> None:
    async with toy_server() as server, running(server) as runner:
        region = ToyRegion(server)
        source = Source()
        source.publish(10)
        region.stored[source.name] = source.wanted[:3]
        source.trim(source.wanted[5])
        runner.start(source, REMOTE)
        await until(lambda: state(runner, source).hold is StopReason.GAP)
        assert not server.of(T.SEND)
        region.stored[source.name] = source.wanted[:8]
        runner.nudge(REMOTE)
        await until(lambda: source.confirmed.get(REMOTE) == source.end)
        assert state(runner, source).hold is None


async def test_another_incarnation_waits_until_both_regions_agree_on_it() -> None:
    async with toy_server() as server, running(server) as runner:
        region = ToyRegion(server)
        region.incarnation = "9-us-west"
        region.ends = {LOCAL: Position(7, 3)}
        source = Source()
        source.publish(2)
        runner.start(source, REMOTE)
        await until(lambda: state(runner, source).hold is StopReason.INCARNATION)
        assert source.told[0] == DeletionNotice("9-us-west", {LOCAL: Position(7, 3)}, False)
        source.incarnation = "9-us-west"
        runner.nudge(REMOTE)
        await until(lambda: source.confirmed.get(REMOTE) == source.end)


async def test_a_topic_served_by_another_broker_is_followed_there() -> None:
    async with toy_server() as first, toy_server() as second, running(first) as runner:
        region = ToyRegion(second)

        def elsewhere(connection: ToyConnection, command: Any) -> None:
            answer = pb.CommandLookupTopicResponse(
                request_id=command.message.request_id,
                brokerServiceUrl=second.url,
                response=pb.CommandLookupTopicResponse.Redirect,
                authoritative=True,
            )
            connection.say(T.LOOKUP_RESPONSE, answer)

        first.answers[T.LOOKUP] = elsewhere
        source = Source()
        source.publish(5)
        runner.start(source, REMOTE)
        await until(lambda: source.confirmed.get(REMOTE) == source.end)
        assert region.stored[source.name] == source.wanted
        assert second.of(T.LOOKUP)[0].message.authoritative
        second.drop()
        source.publish(5)
        await until(lambda: source.confirmed.get(REMOTE) == source.end)
        assert region.stored[source.name] == source.wanted


async def test_a_server_that_is_not_a_meridian_broker_gets_nothing_of_ours() -> None:
    async with toy_server() as server, running(server) as runner:
        server.peer_version = 0
        source = Source()
        source.publish(1)
        runner.start(source, REMOTE)
        await until(lambda: "not a Meridian broker" in (state(runner, source).last_error or ""))
        assert not server.of(T.PRODUCER)


async def test_a_producer_closed_by_the_other_side_is_recreated() -> None:
    async with toy_server() as server, running(server) as runner:
        region = ToyRegion(server)
        source = Source()
        source.publish(1)
        runner.start(source, REMOTE)
        await until(lambda: source.confirmed.get(REMOTE) == source.end)
        close = pb.CommandCloseProducer(producer_id=server.of(T.PRODUCER)[0].message.producer_id, request_id=1)
        server.connections[0].say(T.CLOSE_PRODUCER, close)
        await server.until(lambda: len(server.of(T.PRODUCER)) == 2)
        source.publish(1)
        await until(lambda: source.confirmed.get(REMOTE) == source.end)
        assert region.stored[source.name] == source.wanted
        assert server.accepted == 1
        epochs = [command.message.epoch for command in server.of(T.PRODUCER)]
        assert epochs == sorted(set(epochs)), "each attempt must outrank the one before"


async def test_peer_links_come_up_go_down_and_carry_commands_both_ways() -> None:
    events: list[str] = []
    ways: dict[str, Send] = {}

    def up(region: str, send: Send) -> None:
        events.append(f"up {region}")
        ways[region] = send
        send(T.PROGRESS_HELLO, peer_pb2.ProgressHello(region=LOCAL))

    def command(region: str, kind: int, message: Any, reply: Send) -> None:
        events.append(f"heard {region} {message.region}")
        reply(T.PROGRESS_HELLO, peer_pb2.ProgressHello(region="thanks"))

    async with toy_server() as server:
        links = PeerLinks(
            lambda region: (server.url, None) if region == REMOTE else None,
            OPTIONS,
            lambda: 0.5,
            on_up=up,
            on_down=lambda region: events.append(f"down {region}"),
            on_command=command,
        )
        links.set_regions([REMOTE, "nowhere"])
        await server.until(lambda: len(server.of(T.PROGRESS_HELLO)) == 1)
        server.connections[0].say(T.PROGRESS_HELLO, peer_pb2.ProgressHello(region="hi"))
        await server.until(lambda: len(server.of(T.PROGRESS_HELLO)) == 2)
        assert events == [f"up {REMOTE}", f"heard {REMOTE} hi"]
        server.drop()
        await server.until(lambda: len(server.of(T.PROGRESS_HELLO)) == 3)
        assert events[2:] == [f"down {REMOTE}", f"up {REMOTE}"]
        status = links.status()
        assert status[REMOTE].connected
        assert status[REMOTE].connections == 2
        assert "no address" in (status["nowhere"].problem or "")

        links.set_regions([])
        await server.until(lambda: not server.connections)
        await links.close()
        assert events[-1] == f"down {REMOTE}"
        try:
            ways[REMOTE](T.PROGRESS_HELLO, peer_pb2.ProgressHello(region=LOCAL))
            raise AssertionError("a link that is down took a command")
        except ConnectionLost:
            pass
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_waits_grow_to_their_limit_and_start_over() -> None:
    backoff = Backoff(lambda: 1.0, 0.05, 0.3)
    assert [round(backoff.next(), 3) for _ in range(5)] == [0.05, 0.1, 0.2, 0.3, 0.3]
    backoff.reset()
    assert backoff.next() == 0.05
    assert Backoff(lambda: 0.0, 0.05, 0.3).next() == 0.025
