# SPDX-License-Identifier: Apache-2.0
"""The operator's view of real regions: what it sees over REST, and that each change does what its sentence says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from broker_process import RegionsProcess
from meridian_operator.api.geo_topic import GeoTopicSpec
from meridian_operator.api.replicated_subscription import ReplicatedSubscriptionSpec
from meridian_operator.plan import geo_topic, replicated_subscription
from meridian_operator.plan.changes import SetPolicy
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.regions.client import Refused, RegionClient
from meridian_operator.regions.directory import Region, Tokens, region_of

NAMES = ("east", "west")


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegionsProcess]:
    with RegionsProcess(NAMES, tmp_path_factory.mktemp("operator") / "data") as running:
        yield running


@pytest.fixture
async def clients(regions: RegionsProcess) -> AsyncIterator[dict[str, RegionClient]]:
    async with aiohttp.ClientSession() as http:
        yield {name: RegionClient(Region(name, regions.admin_url(name)), http, Tokens(None)) for name in NAMES}


def geo(topic: str, **fields: object) -> GeoTopicSpec:
    return GeoTopicSpec.model_validate(
        {"topic": f"persistent://public/default/{topic}", "regions": list(NAMES), **fields}
    )


async def see(clients: dict[str, RegionClient], topic: str, subscription: str | None = None) -> list[RegionSeen]:
    name = TopicName.parse(f"persistent://public/default/{topic}")
    return [await clients[region].see(name, subscription) for region in NAMES]


async def carry_out(clients: dict[str, RegionClient], spec: GeoTopicSpec, topic: str, managed: list[str]) -> None:
    """Until nothing is left to do, as the operator's resync does: a topic made in one region appears in the other."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        planned = geo_topic.plan(spec, await see(clients, topic), managed)
        assert not planned.problems
        if planned.settled:
            return
        for change in planned.changes:
            await clients[change.region].apply(change)
        await asyncio.sleep(0.05)
    raise AssertionError(f"never settled: {planned}")


async def test_a_topic_becomes_what_its_object_says(clients: dict[str, RegionClient]) -> None:
    full = geo(
        "shaped",
        partitions=3,
        retention={"time": "72h", "size": "1Gi"},
        messageTTL="7d",
        backlogQuota={"size": "10Gi", "time": "1h", "policy": "ConsumerBacklogEviction"},
        deduplication=True,
        schema={"type": "JSON", "definition": '{"type":"record","name":"Order","fields":[]}'},
    )
    await carry_out(clients, full, "shaped", [])
    for seen in await see(clients, "shaped"):
        assert seen.topic is not None
        assert seen.topic.partitions == 3
        assert seen.topic.policies == geo_topic.policies(full)
        assert seen.topic.schema is not None
    grown = geo("shaped", partitions=5)
    await carry_out(clients, grown, "shaped", sorted(geo_topic.policies(full)))
    for seen in await see(clients, "shaped"):
        assert seen.topic is not None
        assert seen.topic.partitions == 5
        assert seen.topic.policies == {"replication": list(NAMES)}
    for change in geo_topic.deletion(grown, await see(clients, "shaped")).changes:
        await clients[change.region].apply(change)


async def test_a_subscription_appears_in_both_regions(clients: dict[str, RegionClient]) -> None:
    await carry_out(clients, geo("heard"), "heard", [])
    spec = ReplicatedSubscriptionSpec.model_validate(
        {"topic": "persistent://public/default/heard", "subscription": "billing"}
    )
    planned = replicated_subscription.plan(spec, await see(clients, "heard", "billing"))
    assert len(planned.changes) == 1
    for _ in range(200):
        for change in planned.changes:
            await clients[change.region].apply(change)
        seen = await see(clients, "heard", "billing")
        planned = replicated_subscription.plan(spec, seen)
        if planned.settled:
            break
    assert planned.settled, planned
    assert all(one.subscription is not None and one.subscription.replicated for one in seen)


async def test_a_dispatch_scope_is_set_in_both_regions(clients: dict[str, RegionClient]) -> None:
    await carry_out(clients, geo("scoped"), "scoped", [])
    name = {"topic": "persistent://public/default/scoped", "subscription": "billing"}
    for wanted in ("Origin", "Local"):
        spec = ReplicatedSubscriptionSpec.model_validate(name | {"dispatchScope": wanted})
        planned, until = None, time.monotonic() + 20
        while planned is None or not planned.settled:
            seen = await see(clients, "scoped", "billing")
            planned = replicated_subscription.plan(spec, seen)
            assert not planned.problems and time.monotonic() < until, planned
            for change in planned.changes:
                await clients[change.region].apply(change)
        assert {one.subscription and one.subscription.scopes for one in seen} == {frozenset({wanted.lower()})}


async def test_what_cannot_be_asked_is_an_observation(clients: dict[str, RegionClient]) -> None:
    name = TopicName.parse("persistent://nobody/nowhere/nothing")
    assert not (await clients["east"].see(name)).namespace_exists
    async with aiohttp.ClientSession() as http:
        silent = RegionClient(Region("silent", "http://127.0.0.1:1"), http, Tokens(None))
        seen = await silent.see(name)
    assert not seen.reachable
    assert "127.0.0.1" in seen.problem


async def test_a_refusal_says_what_the_region_said(clients: dict[str, RegionClient]) -> None:
    await carry_out(clients, geo("refusing"), "refusing", [])
    name = TopicName.parse("persistent://public/default/refusing")
    with pytest.raises(Refused, match=r"east: HTTP 403: cluster nowhere is not known here"):
        await clients["east"].apply(SetPolicy("east", name, "replication", ["east", "nowhere"]))


def test_regions_are_services_with_a_label() -> None:
    ports = {"ports": [{"name": "pulsar", "port": 6650}, {"name": "http", "port": 8080}]}
    found = region_of("meridian-broker", "us-east", {"meridian.dev/region": "us-east"}, ports)
    assert found == Region("us-east", "http://meridian-broker.us-east.svc:8080")
    assert region_of("x", "y", {"meridian.dev/region": "z"}, {"ports": []}) is None


def test_a_region_s_own_token_comes_before_the_default(tmp_path: Path) -> None:
    (tmp_path / "default").write_text("for all\n")
    (tmp_path / "east").write_text("for the east\n")
    tokens = Tokens(tmp_path)
    assert (tokens.of("east"), tokens.of("west"), Tokens(None).of("west")) == ("for the east", "for all", None)
