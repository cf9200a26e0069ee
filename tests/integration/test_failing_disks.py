# SPDX-License-Identifier: Apache-2.0
"""A disk that fails for a while: all periodic work goes on, and waiting clients are served once the disk is well."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from meridian_broker.engines.local.files import OsFiles
from meridian_broker.ledgers.store import LedgerUnreadable
from meridian_broker.server import chores
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.topics.errors import TopicFenced
from meridian_broker.topics.service import closing
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.topic_name import parse
from support.brokers.broker_inside import broker_on
from support.brokers.broker_process import http
from support.brokers.broker_regions import until
from support.contracts.ledger_disks import READS, WRITES, Fault, FaultyDisk, broken
from support.protocol.raw_connection import RawConnection, T

ONE, OTHER = "persistent://public/default/a", "persistent://public/default/b"
QUOTAS, SPACE, OPENING = "enforce backlog quotas", "reclaim disk space", "open the topics on record"
BACKOFF_SECONDS = 0.02
"""How long a disconnected client waits before it subscribes again."""
SMALL = {"managedLedgerMaxEntriesPerLedger": 5, "retentionCheckIntervalInSeconds": 1}


class Region:
    """A directory on a disk that can fail, and the broker on it."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.directory = directory
        self.settings = SMALL | settings
        self.disk: FaultyDisk
        self.fault: Fault | None = None
        """The fault with which its disk starts."""

    def _files(self, volume: Path) -> FaultyDisk:
        self.disk = FaultyDisk(OsFiles(volume, make=True))
        self.disk.fault = self.fault
        return self.disk

    @asynccontextmanager
    async def started(self) -> AsyncIterator[BrokerProcess]:
        async with broker_on(self.directory, self._files, self.settings) as inside:
            yield inside


async def publish(inside: BrokerProcess, topic: str, count: int) -> None:
    wire = await RawConnection.open(inside.settings.network.broker_service_port)
    await wire.producer(topic, producer_name="p")
    for number in range(count):
        wire.send("p", number, b"%d" % number)
        await wire.receipt()
    await wire.close()


class Consumer:
    """Subscribes again whenever the broker disconnects it, as official clients do, and keeps the ids that it gets."""

    def __init__(self, inside: BrokerProcess, topic: str, kind: Any) -> None:
        self._port = inside.settings.network.broker_service_port
        self._topic = topic
        self._kind = kind
        self._wire: RawConnection
        self._requests = 0
        self.got: list[tuple[int, int]] = []
        self.answers: dict[int, str] = {}
        """Answers to acknowledgements that asked for a receipt; empty: it worked."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Consumer]:
        self._wire = await RawConnection.open(self._port)
        self._subscribe()
        task = asyncio.create_task(self._run())
        try:
            yield self
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await self._wire.close()

    def acknowledge(self, place: tuple[int, int], *, receipt: bool) -> int:
        self._requests += 1
        ids = [pb.MessageIdData(ledgerId=place[0], entryId=place[1])]
        ack = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=ids)
        if receipt:
            ack.request_id = self._requests
        self._wire.say(T.ACK, ack)
        return self._requests

    def _subscribe(self) -> None:
        self._requests += 1
        asked = pb.CommandSubscribe(topic=self._topic, subscription="sub", subType=self._kind, consumer_id=1)
        asked.request_id, asked.initialPosition = self._requests, pb.CommandSubscribe.Earliest
        self._wire.say(T.SUBSCRIBE, asked)

    async def _run(self) -> None:
        while True:
            command = await self._wire.hear_any()
            if command[0] == T.SUCCESS:
                self._wire.say(T.FLOW, pb.CommandFlow(consumer_id=1, messagePermits=1000))
            elif command[0] == T.MESSAGE:
                place = command.command.message_id
                self.got.append((place.ledgerId, place.entryId))
            elif command[0] == T.ACK_RESPONSE:
                self.answers[command.message.request_id] = command.message.message
            elif command[0] in (T.CLOSE_CONSUMER, T.ERROR):
                await asyncio.sleep(BACKOFF_SECONDS)
                self._subscribe()


def alive(inside: BrokerProcess) -> bool:
    """Whether all periodic work goes on."""
    tasks = {task.get_name() for task in asyncio.all_tasks()}
    return all(state.name in tasks for state in inside.chores.states())


def turns(inside: BrokerProcess, name: str) -> int:
    return next(state.turns for state in inside.chores.states() if state.name == name)


def problem(inside: BrokerProcess, name: str) -> str | None:
    return next(state.problem for state in inside.chores.states() if state.name == name)


@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Shared])
async def test_a_consumer_is_served_once_the_disk_can_be_read_again(tmp_path: Path, kind: Any) -> None:
    region = Region(tmp_path)
    async with region.started() as inside, Consumer(inside, ONE, kind).running():
        await publish(inside, ONE, 12)
    async with region.started() as inside:
        await inside.service.opener.topic(parse(ONE), create=False)
        region.disk.fault = broken(READS)
        async with Consumer(inside, ONE, kind).running() as consumer:
            await until(lambda: region.disk.faults > 5)
            assert consumer.got == []
            region.disk.fault = None
            await until(lambda: len(set(consumer.got)) == 12)
        assert alive(inside)


async def test_an_acknowledgement_is_answered_while_the_disk_is_unreadable(tmp_path: Path) -> None:
    region = Region(tmp_path)
    async with region.started() as inside, Consumer(inside, ONE, pb.CommandSubscribe.Shared).running() as consumer:
        await publish(inside, ONE, 12)
        await until(lambda: len(consumer.got) == 12)
        topic = inside.service.topics[ONE]
        topic.log._chapters[0].index = None  # as if nobody had needed it for a while
        region.disk.fault = broken(READS)
        refused = consumer.acknowledge(consumer.got[0], receipt=True)
        await until(lambda: refused in consumer.answers)
        assert "cannot be read" in consumer.answers[refused]
        assert topic.failure is None
        # Without a receipt nobody would ever know: the consumer is sent away and gets the message again.
        consumer.acknowledge(consumer.got[0], receipt=False)
        await until(lambda: topic.failure is not None)
        region.disk.fault = None
        await until(lambda: len(consumer.got) == 24)
        again = consumer.acknowledge(consumer.got[12], receipt=True)
        await until(lambda: again in consumer.answers)
        assert consumer.answers[again] == ""


async def test_quotas_are_enforced_once_the_disk_can_be_read_again(tmp_path: Path) -> None:
    """A quota by age reads the oldest entry of each topic."""
    quota = {"backlogQuotaDefaultLimitSecond": 1, "backlogQuotaCheckIntervalInSeconds": 1}
    region = Region(tmp_path, **quota, backlogQuotaDefaultRetentionPolicy="consumer_backlog_eviction")
    async with region.started() as inside:
        for topic in (ONE, OTHER):
            async with Consumer(inside, topic, pb.CommandSubscribe.Exclusive).running():
                await publish(inside, topic, 7)
    async with region.started() as inside:
        one, other = [await inside.service.opener.topic(parse(name), create=False) for name in (ONE, OTHER)]
        region.disk.fault = broken(READS)
        await until(lambda: problem(inside, QUOTAS) is not None)
        assert f"2 of 2 failed: {ONE}" in str(problem(inside, QUOTAS))
        region.disk.fault = None
        await until(lambda: one.subscriptions["sub"].backlog() == other.subscriptions["sub"].backlog() == 0)
        await until(lambda: problem(inside, QUOTAS) is None)
        assert alive(inside)


async def test_space_is_given_back_once_a_full_disk_has_room(tmp_path: Path) -> None:
    region = Region(tmp_path)
    async with region.started() as inside:
        await publish(inside, ONE, 12)
        (tmp_path / "ledgers-to-delete").mkdir()  # the record of deletions cannot be written either
        region.disk.fault = broken(WRITES, errno.ENOSPC)
        await until(lambda: region.disk.faults > 0 and turns(inside, SPACE) > 2)
        log = inside.service.topics[ONE].log
        assert len(log.counts()) == 1
        assert len(await inside.ledgers.list()) > len(await inside.held.list())
        region.disk.fault = None
        (tmp_path / "ledgers-to-delete").rmdir()
        await until(lambda: inside.ledgers.figures().gauges["ledgers"] == len(log.counts()))
        assert alive(inside)


async def test_a_topic_that_failed_to_reopen_is_opened_later_without_anybody_asking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise nothing in it is replicated until a client comes."""
    monkeypatch.setattr(chores, "OPEN_SECONDS", 0.1)
    region = Region(tmp_path)
    async with region.started() as inside:
        await publish(inside, ONE, 3)
        region.disk.fault = broken(READS)
        inside.service.topics[ONE].fence("something went wrong")
        await until(lambda: problem(inside, OPENING) is not None)
        assert ONE not in inside.service.topics
        region.disk.fault = None
        await until(lambda: ONE in inside.service.topics)
        await until(lambda: problem(inside, OPENING) is None)


async def test_a_topic_that_nobody_could_open_is_opened_by_itself_with_its_acknowledgements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt reads its ledgers, so clients that ask meanwhile are told to wait."""
    monkeypatch.setattr(chores, "OPEN_SECONDS", 0.1)
    region, name = Region(tmp_path), parse(ONE)
    async with region.started() as inside, Consumer(inside, ONE, pb.CommandSubscribe.Shared).running() as consumer:
        await publish(inside, ONE, 6)
        await until(lambda: len(consumer.got) == 6)
        receipts = {consumer.acknowledge(place, receipt=True) for place in consumer.got[:4]}
        await until(lambda: consumer.answers.keys() >= receipts)
    async with region.started() as inside:
        await closing.unload(inside.service.opener, name)
        assert problem(inside, OPENING) is None
        region.disk.fault = broken(READS)

        async def is_told_to_wait() -> bool:
            """The broker retries too, so either may make the second attempt."""
            with pytest.raises((LedgerUnreadable, TopicFenced), match="Input/output error") as refused:
                await inside.service.opener.topic(name, create=False)
            return re.search(r"failed \d+ times in a row", str(refused.value)) is not None

        await until(is_told_to_wait)
        await until(lambda: problem(inside, OPENING) is not None)
        shown = (await asyncio.to_thread(http, "GET", inside.listeners.admin_url + "/meridian/v1/health")).json
        assert not shown["healthy"]
        assert [one["topic"] for one in shown["failingTopics"]["first"]] == [ONE]
        region.disk.fault = None
        await until(lambda: ONE in inside.service.topics)
        assert inside.service.topics[ONE].subscriptions["sub"].backlog() == 2


async def test_a_start_on_a_disk_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    region = Region(tmp_path)
    async with region.started():
        pass
    region.fault = broken(READS)
    with pytest.raises(LedgerUnreadable, match="Input/output error"):
        async with region.started():
            pytest.fail("it started without its disk")
    region.fault = None
    async with region.started() as inside:
        assert alive(inside)


async def test_the_state_of_periodic_work_is_shown(tmp_path: Path) -> None:
    region = Region(tmp_path)

    async def shown() -> tuple[bool, dict[str, object]]:
        answer = (await asyncio.to_thread(http, "GET", inside.listeners.admin_url + "/meridian/v1/health")).json
        return answer["healthy"], next(work for work in answer["work"] if work["name"] == SPACE)

    async def measured(name: str) -> float:
        text = (await asyncio.to_thread(http, "GET", inside.listeners.admin_url + "/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith(name + "{") and f'work="{SPACE}"' in line]
        return float(lines[0].rpartition(" ")[2])

    async with region.started() as inside:
        await publish(inside, ONE, 12)
        await until(lambda: turns(inside, SPACE) > 0)
        assert (await shown())[0]
        assert await measured("meridian_periodic_work_failing") == 0

        async def fails(*_: object) -> None:
            raise LedgerUnreadable("the disk is away")

        setattr(inside.service.topics[ONE].log, "trim", fails)  # noqa: B010
        await until(lambda: problem(inside, SPACE) is not None)
        healthy, state = await shown()
        assert not healthy
        assert state["problem"] == f"1 of 1 failed: {ONE}: the disk is away"
        assert await measured("meridian_periodic_work_failing") == 1
        assert await measured("meridian_periodic_work_failures_total") >= 1
        assert await measured("meridian_periodic_work_seconds_since_success") > 0
