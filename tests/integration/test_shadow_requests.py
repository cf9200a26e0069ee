# SPDX-License-Identifier: Apache-2.0
"""``shadowTopics`` with bodies that no client should send, answered with Pulsar 4.2.4's status, and with properties."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from meridian_operator.plan.changes import CreateShadow
from meridian_operator.plan.observed import TopicName
from meridian_operator.regions.client import Ask, RegionClient
from meridian_operator.regions.directory import Region, Tokens
from support.brokers.broker_process import BrokerProcess

BASE = "/admin/v2/persistent/public/default"
LIST = f"{BASE}/asked/shadowTopics"
HOLDS, RESETS, SOURCE = "meridian.holdSourceLedgers", "meridian.autoResetBacklogEntries", "PULSAR.SHADOW_SOURCE"


@pytest.fixture(scope="module", autouse=True)
def source(broker: BrokerProcess) -> None:
    assert broker.http("PUT", f"{BASE}/asked").status == 204


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (None, 412),
        ([], 412),
        (["persistent://public/default/nowhere"], 412),
        ("persistent://public/default/nowhere", 400),
        ({"topic": "x"}, 400),
        ([["x"]], 400),
        ([{}], 400),
        (7, 400),
    ],
    ids=str,
)
def test_what_is_no_list_of_names(broker: BrokerProcess, given: Any, status: int) -> None:
    answer = broker.http("PUT", LIST, given)
    assert answer.status == status, answer.text


def test_a_list_without_a_body_is_empty(broker: BrokerProcess) -> None:
    assert broker.http("PUT", LIST).status == 412


def test_a_topic_that_stores_nothing_has_no_shadows(broker: BrokerProcess) -> None:
    path = "/admin/v2/non-persistent/public/default/asked/shadowTopics"
    assert broker.http("PUT", path, ["persistent://public/default/view"]).status == 412
    assert broker.http("POST", path, "persistent://public/default/view").status == 412


@pytest.mark.parametrize(
    ("fields", "holds", "behind"),
    [
        ({}, True, 0),
        ({"properties": {HOLDS: "false", RESETS: "7"}}, False, 7),
        ({"properties": {HOLDS: "false"}, "holdSourceLedgers": True}, True, 0),
        ({"properties": {RESETS: "7"}, "autoResetBacklogEntries": 0}, True, 0),
        ({"properties": {SOURCE: "asked", "team": "green"}, "holdSourceLedgers": False}, False, 0),
    ],
    ids=str,
)
def test_a_field_counts_more_than_the_property_of_that_meaning(
    broker: BrokerProcess, fields: dict[str, Any], holds: bool, behind: int
) -> None:
    answer = broker.http("POST", LIST, {"topic": "asked-view", **fields})
    assert answer.status == 204, answer.text
    shown = broker.http("GET", f"{BASE}/asked-view/stats").json["meridian"]["shadow"]
    having = broker.http("GET", f"{BASE}/asked-view/properties").json
    assert broker.http("DELETE", f"{LIST}?topic=asked-view").status == 204
    assert (shown["holdsSourceLedgers"], shown["autoResetBacklogEntries"]) == (holds, behind)
    assert having[SOURCE] == "persistent://public/default/asked"
    assert (having.get(HOLDS, "true"), having.get(RESETS, "0")) == (str(holds).lower(), str(behind))


async def test_the_operator_s_change_that_is_already_in_effect_is_not_refused(broker: BrokerProcess) -> None:
    """The answer to the first request may have been lost."""
    view = TopicName.parse("persistent://public/default/asked-twice")
    made = CreateShadow("solo", view, "persistent://public/default/asked", holds=True)
    async with aiohttp.ClientSession() as http:
        client = RegionClient(Region("solo", broker.admin_url), http, Tokens(None))
        for _ in range(2):
            await client.apply(made)
        (seen,) = await client.describe([Ask(view)])
    assert seen.topic is not None and seen.topic.shadow is not None
    assert broker.http("DELETE", f"{LIST}?topic=asked-twice").status == 204
