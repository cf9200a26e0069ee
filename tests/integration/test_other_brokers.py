# SPDX-License-Identifier: Apache-2.0
"""Clients that ask a broker about another broker's topics are redirected to it, over TCP and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from meridian_broker.gateway.addresses import Addresses, Place
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.topics.errors import TopicFenced
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.errors import ServerError
from meridian_broker.wire.pulsar.topic_name import TopicName
from support.brokers.broker_inside import broker_inside
from support.brokers.broker_process import HttpAnswer, http
from support.protocol.raw_connection import RawConnection

T = pb.BaseCommand.Type
LOOKUP = "/lookup/v2/topic/persistent/public/default"
ADMIN = "/admin/v2/persistent/public/default"
OTHER = Addresses("pulsar://other:6650", None, "http://other:8080", None)


async def locate(name: TopicName, listener: str, authoritative: bool) -> Place | None:
    """The owner of a topic of these tests, taken from its name."""
    match name.local_name:
        case "served-there":
            return Place(None if listener else OTHER, True)
        case "to-be-served-there":
            return None if authoritative else Place(OTHER, False)
        case "moving":
            raise TopicFenced("it goes to another broker: look it up again")
        case _:
            return None


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    async with broker_inside(tmp_path / "data") as inside:
        inside.gateway.locate = locate
        yield inside


def url_of(broker: BrokerProcess) -> str:
    addresses = broker.listeners.addresses("")
    assert addresses is not None
    assert addresses.service_url is not None
    return addresses.service_url


async def ask(broker: BrokerProcess, method: str, path: str) -> HttpAnswer:
    return await asyncio.to_thread(http, method, broker.listeners.admin_url + path)


async def test_a_lookup_names_the_broker_that_serves_or_should_serve_the_topic(broker: BrokerProcess) -> None:
    connection = await RawConnection.open(broker.settings.network.broker_service_port)
    Response = pb.CommandLookupTopicResponse  # noqa: N806 - the name of a type

    async def looked_up(topic: str, **more: object) -> tuple[int, str, bool]:
        connection.say(T.LOOKUP, pb.CommandLookupTopic(topic=topic, request_id=1, **more))  # type: ignore[arg-type]
        answer = await connection.hear(T.LOOKUP_RESPONSE)
        return answer.response, answer.brokerServiceUrl or ServerError(answer.error).name, answer.authoritative

    there = OTHER.service_url
    assert await looked_up("served-there") == (Response.Connect, there, True)
    assert await looked_up("to-be-served-there") == (Response.Redirect, there, True)
    assert await looked_up("to-be-served-there", authoritative=True) == (Response.Connect, url_of(broker), True)
    assert await looked_up("served-here") == (Response.Connect, url_of(broker), True)
    not_now = (Response.Failed, "SERVICE_NOT_READY", False)
    assert await looked_up("moving") == not_now
    assert await looked_up("served-there", advertised_listener_name="outside") == not_now
    await connection.close()


async def test_http_lookups_do_the_same(broker: BrokerProcess) -> None:
    answer = await ask(broker, "GET", f"{LOOKUP}/served-there")
    assert answer.json["brokerUrl"] == OTHER.service_url
    assert answer.json["httpUrl"] == OTHER.admin_url
    answer = await ask(broker, "GET", f"{LOOKUP}/to-be-served-there?authoritative=true")
    assert answer.json["brokerUrl"] == url_of(broker)
    assert (await ask(broker, "GET", f"{LOOKUP}/moving")).status == 503


async def test_requests_that_need_the_topic_open_are_sent_to_its_broker(broker: BrokerProcess) -> None:
    answer = await ask(broker, "PUT", f"{ADMIN}/served-there/subscription/s?replicated=true")
    assert answer.status == 307
    assert answer.headers["Location"] == f"{OTHER.admin_url}{ADMIN}/served-there/subscription/s?replicated=true"
    answer = await ask(broker, "PUT", f"{ADMIN}/to-be-served-there?x=1")
    assert answer.status == 307
    assert answer.headers["Location"] == f"{OTHER.admin_url}{ADMIN}/to-be-served-there?x=1&authoritative=true"
    assert (
        await ask(broker, "POST", "/meridian/v1/subscriptions/persistent/public/default/served-there/s/mode")
    ).status == 307
    assert (await ask(broker, "DELETE", f"{ADMIN}/moving")).status == 503
    assert (await ask(broker, "PUT", f"{ADMIN}/served-here")).status == 204


async def test_requests_about_metadata_are_answered_by_any_broker(broker: BrokerProcess) -> None:
    for path in ("partitions", "retention", "partitioned-stats"):
        assert (await ask(broker, "GET", f"{ADMIN}/served-there/{path}")).status in (200, 204, 404)
    assert (await ask(broker, "GET", "/admin/v2/schemas/public/default/served-there/schema")).status == 404
