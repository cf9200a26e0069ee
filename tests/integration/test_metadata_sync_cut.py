# SPDX-License-Identifier: Apache-2.0
"""Regions whose network is cut while their brokers run on: both change the same policy, and end equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.brokers.broker_process import wait_until
from support.brokers.linked_regions import LinkedRegions

REGIONS = ("eu", "us")
SETTINGS = {"metadataSyncEventTopic": "persistent://public/default/metadata-events"}
NAMESPACE = "/admin/v2/namespaces/shop/orders"
TTL = f"{NAMESPACE}/messageTTL"


def test_a_conflict_made_while_the_network_is_cut_is_shown_and_ends_equal(tmp_path: Path) -> None:
    """The region whose write loses shows the conflict with both values; nothing is decided while they are apart."""
    with LinkedRegions(REGIONS, tmp_path, SETTINGS, is_whole=True) as regions:

        def get(region: str, path: str) -> Any:
            answer = regions.http(region, "GET", path)
            return answer.json if answer.status == 200 and answer.text else None

        def write(region: str, method: str, path: str, body: Any) -> None:
            answer = regions.http(region, method, path, body)
            assert answer.status == 204, answer.text

        def status(region: str) -> Any:
            return get(region, "/meridian/v1/metadata/status") or {}

        def conflicts(region: str) -> list[tuple[Any, str, Any, str]]:
            found = get(region, "/meridian/v1/metadata/conflicts")["conflicts"]
            return [(*(one["won"][it] for it in ("value", "region")), *(one["lost"][it] for it in ("value", "region")))
                    for one in found]  # fmt: skip

        def in_step() -> bool:
            return all(status(region).get("synced") for region in REGIONS)

        wait_until(in_step, "the regions to be in step")
        write("us", "PUT", "/admin/v2/tenants/shop", {"adminRoles": [], "allowedClusters": [*REGIONS]})
        write("us", "PUT", NAMESPACE, {"replication_clusters": [*REGIONS]})
        wait_until(lambda: get("eu", NAMESPACE) is not None, "eu to have the namespace")
        regions.cut("us", "eu")
        regions.cut("eu", "us")
        write("eu", "POST", TTL, 30)
        write("us", "POST", TTL, 40)
        write("us", "POST", f"{NAMESPACE}/maxTopicsPerNamespace", 7)
        wait_until(
            lambda: all(status(region).get("outbox") == 0 for region in REGIONS), "both regions to have published"
        )
        assert [get(region, TTL) for region in REGIONS] == [30, 40]
        regions.heal()
        wait_until(
            lambda: all(get(region, TTL) == 40 for region in REGIONS), "both regions to have the later value", 60.0
        )
        wait_until(lambda: get("eu", f"{NAMESPACE}/maxTopicsPerNamespace") == 7, "eu to have the other policy")
        assert conflicts("eu") == [(40, "us", 30, "eu")]
        assert conflicts("us") == []
        wait_until(in_step, "the regions to be in step", 120.0)
