# SPDX-License-Identifier: Apache-2.0
"""``shadowTopics`` with bodies that no client should send, answered with Pulsar 4.2.4's status, and with properties."""

from __future__ import annotations

from typing import Any

import pytest
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
