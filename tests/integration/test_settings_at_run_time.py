# SPDX-License-Identifier: Apache-2.0
"""Settings changed while a broker runs apply to open topics and survive restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from meridian_broker.server.broker import BrokerProcess
from meridian_broker.wire.pulsar.topic_name import parse
from support.brokers.broker_inside import broker_inside
from support.brokers.broker_process import HttpAnswer, http
from support.contracts.metadata_contract import wait_until

CONFIGURATION = "/admin/v2/brokers/configuration"
TOPIC = "persistent://public/default/orders"


async def ask(broker: BrokerProcess, method: str, path: str) -> HttpAnswer:
    return await asyncio.to_thread(http, method, f"{broker.listeners.admin_url}{path}")


async def change(broker: BrokerProcess, setting: str, value: str) -> HttpAnswer:
    return await ask(broker, "POST", f"{CONFIGURATION}/{setting}/{value}")


async def runtime(broker: BrokerProcess) -> dict[str, Any]:
    return dict((await ask(broker, "GET", f"{CONFIGURATION}/runtime")).json)


async def test_a_changed_setting_applies_to_open_topics_and_survives_a_restart(tmp_path: Path) -> None:
    async with broker_inside(tmp_path, maxConsumersPerTopic=7) as broker:
        topic = await broker.service.opener.topic(parse(TOPIC), create=True)
        changes = {
            "maxConsumersPerTopic": "3",
            "brokerPublisherThrottlingMaxMessageRate": "50",
            "maxConcurrentLookupRequest": "9",
            "maxMessagePublishBufferSizeInMB": "2",
            "managedLedgerCacheSizeMB": "5",
            "brokerShutdownTimeoutMs": "4321",
        }
        for setting, value in changes.items():
            assert (await change(broker, setting, value)).status == 204
        assert (await ask(broker, "GET", f"{CONFIGURATION}/values")).json == changes
        assert (await runtime(broker)).items() >= changes.items()
        await wait_until(lambda: topic.rules.max_consumers == 3)
        assert broker.service.parts.publishing() is not None
        assert broker.gateway.concurrent_lookups == 9
        assert broker.gateway.publish_bytes_max == 2 << 20
        assert broker.service.parts.cache.limit == 5 << 20
        assert broker.settings.process.broker_shutdown_timeout_ms == 4321
    async with broker_inside(tmp_path, maxConsumersPerTopic=7) as broker:
        assert (await ask(broker, "GET", f"{CONFIGURATION}/values")).json == changes
        topic = await broker.service.opener.topic(parse(TOPIC), create=False)
        assert topic.rules.max_consumers == 3
        for setting in changes:
            assert (await ask(broker, "DELETE", f"{CONFIGURATION}/{setting}")).status == 204
        assert (await ask(broker, "GET", f"{CONFIGURATION}/values")).json == {}
        await wait_until(lambda: topic.rules.max_consumers == 7)
        assert broker.service.parts.publishing() is None
        assert broker.gateway.concurrent_lookups == 50_000


async def test_a_namespace_gets_the_requested_or_configured_number_of_bundles(tmp_path: Path) -> None:
    async with broker_inside(tmp_path, defaultNumberOfNamespaceBundles=6) as broker:

        async def bundles(name: str, body: Any) -> Any:
            path = f"{broker.listeners.admin_url}/admin/v2/namespaces/public/{name}"
            made = await asyncio.to_thread(http, "PUT", path, body)
            return (
                (await asyncio.to_thread(http, "GET", path)).json["bundles"]["numBundles"]
                if made.status < 300
                else made
            )

        assert await bundles("one", {}) == 6
        assert await bundles("two", {"bundles": {"numBundles": 0}}) == 6
        assert await bundles("three", {"bundles": {"numBundles": 3}}) == 3
        assert (await bundles("four", {"bundles": {"numBundles": 1025}})).status == 412
        assert (await change(broker, "defaultNumberOfNamespaceBundles", "9")).status == 204
        assert await bundles("five", {}) == 9


async def test_what_cannot_be_changed_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with broker_inside(tmp_path) as broker:
        names = (await ask(broker, "GET", CONFIGURATION)).json
        assert {"maxConsumersPerTopic", "metadataSyncEventTopic", "allowAutoTopicCreation"} <= set(names)
        assert not {"clusterName", "dataDirectory", "insecure", "superUserRoles"} & set(names)
        before = await runtime(broker)
        for setting, value, words in (
            ("clusterName", "other", "cannot be changed while brokers run"),
            ("maxConsumerPerTopic", "1", "did you mean maxConsumersPerTopic?"),
            ("maxConsumersPerTopic", "many", "expected a whole number from 0 to 1000000"),
            ("maxConsumersPerTopic", "-1", "expected a whole number from 0 to 1000000"),
            ("allowAutoTopicCreation", "maybe", "expected true or false"),
            ("metadataSyncEventTopic", "non-persistent%3A%2F%2Fpublic%2Fdefault%2Fx", "expected a persistent topic"),
        ):
            refused = await change(broker, setting, value)
            assert refused.status == 412
            assert words in refused.reason
        assert (await ask(broker, "DELETE", f"{CONFIGURATION}/clusterName")).status == 412
        assert await runtime(broker) == before
