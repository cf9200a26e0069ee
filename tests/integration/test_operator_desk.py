# SPDX-License-Identifier: Apache-2.0
"""The operator's desk on an API server: what it writes while the watch lags behind its own writes, and
what it does without delay."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import kopf
import pytest
from meridian_operator.api.geo_topic import GEO_TOPIC
from meridian_operator.api.settings import Settings
from meridian_operator.handlers.desk import Desk
from meridian_operator.handlers.geo_topics import GeoTopics, contender_of
from meridian_operator.handlers.shadow_topics import ShadowTopics
from meridian_operator.handlers.subject import Subject, Views
from meridian_operator.handlers.world import World
from meridian_operator.kube.client import Gone, KubeClient, Reference
from meridian_operator.plan.budget import Budget
from meridian_operator.plan.contenders import Contender
from meridian_operator.plan.observed import RegionSeen, TopicName
from meridian_operator.regions.directory import Tokens
from support.brokers.broker_regions import until
from support.kubernetes.kube_api import KubeApi

SETTINGS = Settings.model_validate({"tenantsByNamespace": {"default": ["public"]}})
NO_REGIONS = cast("Any", SimpleNamespace())


@dataclass(slots=True)
class NotingWorld(World):
    """Records each observation of the regions."""

    looked: threading.Event = field(default_factory=threading.Event)
    topic: str = ""
    """Record only observations of this one; empty: all."""

    async def see(self, names: Sequence[str], topic: TopicName, subscription: str | None) -> list[RegionSeen]:
        if self.topic in ("", str(topic)):
            self.looked.set()
        return await World.see(self, names, topic, subscription)


async def test_an_event_from_before_a_write_does_not_repeat_the_write() -> None:
    with KubeApi() as api:
        kube = KubeClient(lambda: kopf.ConnectionInfo(server=f"http://127.0.0.1:{api.port}", token="a-token"))
        budget = Budget(100, 100, time.monotonic)
        desk = Desk(World(NO_REGIONS, Tokens(None), kube, lambda: 0.0, budget, SETTINGS))

        def create(name: str) -> Any:
            spec = {"topic": "persistent://public/default/orders", "regions": ["east", "west"]}
            api.create("geotopics", name, spec=spec, metadata={"annotations": {"meridian.dev/paused": "true"}})
            return api.get("geotopics", name)

        def writes(name: str) -> int:
            return sum(path.endswith(f"/{name}/status") for _, path, _ in api.writes)

        def hear(change: str, body: Any) -> None:
            desk.heard(GeoTopics(), change, body, Views({}, {}, {}, {}))

        try:
            before = create("first")
            hear("ADDED", before)
            await until(lambda: desk.ready() == {("GeoTopic", "Unknown", "Paused"): 1})
            hear("MODIFIED", before)
            for name in ("second", "third"):  # each wakes the topic's other objects
                hear("ADDED", create(name))
                await until(lambda name=name: writes(name) == 1)
            assert writes("first") == 1
        finally:
            await desk.close()
            await kube.close()


async def test_no_timer_delays_the_observation_after_reconcile_now(monkeypatch: pytest.MonkeyPatch) -> None:
    with KubeApi() as api:
        kube = KubeClient(lambda: kopf.ConnectionInfo(server=f"http://127.0.0.1:{api.port}", token="a-token"))
        world = NotingWorld(NO_REGIONS, Tokens(None), kube, lambda: 0.0, Budget(100, 100, time.monotonic), SETTINGS)
        desk = Desk(world)

        def hear(change: str) -> None:
            desk.heard(GeoTopics(), change, api.get("geotopics", "orders") or {}, Views({}, {}, {}, {}))

        try:
            spec = {"topic": "persistent://public/default/orders", "regions": ["east", "west"]}
            api.create("geotopics", "orders", spec=spec)
            hear("ADDED")
            await until(lambda: bool(api.events("orders")))
            assert world.looked.is_set()
            loop = asyncio.get_running_loop()
            now = loop.time()
            monkeypatch.setattr(loop, "time", lambda: now)  # no timer expires from here on
            world.looked.clear()
            api.annotate("geotopics", "orders", reconcile_now="1")
            hear("MODIFIED")
            assert await asyncio.to_thread(world.looked.wait, 20)
        finally:
            monkeypatch.undo()
            await desk.close()
            await kube.close()


@pytest.mark.parametrize("change", ["appears", "is no longer Ready"])
async def test_a_shadow_s_object_is_looked_at_when_its_source_s_object_changes(
    monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    source, shadow = "persistent://public/default/orders", "persistent://public/default/orders-view"
    with KubeApi() as api:
        kube = KubeClient(lambda: kopf.ConnectionInfo(server=f"http://127.0.0.1:{api.port}", token="a-token"))
        world = NotingWorld(NO_REGIONS, Tokens(None), kube, lambda: 0.0, Budget(100, 100, time.monotonic), SETTINGS)
        world.topic, names = shadow, dict[tuple[str, str], Any]()
        desk, views = Desk(world), Views({}, {}, {}, {}, geo_topic_names=names)

        def hear(subject: Subject[Any], change: str, name: str) -> None:
            desk.heard(subject, change, api.get(subject.kind.plural, name) or {}, views)

        def appear() -> None:
            names["default", "orders"] = [source]
            api.create("geotopics", "orders", spec={"topic": source, "regions": ["east", "west"]})
            hear(GeoTopics(), "ADDED", "orders")

        try:
            if change != "appears":
                appear()
                await until(lambda: desk.ready() == {("GeoTopic", "False", "RegionNotListed"): 1})
            api.create("shadowtopics", "view", spec={"source": "orders", "region": "east", "topic": shadow})
            hear(ShadowTopics(), "ADDED", "view")
            waits = "WaitingForSource" if change == "appears" else "RegionNotListed"
            await until(lambda: ("ShadowTopic", "False", waits) in desk.ready())
            loop = asyncio.get_running_loop()
            now = loop.time()
            monkeypatch.setattr(loop, "time", lambda: now)  # no timer expires from here on
            world.looked.clear()
            if change == "appears":
                appear()
            else:
                api.annotate("geotopics", "orders", paused="true")  # so it becomes Unknown
                hear(GeoTopics(), "MODIFIED", "orders")
            assert await asyncio.to_thread(world.looked.wait, 20)
        finally:
            monkeypatch.undo()
            await desk.close()
            await kube.close()


async def test_an_object_created_again_does_not_wait_for_its_predecessor() -> None:
    """The watch was interrupted: kopf lists the new object, and the deleted object still counts."""
    with KubeApi() as api:
        kube = KubeClient(lambda: kopf.ConnectionInfo(server=f"http://127.0.0.1:{api.port}", token="a-token"))
        desk = Desk(World(NO_REGIONS, Tokens(None), kube, lambda: 0.0, Budget(100, 100, time.monotonic), SETTINGS))
        topic = "persistent://public/default/orders"
        contenders: list[Contender] = []

        def hear(created: str) -> None:
            spec, meta = {"topic": topic, "regions": ["east", "west"]}, {"creationTimestamp": created}
            api.create("geotopics", "orders", spec=spec, metadata=meta)
            body = api.get("geotopics", "orders") or {}
            contenders.append(contender_of(body["metadata"], GEO_TOPIC))
            desk.heard(GeoTopics(), "ADDED", body, Views({topic: contenders}, {}, {}, {}))

        try:
            hear("2026-01-01T00:00:00Z")
            await until(lambda: desk.ready() == {("GeoTopic", "False", "RegionNotListed"): 1})
            api.lose("geotopics", "orders")
            hear("2026-02-01T00:00:00Z")
            await until(lambda: not any(reason == "" for _, _, reason in desk.ready()))
            assert desk.ready() == {("GeoTopic", "False", "RegionNotListed"): 1}
        finally:
            await desk.close()
            await kube.close()


@pytest.mark.parametrize("late", ["MODIFIED", "DELETED"])
async def test_an_event_about_an_earlier_object_of_that_name_arrives_late(late: str) -> None:
    """kopf has a queue for each UID: the new object's first event can overtake the old one's last."""
    with KubeApi() as api:
        kube = KubeClient(lambda: kopf.ConnectionInfo(server=f"http://127.0.0.1:{api.port}", token="a-token"))
        desk = Desk(World(NO_REGIONS, Tokens(None), kube, lambda: 0.0, Budget(100, 100, time.monotonic), SETTINGS))
        spec = {"topic": "persistent://public/default/orders", "regions": ["east", "west"]}

        def create() -> Any:
            api.create("geotopics", "orders", spec=spec, metadata={"annotations": {"meridian.dev/paused": "true"}})
            return api.get("geotopics", "orders")

        def hear(change: str, body: Any) -> None:
            desk.heard(GeoTopics(), change, body, Views({}, {}, {}, {}))

        def reason() -> Any:
            return api.condition("geotopics", "orders").get("reason")

        try:
            hear("ADDED", create())
            await until(lambda: reason() == "Paused")
            old = api.get("geotopics", "orders")
            api.delete("geotopics", "orders")
            hear("ADDED", create())
            hear(late, old)
            await until(lambda: reason() == "Paused")
            assert desk.ready() == {("GeoTopic", "Unknown", "Paused"): 1}
        finally:
            await desk.close()
            await kube.close()


async def test_a_status_is_not_written_to_a_later_object_of_that_name() -> None:
    with KubeApi() as api:
        kube = KubeClient(lambda: kopf.ConnectionInfo(server=f"http://127.0.0.1:{api.port}", token="a-token"))
        of = Reference("GeoTopic", "geotopics", "default", "orders")
        try:
            api.create("geotopics", "orders", spec={})
            old = api.get("geotopics", "orders") or {}
            api.edit("geotopics", "orders", partitions=2)  # not seen yet: no reason to refuse
            written = await kube.write_status(of, old["metadata"], {"observedGeneration": 1})
            assert (written["spec"], written["status"]) == ({"partitions": 2}, {"observedGeneration": 1})
            api.delete("geotopics", "orders")
            api.create("geotopics", "orders", spec={})
            with pytest.raises(Gone, match="GeoTopic default/orders was deleted and created again"):
                await kube.write_status(of, old["metadata"], {"observedGeneration": 1})
            assert "status" not in (api.get("geotopics", "orders") or {})
        finally:
            await kube.close()
