# SPDX-License-Identifier: Apache-2.0
"""The operator's desk on an API server: what it writes when the watch is behind its own writes."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import kopf
from meridian_operator.api.settings import Settings
from meridian_operator.handlers.desk import Desk
from meridian_operator.handlers.geo_topics import GeoTopics
from meridian_operator.handlers.subject import Views
from meridian_operator.handlers.world import World
from meridian_operator.kube.client import KubeClient
from meridian_operator.plan.budget import Budget
from meridian_operator.regions.directory import Tokens
from support.brokers.broker_regions import until
from support.kubernetes.kube_api import KubeApi

SETTINGS = Settings.model_validate({"tenantsByNamespace": {"default": ["public"]}})
NO_REGIONS = cast("Any", SimpleNamespace())


async def test_an_event_from_before_a_write_does_not_cause_it_again() -> None:
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
            desk.heard(GeoTopics(), change, body, Views({}, {}, {}))

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
