# SPDX-License-Identifier: Apache-2.0
"""The operator's handlers on real regions, called as kopf calls them: an object in, its next status out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import kopf
import pytest
from broker_process import RegionsProcess
from broker_regions import until
from kopf._core.engines import posting
from meridian_operator.handlers import geo_topics, replicated_subscriptions
from meridian_operator.handlers.world import DRY_RUN, PAUSED, World
from meridian_operator.plan.verdicts import rows_of
from meridian_operator.regions.directory import Region, Tokens

REGIONS = ("east", "west")
TOPIC = "persistent://public/default/orders"


class Cluster:
    """What the handlers are given of Kubernetes."""

    def __init__(self, memo: kopf.Memo, regions: dict[str, list[Region]]) -> None:
        self.memo = memo
        self.indices: dict[str, Any] = {
            "regions": regions,
            "geo_topics": {},
            "replicated_subscriptions": {},
            "topic_regions": {TOPIC: [REGIONS]},
            "verdicts": {},
            "verdict_runs": {},
        }
        self.status: dict[str, Any] = {}

    def body(self, spec: dict[str, Any], annotation: str | None = None) -> kopf.Body:
        annotations = {} if annotation is None else {annotation: "true"}
        meta: Any = {"name": "mine", "namespace": "default", "generation": 1, "annotations": annotations}
        raw: kopf.RawBody = {"metadata": meta, "spec": spec, "status": self.status}
        return kopf.Body(raw)

    async def reconcile(self, handlers: Any, spec: dict[str, Any], annotation: str | None = None) -> dict[str, str]:
        """Once; the status stays for the next time. Says the reason of each condition that is so."""
        patch = kopf.Patch()
        await handlers.reconcile(body=self.body(spec, annotation), patch=patch, memo=self.memo, **self.indices)
        self.status.update(patch.get("status", {}))
        return {one["type"]: one["reason"] for one in self.status["conditions"] if one["status"] != "False"}

    async def delete(self, handlers: Any, spec: dict[str, Any]) -> None:
        await handlers.delete(body=self.body(spec), memo=self.memo, **self.indices)

    def message(self) -> str:
        """Why the object is not Ready."""
        (ready,) = (one for one in self.status["conditions"] if one["type"] == "Ready")
        return str(ready["message"])


@pytest.fixture
async def cluster(regions: RegionsProcess) -> AsyncIterator[Cluster]:
    # Events go to a queue that kopf keeps per operator, which is none of these tests' business.
    posting.settings_var.set(kopf.OperatorSettings())
    posting.event_queue_loop_var.set(asyncio.get_running_loop())
    posting.event_queue_var.set(asyncio.Queue())
    async with aiohttp.ClientSession() as http:
        memo = kopf.Memo(world=World(http, Tokens(None)))
        yield Cluster(memo, {name: [Region(name, regions.admin_url(name))] for name in REGIONS})


def geo(**fields: Any) -> dict[str, Any]:
    return {"topic": TOPIC, "regions": list(REGIONS), "deletionPolicy": "Delete", **fields}


def replicated(**fields: Any) -> dict[str, Any]:
    return {"topic": TOPIC, "subscription": "billing", "deletionPolicy": "Delete", **fields}


async def verdicts_are_told(cluster: Cluster) -> None:
    """What the verifier says of the topic becomes the GeoTopic's condition."""
    assert (await cluster.reconcile(geo_topics, geo(partitions=2)))["Aligned"] == "NotVerifiedYet"
    row = {"topic": f"{TOPIC}-partition-1", "subscription": "", "verdict": "misaligned", "detail": "EntryMissing"}
    verifier = ("meridian-system", "default")
    told = {"verdict.json": json.dumps({"run": "1", "time": "2026-01-01T00:00:00Z", "subscriptions": [row]})}
    cluster.indices["verdicts"] = {subject: [rows] for subject, rows in rows_of(verifier, told).items()}
    cluster.indices["verdict_runs"] = {verifier: ["1"]}
    assert "Aligned" not in await cluster.reconcile(geo_topics, geo(partitions=2))
    (aligned,) = (one for one in cluster.status["conditions"] if one["type"] == "Aligned")
    assert (aligned["status"], aligned["reason"]) == ("False", "Misaligned")


async def test_both_kinds_from_nothing_to_ready_and_gone(cluster: Cluster, regions: RegionsProcess) -> None:
    subscriptions = Cluster(cluster.memo, cluster.indices["regions"])

    async def topic_ready() -> bool:
        return (await cluster.reconcile(geo_topics, geo(partitions=2))).get("Ready") == "AsSpecified"

    async def subscription_ready() -> bool:
        found = await subscriptions.reconcile(replicated_subscriptions, replicated())
        return found.get("Ready") == "AsSpecified"

    async def deleted() -> bool:
        try:
            await cluster.delete(geo_topics, geo())
        except kopf.TemporaryError:  # one region's deletion has just come to the other
            return False
        return True

    def in_west(path: str) -> int:
        return regions.http("west", "GET", f"/admin/v2/persistent/public/default/{path}").status

    await cluster.reconcile(geo_topics, geo(partitions=2), DRY_RUN)
    assert in_west("orders-partition-1/stats") == 404
    assert any("make topic" in sentence for sentence in cluster.status["plan"])
    await until(topic_ready)
    assert cluster.status["regionsReady"] == "2/2"
    assert [row["partitions"] for row in cluster.status["regions"]] == [2, 2]
    await verdicts_are_told(cluster)
    await until(subscription_ready)
    assert subscriptions.status["regionsReady"] == "2/2"
    assert all(row["replicated"] for row in subscriptions.status["regions"])
    await subscriptions.delete(replicated_subscriptions, replicated(deletionPolicy="Retain"))
    assert await subscription_ready()
    await subscriptions.delete(replicated_subscriptions, replicated())
    await until(deleted)
    await until(lambda: in_west("orders-partition-1/stats") == 404)


@pytest.mark.parametrize(("handlers", "spec"), [(geo_topics, geo()), (replicated_subscriptions, replicated())])
async def test_an_object_that_is_not_acted_on_says_why(cluster: Cluster, handlers: Any, spec: dict[str, Any]) -> None:
    assert (await cluster.reconcile(handlers, spec, PAUSED))["Ready"] == "Paused"
    assert "Ready" not in await cluster.reconcile(handlers, spec | {"topic": "persistent://no topic"})
    assert "topic" in cluster.message()
    older = {TOPIC: [("2020-01-01", "default", "older")], (TOPIC, "billing"): [("2020-01-01", "default", "older")]}
    cluster.indices |= {"geo_topics": older, "replicated_subscriptions": older}
    assert "Ready" not in await cluster.reconcile(handlers, spec)
    assert "default/older is older and rules" in cluster.message()


async def test_a_subscription_of_a_topic_that_no_object_names_waits_for_one(cluster: Cluster) -> None:
    cluster.indices["topic_regions"] = {}
    await cluster.reconcile(replicated_subscriptions, replicated())
    assert "no GeoTopic names" in cluster.message()


async def test_a_deletion_is_tried_again_while_a_region_is_silent(cluster: Cluster) -> None:
    cluster.indices["regions"] = cluster.indices["regions"] | {"west": [Region("west", "http://127.0.0.1:1")]}
    for handlers, spec in ((geo_topics, geo()), (replicated_subscriptions, replicated())):
        with pytest.raises(kopf.TemporaryError, match="west could not be asked"):
            await cluster.delete(handlers, spec)
