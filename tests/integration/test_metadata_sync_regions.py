# SPDX-License-Identifier: Apache-2.0
"""Real brokers of regions that share no store keep their tenants, namespaces and policies equal by an event topic."""

from __future__ import annotations

from typing import Any

import pytest
from support.brokers.broker_process import RegionsProcess, wait_until

REGIONS = ("us", "eu")
TOPIC = "persistent://public/default/metadata-events"
SETTINGS = {"metadataSyncEventTopic": TOPIC}


def get(regions: RegionsProcess, region: str, path: str) -> Any:
    """What a region answers; None: it refuses."""
    answer = regions.http(region, "GET", path)
    return answer.json if answer.status == 200 else None


def write(regions: RegionsProcess, region: str, method: str, path: str, body: Any = ...) -> None:
    answer = regions.http(region, method, path, body)
    assert answer.status < 300, answer.text


def status(regions: RegionsProcess, region: str) -> Any:
    return get(regions, region, "/meridian/v1/metadata/status")


def is_synced(regions: RegionsProcess) -> bool:
    return all(status(regions, region)["synced"] for region in REGIONS)


@pytest.fixture(autouse=True)
def synced(regions: RegionsProcess) -> None:
    wait_until(lambda: is_synced(regions), "the regions to be in step")


def test_what_is_made_in_one_region_appears_in_the_other(regions: RegionsProcess) -> None:
    tenant = {"adminRoles": ["admin"], "allowedClusters": ["eu", "us"]}
    write(regions, "us", "PUT", "/admin/v2/tenants/shop", tenant)
    write(regions, "us", "PUT", "/admin/v2/namespaces/shop/orders", {"replication_clusters": ["us", "eu"]})
    write(regions, "us", "POST", "/admin/v2/namespaces/shop/orders/messageTTL", 60)
    path = "/admin/v2/namespaces/shop/orders"
    wait_until(lambda: (get(regions, "eu", path) or {}).get("message_ttl_in_seconds") == 60, "the policy in eu")
    assert get(regions, "eu", "/admin/v2/tenants/shop") == tenant
    assert get(regions, "eu", path)["replication_clusters"] == ["eu", "us"]
    write(regions, "eu", "DELETE", path)
    wait_until(lambda: get(regions, "us", path) is None, "the deletion in us")
    assert status(regions, "us")["conflicts"] == 0
