# SPDX-License-Identifier: Apache-2.0
"""What happens to a shadow when its source fails, is deleted or recreated; and what a crash may leave of a shadow."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from meridian_broker.engines.etcd.metadata import EtcdMetadataStore
from meridian_broker.ledgers.view import LogView
from meridian_broker.metadata.shadow_topics import SOURCE, ShadowRecord
from meridian_broker.positions import Stamp
from meridian_broker.positions.position import LATEST, Position
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.topics.errors import TopicInUse
from meridian_broker.topics.lifecycle import shadow_source, termination
from meridian_broker.topics.retention import trimming
from meridian_broker.topics.service import closing, removal, shadow_topics
from meridian_broker.topics.subscriptions import administration
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar import encode
from meridian_broker.wire.pulsar.errors import ServerError
from meridian_broker.wire.pulsar.topic_name import TopicName, parse
from support.brokers.broker_inside import broker_inside
from support.brokers.broker_process import http
from support.brokers.broker_regions import until
from support.brokers.etcd_server import EtcdServer
from support.protocol.raw_connection import RawConnection
from support.worlds.shadows import all_of, subscribe

T, V = parse("t"), parse("v")
ENTRIES = {"managedLedgerMaxEntriesPerLedger": 5}


async def publish(broker: BrokerProcess, topic: TopicName, count: int, name: str = "p") -> None:
    wire = await RawConnection.open(broker.settings.network.broker_service_port)
    await wire.producer(str(topic), producer_name=name)
    for number in range(count):
        wire.send(name, number, b"%d" % number)
        await wire.receipt()
    await wire.close()


async def shadow(broker: BrokerProcess, *, holds: bool = True) -> Topic:
    """``v``, a shadow of ``t``."""
    having = {SOURCE: str(T), "meridian.holdSourceLedgers": str(holds).lower()}
    await shadow_topics.create(broker.service.opener, V, None, having, listed=True)
    return broker.service.topics[str(V)]


async def consuming(broker: BrokerProcess, name: str, permits: int) -> RawConnection:
    """A consumer of ``v`` on a separate connection whose client side buffers next to nothing."""
    wire = await RawConnection.open(broker.settings.network.broker_service_port, receive_bytes=8 << 10)
    await wire.subscribed(str(V), name, 1)
    if permits:
        wire.write(encode.flow(1, permits))
    return wire


async def opened(broker: BrokerProcess, name: TopicName) -> Topic:
    return await broker.service.opener.topic(name, create=False)


async def test_schemas_asked_for_on_the_wire_are_the_sources(tmp_path: Path) -> None:
    async with broker_inside(tmp_path, **ENTRIES) as broker:
        wire = await RawConnection.open(broker.settings.network.broker_service_port)
        texts = [
            pb.Schema(name="s", schema_data=b"", type=pb.Schema.String),
            pb.Schema(name="i", schema_data=b"", type=pb.Schema.Int32),
        ]

        async def version(topic: TopicName, schema: pb.Schema) -> Any:
            asked = pb.CommandGetOrCreateSchema(topic=str(topic), request_id=7, schema=schema)
            wire.say(pb.BaseCommand.GET_OR_CREATE_SCHEMA, asked)
            return await wire.hear(pb.BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)

        async def schema(topic: TopicName, number: bytes | None) -> tuple[int, bytes]:
            asked = pb.CommandGetSchema(topic=str(topic), request_id=8)
            if number is not None:
                asked.schema_version = number
            wire.say(pb.BaseCommand.GET_SCHEMA, asked)
            said = await wire.hear(pb.BaseCommand.GET_SCHEMA_RESPONSE)
            assert not said.HasField("error_code"), said.error_message
            return said.schema.type, said.schema_version

        await broker.service.opener.topic(T, create=True)
        await shadow(broker)
        numbers = [(await version(T, one)).schema_version for one in texts]
        assert [(await version(V, one)).schema_version for one in texts] == numbers
        refused = await version(V, pb.Schema(name="l", schema_data=b"", type=pb.Schema.Int64))
        assert refused.error_code == ServerError.INCOMPATIBLE_SCHEMA and str(T) in refused.error_message
        for number in (None, *numbers):
            assert await schema(V, number) == await schema(T, number)
        assert (await schema(V, None))[1] == numbers[1]
        base = f"{broker.listeners.admin_url}/admin/v2/schemas/public/default"
        async with aiohttp.ClientSession() as http:
            for path in ("schema", "schema/0", "schema/1", "schemas"):
                async with http.get(f"{base}/t/{path}") as of_t, http.get(f"{base}/v/{path}") as of_v:
                    assert of_v.status == 200 and await of_v.json() == await of_t.json(), path
        await wire.close()


async def test_a_consumer_of_a_shadow_is_told_of_the_end_of_its_source(tmp_path: Path) -> None:
    async with broker_inside(tmp_path, **ENTRIES) as broker:
        await publish(broker, T, 2)
        view = await shadow(broker)
        wire = await consuming(broker, "s", 10)
        places = [(await wire.hear_any()).command.message_id for _ in range(2)]
        await termination.terminate(await opened(broker, T))
        wire.write(encode.ack(1, pb.CommandAck.Cumulative, [(places[-1].ledgerId, places[-1].entryId)]))
        assert (await wire.hear(pb.BaseCommand.REACHED_END_OF_TOPIC)).consumer_id == 1
        assert view.terminated == Position(places[-1].ledgerId, places[-1].entryId)
        await wire.close()


async def test_a_shadow_waits_for_its_source_and_reads_its_next_incarnation(tmp_path: Path) -> None:
    async with broker_inside(tmp_path, **ENTRIES) as broker:
        await publish(broker, T, 12)
        view = await shadow(broker)
        await subscribe(view)
        await subscribe(view, "done")
        await administration.skip(view.subscriptions["done"], 12)
        old = await all_of(view)
        assert len(old) == 12 and view.subscriptions["s"].cursor.backlog() == 12
        with pytest.raises(TopicInUse, match="persistent://public/default/v"):
            await removal.delete(broker.service.opener, T, force=True)
        # Another region, which does not know of the shadow, deletes it.
        stamp = Stamp(broker.clock.next(None).time_ms, 0, "elsewhere")
        await removal.delete_as_elsewhere(broker.service.opener, T, stamp, partitioned=False)
        view = await opened(broker, V)
        assert isinstance(view.log, LogView) and not view.log.is_attached
        assert await all_of(view) == []
        await subscribe(view, "late", LATEST)
        await publish(broker, T, 7, "q")
        await until(lambda: broker.service.topics.get(str(V)) is not view)
        view = await opened(broker, V)
        new = await all_of(view)
        assert len(new) == 7 and min(new) > max(old), "no id of the source's earlier incarnation is reused (R1)"
        for name in ("s", "done", "late"):
            assert view.subscriptions[name].cursor.backlog() == 7, name
        assert await all_of(await opened(broker, T)) == new


@pytest.mark.parametrize("how", ["fails", "is unloaded", "fails, and is unloaded"])
async def test_consumers_of_a_shadow_stay_while_its_source_is_away_and_go_on_with_it(tmp_path: Path, how: str) -> None:
    async with broker_inside(tmp_path, **ENTRIES) as broker:
        await publish(broker, T, 8)
        view = await shadow(broker)
        await subscribe(view)
        wire = await consuming(broker, "s", 1000)
        consumer, heard = view.subscriptions["s"].consumers[0], [await wire.hear_any() for _ in range(8)]
        await administration.skip(view.subscriptions["s"], 3)
        source = await opened(broker, T)
        if "fails" in how:
            source.fence("a disk failed")
            assert view.failure is None, "the shadow was fenced with its source"
        if "unloaded" in how:
            await closing.unload(broker.service.opener, T)
        await until(lambda: broker.service.topics.get(str(T)) not in (None, source))
        again = await opened(broker, T)
        assert again.shadows.open == {str(V): view} and not source.shadows.open
        assert broker.service.topics[str(V)] is view and view.subscriptions["s"].consumers[0] is consumer
        assert view.subscriptions["s"].cursor.backlog() == 5
        assert again.needed_from() == view.needed_from(), "the new source does not know what its shadow needs"
        await publish(broker, T, 4, "q")
        heard += [await wire.hear_any() for _ in range(4)]
        places = [(one.command.message_id.ledgerId, one.command.message_id.entryId) for one in heard]
        assert places == await all_of(view) == await all_of(again)
        wire.write(encode.ack(1, pb.CommandAck.Cumulative, [places[-1]]))
        await until(lambda: view.subscriptions["s"].cursor.backlog() == 0)
        await wire.close()


async def test_a_shadow_whose_source_does_not_return_is_fenced_and_waits_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow_source, "AWAY_SECONDS", 0.05)
    async with broker_inside(tmp_path, **ENTRIES) as broker:
        await publish(broker, T, 8)
        view = await shadow(broker)
        source = await opened(broker, T)
        async with broker.service.registry.lock(str(T)):  # nobody opens it meanwhile
            source.fence("a disk failed")
            await until(lambda: view.failure is not None)
        assert "a disk failed" in str(view.failure)
        await until(lambda: broker.service.topics.get(str(V)) not in (None, view))
        assert await all_of(await opened(broker, V)) == await all_of(await opened(broker, T))


async def test_a_shadow_does_not_go_on_with_a_log_shorter_than_it_knows(tmp_path: Path) -> None:
    """Its source comes back shorter: it was restored from an older copy."""
    async with broker_inside(tmp_path, **ENTRIES) as broker:
        await publish(broker, T, 12)
        view, source = await shadow(broker), await opened(broker, T)
        assert isinstance(view.log, LogView)
        whole = await all_of(view)
        shorter = LogView(source.region, broker.service.parts.store, broker.scheduler, broker.service.parts.cache)
        assert not view.log.go_on(shorter)
        assert await all_of(view) == whole, "the refusal changed something"
        assert view.log.go_on(source.log)
        assert await all_of(view) == whole


async def test_a_slow_subscription_delays_no_other_of_its_shadow(tmp_path: Path) -> None:
    """One consumer has no permits, and another's connection does not read: the rest wait for neither."""
    count, payload = 150, bytes(64 << 10)
    async with broker_inside(tmp_path) as broker:
        await publish(broker, T, 1)
        view = await shadow(broker)
        waiting, unread, reading = [
            await consuming(broker, name, permits)
            for name, permits in (("waiting", 0), ("unread", 1000), ("reading", 1000))
        ]
        slow = view.subscriptions["unread"]
        producer = await RawConnection.open(broker.settings.network.broker_service_port)
        await producer.producer(str(T), producer_name="q")
        places: list[Position] = []
        for number in range(count):
            producer.send("q", number, payload)
            await producer.receipt()
            if not places:
                await reading.hear_any()  # the earlier message
            message = await reading.hear_any()
            places.append(Position(message.command.message_id.ledgerId, message.command.message_id.entryId))
        assert places == sorted(set(places)) and len(places) == count
        assert view.log.last_confirmed == places[-1]
        assert view.subscriptions["waiting"].messages_out == 0
        assert slow.messages_out < count, "the client side buffered everything: nothing was slow"
        assert slow.consumers[0].stalled
        for _ in range(count + 1):  # and once it reads, it has missed nothing
            await unread.hear_any()
        assert slow.messages_out == count + 1
        for wire in (waiting, unread, reading, producer):
            await wire.close()


async def test_the_source_keeps_what_a_closed_shadow_needs(tmp_path: Path) -> None:
    async with broker_inside(tmp_path, **ENTRIES) as broker:
        await publish(broker, T, 18)
        view = await shadow(broker, holds=False)
        await subscribe(view)
        source = await opened(broker, T)
        source.shadows.detach(view)
        await trimming.trim(source)
        assert len(await all_of(source)) == 18, "what it needs is not known"
        source.shadows.attach(view, lambda _: None)
        await trimming.trim(source)
        left = await all_of(source)
        assert 0 < len(left) < 18
        assert await all_of(view) == left
        assert isinstance(view.log, LogView) and view.log.skipped_entries == 18 - len(left)
        assert view.subscriptions["s"].cursor.backlog() == len(left)


async def test_remains_of_a_shadow_after_a_crash_are_ignored(tmp_path: Path) -> None:
    async with broker_inside(tmp_path, **ENTRIES) as broker:
        await publish(broker, T, 3)
        await broker.catalog.shadows.create(ShadowRecord(V, T))
        await broker.catalog.shadows.create(ShadowRecord(parse("w"), T))
        await publish(broker, V, 3)  # an ordinary topic
        assert broker.catalog.shadows.find(V) is None
        assert [str(one.shadow) for one in broker.catalog.shadows.of(T)] == ["persistent://public/default/w"]
    async with broker_inside(tmp_path, **ENTRIES) as broker:
        await until(lambda: not broker.catalog.shadows.all())
        assert (await opened(broker, V)).shadow_of is None
        await removal.delete(broker.service.opener, T, force=True)


async def test_a_shadow_stores_nothing(tmp_path: Path) -> None:
    async with broker_inside(tmp_path, **ENTRIES) as broker:
        await publish(broker, T, 3)
        view = await shadow(broker)
        wire = await RawConnection.open(broker.settings.network.broker_service_port)
        wire.ask_producer(str(V))
        refusal = await wire.hear(pb.BaseCommand.ERROR)
        assert refusal.error == ServerError.NOT_ALLOWED
        assert "publish to persistent://public/default/t" in refusal.message, "the source is not named"
        await wire.close()
        before = len(await broker.ledgers.list())
        assert view.metadata is not None and view.metadata.record.ledgers == ()
        await subscribe(view)
        await removal.delete(broker.service.opener, V, force=False)
        await until(lambda: V not in [parse(name) for name in broker.service.topics])
        assert len(await all_of(await opened(broker, T))) == 3
        assert len(await broker.ledgers.list()) <= before
        assert broker.catalog.shadows.all() == []


@pytest.mark.parametrize("partitions", [0, 2])
async def test_a_shadow_stays_one_whatever_partition_of_it_a_client_names(tmp_path: Path, partitions: int) -> None:
    """Clients may name a partition of a topic that has none, or the whole topic instead of a partition."""
    wrong = V if partitions else V.with_partition(0)
    async with broker_inside(tmp_path, **ENTRIES) as broker:
        if partitions:
            await broker.catalog.partitioned.create(T, partitions)
        else:
            await publish(broker, T, 3)
        await shadow_topics.create(broker.service.opener, V, None, {SOURCE: str(T)}, listed=True)
        record = broker.catalog.shadows.find(V)
        wire = await RawConnection.open(broker.settings.network.broker_service_port)
        wire.ask_producer(str(wrong))
        assert "partition" in (await wire.hear(pb.BaseCommand.ERROR)).message
        await wire.close()
        assert await broker.catalog.shadows.fetch(V) == record is not None, "it is an ordinary topic from now on"


@pytest.mark.parametrize("partitions", [0, 2])
async def test_a_deleted_shadow_leaves_no_key_in_etcd_and_no_ledger(
    tmp_path: Path, etcd_server: EtcdServer, partitions: int
) -> None:
    """Not even the stamp of its deletion: another region with a topic of that name would follow it (R8)."""
    region, url = f"traceless-{partitions}", f"etcd:{etcd_server.url}"
    whole = "/partitions" if partitions else ""
    async with broker_inside(tmp_path, clusterName=region, metadataStoreUrl=url, **ENTRIES) as broker:

        async def ask(method: str, path: str, body: Any = ...) -> None:
            address = f"{broker.listeners.admin_url}/admin/v2/persistent/public/default/{path}"
            answer = await asyncio.to_thread(http, method, address, body)
            assert answer.status == 204, f"{method} {path}: {answer.text}"

        async def kept() -> tuple[set[str], set[int]]:
            """Keys of the metadata, and ledgers."""
            return {path for path, _ in await store.scan("/")}, {one.ledger_id for one in await broker.ledgers.list()}

        store = await EtcdMetadataStore.connect(etcd_server.url, f"meridian/{region}")
        nothing = await kept()
        await ask("PUT", f"t{whole}", partitions or {})
        await publish(broker, T.with_partition(0) if partitions else T, 12)
        before = await kept()
        for deletion in (f"v{whole}", f"t/shadowTopics?topic={V}", f"t{whole}?cascade=true"):
            await ask("POST", "t/shadowTopics", {"topic": str(V), "holdSourceLedgers": False})
            for subscription in ("s", "removed"):
                await ask("PUT", f"v/subscription/{subscription}", "earliest")
            await ask("DELETE", "v/subscription/removed")
            await ask("POST", "v/messageTTL?messageTTL=3600")
            await ask("POST", "v/permissions/reader", ["consume"])
            keys, ledgers = await kept()
            assert len(keys - before[0]) >= 4 and ledgers > before[1], keys - before[0]
            await ask("DELETE", deletion)
            if "cascade" not in deletion:
                assert await kept() == before, deletion
        keys, ledgers = await kept()
        assert all(path.startswith("/geo/deletions/public/default/persistent/t") for path in keys - nothing[0])
        assert ledgers == nothing[1]
        await store.close()
