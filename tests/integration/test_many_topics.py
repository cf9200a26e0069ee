# SPDX-License-Identifier: Apache-2.0
"""Simple HTTP requests do bounded work at a time, however many topics and subscriptions there are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from meridian_broker.admin.figures import turns
from meridian_broker.admin.http import requests
from meridian_broker.admin.http.requests import Refused
from meridian_broker.admin.metrics import reading, scraping
from meridian_broker.admin.metrics.scraping import Scrapes
from meridian_broker.positions.position import EARLIEST
from meridian_broker.server.broker import BrokerProcess
from meridian_broker.topics.lifecycle import opening
from meridian_broker.topics.topic import Topic
from meridian_broker.wire.proto import pulsar_pb2 as pb
from meridian_broker.wire.pulsar.errors import ServerError
from meridian_broker.wire.pulsar.topic_name import parse
from support.brokers.broker_inside import broker_inside
from support.brokers.broker_process import http
from support.protocol.raw_connection import RawConnection, T
from support.protocol.topic_digest import digest

TOPICS, SUBSCRIPTIONS, CLIENTS = 5, 4, 3
TOPIC = "persistent://public/default/one-of-many"


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    async with broker_inside(tmp_path) as broker:
        for number in range(TOPICS):
            await broker.service.opener.topic(parse(f"{TOPIC}-{number}"), create=True)
        for number in range(SUBSCRIPTIONS):
            broker.service.topics[f"{TOPIC}-0"].subscribing.create_subscription(f"s{number}", EARLIEST)
        wire = await RawConnection.open(broker.settings.network.broker_service_port)
        for number in range(CLIENTS):
            await wire.producer(f"{TOPIC}-0", number)
            asked = pb.CommandSubscribe(
                topic=f"{TOPIC}-0",
                subscription="s0",
                subType=pb.CommandSubscribe.Shared,
                consumer_id=number,
                request_id=number,
            )
            wire.say(T.SUBSCRIBE, asked)
            await wire.hear(T.SUCCESS)
        yield broker
        await wire.close()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses of walks whose every turn is used up at once."""
    made: list[float] = []

    async def sleep(seconds: float) -> None:
        made.append(seconds)
        await asyncio.sleep(seconds)

    monkeypatch.setattr(turns, "TURN_SECONDS", -1.0)
    monkeypatch.setattr(turns, "sleep", sleep)
    return made


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("meridian/v1/health", TOPICS),
        ("metrics", TOPICS + SUBSCRIPTIONS),
        ("admin/v2/persistent/public/default/one-of-many-0/stats", SUBSCRIPTIONS + 2 * CLIENTS),
    ],
)
async def test_others_run_between_any_two_topics_or_subscriptions(
    inside: BrokerProcess, pauses: list[float], path: str, steps: int
) -> None:
    answer = await asyncio.to_thread(http, "GET", f"{inside.listeners.admin_url}/{path}")
    assert answer.status == 200
    assert len(pauses) >= steps


@pytest.fixture
def long_names(inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Topics of a namespace, partitioned ones too, whose names together exceed any frame."""
    segments = [f"{number:04}-{'x' * 2000}" for number in range(3000)]

    async def children(path: str) -> list[str]:
        return segments

    monkeypatch.setattr(inside._metadata, "children", children)
    return [f"persistent://public/default/{segment}" for segment in segments]


async def test_a_list_of_topics_that_no_frame_can_hold_is_refused_and_the_connection_stays(
    inside: BrokerProcess, long_names: list[str]
) -> None:
    """Otherwise the client would close the connection, with everything on it, and ask again on the next one."""
    wire = await RawConnection.open(inside.settings.network.broker_service_port)

    def ask(pattern: str | None = None, known: str | None = None) -> None:
        asked = pb.CommandGetTopicsOfNamespace(
            request_id=1, namespace="public/default", topics_pattern=pattern, topics_hash=known
        )
        wire.say(T.GET_TOPICS_OF_NAMESPACE, asked)

    for pattern in (None, "public/default/.*"):
        ask(pattern)
        refused = await wire.hear(T.ERROR)
        assert refused.error == ServerError.NOT_ALLOWED
        assert "3000 topics" in refused.message and "maxMessageSize" in refused.message
    ask("public/default/00.*")
    assert list((await wire.hear(T.GET_TOPICS_OF_NAMESPACE_RESPONSE)).topics) == long_names[:100]
    ask("public/default/.*", digest(long_names))
    assert not (await wire.hear(T.GET_TOPICS_OF_NAMESPACE_RESPONSE)).changed

    watching = pb.CommandWatchTopicList(
        request_id=2, watcher_id=1, namespace="public/default", topics_pattern="public/default/.*"
    )
    wire.say(T.WATCH_TOPIC_LIST, watching)
    assert (await wire.hear(T.ERROR)).error == ServerError.NOT_ALLOWED
    assert len(inside.service.watchers) == 0
    watching.topics_hash = digest(long_names)
    wire.say(T.WATCH_TOPIC_LIST, watching)
    assert not (await wire.hear(T.WATCH_TOPIC_LIST_SUCCESS)).topic
    await wire.close()


@pytest.mark.parametrize("path", ["persistent", "persistent/{}/partitioned", "namespaces/{}/topics"])
async def test_a_topic_list_over_http_may_have_any_length(
    inside: BrokerProcess, long_names: list[str], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The list is encoded a part at a time."""
    encoded: list[int] = []
    dumps = json.dumps

    def counted(what: object, **options: Any) -> str:
        encoded.append(len(what) if isinstance(what, list) else 1)
        return dumps(what, **options)

    monkeypatch.setattr(json, "dumps", counted)
    path = path.format("public/default") if "{}" in path else f"{path}/public/default"
    answer = await asyncio.to_thread(http, "GET", f"{inside.listeners.admin_url}/admin/v2/{path}")
    assert answer.json == long_names
    assert max(encoded) <= requests.NAMES_AT_ONCE


async def test_simultaneous_scrapes_share_one_text(inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the scrape they waited for fails: then the next of them runs one."""
    made: list[int] = []
    everybody = asyncio.Event()
    read = reading.read

    async def counted(*what: object) -> object:
        made.append(len(made))
        await everybody.wait()
        if made[-1] == 0:
            raise Refused(503, "this one fails")
        return await read(*what)  # type: ignore[arg-type]

    monkeypatch.setattr(scraping, "read", counted)
    take = Scrapes.take
    asked: list[int] = []

    async def noted(self: Scrapes, make: Callable[[], Awaitable[bytes]]) -> bytes:
        asked.append(len(asked))
        if len(asked) == 6:
            asyncio.get_running_loop().call_soon(everybody.set)
        return await take(self, make)

    monkeypatch.setattr(Scrapes, "take", noted)
    answers = await asyncio.gather(
        *(asyncio.to_thread(http, "GET", f"{inside.listeners.admin_url}/metrics") for _ in range(6))
    )
    assert sorted(answer.status for answer in answers) == [200] * 5 + [503]
    assert len(made) == 2


async def test_few_topics_are_opened_at_once(inside: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """All other work waits for one step of each of them, and the lease has to be renewed in time."""
    under_way, most, opened = 0, 0, opening.open_topic

    async def counted(*arguments: Any) -> Topic:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await opened(*arguments)
        finally:
            under_way -= 1

    monkeypatch.setattr(opening, "open_topic", counted)
    names = [parse(f"{TOPIC}-opened-{number}") for number in range(200)]
    await asyncio.gather(*(inside.service.opener.topic(name, create=True) for name in names))
    assert 1 < most <= 64
