# SPDX-License-Identifier: Apache-2.0
"""Schemas are kept in the metadata store, so clients get a bounded part of it; and a full store is reported."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from meridian_broker.engines.sqlite.metadata import SqliteMetadataStore
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.errors import ServerError
from meridian_broker.wire.pulsar.topic_name import parse
from support.brokers.broker_inside import broker_inside
from support.brokers.broker_process import http
from support.protocol.raw_connection import RawConnection

T = pb.BaseCommand
TOPIC = "persistent://public/default/schemas"
LIMITS = {"maxSchemaBytesPerTopic": 1000, "maxSchemaBytesPerNamespace": 1500, "maxNewSchemasPerMinute": 12}


@pytest.fixture
async def inside(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[BrokerProcess]:
    async with broker_inside(tmp_path, **getattr(request, "param", {})) as broker:
        yield broker


async def add(connection: RawConnection, topic: str, data: bytes) -> Any:
    schema = pb.Schema(name="s", type=pb.Schema.String, schema_data=data)
    connection.say(T.GET_OR_CREATE_SCHEMA, pb.CommandGetOrCreateSchema(request_id=1, topic=topic, schema=schema))
    return await connection.hear(T.GET_OR_CREATE_SCHEMA_RESPONSE)


@pytest.mark.parametrize("inside", [LIMITS], indirect=True)
async def test_a_client_gets_a_bounded_part_of_the_metadata_store(inside: BrokerProcess) -> None:
    connection = await RawConnection.open(inside.settings.network.broker_service_port)
    for name in (TOPIC, f"{TOPIC}-2"):
        await inside.service.opener.topic(parse(name), create=True)
    for number in range(10):
        assert not (await add(connection, TOPIC, b"%0100d" % number)).HasField("error_code")
    refused = await add(connection, TOPIC, bytes(100))
    assert (refused.error_code, "maxSchemaBytesPerTopic" in refused.error_message) == (ServerError.METADATA, True)
    assert "maxSchemaBytesPerNamespace" in (await add(connection, f"{TOPIC}-2", bytes(600))).error_message
    for number in range(2):
        assert not (await add(connection, f"{TOPIC}-2", b"%d" % number)).HasField("error_code")
    refused = await add(connection, f"{TOPIC}-2", b"2")
    assert (refused.error_code, "maxNewSchemasPerMinute" in refused.error_message) == (ServerError.NOT_ALLOWED, True)
    assert not (await add(connection, TOPIC, b"%0100d" % 3)).HasField("error_code")
    await connection.close()


async def test_a_full_metadata_store_is_reported(inside: BrokerProcess) -> None:
    async def health() -> Any:
        return (await asyncio.to_thread(http, "GET", f"{inside.listeners.admin_url}/meridian/v1/health")).json

    store = inside._metadata._store
    assert isinstance(store, SqliteMetadataStore)
    assert (await health())["metadataFull"] is None
    await inside.service.opener.topic(parse(TOPIC), create=True)
    await store._ask(lambda transaction: transaction.sql.execute("PRAGMA max_page_count = 8"))
    path = f"{inside.listeners.admin_url}/admin/v2/schemas/public/default/schemas/schema"
    schema = {"type": "STRING", "schema": os.urandom(100_000).hex()}
    answer = await asyncio.to_thread(http, "POST", path, schema)
    assert (answer.status, "the disk is full" in answer.text) == (503, True)
    seen = await health()
    assert seen["healthy"] is False
    assert "free space" in seen["metadataFull"]
