# SPDX-License-Identifier: Apache-2.0
"""The operator and real regions: what it observes over REST, and that each change does what its description says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from meridian_operator.api.geo_topic import GeoTopicSpec
from meridian_operator.api.replicated_subscription import ReplicatedSubscriptionSpec
from meridian_operator.plan import geo_topic, replicated_subscription
from meridian_operator.plan.changes import SetPolicy, Unlink
from meridian_operator.plan.history import History
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.plan.outcome import Plan
from meridian_operator.regions.client import Ask, Refused, RegionClient
from meridian_operator.regions.directory import Region, Tokens
from meridian_operator.regions.observing import Observer
from support.brokers.broker_process import HttpAnswer, RegionsProcess
from support.brokers.broker_regions import until
from support.brokers.free_ports import free_port

REGIONS = ("east", "west")
PARTED = "/admin/v2/persistent/public/default/parted"


@pytest.fixture
async def clients(regions: RegionsProcess) -> AsyncIterator[dict[str, RegionClient]]:
    async with aiohttp.ClientSession() as http:
        yield {name: RegionClient(Region(name, regions.admin_url(name)), http, Tokens(None)) for name in REGIONS}


def geo(topic: str, **fields: object) -> GeoTopicSpec:
    return GeoTopicSpec.model_validate(
        {"topic": f"persistent://public/default/{topic}", "regions": list(REGIONS), **fields}
    )


async def see(clients: dict[str, RegionClient], topic: str, subscription: str | None = None) -> list[RegionSeen]:
    name = TopicName.parse(f"persistent://public/default/{topic}")
    return [(await clients[region].describe([Ask(name, subscription)]))[0] for region in REGIONS]


async def carry_out(
    clients: dict[str, RegionClient],
    topic: str,
    plan: Callable[[list[RegionSeen]], Plan],
    subscription: str | None = None,
) -> list[RegionSeen]:
    """Until nothing is left to do, like the operator's resync: what is made in one region appears in the other. Returns
    the last observation."""
    seen: list[RegionSeen] = []

    async def is_done() -> bool:
        seen[:] = await see(clients, topic, subscription)
        planned = plan(seen)
        assert not planned.problems
        for change in planned.changes:
            await clients[change.region].apply(change)
        return planned.is_done

    await until(is_done)
    return seen


def made(spec: GeoTopicSpec, managed: Sequence[str] = ()) -> Callable[[list[RegionSeen]], Plan]:
    """Apply what brings the regions to the state a GeoTopic describes."""
    return lambda seen: geo_topic.plan(spec, seen, History(managed=tuple(managed)))


async def test_the_broker_that_serves_a_topic_gets_the_token_from_any_other_one() -> None:
    """Two brokers of one region, at different ports: the one that is asked names the other."""
    heard: list[tuple[str, str, str | None, str]] = []

    async def serve(request: web.Request) -> web.Response:
        heard.append((request.method, request.raw_path, request.headers.get("Authorization"), await request.text()))
        return web.json_response({"reason": "no such topic"}, status=404)

    async def redirect(request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": f"http://127.0.0.1:{ports[0]}{request.raw_path}"})

    tokens = Tokens(None, {"east": "east/issuer"})
    tokens.issue("east", "operators-own")
    runners = list[web.AppRunner]()
    ports = list[int]()
    for handler in (serve, redirect):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runners.append(web.AppRunner(app))
        await runners[-1].setup()
        ports.append(free_port())
        await web.TCPSite(runners[-1], "127.0.0.1", ports[-1]).start()
    try:
        async with aiohttp.ClientSession() as http:
            client = RegionClient(Region("east", f"http://127.0.0.1:{ports[1]}"), http, tokens)
            topic = TopicName.parse("persistent://public/default/what%20ever")
            with pytest.raises(Refused, match="no such topic"):
                await client.apply(SetPolicy("east", topic, "messageTTL", 60))
    finally:
        for runner in runners:
            await runner.cleanup()
    (call,) = heard
    assert call[0] == "POST" and call[1].endswith("/what%2520ever/messageTTL"), call
    assert call[2:] == ("Bearer operators-own", "60")


async def test_a_topic_becomes_what_its_object_specifies(clients: dict[str, RegionClient]) -> None:
    full = geo(
        "shaped",
        partitions=3,
        retention={"time": "72h", "size": "1Gi"},
        messageTTL="7d",
        backlogQuota={"size": "10Gi", "time": "1h", "policy": "ConsumerBacklogEviction"},
        deduplication=True,
        schema={"type": "JSON", "definition": '{"type":"record","name":"Order","fields":[]}'},
    )
    await carry_out(clients, "shaped", made(full))
    for seen in await see(clients, "shaped"):
        assert seen.topic is not None
        assert seen.topic.partitions == 3
        assert seen.topic.policies == geo_topic.policies(full)
        assert seen.topic.schema is not None
    grown = geo("shaped", partitions=5)
    await carry_out(clients, "shaped", made(grown, sorted(geo_topic.policies(full))))
    for seen in await see(clients, "shaped"):
        assert seen.topic is not None
        assert seen.topic.partitions == 5
        assert seen.topic.policies == {"replication": list(REGIONS)}
    for change in geo_topic.deletion(grown, await see(clients, "shaped")).changes:
        await clients[change.region].apply(change)


async def test_a_tenant_and_its_namespace_are_created(clients: dict[str, RegionClient]) -> None:
    spec = GeoTopicSpec.model_validate(
        {"topic": "persistent://acme/shop/orders", "regions": list(REGIONS), "createNamespace": True}
    )
    name = TopicName.parse(spec.topic)

    async def is_done() -> bool:
        seen = [(await client.describe([Ask(name)]))[0] for client in clients.values()]
        planned = geo_topic.plan(spec, seen)
        for change in planned.changes:
            await clients[change.region].apply(change)
        return planned.is_done

    await until(is_done)


async def test_a_region_that_the_topic_left_sends_nowhere(
    clients: dict[str, RegionClient], regions: RegionsProcess
) -> None:
    await carry_out(clients, "parted", made(geo("parted")))
    await clients["west"].apply(Unlink("west", TopicName.parse("persistent://public/default/parted")))
    (left,) = [one.topic for one in await see(clients, "parted") if one.name == "west"]
    assert left is not None and left.policies["replication"] == ["west"]
    await until(lambda: not regions.http("west", "GET", f"{PARTED}/stats").json["replication"])
    assert geo_topic.is_linked((await see(clients, "parted"))[1]) is False


async def test_a_subscription_appears_in_both_regions(clients: dict[str, RegionClient]) -> None:
    await carry_out(clients, "heard", made(geo("heard")))
    spec = ReplicatedSubscriptionSpec.model_validate(
        {"topic": "persistent://public/default/heard", "subscription": "billing"}
    )
    planned = replicated_subscription.plan(spec, await see(clients, "heard", "billing"))
    assert len(planned.changes) == 1
    seen = await carry_out(clients, "heard", partial(replicated_subscription.plan, spec), "billing")
    assert all(one.subscription is not None and one.subscription.replicated for one in seen)


async def test_a_dispatch_scope_is_set_in_both_regions(clients: dict[str, RegionClient]) -> None:
    await carry_out(clients, "scoped", made(geo("scoped")))
    name = {"topic": "persistent://public/default/scoped", "subscription": "billing"}
    for wanted in ("Origin", "Local"):
        spec = ReplicatedSubscriptionSpec.model_validate(name | {"dispatchScope": wanted})
        seen = await carry_out(clients, "scoped", partial(replicated_subscription.plan, spec), "billing")
        assert {one.subscription and one.subscription.scopes for one in seen} == {frozenset({wanted.lower()})}


async def test_an_unreachable_region_is_an_observation(clients: dict[str, RegionClient]) -> None:
    name = TopicName.parse("persistent://nobody/nowhere/nothing")
    (seen,) = await clients["east"].describe([Ask(name)])
    assert not seen.namespace_exists
    async with aiohttp.ClientSession() as http:
        silent = RegionClient(Region("silent", "http://127.0.0.1:1"), http, Tokens(None))
        assert "127.0.0.1" in await silent.probe()
        observer = Observer(silent)
        seen = await observer.see(name)
        await observer.close()
    assert not seen.reachable
    assert "127.0.0.1" in seen.problem


async def test_a_refusal_quotes_the_region(clients: dict[str, RegionClient]) -> None:
    await carry_out(clients, "refusing", made(geo("refusing")))
    name = TopicName.parse("persistent://public/default/refusing")
    with pytest.raises(Refused, match=r"east: HTTP 403: cluster nowhere is not known here"):
        await clients["east"].apply(SetPolicy("east", name, "replication", ["east", "nowhere"]))


async def test_one_request_describes_many_topics(clients: dict[str, RegionClient], regions: RegionsProcess) -> None:
    await carry_out(clients, "wide", made(geo("wide", partitions=2)))
    await carry_out(clients, "plain", made(geo("plain")))

    def describe(*topics: object) -> HttpAnswer:
        return regions.http("east", "POST", "/meridian/v1/describe", {"topics": list(topics)})

    def named(topic: str, **more: object) -> dict[str, object]:
        return {"topic": f"persistent://public/default/{topic}", **more}

    names = (named("wide"), named("plain", subscriptions=["none"]), named("nothing"), {"topic": "a/b/c/d/e"})
    answer = describe(*names, named("plain-partition-3"), {"topic": "non-persistent://public/default/plain"})
    wide, plain, nothing, *others = answer.json["topics"]
    assert (wide["partitions"], plain["partitions"], nothing["exists"]) == (2, 0, False)
    assert plain["subscriptions"] == {"none": None}
    assert wide["replication"].keys() == {"west"}
    assert all(one["problem"] for one in others), "a problem is reported for its topic alone"
    assert answer.json["clusters"] == ["east", "west"]
    assert describe(*[named("plain")] * 1000).status == 200
    named_much = named("plain", subscriptions=["s"] * 1001)
    too_much: tuple[list[object], ...] = ([], [named("plain")] * 1001, [{}], [named_much], ["plain"])
    for refused in too_much:
        assert describe(*refused).status == 412


def test_a_regions_own_token_takes_precedence_over_the_default(tmp_path: Path) -> None:
    (tmp_path / "default").write_text("for all\n")
    (tmp_path / "east").write_text("for the east\n")
    tokens = Tokens(tmp_path)
    assert (tokens.of("east"), tokens.of("west"), Tokens(None).of("west")) == ("for the east", "for all", None)
