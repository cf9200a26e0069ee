# SPDX-License-Identifier: Apache-2.0
"""A broker that offloads ledgers to an in-memory bucket: by policy, on request, read back, trimmed, deleted."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pulsar
import pytest
from meridian_broker.engines.local.store import LocalLedgerStore
from meridian_broker.engines.memory.objects import Fault, MemoryObjects
from meridian_broker.ledgers.objects import ObjectStoreAway, ObjectStoreRefused
from meridian_broker.ledgers.offloaded.offloading import Offloading
from meridian_broker.ledgers.offloaded.records import State
from meridian_broker.ledgers.store import LedgerDeleted, LedgerInfo, LedgerNotFound, LedgerUnreadable
from meridian_broker.server import opened_stores
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.server.offloading import with_offloaded
from meridian_broker.topics.lifecycle.garbage import AGE_MS
from meridian_broker.wire.pulsar.topic_name import parse
from support.brokers import region_clients
from support.brokers.broker_inside import broker_inside
from support.brokers.broker_regions import until
from support.brokers.region_clients import PATIENCE_MS

SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": "20",
    "managedLedgerOffloadDriver": "aws-s3",
    "s3ManagedLedgerOffloadBucket": "bucket",
}
NAMESPACE = "/admin/v2/namespaces/public/default"
TOPIC = "/admin/v2/persistent/public/default/t"
MESSAGES = [b"%04d" % number * 100 for number in range(100)]


class World:
    """A broker on the test's event loop, its bucket, and clients in threads."""

    def __init__(self, directory: Path, objects: MemoryObjects) -> None:
        self.directory = directory
        self.objects = objects
        self.fault: Fault = lambda _operation, _key: None
        """Bucket settings of brokers that start from now on."""
        self.broker: BrokerProcess

    def running(self, **settings: object) -> Any:
        return broker_inside(self.directory, **{**SETTINGS, **settings})

    async def http(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        url = f"{self.broker.listeners.admin_url}{path}"
        async with aiohttp.ClientSession() as session, session.request(method, url, json=body) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text else None

    async def ledgers(self) -> list[dict[str, Any]]:
        status, said = await self.http("GET", f"{TOPIC}/internalStats")
        assert status == 200, said
        found: list[dict[str, Any]] = said["ledgers"]
        return found

    async def work(self, what: Callable[[pulsar.Client], Any]) -> Any:
        def connected() -> Any:
            addresses = self.broker.listeners.addresses("")
            assert addresses is not None
            client = pulsar.Client(addresses.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
            try:
                return what(client)
            finally:
                client.close()

        return await asyncio.to_thread(connected)

    async def publish(self) -> None:
        def publish(client: pulsar.Client) -> None:
            client.subscribe("t", "s").close()
            region_clients.publish(client, "t", MESSAGES)

        await self.work(publish)

    async def consume(self, count: int) -> list[bytes]:
        def consume(client: pulsar.Client) -> list[bytes]:
            consumer = client.subscribe("t", "s")
            found = [consumer.receive(PATIENCE_MS) for _ in range(count)]
            consumer.acknowledge_cumulative(found[-1])
            return [message.data() for message in found]

        got: list[bytes] = await self.work(consume)
        return got

    @property
    def offloading(self) -> Offloading:
        assert self.broker.offload is not None
        return self.broker.offload.offloading

    async def look(self) -> None:
        assert self.broker.offload is not None
        await self.broker.offload.look()

    async def looked(self) -> list[dict[str, Any]]:
        """The ledgers, once a round has seen all of them: a topic's internal entries seal ledgers at any time."""
        for _ in range(20):
            before = await self.ledgers()
            await self.look()
            after = await self.ledgers()
            if [one["ledgerId"] for one in before] == [one["ledgerId"] for one in after]:
                return after
        raise AssertionError("the topic seals a ledger in each look")

    def away(self) -> set[int]:
        """Ledgers that remain only as copies in the bucket."""
        here = set(self.broker.ledgers._near._ledgers)  # type: ignore[attr-defined]
        return {int(key.split("/")[1]) for key in self.objects.bucket} - here


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    bucket: dict[str, bytes] = {}
    world = World(tmp_path, MemoryObjects(bucket))

    async def offloaded(near: Any, settings: Any, metadata: Any, scheduler: Any) -> Any:
        world.objects = MemoryObjects(bucket)
        world.objects.fault = world.fault
        return await with_offloaded(near, settings, metadata, scheduler, world.objects)

    monkeypatch.setattr(opened_stores, "with_offloaded", offloaded)
    yield world


async def test_ledgers_are_offloaded_by_policy_and_read_back_after_a_restart(world: World) -> None:
    async with world.running() as world.broker:
        assert await world.http("GET", f"{NAMESPACE}/offloadThreshold") == (200, -1)
        await world.publish()
        await world.look()
        assert not world.objects.bucket, "no policy, no offload"
        assert (await world.http("PUT", f"{NAMESPACE}/offloadThreshold", 0))[0] == 204
        assert (await world.http("PUT", f"{NAMESPACE}/offloadDeletionLagMs", 3_600_000))[0] == 204
        await world.broker.service.policies.follow()
        ledgers = await world.looked()
        assert [one["offloaded"] for one in ledgers] == [True] * (len(ledgers) - 1) + [False]
        assert not world.away(), "the deletion lag is not over"
        assert (await world.http("PUT", f"{NAMESPACE}/offloadDeletionLagMs", 0))[0] == 204
        await world.broker.service.policies.follow()
        ledgers = await world.looked()
        assert world.away() == {one["ledgerId"] for one in ledgers[:-1]}
        _, stats = await world.http("GET", f"{TOPIC}/stats")
        assert stats["offloadedStorageSize"] == sum(one["size"] for one in ledgers[:-1])
        assert stats["lastOffloadLedgerId"] == ledgers[-2]["ledgerId"]
        assert stats["lastOffloadSuccessTimeStamp"] > 0
        _, metrics = await world.http("GET", "/meridian/v1/health")
        assert metrics["healthy"], metrics
    async with world.running() as world.broker:
        assert await world.consume(len(MESSAGES)) == MESSAGES
        status, _ = await world.http("POST", f"{TOPIC}/trim")
        assert status == 204
        await world.offloading.clear()
        assert not world.objects.bucket, "trimmed ledgers leave no copies"
        assert len(world.offloading.table) == 0


async def test_a_shadow_reads_what_its_source_offloaded_and_offloads_nothing(world: World) -> None:
    async with world.running(
        managedLedgerOffloadAutoTriggerSizeThresholdBytes=0, managedLedgerOffloadDeletionLagMs=0
    ) as world.broker:
        await world.publish()
        assert (await world.http("POST", f"{TOPIC}/shadowTopics", "persistent://public/default/t-view"))[0] == 204
        source = world.broker.service.topics.pop("persistent://public/default/t")
        await world.look()
        assert not world.objects.bucket, "the shadow offloaded its source's ledgers"
        world.broker.service.topics[source.name] = source
        status, said = await world.http("PUT", f"{TOPIC}-view/offload", {"ledgerId": 1 << 40, "entryId": 0})
        assert status == 405 and "persistent://public/default/t" in said["reason"], said
        ledgers = await world.looked()
        assert world.away() == {one["ledgerId"] for one in ledgers[:-1]}

        def read(client: pulsar.Client) -> list[bytes]:
            reader = client.create_reader("t-view", pulsar.MessageId.earliest)
            return [reader.read_next(PATIENCE_MS).data() for _ in MESSAGES]

        assert await world.work(read) == MESSAGES


async def test_a_topic_that_is_deleted_takes_its_copies_along(world: World) -> None:
    async with world.running(
        managedLedgerOffloadAutoTriggerSizeThresholdBytes=0, managedLedgerOffloadDeletionLagMs=0
    ) as world.broker:
        await world.publish()
        await world.look()
        assert world.away()
        assert (await world.http("DELETE", f"{TOPIC}?force=true"))[0] == 204
        await world.offloading.clear()
        assert not world.objects.bucket


async def test_an_offload_on_request_reports_its_progress(world: World) -> None:
    async with world.running() as world.broker:
        await world.publish()
        assert await world.http("GET", f"{TOPIC}/offload") == (
            200,
            {"status": "NOT_RUN", "lastError": "", "firstUnoffloadedMessage": None},
        )
        ledgers = await world.ledgers()
        upto = {"ledgerId": ledgers[2]["ledgerId"], "entryId": 0, "partitionIndex": -1}

        def refuse(operation: str, key: str) -> None:
            raise ObjectStoreRefused("the store refuses these credentials")

        world.objects.fault = refuse
        assert (await world.http("PUT", f"{TOPIC}/offload", upto))[0] == 204
        said = await ended(world)
        assert (said["status"], said["lastError"]) == ("ERROR", "the store refuses these credentials")
        assert said["firstUnoffloadedMessage"]["ledgerId"] == ledgers[0]["ledgerId"]
        await world.publish()  # no client noticed
        world.objects.fault = lambda _operation, _key: None
        assert (await world.http("PUT", f"{TOPIC}/offload", upto))[0] == 204
        status, reason = await world.http("PUT", f"{TOPIC}/offload", upto)
        assert status == 409, reason
        said = await ended(world)
        assert (said["status"], said["lastError"]) == ("SUCCESS", "")
        assert said["firstUnoffloadedMessage"] == upto
        assert [one["offloaded"] for one in await world.ledgers()][:3] == [True, True, False]


async def ended(world: World) -> Any:
    while True:
        status, said = await world.http("GET", f"{TOPIC}/offload")
        assert status == 200, said
        if said["status"] != "RUNNING":
            return said


async def test_a_refusing_bucket_stops_nobody_and_is_reported(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async with world.running(
        managedLedgerOffloadAutoTriggerSizeThresholdBytes=0, managedLedgerOffloadDeletionLagMs=0
    ) as world.broker:
        await world.publish()
        await world.look()

        def refuse(operation: str, key: str) -> None:
            raise ObjectStoreRefused("403: check the credentials")

        world.objects.fault = refuse
        (work,) = [one for one in world.broker.chores._works if one.name == "offload ledgers"]
        await world.publish()
        assert not await work.attempt()
        _, health = await world.http("GET", "/meridian/v1/health")
        assert not health["healthy"]
        (shown,) = [one for one in health["work"] if one["name"] == "offload ledgers"]
        assert "403" in shown["problem"]
        consuming = asyncio.ensure_future(world.consume(2 * len(MESSAGES)))
        unread: dict[str, Any] = {"subscriptions": 0}
        while not unread["subscriptions"]:
            unread = (await world.http("GET", "/meridian/v1/health"))[1]["unreadSubscriptions"]
        assert "403: check the credentials" in unread["first"][0]["reason"]
        world.objects.fault = lambda _operation, _key: None
        assert await consuming == MESSAGES * 2
        assert await work.attempt()


async def test_a_start_without_the_store_is_refused_once_ledgers_were_offloaded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.running(
        managedLedgerOffloadAutoTriggerSizeThresholdBytes=0, managedLedgerOffloadDeletionLagMs=0
    ) as world.broker:
        await world.publish()
        await world.look()
    monkeypatch.setattr(opened_stores, "with_offloaded", partial(with_offloaded))
    with pytest.raises(Exception, match="were offloaded, but the settings do not say where to"):
        async with broker_inside(world.directory):
            pass


async def test_policies_set_thresholds_and_no_places(world: World) -> None:
    async with world.running() as world.broker:
        policies = {"managedLedgerOffloadDriver": "S3", "managedLedgerOffloadThresholdInBytes": 1000}
        assert (await world.http("POST", f"{NAMESPACE}/offloadPolicies", policies))[0] == 204
        assert await world.http("GET", f"{NAMESPACE}/offloadThreshold") == (200, 1000)
        _, shown = await world.http("GET", f"{NAMESPACE}/offloadPolicies")
        assert shown == {
            "managedLedgerOffloadDriver": "aws-s3",
            "s3ManagedLedgerOffloadBucket": "bucket",
            "managedLedgerOffloadThresholdInBytes": 1000,
            "managedLedgerOffloadThresholdInSeconds": None,
            "managedLedgerOffloadDeletionLagInMillis": None,
        }
        for elsewhere in (
            {"s3ManagedLedgerOffloadServiceEndpoint": "http://169.254.169.254"},
            {"managedLedgerOffloadDriver": "filesystem"},
            {"s3ManagedLedgerOffloadCredentialSecret": "x"},
            {"s3ManagedLedgerOffloadBucket": "somebody-elses"},
            {"managedLedgerOffloadThresholdInBytes": -2},
        ):
            assert (await world.http("POST", f"{NAMESPACE}/offloadPolicies", elsewhere))[0] == 412, elsewhere
        await world.publish()
        half = {"managedLedgerOffloadThresholdInBytes": 7, "managedLedgerOffloadDeletionLagInMillis": -2}
        for place, before in ((NAMESPACE, 1000), (TOPIC, None)):
            assert (await world.http("POST", f"{place}/offloadPolicies", half))[0] == 412
            _, kept = await world.http("GET", f"{place}/offloadPolicies")
            assert (kept or {}).get("managedLedgerOffloadThresholdInBytes") == before, "all of it, or nothing"
        assert (await world.http("POST", f"{TOPIC}/offloadPolicies", {"managedLedgerOffloadThresholdInBytes": 0}))[
            0
        ] == 204
        _, applied = await world.http("GET", f"{TOPIC}/offloadPolicies?applied=true")
        assert applied["managedLedgerOffloadThresholdInBytes"] == 0
        assert applied["managedLedgerOffloadDeletionLagInMillis"] == 4 * 3600 * 1000
        assert (await world.http("DELETE", f"{TOPIC}/offloadPolicies"))[0] == 204
        assert await world.http("GET", f"{TOPIC}/offloadPolicies") == (204, None)
        assert (await world.http("DELETE", f"{NAMESPACE}/removeOffloadPolicies"))[0] == 204
        assert await world.http("GET", f"{NAMESPACE}/offloadThreshold") == (200, -1)


async def test_a_ledger_that_an_export_reads_stays_until_it_is_read(world: World) -> None:
    async with world.running(
        managedLedgerOffloadAutoTriggerSizeThresholdBytes=0, managedLedgerOffloadDeletionLagMs=0
    ) as world.broker:
        await world.publish()
        held = (await world.ledgers())[0]["ledgerId"]
        world.broker.held.hold([held])
        await world.look()
        assert world.away() and held not in world.away()
        assert (await world.ledgers())[0]["offloaded"]
        world.broker.held.release([held])
        await world.look()
        assert held in world.away()


async def test_the_next_owner_of_a_topic_goes_on_where_the_other_broker_stopped(world: World) -> None:
    async with world.running(managedLedgerOffloadAutoTriggerSizeThresholdBytes=0) as world.broker:
        assert world.broker.offload is not None
        await world.publish()
        copied = await world.looked()
        assert not world.away(), "the deletion lag is not over"
        world.broker.offload._has_other_owners = True
        world.offloading.table._known.clear()  # another broker copied them
        before = world.objects.requests
        assert (await world.http("PUT", f"{NAMESPACE}/offloadThreshold", -1))[0] == 204
        assert (await world.http("PUT", f"{NAMESPACE}/offloadDeletionLagMs", 0))[0] == 204
        await world.broker.service.policies.follow()
        ledgers = (await world.looked())[: len(copied)]  # ledgers sealed later stay local: the policy is off
        assert world.away() == {one["ledgerId"] for one in copied[:-1]}
        assert [one["offloaded"] for one in ledgers[:-1]] == [True] * (len(ledgers) - 1)
        assert world.objects.requests - before < 20 * len(ledgers), "no copy was repeated"


async def test_copies_that_a_dead_broker_left_are_found(world: World) -> None:
    async with world.running(
        managedLedgerOffloadAutoTriggerSizeThresholdBytes=0, managedLedgerOffloadDeletionLagMs=0
    ) as world.broker:
        await world.publish()
        await world.look()
        metadata, offloading = world.broker._metadata, world.offloading
        kept = {record.ledger_id: record for record in offloading.table}
        assert (await world.http("DELETE", f"{TOPIC}?force=true"))[0] == 204
        for age_ms in (AGE_MS - 60_000, AGE_MS):  # the broker died before it recorded that they are to be deleted
            assert world.objects.bucket
            for record in kept.values():
                await metadata.delete(f"/local/offloaded/{record.ledger_id:016d}")
                await offloading.table.fetch(record.ledger_id)
                old = replace(record, since_ms=world.broker.scheduler.now_ms() - age_ms)
                await offloading.table.replace(None, old)
            (work,) = [one for one in world.broker.chores._works if one.name.startswith("find unreferenced offloaded")]
            assert await work.attempt()
            await offloading.clear()
        assert not world.objects.bucket


AT_ONCE = {"managedLedgerOffloadAutoTriggerSizeThresholdBytes": 0, "managedLedgerOffloadDeletionLagMs": 0}
"""Offload all sealed ledgers and delete the local ones."""


async def restore_metadata_alone(world: World) -> set[int]:
    """Restore from a backup made before anything was published. Returns the ledgers that are only in the bucket."""
    backup, metadata = world.directory / "backup", world.directory / "metadata.sqlite"
    async with world.running() as world.broker:
        await world.work(lambda client: client.subscribe("t", "s").close())
    shutil.copy(metadata, backup)
    async with world.running(**AT_ONCE) as world.broker:
        await world.publish()
        await world.look()
        gone = world.away()
    shutil.copy(backup, metadata)
    return gone


@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_ledgers_missing_from_restored_metadata_are_found_in_the_bucket(
    world: World, caplog: pytest.LogCaptureFixture, is_forgotten: bool
) -> None:
    """They were created and offloaded after the copy of the metadata was made (R5).

    :param is_forgotten: the volume has no trace of them any more.
    """
    gone = await restore_metadata_alone(world)
    assert len(gone) >= len(MESSAGES) // 20 - 1
    with pytest.MonkeyPatch.context() as patched:
        if is_forgotten:
            recover = LocalLedgerStore.recover

            async def forgotten(store: LocalLedgerStore, ledger_id: int, fence: int) -> LedgerInfo:
                try:
                    return await recover(store, ledger_id, fence)
                except LedgerDeleted as error:
                    raise LedgerNotFound(str(error)) from None

            patched.setattr(LocalLedgerStore, "recover", forgotten)
        async with world.running(**AT_ONCE) as world.broker:
            assert await world.consume(len(MESSAGES)) == MESSAGES
            assert gone <= {one["ledgerId"] for one in await world.ledgers()}
    assert f"{len(gone)} offloaded ledgers" in caplog.text
    async with world.running(**AT_ONCE) as world.broker:  # from now on they are recorded
        await world.broker.service.opener.topic(parse("t"), create=False)
        assert gone == {record.ledger_id for record in world.offloading.table if record.state is State.AWAY}


async def test_a_topic_waits_for_the_bucket_while_its_metadata_may_lack_ledgers_in_it(world: World) -> None:
    await restore_metadata_alone(world)

    def away(operation: str, key: str) -> None:
        raise ObjectStoreAway(f"{operation} {key}")

    world.fault = away
    async with world.running(**AT_ONCE) as world.broker:
        with pytest.raises(LedgerUnreadable):
            await world.broker.service.opener.topic(parse("t"), create=False)
        await world.broker.service.opener.topic(parse("other"), create=True)
        world.objects.fault = lambda *_: None
        await until(lambda: str(parse("t")) in world.broker.service.topics)
        assert await world.consume(len(MESSAGES)) == MESSAGES
