# SPDX-License-Identifier: Apache-2.0
"""Regions are killed, paused and restarted under a replicated subscription: nothing is lost, no ack is forgotten."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from meridian_broker.gateway.client import PulsarClientConnection
from meridian_broker.gateway.client_errors import ConnectFailed
from meridian_broker.gateway.roles import Consumer
from support.brokers.broker_process import RegionsProcess, wait_until
from support.brokers.forked_meridian import meridian_text
from support.brokers.region_clients import (
    CENTRAL,
    EAST,
    PATIENCE_MS,
    WEST,
    client,
    new_topic,
    numbered,
    publish,
    rest,
    stored,
    subscribe,
    take,
    take_numbers,
    wait_for_backlog,
)
from support.brokers.up_process import UpProcess
from support.protocol.admin_paths import subscription_path, topic_path

REGIONS = (EAST, WEST, CENTRAL)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegionsProcess]:
    with RegionsProcess(REGIONS, tmp_path_factory.mktemp("loss") / "data") as up:
        yield up


@pytest.fixture
def regions(three: RegionsProcess) -> Iterator[RegionsProcess]:
    """The three regions, whole again after each test."""
    yield three
    for region in REGIONS:
        if not three.is_running(region):
            three.bring_back(region)


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[RegionsProcess]:
    """Three regions that wait for each other only as long as R20 says."""
    with RegionsProcess(REGIONS, tmp_path / "data", settings={"barrierTimeoutMillis": "250"}) as up:
        yield up


@pytest.fixture(scope="module")
def with_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegionsProcess]:
    with UpProcess((EAST, WEST), tmp_path_factory.mktemp("etcd") / "data", metadata="etcd") as up:
        yield up


def status(regions: RegionsProcess, region: str, topic: str, name: str = "s") -> dict[str, Any]:
    """A subscription's status; empty while the region does not have it."""
    answer = regions.http(region, "GET", f"{subscription_path(topic, name)}/status")
    found: dict[str, Any] = answer.json if answer.status == 200 else {}
    return found


def test_sigkill_with_the_embedded_store(regions: RegionsProcess) -> None:
    die_and_come_back(regions)


def test_sigkill_with_etcd(with_etcd: RegionsProcess) -> None:
    die_and_come_back(with_etcd)


def die_and_come_back(regions: RegionsProcess) -> None:
    """Consumers work in the east, it is killed, they continue in the west, and the east comes back."""
    topic = new_topic("killed")
    chance = random.Random(20131101)
    with client(regions, WEST) as west:
        publish(west, topic, numbered(range(1000, 1300)))
        with client(regions, EAST) as east:
            publish(east, topic, numbered(range(300)))
            batch = publish(east, topic, numbered(range(300, 330)), batching=True)
            assert len({place.entry_id() for place in batch}) == 1
            consumer = subscribe(east, topic, batch_index_ack_enabled=True)
            messages = take(consumer, 630)
            in_batch = [message for message in messages if 300 <= int(message.data()) < 330]
            others = [message for message in messages if message not in in_batch]
            chance.shuffle(others)
            done = [*in_batch[::3], *others[:400]]
            for message in done:
                consumer.acknowledge(message)
            left = numbers(messages) - numbers(done)
            for region in regions.regions:  # bench/failover measures how soon they know
                wait_for_backlog(regions, region, topic, 201)  # counted in entries: the batch is one
            regions.kill_region(EAST)
        consumer = subscribe(west, topic, batch_index_ack_enabled=True)
        messages = take(consumer, len(left))
        assert numbers(messages) == left
        for message in messages[::2]:
            consumer.acknowledge(message)
        left -= numbers(messages[::2])
        consumer.close()
        publish(west, topic, numbered(range(1300, 1310)))
        regions.bring_back(EAST)
    with client(regions, EAST) as east:
        take_numbers(subscribe(east, topic, batch_index_ack_enabled=True), [*left, *range(1300, 1310)])
    for region in regions.regions:
        wait_for_backlog(regions, region, topic, 0)


def numbers(messages: list[pulsar.Message]) -> set[int]:
    return {int(message.data()) for message in messages}


def test_a_topic_that_was_deleted_once_fails_back_at_once(regions: RegionsProcess) -> None:
    """The region is back with many topics to open, and its consumer subscribes before digests were compared. It gets
    what is left, although the topic has an earlier deletion that every region must know of."""
    for number in range(40):
        assert regions.http(EAST, "PUT", topic_path(new_topic(f"before-{number}"))).status == 204
    topic = new_topic("made-again")
    with client(regions, WEST) as west:
        publish(west, topic, numbered([0]))
        assert stored(regions, EAST, topic, 1) == [0]
        path = f"{topic_path(topic)}?force=true"
        # 404: it is gone here; the answer before named a region that was slow to follow.
        wait_until(lambda: regions.http(EAST, "DELETE", path).status in (204, 404), "the topic to be deleted")
        publish(west, topic, numbered(range(1, 31)))
        with client(regions, EAST) as east:
            consumer = subscribe(east, topic)
            for message in take(consumer, 30)[:10]:
                consumer.acknowledge(message)
            for region in regions.regions:
                wait_for_backlog(regions, region, topic, 20)
        regions.kill_region(EAST)
        consumer = subscribe(west, topic)
        messages = take(consumer, 20)
        for message in messages[:10]:
            consumer.acknowledge(message)
        consumer.close()
        regions.bring_back(EAST)
    with client(regions, EAST) as east:
        take_numbers(subscribe(east, topic), numbers(messages[10:]))
    done = meridian_text("regions", "wait", "--ready", "--url", regions.admin_url(EAST))
    assert (done.returncode, done.stdout) == (0, "ready\n"), done.stderr
    assert meridian_text("regions", "status", "--url", regions.admin_url(EAST)).returncode == 0
    regions.kill_region(WEST)
    done = meridian_text("regions", "wait", "--ready", "--timeout", "1", "--url", regions.admin_url(EAST))
    assert done.returncode == 1 and done.stdout.startswith(f"{WEST}: "), done.stdout
    assert (
        meridian_text("regions", "wait", "--ready", "--timeout", "0", "--url", regions.admin_url(WEST)).returncode == 2
    )


def test_what_only_the_dead_region_had_is_not_lost(regions: RegionsProcess) -> None:
    """Receipts were sent, but the other regions got the messages only after the killed region was back."""
    topic = new_topic("tail")
    with client(regions, WEST) as west, client(regions, EAST) as east:
        consumer = subscribe(west, topic)
        publish(east, topic, numbered(range(50)))
        take_numbers(consumer, range(50))
        for others in (WEST, CENTRAL):
            regions.kill_region(others)
        publish(east, topic, numbered(range(50, 120)))
        regions.kill_region(EAST)
        for others in (WEST, CENTRAL):
            regions.bring_back(others)
        assert rest(consumer) == []
        regions.bring_back(EAST)
        take_numbers(consumer, range(50, 120))
        consumer.close()
    with client(regions, EAST) as east:
        take_numbers(subscribe(east, topic), [])


async def test_a_client_that_waits_at_the_door_gets_nothing_twice(regions: RegionsProcess) -> None:
    """R10, R20: a client that subscribes the moment a region is back gets nothing acknowledged elsewhere meanwhile: the
    region asks the others before it dispatches. And no client is told that its namespace does not exist."""
    topic = new_topic("door")
    with client(regions, EAST) as east, client(regions, WEST) as west:
        await asyncio.to_thread(publish, east, topic, numbered(range(300)))
        there = await asyncio.to_thread(subscribe, west, topic)
        messages = await asyncio.to_thread(take, there, 300)
        await asyncio.to_thread(wait_for_backlog, regions, EAST, topic, 300)
        await asyncio.to_thread(regions.kill_region, EAST)
        for message in messages[:290]:
            there.acknowledge(message)
        there.close()
    back = asyncio.create_task(asyncio.to_thread(regions.bring_back, EAST))
    connection, consumer = await subscribe_as_soon_as_possible(regions.service_url(EAST), topic)
    async with asyncio.timeout(60):
        found = [int((await consumer.receive()).payloads[0]) for _ in range(10)]
    assert set(found) == numbers(messages[290:])
    await connection.close()
    await back


async def subscribe_as_soon_as_possible(url: str, topic: str) -> tuple[PulsarClientConnection, Consumer]:
    async with asyncio.timeout(60):
        while True:
            try:
                connection = await PulsarClientConnection.connect(url)
            except ConnectFailed:
                await asyncio.sleep(0.002)
                continue
            await connection.lookup(topic)
            return connection, await Consumer.subscribe(connection, topic, "s", replicated=True)


def test_acknowledgements_come_before_their_messages(regions: RegionsProcess) -> None:
    """R10: acknowledgements reach a region before their messages; when those arrive, they are filtered."""
    topic = new_topic("before")
    with client(regions, CENTRAL) as central, client(regions, EAST) as east:
        consumer = subscribe(central, topic)
        publish(east, topic, numbered(range(5)))
        take_numbers(consumer, range(5))
        wait_for_backlog(regions, WEST, topic, 0)
        regions.kill_region(WEST)
        publish(east, topic, numbered(range(5, 105)))
        messages = take(consumer, 100)
        for message in messages:
            if int(message.data()) % 4:
                consumer.acknowledge(message)
        wait_for_backlog(regions, CENTRAL, topic, 25)
        regions.pause_region(EAST)
        try:
            regions.bring_back(WEST)
            # Three of the 75 are below the floor: number 8 is the first one not acknowledged.
            wait_until(lambda: status(regions, WEST, topic).get("set_size") == 72, "the acknowledgements to arrive")
            assert entries(regions, WEST, topic) == 5, "messages arrived too: the test proves nothing"
        finally:
            regions.resume_region(EAST)
        wait_for_backlog(regions, WEST, topic, 25)
        with client(regions, WEST) as west:
            there = subscribe(west, topic)
            assert sorted(int(message.data()) for message in take(there, 25)) == list(range(8, 105, 4))
            there.close()
        for message in messages:
            consumer.acknowledge(message)
        consumer.close()
    wait_for_backlog(regions, WEST, topic, 0)
    shown = regions.http(WEST, "GET", f"{topic_path(topic)}/internalStats").json
    assert shown["cursors"]["s"]["markDeletePosition"] == shown["lastConfirmedEntry"]


def entries(regions: RegionsProcess, region: str, topic: str) -> int:
    shown = regions.http(region, "GET", f"{topic_path(topic)}/internalStats").json
    return int(shown["numberOfEntries"])


def test_a_region_that_hangs_holds_nobody_up(impatient: RegionsProcess) -> None:
    """R20: its connections stay open, but it does not answer. Subscribing and closing wait 250 ms for it."""
    regions, topic = impatient, new_topic("hangs")
    with client(regions, EAST) as east, client(regions, CENTRAL) as central:
        publish(east, topic, numbered(range(100)))
        subscribe(east, topic).close()
        for region in REGIONS:
            wait_for_backlog(regions, region, topic, 100)
        regions.pause_region(WEST)
        try:
            began = time.monotonic()
            consumer = subscribe(east, topic)
            messages = take(consumer, 100)
            for message in messages[::2]:
                consumer.acknowledge(message)
            consumer.close()
            wait_for_backlog(regions, CENTRAL, topic, 50)
            there = subscribe(central, topic)
            assert numbers(take(there, 50)) == numbers(messages[1::2])
            there.close()
            assert time.monotonic() - began < 20, "they waited for the hung region"
        finally:
            regions.resume_region(WEST)
    wait_for_backlog(regions, WEST, topic, 50)


def test_a_region_that_was_away_catches_up_by_digests(regions: RegionsProcess) -> None:
    """It misses acknowledgements, a rewind and a creation; it catches up although nobody consumes."""
    topic = new_topic("away")
    with client(regions, EAST) as east, client(regions, CENTRAL) as central:
        publish(east, topic, numbered(range(200)))
        consumer = subscribe(east, topic)
        messages = take(consumer, 200)
        for region in REGIONS:
            wait_for_backlog(regions, region, topic, 200)
        regions.kill_region(WEST)
        for message in messages[:150]:
            consumer.acknowledge(message)
        consumer.close()
        reader = central.create_reader(topic, pulsar.MessageId.earliest)
        hundredth = [reader.read_next(PATIENCE_MS) for _ in range(101)][-1]
        there = subscribe(central, topic)
        assert numbers(take(there, 50)) == numbers(messages[150:])
        there.seek(hundredth.message_id())
        there.close()
        subscribe(central, topic, "new", initial=pulsar.InitialPosition.Latest).close()
        regions.bring_back(WEST)
        wait_for_backlog(regions, WEST, topic, 100)
        wait_for_backlog(regions, WEST, topic, 0, "new")
    with client(regions, WEST) as west:
        take_numbers(subscribe(west, topic), range(100, 200))


def test_a_region_that_is_drained_tells_the_others_first(regions: RegionsProcess) -> None:
    """SIGTERM: what was acknowledged until then is known everywhere; the client resumes when the region is back."""
    topic = new_topic("drained")
    with client(regions, EAST) as east:
        producer = east.create_producer(topic, batching_enabled=False)
        for number in range(100):
            producer.send(b"%d" % number)
        consumer = subscribe(east, topic)
        messages = take(consumer, 100)
        for message in messages[:70]:
            consumer.acknowledge(message)
        wait_for_backlog(regions, EAST, topic, 30)
        regions.stop_region(EAST)
        with client(regions, WEST) as west:
            there = subscribe(west, topic)
            assert numbers(take(there, 30)) == numbers(messages[70:])
            assert rest(there) == []
            there.close()
        regions.bring_back(EAST)
        producer.send(b"100")
        take_numbers(consumer, [*numbers(messages[70:]), 100])
    shown = regions.http(EAST, "GET", f"{topic_path(topic)}/internalStats").json
    assert shown["numberOfEntries"] == 101
    assert len(shown["ledgers"]) == 2, "a broker never appends to a ledger it finds (R1)"


def test_a_restart_of_all_regions_goes_on(tmp_path: Path) -> None:
    topic = new_topic("restarted")
    with RegionsProcess((EAST, WEST), tmp_path / "data") as regions:
        with client(regions, EAST) as east, client(regions, WEST) as west:
            publish(east, topic, numbered(range(100)))
            publish(west, topic, numbered(range(100, 200)))
            consumer = subscribe(east, topic)
            messages = take(consumer, 200)
            for message in messages[::3]:
                consumer.acknowledge(message)
            consumer.close()
        left = numbers(messages) - numbers(messages[::3])
        ledgers = {region: ledgers_of(regions, region, topic) for region in regions.regions}
        regions.stop()
        regions.start()
        with client(regions, EAST) as east, client(regions, WEST) as west:
            publish(west, topic, numbered(range(200, 210)))
            consumer = subscribe(west, topic)
            assert {int(m.data()) for m in take(consumer, len(left) + 10)} == left | set(range(200, 210))
            consumer.close()
            assert len(stored(regions, EAST, topic, 210)) == 210

            # R1: ledger ids keep growing when a topic is deleted and created again.
            for region in regions.regions:
                assert ledgers_of(regions, region, topic)[: len(ledgers[region])] == ledgers[region]
            before = ledgers_of(regions, EAST, topic)[-1]
            path = topic_path(topic)
            deleted = regions.http(EAST, "DELETE", f"{path}?force=true")
            assert deleted.status == 204, deleted.text
            publish(east, topic, numbered(range(10)))
            assert ledgers_of(regions, EAST, topic)[0] > before

            # The west's copy is deleted, too: it gets all of the new topic, unfiltered by old acknowledgements (R8).
            assert sorted(stored(regions, WEST, topic, 10)) == list(range(10))
            consumer = subscribe(west, topic)
            take_numbers(consumer, range(10))
            consumer.close()
            assert rest(subscribe(east, topic)) == []


def ledgers_of(regions: RegionsProcess, region: str, topic: str) -> list[int]:
    shown = regions.http(region, "GET", f"{topic_path(topic)}/internalStats").json
    return [int(ledger["ledgerId"]) for ledger in shown["ledgers"]]
