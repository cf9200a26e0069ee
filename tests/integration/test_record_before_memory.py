# SPDX-License-Identifier: Apache-2.0
"""A topic's metadata record changes before its memory does: a failed write leaves everything as it was."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from meridian_broker.ledgers.store import LedgerError
from meridian_broker.metadata.store import MetadataFull, MetadataUnavailable
from meridian_broker.positions import Stamp
from meridian_broker.positions.position import EARLIEST, Position
from meridian_broker.replication.entries.source import DeletionNotice
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.topics.backfill.joining import Joining
from meridian_broker.topics.compaction.compaction import Status
from meridian_broker.topics.errors import CompactionRunning
from meridian_broker.topics.journal import topic_record
from meridian_broker.topics.retention import trimming
from meridian_broker.topics.service import closing, creation, incarnations, kinds, removal
from meridian_broker.topics.service.opener import TopicOpener
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.metadata import build_body
from meridian_broker.wire.pulsar.topic_name import parse
from support.brokers.broker_regions import until
from support.protocol.raw_connection import RawConnection, T

NAME = "persistent://public/default/prices"
EXCLUSIVE = pb.Exclusive


async def put(wire: RawConnection, value: bytes) -> None:
    await wire.producer(NAME, producer_name="p")
    facts = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, partition_key="price")
    wire.send_body(0, build_body(facts.SerializeToString(), value))
    await wire.hear(T.SEND_RECEIPT)
    wire.close_producer()
    await wire.hear(T.SUCCESS)


async def compacted(topic: Topic) -> None:
    topic.compaction.start()
    await until(lambda: topic.compaction.status is Status.SUCCESS)


async def read_compacted(topic: Topic) -> list[bytes]:
    await topic.compaction.prepare()
    values, place = [], EARLIEST
    while found := await topic.compaction.read_after(place, 10, 1 << 20):
        values += [entry[-3:] for _, entry in found]
        place = found[-1][0]
    return values


async def away(*_: Any) -> None:
    raise MetadataUnavailable("the metadata store is away")


@contextmanager
def full_metadata(inside: BrokerProcess) -> Iterator[None]:
    """The metadata volume is full."""

    async def refused(*_: Any, **__: Any) -> Any:
        raise MetadataFull("the disk is full, nothing was written: free space")

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(topic_record, "ATTEMPTS", 1)
        broken.setattr(topic_record, "PAUSE_SECONDS", 0)
        for writing in ("put", "transact"):
            broken.setattr(inside._metadata._store, writing, refused)
        yield


async def test_a_view_that_cannot_be_deleted_stays_in_force_with_its_ledgers(
    inside: BrokerProcess, wire: RawConnection
) -> None:
    await put(wire, b"old")
    topic = inside.service.topics[NAME]
    await compacted(topic)
    assert topic.metadata is not None
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(topic.metadata, "save_compaction", away)
        with pytest.raises(MetadataUnavailable):
            await topic.compaction.forget()
    await put(wire, b"new")
    await topic.log.roll()
    await trimming.trim(topic)
    assert await read_compacted(topic) == [b"old", b"new"]
    await closing.unload(inside.service.opener, parse(NAME))
    assert (await read_compacted(await inside.service.opener.topic(parse(NAME), create=False)))[-1:] == [b"new"]


async def test_no_compaction_begins_while_its_view_is_being_deleted(
    inside: BrokerProcess, wire: RawConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(wire, b"old")
    topic = inside.service.topics[NAME]
    await compacted(topic)
    assert topic.metadata is not None
    save, gate = topic.metadata.save_compaction, asyncio.Event()

    async def slow(*what: Any) -> None:
        await gate.wait()
        await save(*what)

    monkeypatch.setattr(topic.metadata, "save_compaction", slow)
    deleting = asyncio.ensure_future(topic.compaction.forget())
    await asyncio.sleep(0)
    with pytest.raises(CompactionRunning):
        topic.compaction.start()
    with pytest.raises(CompactionRunning):
        await topic.compaction.forget()
    gate.set()
    await deleting
    assert topic.compaction.view is None
    await compacted(topic)
    assert await read_compacted(topic) == [b"old"]


async def test_an_unrecorded_epoch_fences_nobody(inside: BrokerProcess, wire: RawConnection) -> None:
    first = await wire.producer(NAME, 1, producer_name="first", producer_access_mode=EXCLUSIVE)
    wire.close_producer(1)
    await wire.hear(T.SUCCESS)
    topic = inside.service.topics[NAME]
    assert topic.metadata is not None
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(topic.metadata, "save_topic_epoch", away)
        for number in (2, 3):
            wire.ask_producer(NAME, number, producer_access_mode=pb.ExclusiveWithFencing)
        for _ in range(2):
            await wire.hear(T.ERROR)
    again = await wire.producer(
        NAME, 4, producer_name="first", producer_access_mode=EXCLUSIVE, topic_epoch=first.topic_epoch
    )
    assert again.topic_epoch == first.topic_epoch


async def test_a_copy_counts_as_filled_once_that_is_recorded(
    inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await inside.service.opener.topic(parse(NAME), create=True)
    assert topic.metadata is not None
    joining = Joining(topic, topic.subscriptions, SimpleNamespace(), set, is_joining=True)
    joining._saved = (True, {})
    with monkeypatch.context() as broken:
        broken.setattr(topic.metadata, "save_joining", away)
        with pytest.raises(MetadataUnavailable):
            await joining.look()
        seen = [joining.is_joining]
    await joining.look()
    assert [*seen, joining.is_joining] == [True, False]
    assert not topic.metadata.record.joining


async def test_a_deletion_reported_by_another_region_is_retried_after_the_log_failed(
    inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await inside.service.opener.topic(parse(NAME), create=True)
    told = DeletionNotice(str(Stamp(inside.service.parts.scheduler.now_ms(), 0, "inside")), {}, False)
    monkeypatch.setattr(topic.log, "when_durable", lambda ready: ready(LedgerError("the disk refused a write")))
    monkeypatch.setattr(incarnations, "RETRY_SECONDS", 0.01)
    await incarnations.follow(inside.service.opener, topic, told)
    await until(lambda: inside.service.topics.get(NAME) not in (None, topic))
    assert inside.service.topics[NAME].failure is None


@pytest.mark.parametrize("is_partitioned", [False, True])
async def test_a_deletion_that_a_full_disk_refuses_disconnects_nobody(
    inside: BrokerProcess, wire: RawConnection, is_partitioned: bool
) -> None:
    name, service = parse(NAME), inside.service
    if is_partitioned:
        await creation.create_partitioned(service.opener, name, 2, {})
    one = name.with_partition(0) if is_partitioned else name
    await wire.producer(str(one), 1, producer_name="p")
    topic = service.topics[str(one)]

    async def delete() -> list[Stamp]:
        begun: list[Stamp] = []
        try:
            await removal.delete(service.opener, name, force=True, begun=begun.append)
        except MetadataFull as error:
            assert "the disk is full" in str(error)
        return begun

    with full_metadata(inside):
        assert await delete() == [], "other regions are told of a recorded deletion"
    assert service.topics[str(one)] is topic
    wire.send("p", 0, b"while it was full", producer_id=1)
    assert await wire.receipt() == (0, True)
    await wire.producer(str(one), 2, producer_name="q")
    assert len(await delete()) == 1
    assert (await wire.hear(T.CLOSE_PRODUCER)).producer_id == 1
    assert await service.parts.catalog.topics.find(one) is None


@pytest.mark.parametrize("is_kept", [False, True])
async def test_a_deletion_in_another_region_closes_no_topic_while_metadata_is_full(
    inside: BrokerProcess, wire: RawConnection, is_kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A closed topic could not be reopened until there is room."""
    opener = inside.service.opener
    await wire.producer(NAME, 1, producer_name="p")
    topic = inside.service.topics[NAME]
    wire.send("p", 0, b"before", producer_id=1)
    assert await wire.receipt() == (0, True)
    stamp = str(Stamp(opener.parts.scheduler.now_ms(), 0, "inside"))
    told = DeletionNotice(stamp, {} if is_kept else {"inside": Position(1 << 60, 0)}, False)
    with full_metadata(inside):
        await incarnations.follow(opener, topic, told)
        assert inside.service.topics[NAME] is topic
        wire.send("p", 1, b"while it was full", producer_id=1)
        assert await wire.receipt() == (1, True)
        await wire.producer(NAME, 2, producer_name="q")
    assert "not yet here" in caplog.text and "the disk is full" in caplog.text
    await incarnations.follow(opener, topic, told)
    assert {(await wire.hear(T.CLOSE_PRODUCER)).producer_id for _ in range(2)} == {1, 2}
    assert await opener.parts.catalog.topics.find(parse(NAME)) is None
    kept = [one.log.entries for name, one in inside.service.topics.items() if "-set-aside-" in name]
    assert kept == ([2] if is_kept else [])


async def test_a_deletion_reported_again_while_it_is_carried_out_is_carried_out_once(inside: BrokerProcess) -> None:
    """While metadata is full that takes seconds, and every attempt of a replicator reports it."""
    topic = await inside.service.opener.topic(parse(NAME), create=True)
    told, gate, followed = DeletionNotice("", {}, False), asyncio.Event(), list[DeletionNotice]()

    async def follow(_: object, __: object, told: DeletionNotice) -> None:
        followed.append(told)
        await gate.wait()

    opener = TopicOpener(inside.service.registry, inside.service.opener.regions, follow)
    for _ in range(3):
        opener.deleted_elsewhere(topic, told)
    await until(lambda: followed == [told])
    gate.set()
    await until(lambda: not opener.following)
    opener.deleted_elsewhere(topic, told)
    await until(lambda: followed == [told, told])


@pytest.mark.parametrize("gives_way", [False, True])
async def test_a_topic_of_the_other_kind_is_not_closed_while_metadata_is_full(
    inside: BrokerProcess, wire: RawConnection, gives_way: bool
) -> None:
    """It is deleted with the partitioned topic of its name, or gives way to one created earlier."""
    name, opener = parse(NAME), inside.service.opener
    await wire.producer(NAME, 1, producer_name="p")
    topic = inside.service.topics[NAME]
    wire.send("p", 0, b"before", producer_id=1)
    assert await wire.receipt() == (0, True)

    async def close() -> None:
        if gives_way:
            await kinds.make_way(opener, name, kinds.Creation(Stamp(1, 0, "elsewhere"), kinds.Kind.PARTITIONED))
        else:
            stamp = Stamp(opener.parts.scheduler.now_ms(), 0, "inside")
            await removal.delete_as_elsewhere(opener, name, stamp, partitioned=True)

    with full_metadata(inside):
        with pytest.raises(MetadataFull):
            await close()
        assert inside.service.topics[NAME] is topic
        wire.send("p", 1, b"while it was full", producer_id=1)
        assert await wire.receipt() == (1, True)
    await close()
    assert (await wire.hear(T.CLOSE_PRODUCER)).producer_id == 1
    assert await opener.parts.catalog.topics.find(name) is None
    assert [one.log.entries for one in inside.service.topics.values() if one.is_quarantined] == [2]


async def test_nobody_is_admitted_while_a_deletion_is_recorded(
    inside: BrokerProcess, wire: RawConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that the check did not see would get receipts for messages that are deleted. What connected clients
    publish meanwhile is part of the deletion, and other regions are told so."""
    topic = await inside.service.opener.topic(parse(NAME), create=True)
    assert topic.metadata is not None
    await wire.producer(NAME, 1, producer_name="p")
    begin, asked, gate = topic.metadata.begin_deletion, asyncio.Event(), asyncio.Event()

    async def slow(*what: Any) -> None:
        asked.set()
        await begin(*what)
        await gate.wait()

    monkeypatch.setattr(topic.metadata, "begin_deletion", slow)
    deleting = asyncio.ensure_future(removal.delete(inside.service.opener, parse(NAME), force=True))
    await asked.wait()
    wire.ask_producer(NAME, 2, producer_name="q")
    assert "is being deleted" in (await wire.hear(T.ERROR)).message
    wire.ask_producer(NAME, 3, producer_name="r", producer_access_mode=pb.WaitForExclusive)
    assert "is being deleted" in (await wire.hear(T.ERROR)).message
    subscribing = pb.CommandSubscribe(
        topic=NAME, subscription="s", consumer_id=1, request_id=4, subType=pb.CommandSubscribe.Shared
    )
    wire.say(T.SUBSCRIBE, subscribing)
    assert "is being deleted" in (await wire.hear(T.ERROR)).message
    wire.send("p", 0, b"meanwhile", producer_id=1)
    assert await wire.receipt() == (0, True)
    end = topic.log.last_own
    gate.set()
    await deleting
    assert (await wire.hear(T.CLOSE_PRODUCER)).producer_id == 1
    deletion = await inside.service.parts.catalog.topics.deletion(parse(NAME))
    assert deletion is not None and deletion.ends == {inside.service.parts.region: end}


@pytest.mark.parametrize("is_on_record", [False, True])
async def test_a_topic_whose_deletion_fails_is_reopened_or_deleted_by_itself(
    inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch, is_on_record: bool
) -> None:
    """Otherwise its replicators would wait until a client asks for it."""

    async def refused(*_: Any) -> None:
        raise LedgerError("the disk refused a write")

    topic = await inside.service.opener.topic(parse(NAME), create=True)
    if is_on_record:
        monkeypatch.setattr(topic.log, "delete", refused)
    else:
        monkeypatch.setattr(topic.metadata, "begin_deletion", away)
    with pytest.raises((MetadataUnavailable, LedgerError)):
        await removal.delete(inside.service.opener, parse(NAME), force=True)
    if is_on_record:

        async def is_gone() -> bool:
            return await inside.service.parts.catalog.topics.find(parse(NAME)) is None

        await until(is_gone)
    else:
        await until(lambda: inside.service.topics.get(NAME) not in (None, topic))
        assert inside.service.topics[NAME].failure is None
