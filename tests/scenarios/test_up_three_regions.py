# SPDX-License-Identifier: Apache-2.0
"""``meridian up`` with real brokers, the command line and the real client: what is stored stays."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from support.brokers.broker_process import wait_until
from support.brokers.forked_meridian import meridian_text
from support.brokers.region_clients import (
    CENTRAL,
    EARLIEST,
    EAST,
    WEST,
    client,
    new_topic,
    numbered,
    publish,
    stored,
    take,
)
from support.brokers.up_process import UpProcess

pytestmark = pytest.mark.slow

REGIONS = (EAST, WEST, CENTRAL)


@pytest.fixture(scope="module", params=["embedded", "etcd"])
def regions(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[UpProcess]:
    with UpProcess(REGIONS, tmp_path_factory.mktemp("up") / "data", metadata=request.param) as up:
        yield up


def ask(regions: UpProcess, region: str, *arguments: str) -> Any:
    """The command line's JSON output."""
    url = regions.admin_url(region)
    done = meridian_text(*arguments, "--url", url, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_is_stored_survives_a_restart_in_every_region(regions: UpProcess) -> None:
    topic, sent = new_topic("kept"), list(range(100))
    with client(regions, EAST) as east:
        publish(east, topic, numbered(sent))
    # All regions must have the messages before the restart, or it would prove nothing for them.
    for region in REGIONS:
        assert stored(regions, region, topic, len(sent)) == sent, region
    regions.stop()
    assert all(re.search(rf"{region} stopped in", regions.log()) for region in REGIONS)
    regions.start()
    for region in REGIONS:
        with client(regions, region) as one:
            consumer = one.subscribe(topic, f"later-{region}", initial_position=EARLIEST)
            assert [int(message.data()) for message in take(consumer, len(sent))] == sent, region


def test_the_command_line_sets_up_and_sees(regions: UpProcess) -> None:
    for region in REGIONS:
        assert {row["name"] for row in ask(regions, region, "regions", "list")} == set(REGIONS)
    assert "public" in ask(regions, WEST, "tenants", "list")
    ask(regions, EAST, "tenants", "create", "shop")
    ask(regions, EAST, "namespaces", "create", "shop/orders", "--cluster", EAST)
    assert ask(regions, EAST, "namespaces", "list", "shop") == ["shop/orders"]
    ask(regions, EAST, "topics", "create", "shop/orders/paid", "--partitions", "3")
    assert ask(regions, EAST, "topics", "partitions", "shop/orders/paid") == 3
    ask(regions, EAST, "topics", "create", "shop/orders/open")
    ask(regions, EAST, "subscriptions", "create", "shop/orders/open", "billing", "--from", "earliest")
    assert ask(regions, EAST, "subscriptions", "list", "shop/orders/open") == ["billing"]
    stats = ask(regions, EAST, "topics", "stats", "shop/orders/open")
    assert stats["subscriptions"]["billing"]["msgBacklog"] == 0
    assert ask(regions, EAST, "subscriptions", "delete", "shop/orders/open", "billing")["regions"] == [EAST]
    assert ask(regions, EAST, "topics", "delete", "shop/orders/open")["regions"] == [EAST]
    wait_until(
        lambda: "persistent://shop/orders/open" not in ask(regions, EAST, "topics", "list", "shop/orders"),
        "the topic to leave the list",
    )
    asked = ["namespaces", "set-clusters", "shop/orders", EAST, WEST, "--url", regions.admin_url(EAST)]
    refused = meridian_text(*asked)
    assert refused.returncode == 1, "the namespace exists in one region only"
    assert f"namespace shop/orders does not exist in {WEST}" in refused.stderr
    ask(regions, EAST, "namespaces", "create", "shop/orders", "--cluster", EAST, "--cluster", WEST)
    changed = ask(regions, EAST, "namespaces", "set-clusters", "shop/orders", EAST, WEST)
    assert sorted(changed["regions"]) == sorted((EAST, WEST))
    with client(regions, EAST) as east, client(regions, WEST) as west:
        consumer = west.subscribe("persistent://shop/orders/both", "s", initial_position=EARLIEST)
        publish(east, "persistent://shop/orders/both", numbered([1]))
        assert [int(message.data()) for message in take(consumer, 1)] == [1]
    assert sorted(ask(regions, EAST, "topics", "delete", "shop/orders/both", "--force")["regions"]) == sorted(
        (EAST, WEST)
    )
